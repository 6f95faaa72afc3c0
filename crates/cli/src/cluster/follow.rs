//! Watches a run of a cluster and emits the same events that a run of this machine emits.

mod projector;

pub use projector::RunProjector;

use std::pin::Pin;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt as _};
use kube::ResourceExt as _;
use kube::core::Status;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Config, watcher};
use sympozium_api::{AgentRun, RunPlan, RunRecord, ToolApproval};
use sympozium_gateway::run_api::local::Vote;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::call_error::{CallError, Role};
use super::{Connection, approvals, plan, records};
use sympozium_runs::ApprovalMode;
use sympozium_runs::EventLog;
use sympozium_runs::HintedError;
use sympozium_runs::event_log::MAX_EVENTS;
use sympozium_runs::time::now_ms;
use sympozium_runs::{Event, Question, VoteResult};

/// Failures within this time of each other are one outage: a watch that recovers does not report it. Longer than the
/// pause between two attempts plus the duration of an attempt.
const OUTAGE_GAP: Duration = Duration::from_secs(120);
/// How soon a record that could not be read is requested again.
const RECORD_RETRY_MS: u64 = 2_000;
/// The number of events after which the readers of the log get a turn.
const EVENTS_PER_YIELD: usize = MAX_EVENTS / 16;

/// What the watches deliver.
#[derive(Debug)]
enum WatchEvent {
    Run(Box<AgentRun>),
    RunGone,
    Record(Box<RunRecord>),
    Approval(Box<ToolApproval>),
    Failed(WatchedKind, watcher::Error),
    /// The API server has responded.
    Responded,
    /// The watch is about to list.
    Listing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchedKind {
    Runs,
    Records,
    Approvals,
}

type Watch = Pin<Box<dyn Stream<Item = WatchEvent> + Send>>;

/// Watches a run to its end and emits its events. With [`Approve::All`] and [`Approve::None`] it votes on questions
/// itself.
///
/// # Errors
///
/// When the run cannot be watched at all.
pub async fn watch_run(
    connection: &Connection,
    run: AgentRun,
    events: &EventLog,
    approve: ApprovalMode,
) -> Result<(), HintedError> {
    let mut watch_events = futures::stream::select_all(start_watches(connection, &run));
    let mut projector = RunProjector::new(run, connection.target.clone(), now_ms());
    let mut errors = WatchErrors::default();
    while !projector.has_emitted_end() {
        let deadline = projector.next_deadline_ms().map(|at| at.saturating_sub(now_ms()));
        let retry = projector.needs_record().map(|_| RECORD_RETRY_MS);
        let timeout = deadline.into_iter().chain(retry).min();
        let new = tokio::select! {
            watch_event = watch_events.next() => match watch_event.inspect(|it| errors.observe(it)) {
                Some(WatchEvent::Run(run)) => projector.on_run(*run, now_ms()),
                Some(WatchEvent::RunGone) => projector.on_run_deleted(now_ms()),
                Some(WatchEvent::Record(record)) => projector.on_record(*record, now_ms()),
                Some(WatchEvent::Approval(approval)) => projector.on_approval(&approval, now_ms()),
                Some(WatchEvent::Failed(kind, error)) => {
                    errors.handle(connection, kind, error, Instant::now())?
                }
                Some(WatchEvent::Responded | WatchEvent::Listing) => Vec::new(),
                // Watches do not end.
                None => std::future::pending().await,
            },
            () = sleep_ms(timeout) => projector.tick(now_ms()),
        };
        emit(connection, &projector, events, approve, new).await;
        // A whole page of objects is delivered without a pause.
        yield_now().await;
        if projector.needs_plan() {
            let stored = plan::read_stored_plan(connection, projector.run()).await;
            if let plan::StoredPlan::Mismatch(why) = &stored {
                let text = format!("the stored plan does not match the run's plan digest: {why}");
                events.emit(Event::Warning { text });
            }
            let plan = match stored {
                plan::StoredPlan::Plan(plan) => Some(plan),
                _ => None,
            };
            let new = projector.on_plan(plan, now_ms());
            emit(connection, &projector, events, approve, new).await;
        }
        while let Some(name) = projector.needs_record() {
            let api = connection.records();
            let Ok(read) = connection.try_call(api.get_opt(&name)).await else {
                break;
            };
            let new = projector.on_record_read(read, now_ms());
            emit(connection, &projector, events, approve, new).await;
        }
    }
    Ok(())
}

/// Emits events, and votes on questions when no approver is asked.
async fn emit(
    connection: &Connection,
    projector: &RunProjector,
    events: &EventLog,
    approve: ApprovalMode,
    new: Vec<Event>,
) {
    for (number, event) in new.into_iter().enumerate() {
        // Let the readers run: they would miss what does not fit into the log.
        if number % EVENTS_PER_YIELD == EVENTS_PER_YIELD - 1 {
            yield_now().await;
        }
        let question = match &event {
            Event::Asked { question } => Some(question.clone()),
            _ => None,
        };
        events.emit(event);
        let vote = match approve {
            ApprovalMode::Ask => None,
            ApprovalMode::All => Some(Vote::Approve),
            ApprovalMode::None => Some(Vote::Deny),
        };
        if let (Some(question), Some(vote)) = (question, vote)
            && let Some(text) = vote_automatically(connection, projector, &question, vote).await
        {
            events.emit(Event::Warning { text });
        }
    }
}

async fn vote_automatically(
    connection: &Connection,
    projector: &RunProjector,
    question: &Question,
    vote: Vote,
) -> Option<String> {
    let Question { approval, action, .. } = question;
    let name = plan::object_names(projector.run()).with_suffix(approval);
    match approvals::cast_vote(connection, &name, action, vote, None).await {
        Ok(VoteResult::Decided) => None,
        Ok(VoteResult::MoreNeeded(1)) => Some(format!("question {approval} requires 1 more approval")),
        Ok(VoteResult::MoreNeeded(more)) => Some(format!("question {approval} requires {more} more approvals")),
        Ok(VoteResult::Recorded) => Some(format!(
            "the vote on question {approval} is recorded: you cannot read the run's plan, which has the number of \
             required approvals"
        )),
        Ok(VoteResult::Refused(why)) => Some(format!("question {approval} is still pending: {why}")),
        Err(error) => Some(format!("question {approval} is still pending: {error:#}")),
    }
}

/// Sleeps; without a duration, for ever.
async fn sleep_ms(milliseconds: Option<u64>) {
    match milliseconds {
        // At least a moment, so that an expired deadline that was handled already does not become a busy loop.
        Some(milliseconds) => sleep(Duration::from_millis(milliseconds.max(50))).await,
        None => std::future::pending().await,
    }
}

fn start_watches(connection: &Connection, run: &AgentRun) -> Vec<Watch> {
    let name = format!("metadata.name={}", run.name_any());
    let config = Config::default().timeout(connection.watch_client.timeout_seconds);
    let runs = config.clone().fields(&name);
    let of_run = config.labels(&records::run_selector(run));
    let of_run = of_run.page_size(records::PAGE_SIZE);
    // Whether the list contains the run.
    let mut is_listed = false;
    let runs = watcher(connection.watch_api::<AgentRun>(), runs).default_backoff();
    let runs = runs.map(move |event| match event {
        Ok(watcher::Event::Init) => {
            is_listed = false;
            WatchEvent::Listing
        }
        Ok(watcher::Event::Apply(run) | watcher::Event::InitApply(run)) => {
            is_listed = true;
            WatchEvent::Run(Box::new(run))
        }
        Ok(watcher::Event::InitDone) if is_listed => WatchEvent::Responded,
        Ok(watcher::Event::InitDone | watcher::Event::Delete(_)) => WatchEvent::RunGone,
        Err(error) => WatchEvent::Failed(WatchedKind::Runs, error),
    });
    let records = connection.watch_api::<RunRecord>();
    let records = watcher(records, of_run.clone()).default_backoff();
    let records = records.map(|event| match event {
        Ok(watcher::Event::Apply(it) | watcher::Event::InitApply(it)) => WatchEvent::Record(Box::new(it)),
        Ok(watcher::Event::Init) => WatchEvent::Listing,
        Ok(_) => WatchEvent::Responded,
        Err(error) => WatchEvent::Failed(WatchedKind::Records, error),
    });
    let approvals = watcher(connection.watch_api::<ToolApproval>(), of_run).default_backoff();
    let approvals = approvals.map(|event| match event {
        Ok(watcher::Event::Apply(it) | watcher::Event::InitApply(it)) => WatchEvent::Approval(Box::new(it)),
        Ok(watcher::Event::Init) => WatchEvent::Listing,
        Ok(_) => WatchEvent::Responded,
        Err(error) => WatchEvent::Failed(WatchedKind::Approvals, error),
    });
    vec![Box::pin(runs), Box::pin(records), Box::pin(approvals)]
}

/// Which failures of watches were reported.
#[derive(Debug, Default)]
struct WatchErrors {
    /// The last time that the API server did not respond; `None` once it responds.
    last_failure: Option<Instant>,
    forbidden: Vec<WatchedKind>,
}

impl WatchErrors {
    /// Any response of the API server ends the outage.
    fn observe(&mut self, event: &WatchEvent) {
        match event {
            WatchEvent::Run(_)
            | WatchEvent::RunGone
            | WatchEvent::Record(_)
            | WatchEvent::Approval(_)
            | WatchEvent::Responded => {
                self.last_failure = None;
            }
            // Precedes each list, whether or not the list is answered.
            WatchEvent::Listing | WatchEvent::Failed(..) => {}
        }
    }

