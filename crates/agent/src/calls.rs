//! The calls of one answer: which are made, in which order, and what the model is told of each.

mod make;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Map, Value};
use sympozium_api::run_plan::OfferedTool;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::door::{Door, DoorError};
use crate::independent::Touches;
use crate::model::{Arguments, Call, Outcome};
use crate::repeats::{self, Again, Repeats};
use crate::status::Status;
use crate::tools::native::Native;

/// Calls of tools that are not offered that the bridge hears of, so that its receipts show what the model tried. An honest
/// agent knows the answer.
const MAX_UNKNOWN: u32 = 20;
/// Calls that the bridge refused for what they are. It cuts an agent off that has a thousand of them, with no answer at all.
const MAX_REFUSED: u32 = 400;
/// Bytes of the name of a tool that can be part of a path.
const MAX_TOOL_NAME: usize = 64;
/// What the model is told of a call that nobody answered.
const BROKE_OFF: &str = "the call broke off; nobody knows whether it was done";
/// And of one that was to come after it.
const NOT_MADE: &str = "the call was not made, because one before it broke off";

/// Whoever makes calls.
pub struct Caller {
    door: Door,
    native: Arc<Native>,
    offered: BTreeMap<String, OfferedTool>,
    /// Calls at a time.
    concurrent: usize,
    /// Permits at a time: one is in use until the bridge has heard what came of it.
    permits: Arc<Semaphore>,
    /// Most bytes of what the model is told of a call.
    most: usize,
    status: Arc<Status>,
    counts: Mutex<Counts>,
    /// What is still to be said about permits.
    reports: Mutex<JoinSet<()>>,
}

/// What there has been of in the run.
#[derive(Debug, Default)]
struct Counts {
    /// Calls of unknown tools.
    unknown: u32,
    /// Calls that were refused for what they are.
    refused: u32,
}

/// What the model is told of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// In words.
    pub text: String,
    /// Whether it did what was asked.
    pub outcome: Outcome,
    /// How long it took.
    pub took: Duration,
}

/// Why calls are not made any more.
#[derive(Debug, thiserror::Error)]
pub enum CallsEnd {
    /// The model does the same over and over.
    #[error("the model asked for the same call of `{tool}` {times} times and did not get on")]
    Stuck {
        /// The tool.
        tool: String,
        /// How often.
        times: u32,
    },
    /// The model goes on with what is refused.
    #[error("the model made {MAX_REFUSED} calls that were refused, and went on")]
    Refused,
    /// The bridge is gone.
    #[error(transparent)]
    Gone(DoorError),
}

/// What is done about a call.
enum Step {
    /// It is made.
    Make(Map<String, Value>),
    /// It is not, and this is why.
    Say(String),
}

impl Caller {
    /// Whoever makes the calls of a run.
    pub fn new(door: Door, native: Native, tools: &[OfferedTool], concurrent: usize, status: Arc<Status>) -> Self {
        let named = |tool: &OfferedTool| (tool.name.clone(), tool.clone());
        let concurrent = concurrent.max(1);
        Self {
            door,
            most: native.own.most,
            native: Arc::new(native),
            offered: tools.iter().map(named).collect(),
            concurrent,
            permits: Arc::new(Semaphore::new(concurrent)),
            status,
            counts: Mutex::default(),
            reports: Mutex::default(),
        }
    }

