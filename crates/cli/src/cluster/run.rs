//! `sympozium run` in a cluster: creates objects, watches the run to its end, asks the user and casts their votes.

mod manifests;

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

use super::approvals;
use super::call_error::Role;
use super::objects::{CreateMode, create, find_missing, post_params};
use super::{Cluster, Connection, FoundRun, follow, identify_run, plan};
use crate::failure::Failure;
use crate::output::{print_stderr, print_stdout, to_json};
use crate::run::arguments::{RunArguments, RunFormat};
use crate::run::console::Console;
use crate::run::follow::{FollowEnd, RunControl, StopNotice};
use manifests::RunManifests;
use sympozium_runs::EventLog;
use sympozium_runs::RunEnd;
use sympozium_runs::StopLevel;
use sympozium_runs::VoteResult;
use sympozium_runs::{Event, HintedError};

/// How long a cancellation may take to arrive after the user has left.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs what the arguments mean, and returns the exit code of the run end.
///
/// # Errors
///
/// When the run cannot be created or followed.
pub fn run(cluster: &Cluster, arguments: &RunArguments) -> Result<ExitCode, Failure> {
    let manifests = manifests::prepare(arguments, &cluster.connection.namespace)?;
    for warning in &manifests.warnings {
        print_stderr(&format!("warning: {warning}"));
    }
    let connection = cluster.connection.in_namespace(&manifests.namespace);
    cluster.block_on(async {
        let mut console = Console::open(arguments, connection.target.clone())?;
        let create = create_all(&connection, &manifests);
        let notice = "ending the run as soon as it is created";
        let (found, level) = console.signals.wait_for_start(create, notice).await?;
        match after_create(level, arguments) {
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
                let end = follow_to_end(&connection, found, level, arguments, console).await?;
                Ok(ExitCode::from(end.exit_code()))
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

const fn after_create(level: StopLevel, arguments: &RunArguments) -> AfterCreate {
    match (arguments.detach, level) {
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
    format!("try again: sympozium cancel {}{}", found.name, connection.target.as_str())
}

async fn create_all(connection: &Connection, manifests: &RunManifests) -> Result<FoundRun, HintedError> {
    let missing = find_missing(connection, &manifests.objects).await?;
    // Try everything with a dry run before anything is stored.
    create(connection, &missing, CreateMode::DryRun).await?;
    create_run(connection, manifests, CreateMode::DryRun).await?;
    create(connection, &missing, CreateMode::Persist).await?;
    identify_run(create_run(connection, manifests, CreateMode::Persist).await?)
}

async fn create_run(
    connection: &Connection,
    manifests: &RunManifests,
    mode: CreateMode,
) -> Result<AgentRun, HintedError> {
    let run: AgentRun = serde_json::from_value(manifests.run.clone())
        .context("the run cannot be sent")
        .map_err(|error| HintedError::new(error, "`sympozium validate` checks manifests"))?;
    let api = connection.runs();
    let created = connection.try_call(api.create(&post_params(mode), &run)).await;
    created.map_err(|error| {
        let exists = error.status().is_some_and(|it| it.is_already_exists());
        let name = run.metadata.name.as_deref().unwrap_or_default();
        match exists {
            true => HintedError::new(
                anyhow!("run {} already exists", quote(name)),
                format!(
                    "give the run a `generateName` instead of a name, or remove the old one: sympozium rm {name}{}",
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
            let (name, target) = (&found.name, connection.target.as_str());
            print_stderr(&format!("follow it: sympozium logs -f {name}{target}"));
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
    level: StopLevel,
    arguments: &RunArguments,
    console: Console,
) -> Result<RunEnd, HintedError> {
    let events = EventLog::default();
    events.emit(Event::Starting {
        text: format!("AgentRun {}/{} is created; the cluster starts it", connection.namespace, found.name),
    });
    let control = ClusterControl::new(connection.clone(), found.clone(), events.clone());
    if level != StopLevel::None {
        control.stop(level);
    }
    let mut failure = None;
    let lost = async {
        match follow::watch_run(connection, found.run.clone(), &events, arguments.approve).await {
            // The follower has seen the end.
            Ok(()) => std::future::pending().await,
            Err(error) => failure = Some(error),
        }
    };
    let end = console.follow(&events, &control, lost).await;
    let cancelled = control.finish_cancellation().await;
    let (name, target) = (&found.name, connection.target.as_str());
    let end =
        end.map_err(|error| HintedError::new(error, format!("`sympozium show {name}{target}` shows its state")))?;
    match end {
        FollowEnd::RunEnded(end) => Ok(end),
        FollowEnd::Detached => cancelled.map(|()| RunEnd::Cancelled),
        FollowEnd::Lost => {
            let why = failure.map_or_else(String::new, |it| format!(": {}", it.summary()));
            Err(HintedError::new(
                anyhow!("run {} continues in the cluster, and cannot be followed any more{why}", quote(name)),
                format!(
                    "`sympozium logs -f {name}{target}` follows it again, `sympozium cancel {name}{target}` ends it"
                ),
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

    /// Waits for a cancellation that is being sent, after the user has left.
    ///
    /// # Errors
    ///
    /// When the API server has not accepted it.
    async fn finish_cancellation(&self) -> Result<(), HintedError> {
        let cancellation = std::mem::replace(&mut *self.cancellation.lock(), Cancellation::NotRequested);
        cancellation.finish(CANCEL_TIMEOUT).await.unwrap_or_else(|| {
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
    fn request(&mut self, send: impl Future<Output = Result<(), HintedError>> + Send + 'static) -> CancelState {
        if let Self::Sending(task) = self
            && let Some(sent) = task.now_or_never()
        {
            *self = match sent {
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
                *self = Self::Sending(tokio::spawn(send));
                CancelState::Pending
            }
        }
    }

    /// Whether the cancellation was accepted, if that is known within `timeout`.
    async fn finish(self, timeout: Duration) -> Option<Result<(), HintedError>> {
        match self {
            Self::NotRequested | Self::Accepted => Some(Ok(())),
            Self::Failed(failure) => Some(Err(failure)),
            Self::Sending(task) => tokio::time::timeout(timeout, task).await.ok()?.ok(),
        }
    }
}

impl RunControl for ClusterControl {
    async fn vote(
        &self,
        approval: &str,
        action: &Digest,
        vote: Vote,
        reason: Option<&str>,
    ) -> anyhow::Result<VoteResult> {
        let name = self.names.with_suffix(approval);
        approvals::cast_vote(&self.connection, &name, action, vote, reason).await
    }

    fn stop(&self, level: StopLevel) -> StopNotice {
        let (text, detaches) = match (level, self.cancel()) {
            (StopLevel::Gently | StopLevel::None, _) => {
                ("ending the run; press Ctrl-C again to leave it to the cluster", false)
            }
            (StopLevel::Now, CancelState::Accepted) => ("leaving; the cluster ends the run", true),
            (StopLevel::Now, CancelState::Pending) => {
                ("leaving as soon as the cluster has accepted that the run is to end", true)
            }
        };
        StopNotice { text, detaches }
    }
}

#[cfg(test)]
mod tests;
