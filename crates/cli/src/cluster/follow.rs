//! Watches a run of a cluster and emits the same events that a run of this machine emits.

mod told;

pub use told::Told;

use std::pin::Pin;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt as _};
use kube::ResourceExt as _;
use kube::core::Status;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Config, watcher};
use sympozium_api::{AgentRun, RunPlan, RunRecord, ToolApproval};
use sympozium_gateway::run_api::local::Says;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::refused::{CallError, Role};
use super::{Connection, approvals, plan, records};
use crate::failure::Failure;
use crate::local::event::{Event, Question};
use crate::local::events::{EventLog, MAX_EVENTS};
use crate::local::prepared::Approve;
use crate::local::time::now_ms;
use crate::run::follow::Heard;

/// Failures within this time of each other are one outage: a watch that recovers does not report it. Longer than the
/// pause between two attempts plus the duration of an attempt.
const CALM: Duration = Duration::from_secs(120);
/// How soon a record that could not be read is requested again.
const AGAIN_MS: u64 = 2_000;
/// The number of events after which the readers of the log get a turn.
const AT_ONCE: usize = MAX_EVENTS / 16;

/// What the watches deliver.
#[derive(Debug)]
enum Seen {
    Run(Box<AgentRun>),
    NoRun,
    Record(Box<RunRecord>),
    Approval(Box<ToolApproval>),
    Trouble(What, watcher::Error),
    /// The API server has responded.
    Fine,
    /// The watch is about to list.
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Runs,
    Records,
    Approvals,
}

type Watch = Pin<Box<dyn Stream<Item = Seen> + Send>>;

/// Watches a run to its end and emits its events. With [`Approve::All`] and [`Approve::None`] it votes on questions
/// itself.
///
/// # Errors
///
/// When the run cannot be watched at all.
pub async fn watch(connection: &Connection, run: AgentRun, events: &EventLog, approve: Approve) -> Result<(), Failure> {
    let mut seen = futures::stream::select_all(watches(connection, &run));
    let mut told = Told::new(run, connection.place.clone(), now_ms());
    let mut trouble = Trouble::default();
    while !told.has_ended() {
        let due = told.due_ms().map(|at| at.saturating_sub(now_ms()));
        let again = told.wants_record().map(|_| AGAIN_MS);
        let due = due.into_iter().chain(again).min();
        let new = tokio::select! {
            seen = seen.next() => match seen.inspect(|it| trouble.saw(it)) {
                Some(Seen::Run(run)) => told.saw_run(*run, now_ms()),
                Some(Seen::NoRun) => told.saw_no_run(now_ms()),
                Some(Seen::Record(record)) => told.saw_record(*record, now_ms()),
                Some(Seen::Approval(approval)) => told.saw_approval(&approval, now_ms()),
                Some(Seen::Trouble(what, error)) => {
                    trouble.of(connection, what, error, Instant::now())?
                }
                Some(Seen::Fine | Seen::Nothing) => Vec::new(),
                // Watches do not end.
                None => std::future::pending().await,
            },
            () = passed(due) => told.tick(now_ms()),
        };
        tell(connection, &told, events, approve, new).await;
        // A whole page of objects is delivered without a pause.
        yield_now().await;
        if told.wants_plan() {
            let stored = plan::stored(connection, told.run()).await;
            if let plan::Stored::Wrong(why) = &stored {
                let text = format!("the stored plan is not the run's: {why}");
                events.tell(Event::Warning { text });
            }
            let plan = match stored {
                plan::Stored::Plan(plan) => Some(plan),
                _ => None,
            };
            let new = told.plan(plan, now_ms());
            tell(connection, &told, events, approve, new).await;
        }
        while let Some(name) = told.wants_record() {
            let api = connection.records();
            let Ok(read) = connection.attempt(api.get_opt(&name)).await else {
                break;
            };
            let new = told.read_record(read, now_ms());
            tell(connection, &told, events, approve, new).await;
        }
    }
    Ok(())
}

/// Emits events, and votes on questions when no approver is asked.
async fn tell(connection: &Connection, told: &Told, events: &EventLog, approve: Approve, new: Vec<Event>) {
    for (number, event) in new.into_iter().enumerate() {
        // Let the readers run: they would miss what does not fit into the log.
        if number % AT_ONCE == AT_ONCE - 1 {
            yield_now().await;
        }
        let question = match &event {
            Event::Asked { question } => Some(question.clone()),
            _ => None,
        };
        events.tell(event);
        let says = match approve {
            Approve::Ask => None,
            Approve::All => Some(Says::Yes),
            Approve::None => Some(Says::No),
        };
        if let (Some(question), Some(says)) = (question, says)
            && let Some(text) = answer(connection, told, &question, says).await
        {
            events.tell(Event::Warning { text });
        }
    }
}

async fn answer(connection: &Connection, told: &Told, question: &Question, says: Says) -> Option<String> {
    let Question { approval, action, .. } = question;
    let name = plan::names(told.run()).of(approval);
    match approvals::decide(connection, &name, action, says, None).await {
        Ok(Heard::Decided) => None,
        Ok(Heard::More(more)) => Some(format!("{more} more must say yes to {approval}")),
        Ok(Heard::Noted) => {
            Some(format!("whether that is enough for {approval} is decided by the run's plan, which you may not read"))
        }
        Err(why) => Some(format!("{approval} waits for a person: {why}")),
    }
}

