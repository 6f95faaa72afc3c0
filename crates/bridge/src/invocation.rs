//! The invocation of a call: a command of a skill, or an action of the bridge itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde_json::Value;
use sympozium_api::builtin_tool::{FETCH_URL, SCHEDULE_TASK, SEND_CHANNEL_MESSAGE, SPAWN_SUBAGENTS};
use sympozium_api::run_plan::{PartName, ToolHandler, ToolPlan};
use sympozium_ipc::door::{Refusal, RefusalCode, ToolAnswer};
use sympozium_ipc::receipt::{Actor, Outcome, OutputSize, ReportedIsolation, to_receipt_text};
use sympozium_ipc::requester::SubmitError;
use sympozium_ipc::run_api::{
    ApiRefusalCode, MessageRequest, ScheduleRequest, SubrunsAnswer, SubrunsRequest, TextAnswer, path,
};
use sympozium_ipc::{ExecRequest, ExecResult, RequestId};
use tokio::time::timeout;

use crate::calls::{AcceptedCall, refusal};
use crate::command;
use crate::fetch::fetch;
use crate::run_api_client::RunApiError;
use crate::session::Session;
use crate::skill::Execution;

/// How much longer than the command the bridge waits: for the executor to see the request, and to end a command that
/// runs too long.
const ANSWER_GRACE: Duration = Duration::from_secs(10);

/// The error if a skill does not answer. People search for this line.
pub const NO_ANSWER_MESSAGE: &str = "timed out waiting for command execution result";

pub(crate) enum Invocation {
    /// A skill runs a command.
    Command { part: PartName, request: Box<ExecRequest> },
    /// The bridge or the agent acts.
    Direct {
        /// The arguments as JSON.
        text: String,
    },
}

/// The result of an invocation.
pub(crate) struct Completed {
    pub outcome: Outcome,
    pub output: OutputSize,
    pub isolation: Option<ReportedIsolation>,
    pub answer: Result<ToolAnswer, Refusal>,
}

impl Invocation {
    /// Builds the invocation of a call.
    pub fn new(begun: &AcceptedCall) -> Result<Self, Refusal> {
        let tool = &begun.tool;
        match &tool.acts {
            ToolHandler::Agent | ToolHandler::Bridge => Ok(Self::Direct { text: begun.arguments.to_string() }),
            ToolHandler::Shell { part } | ToolHandler::Program { part, .. } => {
                let target = tool.pack.as_deref().unwrap_or_default();
                let request = command::build_request(next_id(), tool, target, &begun.arguments)
                    .map_err(|error| refusal(RefusalCode::Arguments, &error.to_string()))?;
                Ok(Self::Command { part: part.clone(), request: Box::new(request) })
            }
        }
    }

    /// The request to the sidecar, if there is one.
    pub fn request(&self) -> Option<&ExecRequest> {
        match self {
            Self::Command { request, .. } => Some(request),
            Self::Direct { .. } => None,
        }
    }

    /// The part that acts. The bridge and the agent have the same name here.
    pub fn target(&self) -> &str {
        match self {
            Self::Command { part, .. } => &part.0,
            Self::Direct { .. } => "run",
        }
    }

    /// Who acts, if it is not the agent.
    pub const fn actor(&self) -> Actor {
        match self {
            Self::Command { .. } => Actor::Skill,
            Self::Direct { .. } => Actor::Bridge,
        }
    }

    pub fn timeout_seconds(&self, tool: &ToolPlan) -> u32 {
        let asked = self.request().and_then(|request| request.timeout);
        asked.and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(tool.limits.timeout_seconds)
    }
}

impl Session {
    /// Performs the invocation.
    pub(crate) async fn invoke(
        &self,
        begun: &AcceptedCall,
        work: Invocation,
        unwanted: &mut (impl Future<Output = ()> + Unpin),
    ) -> Completed {
        match work {
            Invocation::Command { part, request } => {
                let patience = Duration::from_secs(u64::from(begun.tool.limits.timeout_seconds));
                let asked = request.timeout.and_then(|timeout| u64::try_from(timeout).ok());
                let patience = asked.map_or(patience, Duration::from_secs) + ANSWER_GRACE;
                let pack = begun.tool.pack.as_deref().unwrap_or_default();
                let executed = match self.skills.get(pack) {
                    Some(skill) => skill.execute(*request, patience, unwanted).await,
                    None => Execution::StoppedByOther { claimed: false },
                };
                if let Execution::Answered(result) = &executed {
                    let isolation = result.meta.as_ref().and_then(|meta| meta.isolation.as_ref());
                    if let Some(why) = self.floor.describe_missing(pack, isolation) {
                        let done = complete_below_floor(&why, isolation);
                        self.end_below_floor(why);
                        return done;
                    }
                }
                let most = begun.tool.limits.output_bytes as usize;
                complete_execution(executed, most, &self.logs_of(&part.0))
            }
            Invocation::Direct { .. } => {
                let acting = self.invoke_direct(begun);
                let given_up = match begun.tool.name.as_str() {
                    // A page that is not read to its end has no effects.
                    FETCH_URL => Outcome::Cancelled,
                    SPAWN_SUBAGENTS => failed("given up; it is unknown whether it was done"),
                    // Actions with effects for others are completed: whether they happened must be known, and they do
                    // not take long.
                    _ => return complete_direct(acting.await),
                };
                tokio::select! {
                    answer = acting => complete_direct(answer),
                    () = unwanted => complete_cancelled(given_up),
                }
            }
        }
    }

