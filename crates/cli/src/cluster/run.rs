//! `sympozium run` in a cluster: creates objects, watches the run to its end, asks the user and casts their votes.

mod assemble;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use futures::FutureExt as _;
use parking_lot::Mutex;
use serde::Serialize;
use sympozium_api::AgentRun;
use sympozium_api::names::Digest;
use sympozium_api::text::{printable, quote};
use sympozium_gateway::run_api::local::Vote;
use sympozium_plan::render::names::ObjectNames;
use tokio::task::JoinHandle;

use super::approvals::{self, VoteError};
use super::call_error::Role;
use super::objects::{CreateMode, create, find_missing, post_params};
use super::{Cluster, Connection, FoundRun, follow, identify_run, plan};
use crate::failure::Failure;
use crate::output::{print_stderr, print_stdout, to_json};
use crate::run::arguments::{RunArguments, RunFormat};
use crate::run::follow::{FollowEnd, FollowOptions, RunControl, StopNotice, Streams, VoteEffect};
use crate::run::open_streams;
use crate::run::screen::TerminalEnv;
use crate::run::signals::{SignalRequest, Signals};
use assemble::AssembledRun;
use sympozium_runs::EventLog;
use sympozium_runs::RunEnd;
use sympozium_runs::StopLevel;
use sympozium_runs::{Event, HintedError};

/// How long a cancellation may take to arrive after the user has left.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs what the arguments say, and returns the exit code of the run's end.
///
/// # Errors
///
/// When the run cannot be created or followed.
pub fn run(cluster: &Cluster, arguments: &RunArguments) -> Result<ExitCode, Failure> {
    let composed = assemble::assemble(arguments, &cluster.connection.namespace)?;
    for warning in &composed.warnings {
        print_stderr(&format!("warning: {warning}"));
    }
    let connection = cluster.connection.in_namespace(&composed.namespace);
    cluster.block_on(async {
        let mut signals = Signals::listen()
            .context("cannot listen for signals")
            .map_err(|error| Failure::new(error, "try again in another terminal, and report this"))?;
        let (found, wanted) = create_interruptibly(&connection, &composed, &mut signals).await?;
        match after_create(wanted, arguments) {
            AfterCreate::Detach => {
                print_detached(&found, &connection, arguments.output)?;
                Ok(ExitCode::SUCCESS)
            }
            AfterCreate::Cancel => {
                cancel(&connection, &found).await?;
                let name = printable(&found.name);
                print_stderr(&format!("run {name} is created, and cancelled"));
                Ok(ExitCode::from(RunEnd::Cancelled.exit_code()))
            }
            AfterCreate::Follow => {
                let outcome = follow_to_end(&connection, found, wanted, arguments, &mut signals).await?;
                Ok(ExitCode::from(outcome.exit_code()))
            }
        }
    })
}

/// What to do with a run that was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterCreate {
    Detach,
    Cancel,
    Follow,
}

const fn after_create(wanted: StopLevel, arguments: &RunArguments) -> AfterCreate {
    match (arguments.detach, wanted) {
        (false, _) => AfterCreate::Follow,
        (true, StopLevel::None) => AfterCreate::Detach,
        // With --detach there would be no process to follow its end.
        (true, StopLevel::Gently | StopLevel::Now) => AfterCreate::Cancel,
    }
}

/// Asks the controller to end the run.
async fn cancel(connection: &Connection, found: &FoundRun) -> Result<(), HintedError> {
    let cancelled = approvals::patch_cancel(connection, found).await;
    cancelled.map_err(|failure| failure.with_hint(cancel_hint(connection, found)))
}

fn cancel_hint(connection: &Connection, found: &FoundRun) -> String {
    let (name, place) = (&found.name, connection.target.as_str());
    format!("`sympozium cancel {name}{place}` tells it again")
}

/// Creates everything. A signal meanwhile ends the run as soon as it exists: creation is never left half done.
async fn create_interruptibly(
    connection: &Connection,
    composed: &AssembledRun,
    signals: &mut Signals,
) -> Result<(FoundRun, StopLevel), HintedError> {
    let mut wanted = StopLevel::None;
    let creating = create_all(connection, composed);
    tokio::pin!(creating);
    loop {
        tokio::select! {
            found = &mut creating => return Ok((found?, wanted)),
            asks = signals.next() => if let SignalRequest::Stop(_) = asks {
                wanted = StopLevel::Gently;
                print_stderr("ending the run as soon as it is created");
            },
        }
    }
}

