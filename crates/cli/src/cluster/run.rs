//! `sympozium run` in a cluster: creates objects, watches the run to its end, asks the user and casts their votes.

mod compose;

use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use futures::FutureExt as _;
use serde::Serialize;
use sympozium_api::AgentRun;
use sympozium_api::names::Digest;
use sympozium_gateway::run_api::local::Says;
use sympozium_plan::render::names::Names;
use tokio::task::JoinHandle;

use super::approvals::{self, Undecided};
use super::objects::{Creating, create, missing, parameters};
use super::refused::Role;
use super::{Cluster, Connection, Found, follow, found, plan};
use crate::failure::Failure;
use crate::local::event::Event;
use crate::local::events::EventLog;
use crate::local::realise::Stop;
use crate::local::record::Outcome;
use crate::manifests::problem::{printable, quoted};
use crate::output::{answer, json, note};
use crate::run::arguments::{RunArguments, RunFormat};
use crate::run::follow::{Ending, Heard, Manner, Steering, Stopping, Streams};
use crate::run::screen::Environment;
use crate::run::signals::{Asks, Signals};
use crate::run::streams;
use compose::Composed;

/// How long a cancellation may take to arrive after the user has left.
const LAST_WORD: Duration = Duration::from_secs(10);

/// Runs what the arguments say, and returns the exit code of the run's end.
///
/// # Errors
///
/// When the run cannot be created or followed.
pub fn run(cluster: &Cluster, arguments: &RunArguments) -> Result<ExitCode, Failure> {
    let composed = compose::compose(arguments, &cluster.connection.namespace)?;
    for warning in &composed.warnings {
        note(&format!("warning: {warning}"));
    }
    let connection = cluster.connection.within(&composed.namespace);
    cluster.wait(async {
        let mut signals = Signals::listen()
            .context("cannot listen for signals")
            .map_err(|error| Failure::new(error, "try again in another terminal, and report this"))?;
        let (found, wanted) = created(&connection, &composed, &mut signals).await?;
        match next(wanted, arguments) {
            Next::Detach => {
                detach(&found, &connection, arguments.output)?;
                Ok(ExitCode::SUCCESS)
            }
            Next::Cancel => {
                cancel(&connection, &found).await?;
                let name = printable(&found.name);
                note(&format!("run {name} is created, and cancelled"));
                Ok(ExitCode::from(Outcome::Cancelled.exit_code()))
            }
            Next::Follow => {
                let outcome = followed(&connection, found, wanted, arguments, &mut signals).await?;
                Ok(ExitCode::from(outcome.exit_code()))
            }
        }
    })
}

/// What to do with a run that was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Detach,
    Cancel,
    Follow,
}

const fn next(wanted: Stop, arguments: &RunArguments) -> Next {
    match (arguments.detach, wanted) {
        (false, _) => Next::Follow,
        (true, Stop::No) => Next::Detach,
        // With --detach there would be no process to follow its end.
        (true, Stop::Gently | Stop::Now) => Next::Cancel,
    }
}

/// Asks the controller to end the run.
async fn cancel(connection: &Connection, found: &Found) -> Result<(), Failure> {
    let cancelled = approvals::cancel(connection, found).await;
    cancelled.map_err(|failure| failure.with_hint(cancel_hint(connection, found)))
}

fn cancel_hint(connection: &Connection, found: &Found) -> String {
    let (name, place) = (&found.name, connection.place.flags());
    format!("`sympozium cancel {name}{place}` tells it again")
}

/// Creates everything. A signal meanwhile ends the run as soon as it exists: creation is never left half done.
async fn created(
    connection: &Connection,
    composed: &Composed,
    signals: &mut Signals,
) -> Result<(Found, Stop), Failure> {
    let mut wanted = Stop::No;
    let creating = create_all(connection, composed);
    tokio::pin!(creating);
    loop {
        tokio::select! {
            found = &mut creating => return Ok((found?, wanted)),
            asks = signals.next() => if let Asks::End(_) = asks {
                wanted = Stop::Gently;
                note("ending the run as soon as it is created");
            },
        }
    }
}