    /// Performs an action of the bridge itself.
    async fn invoke_direct(&self, begun: &AcceptedCall) -> Result<ToolAnswer, Refusal> {
        let (tool, arguments) = (&begun.tool, &begun.arguments);
        let limit = Duration::from_secs(u64::from(tool.limits.timeout_seconds));
        let most = tool.limits.output_bytes as usize;
        match tool.name.as_str() {
            FETCH_URL => {
                let Some(web) = &self.web_credential else {
                    let message = "the run may not reach the web";
                    return Err(refusal(RefusalCode::Denied, message));
                };
                fetch(&self.egress, web, arguments, &tool.limits).await
            }
            SEND_CHANNEL_MESSAGE => {
                let request: MessageRequest = parse_arguments(arguments)?;
                self.post_request(path::MESSAGES, &request, limit, most).await
            }
            SCHEDULE_TASK => {
                let request: ScheduleRequest = parse_arguments(arguments)?;
                self.post_request(path::SCHEDULES, &request, limit, most).await
            }
            SPAWN_SUBAGENTS => {
                let request: SubrunsRequest = parse_arguments(arguments)?;
                // Without a timeout of its own: each subrun has a deadline.
                let answer = self.run_api.post::<SubrunsAnswer>(path::SUBRUNS, &request).await;
                let answer = answer.map_err(api_refusal)?;
                let text = serde_json::to_string(&answer)
                    .map_err(|_| refusal(RefusalCode::Unknown, "the answer cannot be serialised"))?;
                let (text, _) = fit_bytes(text, most);
                Ok(ToolAnswer::Text { text })
            }
            other => {
                let message = format!("this release does not know how to act on `{other}`");
                Err(refusal(RefusalCode::Unavailable, &message))
            }
        }
    }

    async fn post_request(
        &self,
        path: &'static str,
        request: &impl serde::Serialize,
        limit: Duration,
        most: usize,
    ) -> Result<ToolAnswer, Refusal> {
        let answer = timeout(limit, self.run_api.post::<TextAnswer>(path, request)).await;
        let answer = answer.map_err(|_| api_refusal(RunApiError::Lost))?;
        let (text, _) = fit_bytes(answer.map_err(api_refusal)?.text, most);
        Ok(ToolAnswer::Text { text })
    }
}

fn parse_arguments<T: DeserializeOwned>(arguments: &Value) -> Result<T, Refusal> {
    serde_json::from_value(arguments.clone()).map_err(|error| refusal(RefusalCode::Arguments, &error.to_string()))
}

/// Requests with effects are not retried: only the model can know whether that is wanted.
fn api_refusal(problem: RunApiError) -> Refusal {
    let code = match &problem {
        RunApiError::Unreachable(_) | RunApiError::Token => RefusalCode::Unavailable,
        RunApiError::Lost | RunApiError::InvalidAnswer => RefusalCode::Unknown,
        RunApiError::Refused(refusal) => match refusal.code {
            ApiRefusalCode::Request => RefusalCode::Arguments,
            ApiRefusalCode::Denied => RefusalCode::Denied,
            ApiRefusalCode::Size => RefusalCode::Size,
            ApiRefusalCode::Busy => RefusalCode::Busy,
            ApiRefusalCode::Token | ApiRefusalCode::Unavailable => RefusalCode::Unavailable,
            // It may have failed after it was done.
            ApiRefusalCode::Chain | ApiRefusalCode::Failed => RefusalCode::Unknown,
        },
    };
    refusal(code, &to_receipt_text(&problem.to_string()))
}

fn complete_direct(answer: Result<ToolAnswer, Refusal>) -> Completed {
    let (outcome, output) = match &answer {
        Ok(ToolAnswer::Page { body, truncated, .. }) => (
            Outcome::Done,
            OutputSize {
                // The body is in Base64.
                bytes: body.len() as u64 / 4 * 3,
                truncated: *truncated,
            },
        ),
        Ok(ToolAnswer::Text { text }) => (Outcome::Done, OutputSize { bytes: text.len() as u64, truncated: false }),
        Ok(ToolAnswer::Command { .. }) => (Outcome::Done, OutputSize::default()),
        Err(refusal) => (failed(&refusal.message), OutputSize::default()),
    };
    Completed { outcome, output, isolation: None, answer }
}

fn complete_cancelled(outcome: Outcome) -> Completed {
    Completed {
        outcome,
        output: OutputSize::default(),
        isolation: None,
        answer: Err(refusal(RefusalCode::Unavailable, "the agent no longer waits for this")),
    }
}

