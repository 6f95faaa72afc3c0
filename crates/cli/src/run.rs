//! `sympozium run`: admit, plan, realise, stream, record, revoke.
//!
//! [`compose`] makes of files and flags a run that can be realised; [`local::realise`](crate::local::realise) does it;
//! [`follow`] brings what happens to the person and the person's word to the run.

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

/// Runs what the arguments say, and gives the exit code of what came of it.
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
    // What killed runs left is nobody's. Not worth failing for.
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
        // A run of this process tells until its end.
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

/// Starts the run. Whoever wants it to end meanwhile is heard, and it ends as soon as it could: half a start is never left.
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

/// The streams of this process, and its terminal where a person may be asked.
///
/// # Errors
///
/// When they cannot be used.
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
