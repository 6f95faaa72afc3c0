//! `sympozium cancel`: asks a run to end. The run ends by itself; the command does not wait for that.

use std::process::ExitCode;

use clap::Args;
use sympozium_runs::Cancellation;

use crate::backend;
use crate::cluster::ClusterArguments;
use crate::failure::{FAILED, Failure};
use crate::output::{print_stderr, print_stdout};

/// The arguments of `cancel`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The agent gets its grace period to end. Then its skills end, and their permissions are revoked. The command does not wait
for that: `sympozium logs -f RUN` follows the run to its end. The run stays stored, with state `cancelled`.

Examples:
  Cancel a run of this machine:
    sympozium cancel run-1a2b3c4d

  Cancel a run of a cluster:
    sympozium cancel nightly-report -n team-a

Exit codes:
  0  the run was asked to end
  1  there is no such run, it has already ended, or the command failed
  2  the command line is invalid")]
pub struct CancelArguments {
    /// Runs: names, UIDs or UID prefixes.
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<String>,

    /// Selects this machine or a cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

pub fn run(arguments: &CancelArguments) -> Result<ExitCode, Failure> {
    let store = backend::open_store(&arguments.cluster)?;
    let mut code = ExitCode::SUCCESS;
    for run in &arguments.runs {
        match store.cancel(run)? {
            Cancellation::Requested { name } => print_stdout(&format!("cancelling {name}\n"))?,
            Cancellation::AlreadyEnded { name, end } => {
                print_stderr(&format!("error: {name} has already ended: {end}"));
                code = ExitCode::from(FAILED);
            }
        }
    }
    Ok(code)
}
