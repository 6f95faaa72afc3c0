//! `sympozium run`: admit, plan, realise, stream, record, revoke.
//!
//! [`compose`] assembles a run from files and flags; [`local::realise`](sympozium_local::realise) realises it; [`follow`]
//! prints its events and forwards votes to it.

mod answer;
pub mod arguments;
pub mod assemble;
mod display;
pub mod follow;
mod prompt;
pub mod screen;
pub mod signals;
#[cfg(test)]
mod tests;
mod writer;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::ExitCode;

use anyhow::Context as _;

use crate::cluster::{self, Cluster};
use crate::failure::Failure;
use crate::output::print_stderr;
use arguments::RunArguments;
use follow::{FollowEnd, FollowOptions, Streams, follow};
use prompt::Terminal;
use screen::TerminalEnv;
use signals::{SignalRequest, Signals};
use sympozium_local::prepared_run::PreparedRun;
use sympozium_local::realise::{LocalRun, start};
use sympozium_local::state::StateDirectory;
use sympozium_runs::ApprovalMode;
use sympozium_runs::RunEnd;
use sympozium_runs::StopLevel;
use sympozium_runs::TargetFlags;

/// Runs what the arguments say. The exit code is that of the run end.
pub fn run(arguments: &RunArguments) -> Result<ExitCode, Failure> {
    if let Some(cluster) = Cluster::select_with_files(&arguments.cluster)? {
        return cluster::run::run(&cluster, arguments);
    }
    if arguments.detach {
        return Err(Failure::usage(
            anyhow::anyhow!("--detach is for runs in a cluster: one of this machine ends with this command"),
            "choose a cluster with --cluster or --context, or leave --detach out",
        ));
    }
    let state = StateDirectory::open()?;
    // Best effort: what killed runs left behind must not fail this one.
    let _ = sympozium_local::sweep::sweep(&state);
    let prepared = assemble::assemble(arguments, &state)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")
        .map_err(|error| Failure::new(error, "see `ulimit -n`, and report this"))?;
    let manner = FollowOptions {
        target: TargetFlags::local(),
        output: arguments.output,
        approve: arguments.approve,
        color: arguments.color,
        environment: TerminalEnv::read(),
    };
    let outcome = runtime.block_on(start_and_follow(prepared, &state, manner))?;
    Ok(ExitCode::from(outcome.exit_code()))
}

async fn start_and_follow(
    prepared: PreparedRun,
    state: &StateDirectory,
    manner: FollowOptions,
) -> Result<RunEnd, Failure> {
    let hint = "try again in another terminal, and report this";
    let mut signals =
        Signals::listen().context("cannot listen for signals").map_err(|error| Failure::new(error, hint))?;
    let run = start_interruptible(prepared, state, &mut signals).await?;
    let streams = open_streams(&manner).context("cannot use the terminal");
    let streams = streams.map_err(|error| Failure::new(error, hint))?;
    let ending = follow(
        &run.handle.events,
        run.events,
        &*run.handle,
        manner,
        streams,
        &mut signals,
        // A run in this process emits events until its end.
        std::future::pending(),
    )
    .await
    .context("cannot show what happened in the run")
    .map_err(|error| Failure::new(error, "`sympozium runs` lists it; `sympozium show` tells what came of it"))?;
    Ok(match ending {
        FollowEnd::RunEnded(outcome) => outcome,
        FollowEnd::Detached | FollowEnd::Lost => RunEnd::Cancelled,
    })
}

/// Starts the run. A signal during the start is remembered, and ends the run as soon as it has started: a start is
/// never left half done.
pub(crate) async fn start_interruptible(
    prepared: PreparedRun,
    state: &StateDirectory,
    signals: &mut Signals,
) -> Result<LocalRun, Failure> {
    let mut wanted = StopLevel::None;
    let starting = start(prepared, state);
    tokio::pin!(starting);
    loop {
        tokio::select! {
            run = &mut starting => {
                let run = run?;
                run.handle.stop(wanted);
                return Ok(run);
            }
            asks = signals.next() => if let SignalRequest::Stop(how) = asks {
                wanted = how;
                print_stderr("ending the run as soon as it has started");
            },
        }
    }
}

/// The standard streams of this process, and its terminal if the user may be asked.
pub fn open_streams(manner: &FollowOptions) -> io::Result<Streams> {
    let owned = |fd: std::os::fd::BorrowedFd<'_>| -> io::Result<OwnedFd> { fd.try_clone_to_owned() };
    let stdout = owned(io::stdout().as_fd())?;
    let stderr = owned(io::stderr().as_fd())?;
    let terminal = match manner.approve {
        ApprovalMode::Ask => Terminal::open(),
        ApprovalMode::All | ApprovalMode::None => None,
    };
    Ok(Streams { stdout, stderr, terminal })
}
