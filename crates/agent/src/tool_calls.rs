//! Runs the tool calls of one model response, concurrently where they are independent.

mod execute;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Map, Value};
use sympozium_api::run_plan::OfferedTool;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::concurrency::Effects;
use crate::door::{Door, DoorError};
use crate::loop_guard::{self, LoopGuard, Verdict};
use crate::model::{Call, CallArguments, ToolOutcome};
use crate::status::Status;
use crate::tools::native::NativeTools;

/// Calls of tools that are not offered which are still sent to the bridge, so that its receipts show what the model
/// tried.
const MAX_UNKNOWN_TOOL_CALLS: u32 = 20;
/// The bridge disconnects an agent after a thousand refused calls; ending the run earlier leaves time for an answer.
const MAX_REFUSED_CALLS: u32 = 400;
/// The name becomes a segment of a request path.
const MAX_TOOL_NAME: usize = 64;
const INTERRUPTED: &str = "the call was interrupted; it may or may not have been executed";
const SKIPPED: &str = "the call was not made, because an earlier one was interrupted";

pub struct ToolCaller {
    door: Door,
    native: Arc<NativeTools>,
    offered: BTreeMap<String, OfferedTool>,
    max_concurrent: usize,
    /// A permit counts until the bridge has its report.
    permits: Arc<Semaphore>,
    max_result_bytes: usize,
    status: Arc<Status>,
    counts: Mutex<Counts>,
    /// Permit reports that are being sent.
    reports: Mutex<JoinSet<()>>,
}

