//! One run, as the bridge holds it: everything that a decision needs, and what came of the decisions.
//!
//! The lock called `turn` is how "nothing else happens meanwhile" is kept. Whoever acts holds it together with others;
//! whoever asks a person holds it alone, from the question to the end of what was asked about. It is fair: once somebody
//! waits to ask, nobody begins before them.

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

/// Refusals after which an agent is no longer listened to: each costs work, and most have a receipt.
pub const MAX_REFUSALS: u64 = 1_000;

/// One run.
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
    /// Where to look for what a skill said, with `{part}` in it.
    pub(crate) logs: String,
    pub(crate) permits: Mutex<HashMap<u64, Permit>>,
    /// Actions that a person has approved for the whole run, by their hash without a nonce, and who did.
    pub(crate) standing: Mutex<HashMap<Digest, Option<String>>>,
    turn: Arc<RwLock<()>>,
    paces: Mutex<Paces>,
    calls: AtomicU64,
    model_requests: AtomicU64,
    /// Requests to the model that are under way.
    models: watch::Sender<u32>,
    refusals: AtomicU64,
    /// What is going on, by call.
    acting: Mutex<BTreeMap<u64, Acting>>,
    /// The skill that the agent read last, by its place in the plan.
    pub(crate) active: Mutex<Option<usize>>,
    result: Mutex<Option<RunResult>>,
    pub(crate) floor: IsolationFloor,
    /// Why the run is ended, where a command was less isolated than it must be.
    below_floor: OnceLock<String>,
    over: watch::Sender<Option<Over>>,
    /// Why nothing that a skill says can be relied on any more.
    pub(crate) compromised: OnceLock<String>,
}

/// What a session is made of.
pub struct SessionParts {
    /// The plan.
    pub plan: RunPlan,
    /// Its digest.
    pub plan_digest: Digest,
    /// The model.
    pub model: Arc<Model>,
    /// The way out.
    pub outward: Arc<Outward>,
    /// The way to the run API.
    pub upward: Upward,
    /// What pages of the web are fetched under, where they may be.
    pub web: Option<Credential>,
    /// Where to look for what a skill said, with `{part}` in it.
    pub logs: String,
    /// Guarantees that the platform around the skills holds.
    pub platform: Vec<Guarantee>,
    /// Packs whose executor the backend has replaced with ours, which verifies requests.
    pub verifying: BTreeSet<String>,
}

/// Why a session is over, where the agent has not simply left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Over {
    /// It has said how it ended.
    Finished,
    /// It does what no agent of ours does.
    Misbehaved(&'static str),
    /// A command was less isolated than the plan requires.
    BelowFloor,
    /// Nothing that happens could be reported.
    Unwanted(String),
    /// What a skill does can no longer be known.
    Compromised(String),
}

/// Why a run cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Unservable {
    /// A tool's schema is none.
    #[error(transparent)]
    Schema(#[from] UnusableSchema),
    /// A skill's directory is not there.
    #[error("the volume of skill pack `{pack}` cannot be used")]
    Volume {
        /// The pack.
        pack: String,
        /// Why.
        #[source]
        source: OpenError,
    },
}

/// Something that is going on.
pub(crate) struct Acting {
    /// Who acts.
    pub by: Actor,
    /// The hash of the exact action.
    pub action: Digest,
    /// Since when.
    pub since: Instant,
}

/// How many calls there are, of each tool and of all.
struct Paces {
    all: Pace,
    each: Vec<Pace>,
}

/// A call that is counted while this lives.
pub struct Slot {
    session: Arc<Session>,
    index: usize,
}

/// The right to act, or to ask.
pub enum Turn {
    /// Together with others.
    Shared(OwnedRwLockReadGuard<()>),
    /// Alone.
    Alone(OwnedRwLockWriteGuard<()>),
}

impl Session {
    /// Opens every skill's volume and reads every schema, so that what cannot work shows before anything happens. To be
    /// called within a runtime.
    ///
    /// # Errors
    ///
    /// When a volume or a schema cannot be used.
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

    /// A number for the next call.
    pub(crate) fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// The agent was refused something. What may well go better another time does not count against it.
    pub(crate) fn refused(&self, code: RefusalCode) {
        use RefusalCode::{Arguments, Denied, Request, Size, UnknownTool};
        if !matches!(code, Arguments | Denied | Request | Size | UnknownTool) {
            return;
        }
        if self.refusals.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_REFUSALS {
            self.end(Over::Misbehaved("it went on asking for what it is refused"));
        }
    }

