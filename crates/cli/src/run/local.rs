//! `sympozium run` on this machine: the run is realised in this process.

use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use sympozium_local::prepared_run::PreparedRun;
use sympozium_local::realise::{self, LocalRun};
use sympozium_local::state::StateDirectory;
use sympozium_local::sweep::sweep;
use sympozium_runs::{HintedError, RunEnd, TargetFlags};

use super::arguments::RunArguments;
use super::console::Console;
use super::follow::FollowEnd;
use super::prepare::prepare;
use super::signals::Signals;
use crate::failure::Failure;

/// Runs what the arguments mean, and returns the exit code of the run end.
pub fn run(arguments: &RunArguments) -> Result<ExitCode, Failure> {
    if arguments.detach {
        return Err(Failure::usage(
            anyhow!("--detach is for runs in a cluster: one of this machine ends with this command"),
            "choose a cluster with --cluster or --context, or leave --detach out",
        ));
    }
    let state = StateDirectory::open()?;
    // Best effort: what killed runs left behind must not fail this one.
    let _ = sweep(&state);
    let prepared = prepare(arguments, &state)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")
        .map_err(|error| Failure::new(error, "see `ulimit -n`, and report this"))?;
    let end = runtime.block_on(start_and_follow(prepared, &state, arguments))?;
    Ok(ExitCode::from(end.exit_code()))
}

async fn start_and_follow(
    prepared: PreparedRun,
    state: &StateDirectory,
    arguments: &RunArguments,
) -> Result<RunEnd, HintedError> {
    let mut console = Console::open(arguments, TargetFlags::local())?;
    let run = start(prepared, state, &mut console.signals).await?;
    // A run in this process emits events until its end.
    let end = console
        .follow(&run.handle.events, &*run.handle, std::future::pending())
        .await
        .map_err(|error| HintedError::new(error, "`sympozium runs` lists it; `sympozium show` shows how it ended"))?;
    Ok(match end {
        FollowEnd::RunEnded(end) => end,
        FollowEnd::Detached | FollowEnd::Lost => RunEnd::Cancelled,
    })
}

/// Starts the run. A signal meanwhile ends it as soon as it has started.
pub async fn start(
    prepared: PreparedRun,
    state: &StateDirectory,
    signals: &mut Signals,
) -> Result<LocalRun, HintedError> {
    let start = realise::start(prepared, state);
    let (run, level) = signals.wait_for_start(start, "ending the run as soon as it has started").await?;
    run.handle.stop(level);
    Ok(run)
}
