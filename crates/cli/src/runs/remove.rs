//! `sympozium rm`.

use std::process::ExitCode;

use anyhow::anyhow;
use sympozium_runs::{Removal, RunRef};

use super::arguments::RmArguments;
use crate::backend;
use crate::failure::Failure;
use crate::output::{print_stderr, print_stdout};

pub fn rm(arguments: &RmArguments) -> Result<ExitCode, Failure> {
    let store = backend::open_store(&arguments.cluster)?;
    // All are found before one is removed, so that a mistyped name removes nothing.
    let mut runs: Vec<RunRef> = Vec::new();
    for wanted in &arguments.runs {
        let found = store.find(wanted)?;
        if runs.iter().all(|run| run.uid != found.uid) {
            runs.push(found);
        }
    }
    if !arguments.force
        && let Some(running) = runs.iter().find(|run| run.is_running)
    {
        return Err(Failure::new(
            anyhow!("{} is still running; nothing was removed", running.display_name()),
            "wait until it has ended, or end it first with --force",
        ));
    }
    for run in &runs {
        match store.remove(run, arguments.force)? {
            Removal::Done => print_stdout(&format!("removed {}\n", run.display_name()))?,
            Removal::Pending => {
                print_stdout(&format!("removing {}\n", run.display_name()))?;
                let target = store.target();
                print_stderr(&format!(
                    "the deletion is still in progress; `sympozium runs{}` lists the run until it is deleted",
                    target.as_str()
                ));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