/// The result of a command. What the skill says may be a lie.
fn complete_execution(executed: Execution, most: usize, logs: &str) -> Completed {
    let nothing = |outcome, code, message: &str| Completed {
        outcome,
        output: OutputSize::default(),
        isolation: None,
        answer: Err(refusal(code, message)),
    };
    let maybe = |claimed| if claimed { RefusalCode::Unknown } else { RefusalCode::Unavailable };
    match executed {
        Execution::Answered(result) => complete_command(*result, most),
        Execution::Invalid(problem) => {
            let message = format!("the skill's result cannot be used: {problem}");
            nothing(failed(&message), RefusalCode::Unknown, &to_receipt_text(&message))
        }
        Execution::NotSubmitted(SubmitError::Request(problem)) => {
            let message = problem.to_string();
            nothing(failed(&message), RefusalCode::Arguments, &message)
        }
        Execution::NotSubmitted(SubmitError::Sign(error)) => {
            let message = error.to_string();
            nothing(failed(&message), RefusalCode::Unavailable, &message)
        }
        Execution::NotSubmitted(SubmitError::Volume(error)) => {
            let message = format!("the skill cannot be asked: {error}; see `{logs}`");
            nothing(failed(&message), RefusalCode::Unavailable, &message)
        }
        Execution::StoppedByOther { claimed } => {
            let message = format!("the skill's executor was asked to exit before the end of the run; see `{logs}`");
            nothing(failed(&message), maybe(claimed), &message)
        }
        Execution::Restarted => {
            let message =
                format!("the skill's executor was started again, and the command may have run in part; see `{logs}`");
            nothing(failed(&message), RefusalCode::Unknown, &message)
        }
        Execution::NoAnswer { claimed } => {
            let message = format!("{NO_ANSWER_MESSAGE}; see `{logs}`");
            nothing(failed(&message), maybe(claimed), &message)
        }
        Execution::Cancelled => {
            nothing(Outcome::Cancelled, RefusalCode::Unavailable, "the agent no longer waits for this")
        }
    }
}

/// The result of a command that was less isolated than the plan requires. Its output is not passed on.
fn complete_below_floor(why: &str, isolation: Option<&Value>) -> Completed {
    Completed {
        outcome: failed(why),
        output: OutputSize::default(),
        isolation: isolation.and_then(isolation_seen),
        answer: Err(refusal(RefusalCode::Unavailable, &to_receipt_text(why))),
    }
}

fn complete_command(result: ExecResult, most: usize) -> Completed {
    let meta = result.meta.unwrap_or_default();
    let cut = meta.truncated.unwrap_or_default();
    let (stdout, more_out) = fit_bytes(result.stdout, most);
    let (stderr, more_err) = fit_bytes(result.stderr, most);
    let truncated = cut.stdout || cut.stderr || more_out || more_err;
    let code = i32::try_from(result.exit_code).unwrap_or(i32::MAX);
    let outcome = match (result.timed_out, meta.outcome.as_deref()) {
        (true, _) => Outcome::TimedOut,
        (false, None) => Outcome::Exited { code },
        (false, Some("cancelled")) => Outcome::Cancelled,
        (false, Some(other)) => failed(other),
    };
    Completed {
        outcome,
        output: OutputSize { bytes: (stdout.len() + stderr.len()) as u64, truncated },
        isolation: meta.isolation.as_ref().and_then(isolation_seen),
        answer: Ok(ToolAnswer::Command { exit_code: code, stdout, stderr, timed_out: result.timed_out, truncated }),
    }
}

/// Truncates an output to a number of bytes, at a character boundary. Returns whether it was longer, which the answer
/// says in a field of its own.
fn fit_bytes(mut text: String, most: usize) -> (String, bool) {
    if text.len() <= most {
        return (text, false);
    }
    text.truncate(text.floor_char_boundary(most));
    (text, true)
}

/// The isolation report of a result: the profile, and the guarantees that it calls enforced.
fn isolation_seen(isolation: &Value) -> Option<ReportedIsolation> {
    let profile = isolation.get("profile")?.as_str()?;
    let guarantees = isolation.get("guarantees").and_then(Value::as_object);
    let enforced = guarantees.into_iter().flatten();
    let enforced = enforced.filter(|(_, standing)| standing.as_str() == Some("enforced"));
    // The receipt drops invalid words, and more than its maximum of them.
    Some(ReportedIsolation {
        profile: profile.to_owned(),
        guarantees: enforced.map(|(name, _)| name.clone()).collect(),
    })
}

fn failed(why: &str) -> Outcome {
    Outcome::Failed { why: to_receipt_text(why) }
}

/// Request IDs as existing sidecars know them: nanoseconds since 1970, each one unique.
fn next_id() -> RequestId {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since_epoch| u64::try_from(since_epoch.as_nanos()).unwrap_or(0));
    let last = LAST.fetch_max(now, Ordering::Relaxed);
    let id = if now > last { now } else { LAST.fetch_add(1, Ordering::Relaxed) + 1 };
    RequestId::from_nanoseconds(id)
}
