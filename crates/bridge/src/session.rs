//! The state of one run in the bridge: what a decision needs, and what the decisions led to.
//!
//! The lock `turn` guarantees that nothing else happens while an approver is asked. A call that acts holds it shared. A
//! call that asks an approver holds it exclusively, from the question to the end of the approved action. The lock is
//! fair: while a call waits to ask, no other call starts before it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use sympozium_api::RunPlan;
use sympozium_api::guarantee::Guarantee;
use sympozium_api::names::Digest;
use sympozium_ipc::credential::Credential;
use sympozium_ipc::door::{ASKED_TO_END, Refusal, RefusalCode, RunResult};
use sympozium_ipc::receipt::{Actor, Event, IsolationSeen, MAX_NUMBER, Outcome, Transferred};
use sympozium_ipc::run_api::Usage;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, mpsc, watch};

use crate::calls::{milliseconds, refusal};
use crate::clock::Clock;
use crate::floor::IsolationFloor;
use crate::model::Model;
use crate::outward::Outward;
use crate::pace::{Bounds, Pace, Wait};
use crate::permits::Permit;
use crate::records::Records;
use crate::skill::{OpenError, Skill, Verification};
use crate::table::{Table, UnusableSchema};
use crate::upward::Upward;

/// After this many refusals the agent is disconnected: each costs work, and most have a receipt.
pub const MAX_REFUSALS: u64 = 1_000;

pub struct Session {
    pub(crate) plan: RunPlan,
    pub(crate) table: Table,
    pub(crate) skills: BTreeMap<String, Skill>,
    pub(crate) records: Records,
    pub(crate) clock: Clock,
    pub(crate) upward: Upward,
    pub(crate) outward: Arc<Outward>,
    pub(crate) web: Option<Credential>,
    pub(crate) model: Arc<Model>,
    /// The command that prints a skill's logs, with `{part}` as a placeholder.
    pub(crate) logs: String,
    pub(crate) permits: Mutex<HashMap<u64, Permit>>,
    /// Actions that an approver approved for the whole run, by their hash without a nonce, with the approver's name.
    pub(crate) standing: Mutex<HashMap<Digest, Option<String>>>,
    turn: Arc<RwLock<()>>,
    paces: Mutex<Paces>,
    calls: AtomicU64,
    model_requests: AtomicU64,
    /// Requests to the model that are in flight.
    models: watch::Sender<u32>,
    refusals: AtomicU64,
    /// Calls that act at the moment, by call number.
    acting: Mutex<BTreeMap<u64, Acting>>,
    /// The skill that the agent loaded last, as an index into the plan.
    pub(crate) active: Mutex<Option<usize>>,
    result: Mutex<Option<RunResult>>,
    pub(crate) floor: IsolationFloor,
    /// Why the run was ended, if a command was less isolated than the plan requires.
    below_floor: OnceLock<String>,
    over: watch::Sender<Option<Over>>,
    /// Why results of skills can no longer be trusted.
    pub(crate) compromised: OnceLock<String>,
}

pub struct SessionParts {
    pub plan: RunPlan,
    pub plan_digest: Digest,
    pub model: Arc<Model>,
    pub outward: Arc<Outward>,
    pub upward: Upward,
    /// The credential for web pages, if the plan allows them.
    pub web: Option<Credential>,
    /// The command that prints a skill's logs, with `{part}` as a placeholder.
    pub logs: String,
    pub platform: Vec<Guarantee>,
    /// Packs whose executor the backend has replaced with ours, which verifies requests.
    pub verifying: BTreeSet<String>,
}

/// Why a session ends, unless the agent just disconnects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Over {
    /// The agent sent its result.
    Finished,
    /// The agent did something that `agent-runner` never does.
    Misbehaved(&'static str),
    BelowFloor,
    /// The gateway takes no reports of this run.
    Unwanted(String),
    /// What a skill does can no longer be known.
    Compromised(String),
}