    /// A watch retries by itself. An error that is final ends the command, or is reported once.
    fn handle(
        &mut self,
        connection: &Connection,
        kind: WatchedKind,
        error: watcher::Error,
        now: Instant,
    ) -> Result<Vec<Event>, HintedError> {
        let error = match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => CallError::Kube(error),
            watcher::Error::WatchError(status) => CallError::Kube(kube::Error::Api(status)),
            watcher::Error::NoResourceVersion => return Ok(Vec::new()),
        };
        let code = error.status().map(|it: &Status| it.code);
        let is_final = matches!(code, Some(401 | 403 | 404));
        let operation = match kind {
            WatchedKind::Runs => "watch the run",
            WatchedKind::Records => "watch the records of the run (RunRecords)",
            WatchedKind::Approvals => "watch the questions of the run (ToolApprovals)",
        };
        if is_final && kind == WatchedKind::Runs {
            return Err(connection.call_context(operation, Role::Viewer).as_failure(&error));
        }
        let warn = |text: String| Ok(vec![Event::Warning { text }]);
        if is_final {
            if self.forbidden.contains(&kind) {
                return Ok(Vec::new());
            }
            self.forbidden.push(kind);
            return warn(format!("you cannot {operation}; the ClusterRole `{}` permits it", Role::Viewer.name()));
        }
        // A watch whose resource version is too old restarts, which users need not know.
        if code == Some(410) {
            return Ok(Vec::new());
        }
        let last = self.last_failure.replace(now);
        if last.is_some_and(|it| now.saturating_duration_since(it) < OUTAGE_GAP) {
            return Ok(Vec::new());
        }
        warn("the API server does not respond; retrying until it does".to_owned())
    }
}

/// The plan of a run, for a caller that needs it for one question.
pub async fn read_plan(connection: &Connection, run: &AgentRun) -> Option<Box<RunPlan>> {
    match plan::read_stored_plan(connection, run).await {
        plan::StoredPlan::Plan(plan) => Some(plan),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
