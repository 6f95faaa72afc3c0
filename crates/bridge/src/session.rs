//! The state of one run in the bridge: what a decision needs, and what the decisions led to.
//!
//! The lock `turn` guarantees that nothing else happens while an approver is asked. A call that acts holds it shared. A
//! call that asks an approver holds it exclusively, from the question to the end of the approved action. The lock is
//! fair: while a call waits to ask, no other call starts before it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use sympozium_api::RunPlan;
use sympozium_api::guarantee::Guarantee;
use sympozium_api::names::Digest;
use sympozium_ipc::credential::Credential;
use sympozium_ipc::door::{AgentResult, Refusal, RefusalCode, SHUTDOWN_ERROR};
use sympozium_ipc::receipt::{Actor, Event, MAX_NUMBER, Outcome, OutputSize, ReportedIsolation};
use sympozium_ipc::run_api::Usage;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, mpsc, watch};

use crate::calls::{elapsed_ms, refusal};
use crate::clock::Clock;
use crate::egress_client::EgressClient;
use crate::floor::IsolationFloor;
use crate::model::Model;
use crate::permits::Permit;
use crate::rate::{LimitExceeded, RateBounds, RateLimiter};
use crate::records::Records;
use crate::run_api_client::RunApiClient;
use crate::skill::{OpenError, Skill, Verification};
use crate::table::{InvalidSchema, ToolTable};

/// After this many refusals the agent is disconnected: each costs work, and most have a receipt.
pub const MAX_REFUSALS: u64 = 1_000;

pub struct Session {
    pub(crate) plan: RunPlan,
    pub(crate) table: ToolTable,
    pub(crate) skills: BTreeMap<String, Skill>,
    pub(crate) records: Records,
    pub(crate) clock: Clock,
    pub(crate) run_api: RunApiClient,
    pub(crate) egress: Arc<EgressClient>,
    pub(crate) web_credential: Option<Credential>,
    pub(crate) model: Arc<Model>,
    /// The command that prints a skill's logs, with `{part}` as a placeholder.
    pub(crate) logs_command: String,
    pub(crate) permits: Mutex<HashMap<u64, Permit>>,
    /// Actions that an approver approved for the whole run, by their hash without a nonce, with the approver's name.
    pub(crate) run_approvals: Mutex<HashMap<Digest, Option<String>>>,
    turn: Arc<RwLock<()>>,
    rate_limiters: Mutex<RateLimiters>,
    calls: AtomicU64,
    model_requests: AtomicU64,
    model_requests_in_flight: watch::Sender<u32>,
    refusals: AtomicU64,
    /// Calls that act at the moment, by call number.
    in_flight: Mutex<BTreeMap<u64, InFlight>>,
    /// The skill that the agent loaded last, as an index into the plan.
    pub(crate) active_skill_index: Mutex<Option<usize>>,
    result: Mutex<Option<AgentResult>>,
    pub(crate) floor: IsolationFloor,
    /// Why the run was ended, if a command was less isolated than the plan requires.
    below_floor: OnceLock<String>,
    end_reason: watch::Sender<Option<StopCause>>,
    /// Why results of skills can no longer be trusted.
    pub(crate) compromised: OnceLock<String>,
}

pub struct SessionParts {
    pub plan: RunPlan,
    pub plan_digest: Digest,
    pub model: Arc<Model>,
    pub egress: Arc<EgressClient>,
    pub run_api: RunApiClient,
    /// The credential for web pages, if the plan allows them.
    pub web_credential: Option<Credential>,
    /// The command that prints a skill's logs, with `{part}` as a placeholder.
    pub logs_command: String,
    pub platform: Vec<Guarantee>,
    /// Packs whose executor the backend has replaced with ours, which verifies requests.
    pub verifying: BTreeSet<String>,
}

/// Why a session ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopCause {
    NeverConnected,
    /// The agent sent its result, or disconnected.
    AgentDone,
    /// The run's time was up.
    TimedOut,
    /// The bridge was told to terminate.
    Signalled,
    /// The agent did something that `agent-runner` never does, or went on after too many refusals.
    Misbehaved(&'static str),
    /// A command was less isolated than the plan requires.
    BelowFloor,
    /// The gateway takes no reports of this run.
    ReportsRefused(String),
    /// What a skill does can no longer be known.
    Compromised(String),
}

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Schema(#[from] InvalidSchema),
    #[error("the volume of skill pack `{pack}` cannot be used")]
    Volume {
        pack: String,
        #[source]
        source: OpenError,
    },
}

