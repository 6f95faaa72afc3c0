//! `sympozium run`: admit, plan, realise, stream, record, revoke.
//!
//! [`compose`] assembles a run from files and flags; [`local::realise`](crate::local::realise) realises it; [`follow`]
//! prints its events and forwards votes to it.

mod answer;
pub mod arguments;
pub mod compose;
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
use crate::local::prepared::{Approve, Prepared};
use crate::local::realise::{LocalRun, Stop, start};
use crate::local::record::Outcome;
use crate::local::state::State;
use crate::output::note;
use crate::place::Place;
use arguments::RunArguments;
use follow::{Ending, Manner, Streams, follow};
use prompt::Terminal;
use screen::Environment;
use signals::{Asks, Signals};

/// Runs what the arguments say. The exit code is that of the run end.
pub fn run(arguments: &RunArguments) -> Result<ExitCode, Failure> {
    if let Some(cluster) = Cluster::chosen_beside_files(&arguments.cluster)? {
        return cluster::run::run(&cluster, arguments);
    }
    if arguments.detach {
        return Err(Failure::usage(
            anyhow::anyhow!("--detach is for runs in a cluster: one of this machine ends with this command"),
            "choose a cluster with --cluster or --context, or leave --detach out",
        ));
    }
    let state = State::open()?;
    // Best effort: what killed runs left behind must not fail this one.
    let _ = crate::local::sweep::sweep(&state);
    let prepared = compose::compose(arguments, &state)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")
        .map_err(|error| Failure::new(error, "see `ulimit -n`, and report this"))?;
    let manner = Manner {
        place: Place::here(),
        output: arguments.output,
        approve: arguments.approve,
        color: arguments.color,
        environment: Environment::read(),
    };
    let outcome = runtime.block_on(started(prepared, &state, manner))?;
    Ok(ExitCode::from(outcome.exit_code()))
}

async fn started(prepared: Prepared, state: &State, manner: Manner) -> Result<Outcome, Failure> {
    let hint = "try again in another terminal, and report this";
    let mut signals =
        Signals::listen().context("cannot listen for signals").map_err(|error| Failure::new(error, hint))?;
    let run = start_patiently(prepared, state, &mut signals).await?;
    let streams = streams(&manner).context("cannot use the terminal");
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
        Ending::Outcome(outcome) => outcome,
        Ending::Left | Ending::Lost => Outcome::Cancelled,
    })
}

/// Starts the run. A signal during the start is remembered, and ends the run as soon as it has started: a start is
/// never left half done.
pub(crate) async fn start_patiently(
    prepared: Prepared,
    state: &State,
    signals: &mut Signals,
) -> Result<LocalRun, Failure> {
    let mut wanted = Stop::No;
    let starting = start(prepared, state);
    tokio::pin!(starting);
    loop {
        tokio::select! {
            run = &mut starting => {
                let run = run?;
                run.handle.stop(wanted);
                return Ok(run);
            }
            asks = signals.next() => if let Asks::End(how) = asks {
                wanted = how;
                note("ending the run as soon as it has started");
            },
        }
    }
}

/// The standard streams of this process, and its terminal if the user may be asked.
pub fn streams(manner: &Manner) -> io::Result<Streams> {
    let owned = |fd: std::os::fd::BorrowedFd<'_>| -> io::Result<OwnedFd> { fd.try_clone_to_owned() };
    let stdout = owned(io::stdout().as_fd())?;
    let stderr = owned(io::stderr().as_fd())?;
    let terminal = match manner.approve {
        Approve::Ask => Terminal::open(),
        Approve::All | Approve::None => None,
    };
    Ok(Streams { stdout, stderr, terminal })
}