#[derive(Debug, thiserror::Error)]
pub enum Unservable {
    #[error(transparent)]
    Schema(#[from] UnusableSchema),
    #[error("the volume of skill pack `{pack}` cannot be used")]
    Volume {
        pack: String,
        #[source]
        source: OpenError,
    },
}

/// A call that acts at the moment.
pub(crate) struct Acting {
    pub by: Actor,
    /// The hash of the exact action.
    pub action: Digest,
    pub since: Instant,
}

/// Rate limiters of all calls together and of each tool, by its index in the plan.
struct Paces {
    all: Pace,
    each: Vec<Pace>,
}

/// A call counts against the limits until this is dropped.
pub struct Slot {
    session: Arc<Session>,
    index: usize,
}

/// The right to act, or to ask an approver.
pub enum Turn {
    /// Other calls may act at the same time.
    Shared(OwnedRwLockReadGuard<()>),
    /// No other call acts.
    Alone(OwnedRwLockWriteGuard<()>),
}

impl Session {
    /// Opens the volume of every skill and compiles every schema, so that a defect is found before anything happens.
    /// Must be called within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if a volume or a schema cannot be used.
    pub fn new(parts: SessionParts, ipc: &Path) -> Result<Arc<Self>, Unservable> {
        let SessionParts { plan, plan_digest, model, outward, upward, web, logs, platform, verifying } = parts;
        let table = Table::new(&plan)?;
        let floor = IsolationFloor::new(&plan, &verifying, &platform);
        let mut skills = BTreeMap::new();
        let (notify, notices) = mpsc::unbounded_channel();
        for part in &plan.parts {
            let Some(pack) = part.role.pack() else {
                continue;
            };
            let verification = match part.attests() || verifying.contains(pack) {
                true => Verification::Verifies,
                false => Verification::Unverified,
            };
            let directory = ipc.join(pack);
            let skill = Skill::open(&directory, pack, verification, &floor, notify.clone())
                .map_err(|source| Unservable::Volume { pack: pack.to_owned(), source })?;
            skills.insert(pack.to_owned(), skill);
        }
        let (limits, deadlines) = (&plan.limits, &plan.deadlines);
        let seconds = std::time::Duration::from_secs;
        let each = plan.tools.iter().map(|tool| {
            Pace::new(Bounds {
                concurrent: tool.limits.concurrent,
                per_minute: tool.limits.per_minute,
                total: u64::MAX,
            })
        });
        let paces = Paces {
            all: Pace::new(Bounds {
                concurrent: limits.concurrent_tool_calls,
                per_minute: u32::MAX,
                total: u64::from(limits.tool_calls),
            }),
            each: each.collect(),
        };
        let session = Arc::new(Self {
            records: Records::new(plan_digest, limits.transcript_bytes),
            clock: Clock::new(seconds(deadlines.run_seconds), seconds(deadlines.waiting_seconds)),
            table,
            skills,
            upward,
            outward,
            web,
            model,
            logs,
            permits: Mutex::default(),
            standing: Mutex::default(),
            turn: Arc::default(),
            paces: Mutex::new(paces),
            calls: AtomicU64::new(0),
            model_requests: AtomicU64::new(0),
            models: watch::Sender::new(0),
            refusals: AtomicU64::new(0),
            acting: Mutex::default(),
            active: Mutex::default(),
            result: Mutex::default(),
            floor,
            below_floor: OnceLock::new(),
            over: watch::Sender::new(None),
            compromised: OnceLock::new(),
            plan,
        });
        session.follow(notices);
        Ok(session)
    }

    pub(crate) fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts a refusal against the agent. Refusals that may succeed at another time do not count.
    pub(crate) fn refused(&self, code: RefusalCode) {
        use RefusalCode::{Arguments, Denied, Request, Size, UnknownTool};
        if !matches!(code, Arguments | Denied | Request | Size | UnknownTool) {
            return;
        }
        if self.refusals.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_REFUSALS {
            self.end(Over::Misbehaved("it went on asking for what it is refused"));
        }
    }

    /// Registers a call that acts now. `finish_action` writes its receipt.
    pub(crate) fn begins(&self, call: u64, acting: Acting) {
        lock(&self.acting).insert(call, acting);
    }

    /// Records the outcome of a call. Does nothing if the run end has recorded it already.
    pub(crate) fn ends(&self, call: u64, outcome: Outcome, output: Transferred, isolation: Option<IsolationSeen>) {
        let Some(acting) = lock(&self.acting).remove(&call) else {
            return;
        };
        self.records.add(Event::Acted {
            call,
            by: acting.by,
            action: acting.action,
            outcome,
            output,
            duration_ms: milliseconds(acting.since),
            isolation,
        });
    }

    /// Records a failure for every call that still acts, because the run ends now.
    pub(crate) fn give_up(&self) {
        let calls: Vec<u64> = lock(&self.acting).keys().copied().collect();
        for call in calls {
            let outcome = Outcome::Failed { why: "the run ended before it did".to_owned() };
            self.ends(call, outcome, Transferred::default(), None);
        }
    }

    /// Fails if the session has ended: then nothing more is started.
    pub(crate) fn goes_on(&self) -> Result<(), Refusal> {
        match &*self.over.borrow() {
            None => Ok(()),
            Some(_) => Err(refusal(RefusalCode::Unavailable, "the run is over")),
        }
    }