    /// Makes the calls of one answer, side by side where they are independent. There is one result for each call, in order.
    /// Whoever drops this gives up what is under way.
    ///
    /// # Errors
    ///
    /// When there is no sense in going on.
    pub async fn make_all(self: &Arc<Self>, calls: &[Call], repeats: &mut Repeats) -> Result<Vec<Told>, CallsEnd> {
        let mut steps = Vec::with_capacity(calls.len());
        let mut touches = Vec::with_capacity(calls.len());
        for (index, call) in calls.iter().enumerate() {
            let touched = Touches::of(&call.name, self.offered.get(&call.name), &call.arguments);
            let step = self.step(&calls[..index], call, &touched, repeats)?;
            touches.push(match step {
                Step::Make(_) => touched,
                Step::Say(_) => Touches::Nothing,
            });
            steps.push(Some(step));
        }
        let mut told: Vec<Option<Told>> = vec![None; calls.len()];
        let mut made = vec![false; calls.len()];
        let mut running = JoinSet::new();
        loop {
            for index in 0..calls.len() {
                if running.len() >= self.concurrent {
                    break;
                }
                let waits =
                    |before: usize| told[before].is_none() && !touches[index].is_independent_of(&touches[before]);
                if steps[index].is_none() || (0..index).any(waits) {
                    continue;
                }
                match steps[index].take() {
                    Some(Step::Make(arguments)) => {
                        made[index] = true;
                        let (caller, call) = (Arc::clone(self), calls[index].clone());
                        running.spawn(async move { (index, caller.make(call, arguments).await) });
                    }
                    Some(Step::Say(why)) => told[index] = Some(self.failed(why, Duration::ZERO)),
                    None => {}
                }
            }
            let Some(ended) = running.join_next().await else {
                break;
            };
            match ended {
                Ok((index, result)) => told[index] = Some(result.map_err(CallsEnd::Gone)?),
                // A bug of ours: the model is told below, like of everything that has no result.
                Err(error) => tracing::error!(%error, "a call broke off"),
            }
        }
        let mut results = Vec::with_capacity(calls.len());
        for (index, told) in told.into_iter().enumerate() {
            let why = match made[index] {
                true => BROKE_OFF,
                false => NOT_MADE,
            };
            let mut told = told.unwrap_or_else(|| self.failed(why.to_owned(), Duration::ZERO));
            if made[index]
                && let Some(note) = repeats.after(&calls[index], &touches[index], &told.text)
            {
                told.text = format!("{}\n{note}", told.text);
            }
            results.push(told);
        }
        match self.counts.lock().refused > MAX_REFUSED {
            true => Err(CallsEnd::Refused),
            false => Ok(results),
        }
    }

    /// What the model is told of calls that are not made, whatever they are.
    pub fn make_none(&self, calls: &[Call], why: &str) -> Vec<Told> {
        let failed = |_: &Call| self.failed(why.to_owned(), Duration::ZERO);
        calls.iter().map(failed).collect()
    }

    /// Waits until everything has been said about permits.
    pub async fn reported(&self) {
        let reports = std::mem::take(&mut *self.reports.lock());
        reports.join_all().await;
    }

    fn step(&self, before: &[Call], call: &Call, touches: &Touches, repeats: &mut Repeats) -> Result<Step, CallsEnd> {
        let stuck = |times| CallsEnd::Stuck { tool: call.name.clone(), times };
        let again = repeats.before(call, touches);
        if let Again::End(times) = again {
            return Err(stuck(times));
        }
        // Something that cannot be made counts as made: a model that is stuck here is stuck as well.
        let mut cannot = |why: String| {
            repeats.after(call, touches, &why);
            Ok(Step::Say(why))
        };
        let arguments = match &call.arguments {
            Arguments::Object(arguments) => arguments,
            Arguments::Unreadable(why) => {
                return cannot(format!("the arguments of the call cannot be used: {why}"));
            }
        };
        let same = |it: &&Call| it.name == call.name && it.arguments == call.arguments;
        if let Some(same) = before.iter().find(same) {
            let id = &same.id;
            let why = format!("this is the same call as {id} in the same answer, and was made once");
            return Ok(Step::Say(why));
        }
        if let Again::Refuse(times) = again {
            return Ok(Step::Say(repeats::refusal(times)));
        }
        match self.offered.contains_key(&call.name) || self.tells_unknown(&call.name) {
            true => Ok(Step::Make(arguments.clone())),
            false => cannot(self.no_such_tool(&call.name)),
        }
    }

    /// Whether the bridge is told of a call of a tool that is not offered.
    fn tells_unknown(&self, name: &str) -> bool {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if name.is_empty() || name.len() > MAX_TOOL_NAME || !name.bytes().all(plain) {
            return false;
        }
        let mut counts = self.counts.lock();
        counts.unknown += 1;
        counts.unknown <= MAX_UNKNOWN
    }

    fn no_such_tool(&self, name: &str) -> String {
        let name: String = name.chars().take(MAX_TOOL_NAME).collect();
        let offered: Vec<&str> = self.offered.keys().map(String::as_str).collect();
        match offered.is_empty() {
            true => format!("there is no tool {name:?}; you have none"),
            false => format!("there is no tool {name:?}; you have {}", offered.join(", ")),
        }
    }
}