async fn create_all(connection: &Connection, composed: &Composed) -> Result<Found, Failure> {
    let missing = missing(connection, &composed.objects).await?;
    // Try everything with a dry run before anything is stored.
    create(connection, &missing, Creating::Tried).await?;
    create_run(connection, composed, Creating::Tried).await?;
    create(connection, &missing, Creating::Really).await?;
    found(create_run(connection, composed, Creating::Really).await?)
}

async fn create_run(connection: &Connection, composed: &Composed, how: Creating) -> Result<AgentRun, Failure> {
    let run: AgentRun = serde_json::from_value(composed.run.clone())
        .context("the run cannot be sent")
        .map_err(|error| Failure::new(error, "`sympozium validate` checks manifests"))?;
    let api = connection.runs();
    let made = connection.attempt(api.create(&parameters(how), &run)).await;
    made.map_err(|error| {
        let is_there = error.status().is_some_and(|it| it.is_already_exists());
        let name = run.metadata.name.as_deref().unwrap_or_default();
        match is_there {
            true => Failure::new(
                anyhow!("there is a run {} already", quoted(name)),
                format!(
                    "give the run `generateName` in place of a name, or remove the old one: sympozium rm {name}{}",
                    connection.place.flags()
                ),
            ),
            false => connection.refused("create the AgentRun", Role::Runner).failure(&error),
        }
    })
}

/// The output for a run that is not followed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Detached<'d> {
    run: &'d str,
    uid: &'d str,
    namespace: &'d str,
}

fn detach(found: &Found, connection: &Connection, format: RunFormat) -> Result<(), Failure> {
    let detached = Detached { run: &found.name, uid: &found.uid, namespace: &connection.namespace };
    match format {
        RunFormat::Text => {
            answer(&format!("{}\n", found.name))?;
            let (name, place) = (&found.name, connection.place.flags());
            note(&format!("follow it: sympozium logs -f {name}{place}"));
            Ok(())
        }
        RunFormat::Json => answer(&json(&detached)?),
        RunFormat::Jsonl => {
            let line = serde_json::to_string(&detached)
                .context("the answer has no JSON")
                .map_err(|error| Failure::new(error, "report this"))?;
            answer(&(crate::output::escaped(line) + "\n"))
        }
    }
}

async fn followed(
    connection: &Connection,
    found: Found,
    wanted: Stop,
    arguments: &RunArguments,
    signals: &mut Signals,
) -> Result<Outcome, Failure> {
    let manner = Manner {
        place: connection.place.clone(),
        output: arguments.output,
        approve: arguments.approve,
        color: arguments.color,
        environment: Environment::read(),
    };
    let streams: Streams = streams(&manner)
        .context("cannot use the terminal")
        .map_err(|error| Failure::new(error, "try again in another terminal, and report this"))?;
    let events = EventLog::default();
    events.tell(Event::Starting {
        text: format!("AgentRun {}/{} is created; the cluster starts it", connection.namespace, found.name),
    });
    let hand = Hand::new(connection.clone(), found.clone(), events.clone());
    if wanted != Stop::No {
        hand.stop(wanted);
    }
    let mut failed = None;
    let watching = async {
        let watched = follow::watch(connection, found.run.clone(), &events, arguments.approve);
        match watched.await {
            // The follower has seen the end.
            Ok(()) => std::future::pending().await,
            Err(failure) => failed = Some(failure),
        }
    };
    let reader = events.reader();
    let following = crate::run::follow::follow(&events, reader, &hand, manner, streams, signals, watching);
    let ending = following.await;
    let cancelled = hand.last_word().await;
    let (name, place) = (&found.name, connection.place.flags());
    let ending = ending.context("cannot show what happened in the run").map_err(|error| {
        let hint = format!("`sympozium show {name}{place}` tells what came of it");
        Failure::new(error, hint)
    })?;
    match ending {
        Ending::Outcome(outcome) => Ok(outcome),
        Ending::Left => cancelled.map(|()| Outcome::Cancelled),
        Ending::Lost => {
            let why = failed.map_or_else(String::new, |it| format!(": {}", it.words()));
            Err(Failure::new(
                anyhow!("run {} goes on in the cluster, and cannot be followed any more{why}", quoted(name)),
                format!("`sympozium logs -f {name}{place}` follows it again, `sympozium cancel {name}{place}` ends it"),
            ))
        }
    }
}