    /// Counts a call of the tool at this index.
    pub(crate) fn slot(self: &Arc<Self>, index: usize) -> Result<Slot, Refusal> {
        let now = Instant::now();
        self.goes_on()?;
        let mut paces = lock(&self.paces);
        let Paces { all, each } = &mut *paces;
        let own = &mut each[index];
        all.has_room(now).map_err(|wait| too_many(wait, "the run", "more tool calls"))?;
        let name = &self.plan.tools[index].name;
        own.has_room(now).map_err(|wait| too_many(wait, &format!("`{name}`"), "more calls"))?;
        all.begin(now);
        own.begin(now);
        Ok(Slot { session: Arc::clone(self), index })
    }

    /// Waits for the right to act together with other calls.
    pub(crate) async fn turn(&self) -> Turn {
        Turn::Shared(Arc::clone(&self.turn).read_owned().await)
    }

    /// Waits until no call acts, and keeps others from starting.
    pub(crate) async fn turn_alone(&self) -> Turn {
        Turn::Alone(Arc::clone(&self.turn).write_owned().await)
    }

    /// Registers a request to the model. It is in flight until the guard is dropped.
    pub(crate) fn model_begins(self: &Arc<Self>) -> ModelExchange {
        self.models.send_modify(|open| *open += 1);
        ModelExchange { session: Arc::clone(self), number: self.model_requests.fetch_add(1, Ordering::Relaxed) }
    }

    /// Waits until no call acts and no model request is in flight. New calls wait meanwhile.
    pub(crate) async fn quiet(&self) {
        let mut models = self.models.subscribe();
        let (_turn, _models) = tokio::join!(self.turn_alone(), models.wait_for(|open| *open == 0));
    }

    /// Stores the agent's result. Returns `false` if there is one already.
    pub(crate) fn set_result(&self, result: RunResult) -> bool {
        let mut kept = lock(&self.result);
        if kept.is_some() {
            return false;
        }
        *kept = Some(result);
        drop(kept);
        self.end(Over::Finished);
        true
    }

    /// Whether the agent reported that it was told to terminate.
    pub(crate) fn agent_was_asked_to_end(&self) -> bool {
        matches!(&*lock(&self.result), Some(RunResult::Failure { error }) if error == ASKED_TO_END)
    }

    pub(crate) fn take_result(&self) -> Option<RunResult> {
        lock(&self.result).take()
    }

    /// Ends the session. Only the first reason counts.
    pub(crate) fn end(&self, over: Over) {
        self.over.send_if_modified(|kept| {
            let first = kept.is_none();
            if first {
                *kept = Some(over);
            }
            first
        });
    }

    /// Ends the run because a command was less isolated than the plan requires. This overrides the agent's result.
    pub(crate) fn end_below_floor(&self, why: String) {
        tracing::error!(why, "the run is ended");
        let _ = self.below_floor.set(why);
        self.end(Over::BelowFloor);
    }

    /// Why the run was ended, if a command was less isolated than the plan requires.
    pub(crate) fn below_floor(&self) -> Option<&str> {
        self.below_floor.get().map(String::as_str)
    }

    /// Waits until the session ends, and returns the reason.
    pub(crate) async fn over(&self) -> Over {
        let mut over = self.over.subscribe();
        match over.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or(Over::Finished),
            Err(_) => std::future::pending().await,
        }
    }

    pub fn usage(&self) -> Usage {
        let model = self.model.usage();
        Usage {
            model_requests: model.requests,
            // A provider can report any number.
            input_tokens: model.input_tokens.min(MAX_NUMBER),
            output_tokens: model.output_tokens.min(MAX_NUMBER),
            estimated: model.estimated,
            tool_calls: self.calls.load(Ordering::Relaxed),
        }
    }

    /// The command that prints the logs of a part.
    pub(crate) fn logs_of(&self, part: &str) -> String {
        self.logs.replace("{part}", part)
    }
}

/// A request to the model that is in flight.
pub(crate) struct ModelExchange {
    session: Arc<Session>,
    number: u64,
}

impl ModelExchange {
    /// The number of the request. A method and not a visible field: a closure would capture a copy of the field and
    /// drop the guard.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for ModelExchange {
    fn drop(&mut self) {
        self.session.models.send_modify(|open| *open -= 1);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut paces = lock(&self.session.paces);
        paces.all.end();
        paces.each[self.index].end();
    }
}

fn too_many(wait: Wait, who: &str, what: &str) -> Refusal {
    let (code, message, wait) = match wait {
        Wait::Running => (
            RefusalCode::Busy,
            format!("too much is going on for {who} at this moment; wait for an answer first"),
            None,
        ),
        Wait::For(wait) => (
            RefusalCode::Rate,
            format!("{who} may not have {what} in this minute"),
            u64::try_from(wait.as_millis()).ok(),
        ),
        Wait::Over => {
            (RefusalCode::Budget, format!("{who} may not have {what} at all; finish with what there is"), None)
        }
    };
    Refusal { code, message, retry_after_ms: wait }
}

/// Locks a mutex. No code here panics while it holds a lock; if it ever does, the data is still consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
