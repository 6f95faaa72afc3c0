//! `sympozium cancel`: asks a run to end. The run ends by itself; the command does not wait for that.

use std::process::ExitCode;

use clap::Args;

use crate::cluster::{self, Cluster, ClusterArguments};
use crate::failure::{FAILED, Failure};
use crate::output::{print_stderr, print_stdout};
use crate::runs::display_name;
use sympozium_local::control::{Client, StopMode};
use sympozium_local::state::StateDirectory;

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

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelResult {
    /// The run accepted the request.
    Ending { name: String },
    /// The run had ended before.
    IsOver { name: String, word: &'static str },
}

pub fn run(arguments: &CancelArguments) -> Result<ExitCode, Failure> {
    let cluster = Cluster::select(&arguments.cluster)?;
    let mut code = ExitCode::SUCCESS;
    for run in &arguments.runs {
        let told = match &cluster {
            Some(cluster) => cluster::cancel::cancel(cluster, run)?,
            None => cancel_local(run)?,
        };
        match told {
            CancelResult::Ending { name } => print_stdout(&format!("ending {name}\n"))?,
            CancelResult::IsOver { name, word } => {
                print_stderr(&format!("error: {name} is over already: {word}"));
                code = ExitCode::from(FAILED);
            }
        }
    }
    Ok(code)
}

fn cancel_local(run: &str) -> Result<CancelResult, Failure> {
    let (directory, record) = StateDirectory::open()?.find_run(run)?;
    let name = display_name(&record);
    let hint = "`sympozium show` says how it stands";
    let failed = |error: anyhow::Error| Failure::new(error, hint);
    if let Some(outcome) = directory.run_end(&record) {
        let word = outcome.as_str();
        return Ok(CancelResult::IsOver { name, word });
    }
    let Some(client) = Client::connect(&directory).map_err(failed)? else {
        let error = anyhow::anyhow!("{name} begins or ends just now, and does not listen");
        return Err(Failure::new(error, "try again in a moment"));
    };
    client.stop(StopMode::Gently).map_err(failed)?;
    Ok(CancelResult::Ending { name })
}