/// A call that acts at the moment.
pub(crate) struct InFlight {
    pub by: Actor,
    /// The hash of the exact action.
    pub action: Digest,
    pub since: Instant,
}

/// Rate limiters of all calls together and of each tool, by its index in the plan.
struct RateLimiters {
    all: RateLimiter,
    each: Vec<RateLimiter>,
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
    Exclusive(OwnedRwLockWriteGuard<()>),
}

impl Session {
    /// Opens the volume of every skill and compiles every schema, so that a defect is found before anything happens.
    /// Must be called within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if a volume or a schema cannot be used.
    pub fn new(parts: SessionParts, ipc: &Path) -> Result<Arc<Self>, SessionError> {
        let SessionParts {
            plan,
            plan_digest,
            model,
            egress: outward,
            run_api: upward,
            web_credential: web,
            logs_command: logs,
            platform,
            verifying,
        } = parts;
        let table = ToolTable::new(&plan)?;
        let floor = IsolationFloor::new(&plan, &verifying, &platform);
        let mut skills = BTreeMap::new();
        let (notify, notices) = mpsc::unbounded_channel();
        for part in &plan.parts {
            let Some(pack) = part.role.pack() else {
                continue;
            };
            let verification = if part.is_attested() || verifying.contains(pack) {
                Verification::Verifies
            } else {
                Verification::Unverified
            };
            let directory = ipc.join(pack);
            let skill = Skill::open(&directory, pack, verification, &floor, notify.clone())
                .map_err(|source| SessionError::Volume { pack: pack.to_owned(), source })?;
            skills.insert(pack.to_owned(), skill);
        }
        let (limits, deadlines) = (&plan.limits, &plan.deadlines);
        let seconds = std::time::Duration::from_secs;
        let each = plan.tools.iter().map(|tool| {
            RateLimiter::new(RateBounds {
                concurrent: tool.limits.concurrent,
                per_minute: tool.limits.per_minute,
                total: u64::MAX,
            })
        });
        let paces = RateLimiters {
            all: RateLimiter::new(RateBounds {
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
            run_api: upward,
            egress: outward,
            web_credential: web,
            model,
            logs_command: logs,
            permits: Mutex::default(),
            run_approvals: Mutex::default(),
            turn: Arc::default(),
            rate_limiters: Mutex::new(paces),
            calls: AtomicU64::new(0),
            model_requests: AtomicU64::new(0),
            model_requests_in_flight: watch::Sender::new(0),
            refusals: AtomicU64::new(0),
            in_flight: Mutex::default(),
            active_skill_index: Mutex::default(),
            result: Mutex::default(),
            floor,
            below_floor: OnceLock::new(),
            end_reason: watch::Sender::new(None),
            compromised: OnceLock::new(),
            plan,
        });
        session.follow_notices(notices);
        Ok(session)
    }

    pub(crate) fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts a refusal against the agent. Refusals that may succeed at another time do not count.
    pub(crate) fn count_refusal(&self, code: RefusalCode) {
        use RefusalCode::{Arguments, Denied, Request, Size, UnknownTool};
        if !matches!(code, Arguments | Denied | Request | Size | UnknownTool) {
            return;
        }
        if self.refusals.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_REFUSALS {
            self.end(StopCause::Misbehaved("it went on asking for what it is refused"));
        }
    }

    /// Registers a call that acts now. `finish_action` writes its receipt.
    pub(crate) fn start_action(&self, call: u64, acting: InFlight) {
        self.in_flight.lock().insert(call, acting);
    }

    /// Records the outcome of a call. Does nothing if the run end has recorded it already.
    pub(crate) fn finish_action(
        &self,
        call: u64,
        outcome: Outcome,
        output: OutputSize,
        isolation: Option<ReportedIsolation>,
    ) {
        let Some(acting) = self.in_flight.lock().remove(&call) else {
            return;
        };
        self.records.add(Event::Acted {
            call,
            by: acting.by,
            action: acting.action,
            outcome,
            output,
            duration_ms: elapsed_ms(acting.since),
            isolation,
        });
    }

    /// Records a failure for every call that still acts, because the run ends now.
    pub(crate) fn abandon_actions(&self) {
        let calls: Vec<u64> = self.in_flight.lock().keys().copied().collect();
        for call in calls {
            let outcome = Outcome::Failed { why: "the run ended before it did".to_owned() };
            self.finish_action(call, outcome, OutputSize::default(), None);
        }
    }

    /// Fails if the session has ended: then nothing more is started.
    pub(crate) fn check_open(&self) -> Result<(), Refusal> {
        match &*self.end_reason.borrow() {
            None => Ok(()),
            Some(_) => Err(refusal(RefusalCode::Unavailable, "the run is over")),
        }
    }

    /// Counts a call of the tool at this index.
    pub(crate) fn acquire_slot(self: &Arc<Self>, index: usize) -> Result<Slot, Refusal> {
        let now = Instant::now();
        self.check_open()?;
        let mut paces = self.rate_limiters.lock();
        let RateLimiters { all, each } = &mut *paces;
        let own = &mut each[index];
        all.check(now).map_err(|wait| rate_refusal(wait, "the run", "more tool calls"))?;
        let name = &self.plan.tools[index].name;
        own.check(now).map_err(|wait| rate_refusal(wait, &format!("`{name}`"), "more calls"))?;
        all.begin(now);
        own.begin(now);
        Ok(Slot { session: Arc::clone(self), index })
    }

    /// Waits for the right to act together with other calls.
    pub(crate) async fn take_turn(&self) -> Turn {
        Turn::Shared(Arc::clone(&self.turn).read_owned().await)
    }

    /// Waits until no call acts, and keeps others from starting.
    pub(crate) async fn take_exclusive_turn(&self) -> Turn {
        Turn::Exclusive(Arc::clone(&self.turn).write_owned().await)
    }

    /// Registers a request to the model. It is in flight until the guard is dropped.
    pub(crate) fn begin_model_exchange(self: &Arc<Self>) -> ModelExchange {
        self.model_requests_in_flight.send_modify(|open| *open += 1);
        ModelExchange { session: Arc::clone(self), number: self.model_requests.fetch_add(1, Ordering::Relaxed) }
    }

    /// Waits until no call acts and no model request is in flight. New calls wait meanwhile.
    pub(crate) async fn wait_idle(&self) {
        let mut models = self.model_requests_in_flight.subscribe();
        let (_turn, _models) = tokio::join!(self.take_exclusive_turn(), models.wait_for(|open| *open == 0));
    }

    /// Stores the agent's result. Returns `false` if there is one already.
    pub(crate) fn set_result(&self, result: AgentResult) -> bool {
        let mut kept = self.result.lock();
        if kept.is_some() {
            return false;
        }
        *kept = Some(result);
        drop(kept);
        self.end(StopCause::AgentDone);
        true
    }

    /// Whether the agent reported that it was told to terminate.
    pub(crate) fn agent_was_terminated(&self) -> bool {
        matches!(&*self.result.lock(), Some(AgentResult::Failure { error }) if error == SHUTDOWN_ERROR)
    }

    pub(crate) fn take_result(&self) -> Option<AgentResult> {
        self.result.lock().take()
    }

    /// Ends the session. Only the first reason counts.
    pub(crate) fn end(&self, cause: StopCause) {
        self.end_reason.send_if_modified(|kept| {
            let first = kept.is_none();
            if first {
                *kept = Some(cause);
            }
            first
        });
    }

    /// Ends the run because a command was less isolated than the plan requires. This overrides the agent's result.
    pub(crate) fn end_below_floor(&self, why: String) {
        tracing::error!(why, "the run is ended");
        let _ = self.below_floor.set(why);
        self.end(StopCause::BelowFloor);
    }

    /// Why the run was ended, if a command was less isolated than the plan requires.
    pub(crate) fn below_floor(&self) -> Option<&str> {
        self.below_floor.get().map(String::as_str)
    }

    /// Waits until the session ends, and returns the reason.
    pub(crate) async fn wait_end(&self) -> StopCause {
        let mut over = self.end_reason.subscribe();
        match over.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or(StopCause::AgentDone),
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
        self.logs_command.replace("{part}", part)
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
        self.session.model_requests_in_flight.send_modify(|open| *open -= 1);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut paces = self.session.rate_limiters.lock();
        paces.all.end();
        paces.each[self.index].end();
    }
}

fn rate_refusal(wait: LimitExceeded, who: &str, what: &str) -> Refusal {
    let (code, message, wait) = match wait {
        LimitExceeded::Concurrent => (
            RefusalCode::Busy,
            format!("too much is going on for {who} at this moment; wait for an answer first"),
            None,
        ),
        LimitExceeded::PerMinute(wait) => (
            RefusalCode::Rate,
            format!("{who} may not have {what} in this minute"),
            u64::try_from(wait.as_millis()).ok(),
        ),
        LimitExceeded::Total => {
            (RefusalCode::Budget, format!("{who} may not have {what} at all; finish with what there is"), None)
        }
    };
    Refusal { code, message, retry_after_ms: wait }
}
