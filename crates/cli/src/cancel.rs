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
The agent is told, and has its time to end; then its skills do, and their rights are taken back. This does not wait for
that: `sympozium logs -f RUN` follows it to its end. The run is kept, as `cancelled`.

Examples:
  A run of this machine:
    sympozium cancel run-1a2b3c4d

  A run in a cluster:
    sympozium cancel nightly-report -n team-a

Exit codes:
  0  told to end
  1  there is no such run, it is over already, or the command failed
  2  the command line was not understood")]
pub struct CancelArguments {
    /// Runs: names, UIDs, or beginnings of UIDs.
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<String>,

    /// Where.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

pub fn run(arguments: &CancelArguments) -> Result<ExitCode, Failure> {
    let store = backend::open_store(&arguments.cluster)?;
    let mut code = ExitCode::SUCCESS;
    for run in &arguments.runs {
        match store.cancel(run)? {
            Cancellation::Requested { name } => print_stdout(&format!("ending {name}\n"))?,
            Cancellation::AlreadyEnded { name, end } => {
                print_stderr(&format!("error: {name} is over already: {end}"));
                code = ExitCode::from(FAILED);
            }
        }
    }
    Ok(code)
}