async fn create_all(connection: &Connection, composed: &AssembledRun) -> Result<FoundRun, HintedError> {
    let missing = find_missing(connection, &composed.objects).await?;
    // Try everything with a dry run before anything is stored.
    create(connection, &missing, CreateMode::DryRun).await?;
    create_run(connection, composed, CreateMode::DryRun).await?;
    create(connection, &missing, CreateMode::Persist).await?;
    identify_run(create_run(connection, composed, CreateMode::Persist).await?)
}

async fn create_run(
    connection: &Connection,
    composed: &AssembledRun,
    how: CreateMode,
) -> Result<AgentRun, HintedError> {
    let run: AgentRun = serde_json::from_value(composed.run.clone())
        .context("the run cannot be sent")
        .map_err(|error| HintedError::new(error, "`sympozium validate` checks manifests"))?;
    let api = connection.runs();
    let made = connection.try_call(api.create(&post_params(how), &run)).await;
    made.map_err(|error| {
        let is_there = error.status().is_some_and(|it| it.is_already_exists());
        let name = run.metadata.name.as_deref().unwrap_or_default();
        match is_there {
            true => HintedError::new(
                anyhow!("there is a run {} already", quote(name)),
                format!(
                    "give the run `generateName` in place of a name, or remove the old one: sympozium rm {name}{}",
                    connection.target.as_str()
                ),
            ),
            false => connection.call_context("create the AgentRun", Role::Runner).as_failure(&error),
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

fn print_detached(found: &FoundRun, connection: &Connection, format: RunFormat) -> Result<(), Failure> {
    let detached = Detached { run: &found.name, uid: &found.uid, namespace: &connection.namespace };
    match format {
        RunFormat::Text => {
            print_stdout(&format!("{}\n", found.name))?;
            let (name, place) = (&found.name, connection.target.as_str());
            print_stderr(&format!("follow it: sympozium logs -f {name}{place}"));
            Ok(())
        }
        RunFormat::Json => print_stdout(&to_json(&detached)?),
        RunFormat::Jsonl => {
            let line = serde_json::to_string(&detached)
                .context("the answer has no JSON")
                .map_err(|error| Failure::new(error, "report this"))?;
            print_stdout(&(crate::output::escape_json(line) + "\n"))
        }
    }
}

async fn follow_to_end(
    connection: &Connection,
    found: FoundRun,
    wanted: StopLevel,
    arguments: &RunArguments,
    signals: &mut Signals,
) -> Result<RunEnd, HintedError> {
    let manner = FollowOptions {
        target: connection.target.clone(),
        output: arguments.output,
        approve: arguments.approve,
        color: arguments.color,
        environment: TerminalEnv::read(),
    };
    let streams: Streams = open_streams(&manner)
        .context("cannot use the terminal")
        .map_err(|error| HintedError::new(error, "try again in another terminal, and report this"))?;
    let events = EventLog::default();
    events.emit(Event::Starting {
        text: format!("AgentRun {}/{} is created; the cluster starts it", connection.namespace, found.name),
    });
    let hand = ClusterControl::new(connection.clone(), found.clone(), events.clone());
    if wanted != StopLevel::None {
        hand.stop(wanted);
    }
    let mut failed = None;
    let watching = async {
        let watched = follow::watch_run(connection, found.run.clone(), &events, arguments.approve);
        match watched.await {
            // The follower has seen the end.
            Ok(()) => std::future::pending().await,
            Err(failure) => failed = Some(failure),
        }
    };
    let reader = events.reader();
    let following = crate::run::follow::follow(&events, reader, &hand, manner, streams, signals, watching);
    let ending = following.await;
    let cancelled = hand.finish_cancellation().await;
    let (name, place) = (&found.name, connection.target.as_str());
    let ending = ending.context("cannot show what happened in the run").map_err(|error| {
        let hint = format!("`sympozium show {name}{place}` tells what came of it");
        HintedError::new(error, hint)
    })?;
    match ending {
        FollowEnd::RunEnded(outcome) => Ok(outcome),
        FollowEnd::Detached => cancelled.map(|()| RunEnd::Cancelled),
        FollowEnd::Lost => {
            let why = failed.map_or_else(String::new, |it| format!(": {}", it.summary()));
            Err(HintedError::new(
                anyhow!("run {} goes on in the cluster, and cannot be followed any more{why}", quote(name)),
                format!("`sympozium logs -f {name}{place}` follows it again, `sympozium cancel {name}{place}` ends it"),
            ))
        }
    }
}

/// What a user may do with a run in a cluster.
struct ClusterControl {
    connection: Connection,
    found: FoundRun,
    names: ObjectNames,
    events: EventLog,
    cancellation: Mutex<Cancellation>,
}

impl ClusterControl {
    fn new(connection: Connection, found: FoundRun, events: EventLog) -> Self {
        Self {
            connection,
            names: plan::object_names(&found.run),
            found,
            events,
            cancellation: Mutex::new(Cancellation::NotRequested),
        }
    }

    /// Sends the cancellation unless it is sent already, and returns its state.
    fn cancel(&self) -> CancelState {
        let (connection, found) = (self.connection.clone(), self.found.clone());
        let events = self.events.clone();
        self.cancellation.lock().request(async move {
            let cancelled = cancel(&connection, &found).await;
            if let Err(failure) = &cancelled {
                let text = failure.summary();
                events.emit(Event::Warning { text });
            }
            cancelled
        })
    }

    /// Waits for a cancellation that is on its way, after the user has left.
    ///
    /// # Errors
    ///
    /// When the cluster does not know that the run is to end.
    async fn finish_cancellation(&self) -> Result<(), HintedError> {
        let cancelling = std::mem::replace(&mut *self.cancellation.lock(), Cancellation::NotRequested);
        cancelling.finish(CANCEL_TIMEOUT).await.unwrap_or_else(|| {
            let name = quote(&self.found.name);
            Err(HintedError::new(
                anyhow!("run {name} is not cancelled: the cluster does not answer"),
                cancel_hint(&self.connection, &self.found),
            ))
        })
    }
}

/// A cancellation: sent once, and again after a failure.
#[derive(Debug)]
enum Cancellation {
    NotRequested,
    Sending(JoinHandle<Result<(), HintedError>>),
    Accepted,
    Failed(HintedError),
}

/// Whether the API server has accepted the cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CancelState {
    Accepted,
    Pending,
}

impl Cancellation {
    fn request(&mut self, telling: impl Future<Output = Result<(), HintedError>> + Send + 'static) -> CancelState {
        if let Self::Sending(task) = self
            && let Some(told) = task.now_or_never()
        {
            *self = match told {
                Ok(Ok(())) => Self::Accepted,
                Ok(Err(failure)) => Self::Failed(failure),
                // The task panicked, or the runtime is shutting down.
                Err(_) => Self::NotRequested,
            };
        }
        match self {
            Self::Accepted => CancelState::Accepted,
            Self::Sending(_) => CancelState::Pending,
            Self::NotRequested | Self::Failed(_) => {
                *self = Self::Sending(tokio::spawn(telling));
                CancelState::Pending
            }
        }
    }

    /// Whether the cancellation was accepted, if that is known within `patience`.
    async fn finish(self, patience: Duration) -> Option<Result<(), HintedError>> {
        match self {
            Self::NotRequested | Self::Accepted => Some(Ok(())),
            Self::Failed(failure) => Some(Err(failure)),
            Self::Sending(task) => tokio::time::timeout(patience, task).await.ok()?.ok(),
        }
    }
}

impl RunControl for ClusterControl {
    type VoteError = VoteError;

    async fn vote(
        &self,
        approval: &str,
        action: &Digest,
        says: Vote,
        reason: Option<&str>,
    ) -> Result<VoteEffect, VoteError> {
        let name = self.names.with_suffix(approval);
        approvals::cast_vote(&self.connection, &name, action, says, reason).await
    }

    fn stop(&self, how: StopLevel) -> StopNotice {
        let telling = self.cancel();
        match (how, telling) {
            (StopLevel::Gently | StopLevel::None, _) => {
                StopNotice { text: "ending the run; press Ctrl-C again to leave it to the cluster", detaches: false }
            }
            (StopLevel::Now, CancelState::Accepted) => {
                StopNotice { text: "leaving; the cluster ends the run", detaches: true }
            }
            (StopLevel::Now, CancelState::Pending) => {
                StopNotice { text: "leaving as soon as the cluster knows that the run is to end", detaches: true }
            }
        }
    }
}

#[cfg(test)]
mod tests;