#[derive(Debug, Default)]
struct Counts {
    unknown: u32,
    /// Calls that were refused because of their content, not because of load.
    refused: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallResult {
    pub text: String,
    pub outcome: ToolOutcome,
    pub duration: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum CallsError {
    #[error("the model asked for the same call of `{tool}` {times} times and made no progress")]
    Stuck { tool: String, times: u32 },
    #[error("the model made {MAX_REFUSED_CALLS} calls that were refused, and went on")]
    TooManyRefused,
    #[error(transparent)]
    BridgeGone(DoorError),
}

enum PlannedCall {
    Run(Map<String, Value>),
    Reject(String),
}

impl ToolCaller {
    pub fn new(
        door: Door,
        native: NativeTools,
        tools: &[OfferedTool],
        max_concurrent: usize,
        status: Arc<Status>,
    ) -> Self {
        let by_name = |tool: &OfferedTool| (tool.name.clone(), tool.clone());
        let max_concurrent = max_concurrent.max(1);
        Self {
            door,
            max_result_bytes: native.context.max_result_bytes,
            native: Arc::new(native),
            offered: tools.iter().map(by_name).collect(),
            max_concurrent,
            permits: Arc::new(Semaphore::new(max_concurrent)),
            status,
            counts: Mutex::default(),
            reports: Mutex::default(),
        }
    }

    /// Runs the calls of one response, concurrently where they are independent. Returns one result for each call, in
    /// order. Dropping the future abandons calls in flight.
    pub async fn run_all(
        self: &Arc<Self>,
        calls: &[Call],
        guard: &mut LoopGuard,
    ) -> Result<Vec<CallResult>, CallsError> {
        let mut planned = Vec::with_capacity(calls.len());
        let mut effects = Vec::with_capacity(calls.len());
        for (index, call) in calls.iter().enumerate() {
            let effect = Effects::of_call(&call.name, self.offered.get(&call.name), &call.arguments);
            let call_plan = self.plan_call(&calls[..index], call, &effect, guard)?;
            effects.push(match call_plan {
                PlannedCall::Run(_) => effect,
                PlannedCall::Reject(_) => Effects::NoEffect,
            });
            planned.push(Some(call_plan));
        }
        let mut results: Vec<Option<CallResult>> = vec![None; calls.len()];
        let mut started = vec![false; calls.len()];
        let mut running = JoinSet::new();
        loop {
            for index in 0..calls.len() {
                if running.len() >= self.max_concurrent {
                    break;
                }
                let is_blocked =
                    |before: usize| results[before].is_none() && !effects[index].is_independent_of(&effects[before]);
                if planned[index].is_none() || (0..index).any(is_blocked) {
                    continue;
                }
                match planned[index].take() {
                    Some(PlannedCall::Run(arguments)) => {
                        started[index] = true;
                        let (caller, call) = (Arc::clone(self), calls[index].clone());
                        running.spawn(async move { (index, caller.execute(call, arguments).await) });
                    }
                    Some(PlannedCall::Reject(reason)) => results[index] = Some(self.failure(reason, Duration::ZERO)),
                    None => {}
                }
            }
            let Some(output) = running.join_next().await else {
                break;
            };
            match output {
                Ok((index, result)) => results[index] = Some(result.map_err(CallsError::BridgeGone)?),
                // A panic in our code: the call gets a failure result below.
                Err(error) => tracing::error!(%error, "a tool call panicked or was cancelled"),
            }
        }
        let mut finished = Vec::with_capacity(calls.len());
        for (index, result) in results.into_iter().enumerate() {
            let reason = if started[index] { INTERRUPTED } else { SKIPPED };
            let mut result = result.unwrap_or_else(|| self.failure(reason.to_owned(), Duration::ZERO));
            if started[index]
                && let Some(note) = guard.record(&calls[index], &effects[index], &result.text)
            {
                result.text = format!("{}\n{note}", result.text);
            }
            finished.push(result);
        }
        if self.counts.lock().refused > MAX_REFUSED_CALLS { Err(CallsError::TooManyRefused) } else { Ok(finished) }
    }

    pub fn reject_all(&self, calls: &[Call], reason: &str) -> Vec<CallResult> {
        let failed = |_: &Call| self.failure(reason.to_owned(), Duration::ZERO);
        calls.iter().map(failed).collect()
    }

    pub async fn flush_reports(&self) {
        let reports = std::mem::take(&mut *self.reports.lock());
        reports.join_all().await;
    }

    fn plan_call(
        &self,
        before: &[Call],
        call: &Call,
        effects: &Effects,
        guard: &mut LoopGuard,
    ) -> Result<PlannedCall, CallsError> {
        let stuck = |times| CallsError::Stuck { tool: call.name.clone(), times };
        let verdict = guard.check(call, effects);
        if let Verdict::Abort(times) = verdict {
            return Err(stuck(times));
        }
        // A rejected call counts as well: a model can be stuck on one.
        let mut reject = |reason: String| {
            guard.record(call, effects, &reason);
            Ok(PlannedCall::Reject(reason))
        };
        let arguments = match &call.arguments {
            CallArguments::Object(arguments) => arguments,
            CallArguments::Invalid(reason) => {
                return reject(format!("the arguments of the call cannot be used: {reason}"));
            }
        };
        let is_duplicate = |other: &&Call| other.name == call.name && other.arguments == call.arguments;
        if let Some(duplicate) = before.iter().find(is_duplicate) {
            let id = &duplicate.id;
            let reason = format!("this is the same call as {id} in the same answer, and was made once");
            return Ok(PlannedCall::Reject(reason));
        }
        if let Verdict::Refuse(times) = verdict {
            return Ok(PlannedCall::Reject(loop_guard::refusal_message(times)));
        }
        if self.offered.contains_key(&call.name) || self.forwards_unknown_tool(&call.name) {
            Ok(PlannedCall::Run(arguments.clone()))
        } else {
            reject(self.unknown_tool_message(&call.name))
        }
    }

    fn forwards_unknown_tool(&self, name: &str) -> bool {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if name.is_empty() || name.len() > MAX_TOOL_NAME || !name.bytes().all(plain) {
            return false;
        }
        let mut counts = self.counts.lock();
        counts.unknown += 1;
        counts.unknown <= MAX_UNKNOWN_TOOL_CALLS
    }

    fn unknown_tool_message(&self, name: &str) -> String {
        let name: String = name.chars().take(MAX_TOOL_NAME).collect();
        let offered: Vec<&str> = self.offered.keys().map(String::as_str).collect();
        if offered.is_empty() {
            format!("there is no tool {name:?}; you have none")
        } else {
            format!("there is no tool {name:?}; you have {}", offered.join(", "))
        }
    }
}
