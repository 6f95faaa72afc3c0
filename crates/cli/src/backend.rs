//! The backends: this machine, and clusters. The only place where flags choose one.

use std::path::PathBuf;
use std::process::ExitCode;

use sympozium_local::state::StateDirectory;
use sympozium_manifests::planning::PlanResults;
use sympozium_plan::explain::Explanation;
use sympozium_runs::RunStore;

use crate::arguments::ExplainArguments;
use crate::cluster::{self, Cluster, ClusterArguments};
use crate::explain::explain_files;
use crate::failure::Failure;
use crate::run::{self, arguments::RunArguments};

/// A backend for commands that take files. Those about stored runs act through a [`RunStore`].
pub trait Backend {
    /// Assembles the run that the arguments mean, starts it, and follows it to its end unless it is to be detached.
    /// Returns the exit code of the run end.
    fn run(&self, arguments: &RunArguments) -> Result<ExitCode, Failure>;

    /// Plans and explains the runs of `inputs`. Inputs without any are not an error.
    fn explain(&self, arguments: &ExplainArguments, inputs: &[PathBuf]) -> Result<PlanResults<Explanation>, Failure>;
}

struct LocalBackend;

impl Backend for LocalBackend {
    fn run(&self, arguments: &RunArguments) -> Result<ExitCode, Failure> {
        run::local::run(arguments)
    }

    fn explain(&self, arguments: &ExplainArguments, inputs: &[PathBuf]) -> Result<PlanResults<Explanation>, Failure> {
        Ok(explain_files(arguments, inputs))
    }
}

impl Backend for Cluster {
    fn run(&self, arguments: &RunArguments) -> Result<ExitCode, Failure> {
        cluster::run::run(self, arguments)
    }

    fn explain(&self, arguments: &ExplainArguments, inputs: &[PathBuf]) -> Result<PlanResults<Explanation>, Failure> {
        cluster::explain::explain_inputs(self, arguments, inputs)
    }
}

/// The backend that the flags select, for a command that takes files: `--namespace` is that of their objects.
pub fn open(arguments: &ClusterArguments) -> Result<Box<dyn Backend>, Failure> {
    Ok(match Cluster::select_with_files(arguments)? {
        Some(cluster) => Box::new(cluster),
        None => Box::new(LocalBackend),
    })
}

/// The stored runs of the backend that the flags select.
pub fn open_store(arguments: &ClusterArguments) -> Result<Box<dyn RunStore>, Failure> {
    Ok(match Cluster::select(arguments)? {
        Some(cluster) => Box::new(cluster),
        None => Box::new(StateDirectory::open()?),
    })
}