async fn passed(milliseconds: Option<u64>) {
    match milliseconds {
        // At least a moment, so that an expired deadline that was handled already does not become a busy loop.
        Some(milliseconds) => sleep(Duration::from_millis(milliseconds.max(50))).await,
        None => std::future::pending().await,
    }
}

fn watches(connection: &Connection, run: &AgentRun) -> Vec<Watch> {
    let name = format!("metadata.name={}", run.name_any());
    let config = Config::default().timeout(connection.watching.seconds);
    let runs = config.clone().fields(&name);
    let of_run = config.labels(&records::of_run(run));
    let of_run = of_run.page_size(records::PAGE);
    // Whether the run was seen since the list began.
    let mut is_there = false;
    let runs = watcher(connection.watched::<AgentRun>(), runs).default_backoff();
    let runs = runs.map(move |event| match event {
        Ok(watcher::Event::Init) => {
            is_there = false;
            Seen::Nothing
        }
        Ok(watcher::Event::Apply(run) | watcher::Event::InitApply(run)) => {
            is_there = true;
            Seen::Run(Box::new(run))
        }
        Ok(watcher::Event::InitDone) if is_there => Seen::Fine,
        Ok(watcher::Event::InitDone | watcher::Event::Delete(_)) => Seen::NoRun,
        Err(error) => Seen::Trouble(What::Runs, error),
    });
    let records = connection.watched::<RunRecord>();
    let records = watcher(records, of_run.clone()).default_backoff();
    let records = records.map(|event| match event {
        Ok(watcher::Event::Apply(it) | watcher::Event::InitApply(it)) => Seen::Record(Box::new(it)),
        Ok(watcher::Event::Init) => Seen::Nothing,
        Ok(_) => Seen::Fine,
        Err(error) => Seen::Trouble(What::Records, error),
    });
    let approvals = watcher(connection.watched::<ToolApproval>(), of_run).default_backoff();
    let approvals = approvals.map(|event| match event {
        Ok(watcher::Event::Apply(it) | watcher::Event::InitApply(it)) => Seen::Approval(Box::new(it)),
        Ok(watcher::Event::Init) => Seen::Nothing,
        Ok(_) => Seen::Fine,
        Err(error) => Seen::Trouble(What::Approvals, error),
    });
    vec![Box::pin(runs), Box::pin(records), Box::pin(approvals)]
}

/// Which failures of watches were reported.
#[derive(Debug, Default)]
struct Trouble {
    /// The last time that the API server did not respond; `None` once it responds.
    last: Option<Instant>,
    forbidden: Vec<What>,
}

impl Trouble {
    /// Any response of the API server ends the outage.
    fn saw(&mut self, seen: &Seen) {
        match seen {
            Seen::Run(_) | Seen::NoRun | Seen::Record(_) | Seen::Approval(_) | Seen::Fine => {
                self.last = None;
            }
            // Precedes each list, whether or not the list is answered.
            Seen::Nothing | Seen::Trouble(..) => {}
        }
    }

    /// A watch retries by itself. An error that is final ends the command, or is reported once.
    fn of(
        &mut self,
        connection: &Connection,
        what: What,
        error: watcher::Error,
        now: Instant,
    ) -> Result<Vec<Event>, Failure> {
        let error = match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => CallError::Kube(error),
            watcher::Error::WatchError(status) => CallError::Kube(kube::Error::Api(status)),
            watcher::Error::NoResourceVersion => return Ok(Vec::new()),
        };
        let code = error.status().map(|it: &Status| it.code);
        let is_final = matches!(code, Some(401 | 403 | 404));
        let doing = match what {
            What::Runs => "watch the run",
            What::Records => "watch what the run leaves (RunRecords)",
            What::Approvals => "watch the questions of the run (ToolApprovals)",
        };
        if is_final && what == What::Runs {
            return Err(connection.refused(doing, Role::Viewer).failure(&error));
        }
        let warn = |text: String| Ok(vec![Event::Warning { text }]);
        if is_final {
            if self.forbidden.contains(&what) {
                return Ok(Vec::new());
            }
            self.forbidden.push(what);
            return warn(format!("you may not {doing}; the ClusterRole `{}` lets you", Role::Viewer.name()));
        }
        // A watch whose resource version is too old restarts, which users need not know.
        if code == Some(410) {
            return Ok(Vec::new());
        }
        let last = self.last.replace(now);
        if last.is_some_and(|it| now.saturating_duration_since(it) < CALM) {
            return Ok(Vec::new());
        }
        warn("the cluster does not answer; trying again until it does".to_owned())
    }
}

/// The plan of a run, for a caller that needs it for one question.
pub async fn plan_of(connection: &Connection, run: &AgentRun) -> Option<Box<RunPlan>> {
    match plan::stored(connection, run).await {
        plan::Stored::Plan(plan) => Some(plan),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