    /// Something begins that ends with a receipt.
    pub(crate) fn begins(&self, call: u64, acting: Acting) {
        lock(&self.acting).insert(call, acting);
    }

    /// It has ended. Nothing is recorded where the run has ended before.
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

    /// The run ends before what is still going on does.
    pub(crate) fn give_up(&self) {
        let calls: Vec<u64> = lock(&self.acting).keys().copied().collect();
        for call in calls {
            let outcome = Outcome::Failed { why: "the run ended before it did".to_owned() };
            self.ends(call, outcome, Transferred::default(), None);
        }
    }

    /// Nothing more begins once the agent has said how it ended, or was cut off.
    pub(crate) fn goes_on(&self) -> Result<(), Refusal> {
        match &*self.over.borrow() {
            None => Ok(()),
            Some(_) => Err(refusal(RefusalCode::Unavailable, "the run is over")),
        }
    }

    /// Counts a call of the tool at this place of the table.
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

    /// Waits for the right to act beside others.
    pub(crate) async fn turn(&self) -> Turn {
        Turn::Shared(Arc::clone(&self.turn).read_owned().await)
    }

    /// Waits until nobody acts, and keeps everybody from it.
    pub(crate) async fn turn_alone(&self) -> Turn {
        Turn::Alone(Arc::clone(&self.turn).write_owned().await)
    }

    /// A request to the model begins. It is under way until the guard is dropped.
    pub(crate) fn model_begins(self: &Arc<Self>) -> ModelExchange {
        self.models.send_modify(|open| *open += 1);
        ModelExchange { session: Arc::clone(self), number: self.model_requests.fetch_add(1, Ordering::Relaxed) }
    }

    /// Waits until nothing is going on any more. Whoever begins something after that waits in turn.
    pub(crate) async fn quiet(&self) {
        let mut models = self.models.subscribe();
        let (_turn, _models) = tokio::join!(self.turn_alone(), models.wait_for(|open| *open == 0));
    }

    /// The agent's last word. Only the first counts.
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

    /// Whether the agent says that it was told to end.
    pub(crate) fn agent_was_asked_to_end(&self) -> bool {
        matches!(&*lock(&self.result), Some(RunResult::Failure { error }) if error == ASKED_TO_END)
    }

    /// What the agent said in the end.
    pub(crate) fn take_result(&self) -> Option<RunResult> {
        lock(&self.result).take()
    }

    /// The session is to end.
    pub(crate) fn end(&self, over: Over) {
        self.over.send_if_modified(|kept| {
            let first = kept.is_none();
            if first {
                *kept = Some(over);
            }
            first
        });
    }

    /// A command was less isolated than the plan requires: the run ends, whatever the agent says.
    pub(crate) fn end_below_floor(&self, why: String) {
        tracing::error!(why, "the run is ended");
        let _ = self.below_floor.set(why);
        self.end(Over::BelowFloor);
    }

    /// Why the run was ended, where a command was less isolated than it must be.
    pub(crate) fn below_floor(&self) -> Option<&str> {
        self.below_floor.get().map(String::as_str)
    }

    /// Waits until the session is to end, and says why.
    pub(crate) async fn over(&self) -> Over {
        let mut over = self.over.subscribe();
        match over.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or(Over::Finished),
            Err(_) => std::future::pending().await,
        }
    }

    /// What the run has used.
    pub fn usage(&self) -> Usage {
        let model = self.model.usage();
        Usage {
            model_requests: model.requests,
            // A provider can say anything.
            input_tokens: model.input_tokens.min(MAX_NUMBER),
            output_tokens: model.output_tokens.min(MAX_NUMBER),
            estimated: model.estimated,
            tool_calls: self.calls.load(Ordering::Relaxed),
        }
    }

    /// Where to look for what a part said.
    pub(crate) fn logs_of(&self, part: &str) -> String {
        self.logs.replace("{part}", part)
    }
}

/// A request to the model that is under way.
pub(crate) struct ModelExchange {
    session: Arc<Session>,
    number: u64,
}

impl ModelExchange {
    /// Which. Not a field that can be seen: a closure would take a copy of that, and let the rest go.
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

/// Nothing here can panic while it holds a lock; if it ever does, what is locked is still whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