/// What a user may do with a run in a cluster.
struct Hand {
    connection: Connection,
    found: Found,
    names: Names,
    events: EventLog,
    cancelling: Mutex<Cancelling>,
}

impl Hand {
    fn new(connection: Connection, found: Found, events: EventLog) -> Self {
        Self { connection, names: plan::names(&found.run), found, events, cancelling: Mutex::new(Cancelling::No) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Cancelling> {
        // A panic elsewhere leaves it valid.
        self.cancelling.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Sends the cancellation unless it is sent already, and returns its state.
    fn cancel(&self) -> Telling {
        let (connection, found) = (self.connection.clone(), self.found.clone());
        let events = self.events.clone();
        self.lock().tell(async move {
            let cancelled = cancel(&connection, &found).await;
            if let Err(failure) = &cancelled {
                let text = failure.words();
                events.tell(Event::Warning { text });
            }
            cancelled
        })
    }

    /// Waits for a cancellation that is on its way, after the user has left.
    ///
    /// # Errors
    ///
    /// When the cluster does not know that the run is to end.
    async fn last_word(&self) -> Result<(), Failure> {
        let cancelling = std::mem::replace(&mut *self.lock(), Cancelling::No);
        cancelling.finish(LAST_WORD).await.unwrap_or_else(|| {
            let name = quoted(&self.found.name);
            Err(Failure::new(
                anyhow!("run {name} is not cancelled: the cluster does not answer"),
                cancel_hint(&self.connection, &self.found),
            ))
        })
    }
}

/// A cancellation: sent once, and again after a failure.
#[derive(Debug)]
enum Cancelling {
    No,
    Telling(JoinHandle<Result<(), Failure>>),
    Told,
    Failed(Failure),
}

/// Whether the API server has accepted the cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Telling {
    Told,
    OnItsWay,
}

impl Cancelling {
    fn tell(&mut self, telling: impl Future<Output = Result<(), Failure>> + Send + 'static) -> Telling {
        if let Self::Telling(task) = self
            && let Some(told) = task.now_or_never()
        {
            *self = match told {
                Ok(Ok(())) => Self::Told,
                Ok(Err(failure)) => Self::Failed(failure),
                // The task panicked, or the runtime is shutting down.
                Err(_) => Self::No,
            };
        }
        match self {
            Self::Told => Telling::Told,
            Self::Telling(_) => Telling::OnItsWay,
            Self::No | Self::Failed(_) => {
                *self = Self::Telling(tokio::spawn(telling));
                Telling::OnItsWay
            }
        }
    }

    /// Whether the cancellation was accepted, if that is known within `patience`.
    async fn finish(self, patience: Duration) -> Option<Result<(), Failure>> {
        match self {
            Self::No | Self::Told => Some(Ok(())),
            Self::Failed(failure) => Some(Err(failure)),
            Self::Telling(task) => tokio::time::timeout(patience, task).await.ok()?.ok(),
        }
    }
}

impl Steering for Hand {
    type Undecided = Undecided;

    async fn decide(
        &self,
        approval: &str,
        action: &Digest,
        says: Says,
        reason: Option<&str>,
    ) -> Result<Heard, Undecided> {
        let name = self.names.of(approval);
        approvals::decide(&self.connection, &name, action, says, reason).await
    }

    fn stop(&self, how: Stop) -> Stopping {
        let telling = self.cancel();
        match (how, telling) {
            (Stop::Gently | Stop::No, _) => {
                Stopping { text: "ending the run; press Ctrl-C again to leave it to the cluster", leaves: false }
            }
            (Stop::Now, Telling::Told) => Stopping { text: "leaving; the cluster ends the run", leaves: true },
            (Stop::Now, Telling::OnItsWay) => {
                Stopping { text: "leaving as soon as the cluster knows that the run is to end", leaves: true }
            }
        }
    }
}

#[cfg(test)]
mod tests;
