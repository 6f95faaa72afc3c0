//! What a call comes to, once it may happen: a command of a skill, or something that the bridge does itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde_json::Value;
use sympozium_api::run_plan::{Acts, PartName, ToolPlan};
use sympozium_ipc::door::{Refusal, RefusalCode, ToolAnswer};
use sympozium_ipc::receipt::{Actor, IsolationSeen, Outcome, Transferred, shortened};
use sympozium_ipc::requester::SubmitError;
use sympozium_ipc::run_api::{
    ApiRefusalCode, MessageRequest, ScheduleRequest, SubrunsAnswer, SubrunsRequest, Told, path,
};
use sympozium_ipc::{ExecRequest, ExecResult, RequestId};
use tokio::time::timeout;

use crate::calls::{Begun, refusal};
use crate::command;
use crate::fetch::fetch;
use crate::session::Session;
use crate::skill::Executed;
use crate::upward::Unanswered;

/// How much longer than the command the bridge waits: for the executor to notice it, and to end what runs too long.
const ANSWER_GRACE: Duration = Duration::from_secs(10);
/// Tools of the bridge's own that can be given up on the way.
const FETCH_URL: &str = "fetch_url";
const SPAWN_SUBAGENTS: &str = "spawn_subagents";

/// What is told when a skill does not answer. People search for this line.
pub const NO_ANSWER: &str = "timed out waiting for command execution result";

/// What is to be done.
pub(crate) enum Work {
    /// A skill runs a command.
    Command {
        /// The part that does.
        part: PartName,
        /// What it is asked.
        request: Box<ExecRequest>,
    },
    /// The bridge acts, or the agent does.
    Own {
        /// The arguments as one text.
        text: String,
    },
}

/// What was done.
pub(crate) struct Done {
    pub outcome: Outcome,
    pub output: Transferred,
    pub isolation: Option<IsolationSeen>,
    pub answer: Result<ToolAnswer, Refusal>,
}

impl Work {
    /// What a call comes to.
    pub fn of(begun: &Begun) -> Result<Self, Refusal> {
        let tool = &begun.tool;
        match &tool.acts {
            Acts::Agent | Acts::Bridge => Ok(Self::Own { text: begun.arguments.to_string() }),
            Acts::Shell { part } | Acts::Program { part, .. } => {
                let target = tool.pack.as_deref().unwrap_or_default();
                let request = command::request(next_id(), tool, target, &begun.arguments)
                    .map_err(|error| refusal(RefusalCode::Arguments, &error.to_string()))?;
                Ok(Self::Command { part: part.clone(), request: Box::new(request) })
            }
        }
    }

    /// What a sidecar is asked, where one is.
    pub fn request(&self) -> Option<&ExecRequest> {
        match self {
            Self::Command { request, .. } => Some(request),
            Self::Own { .. } => None,
        }
    }

    /// The part that acts; the bridge and the agent are not told apart by name.
    pub fn target(&self) -> &str {
        match self {
            Self::Command { part, .. } => &part.0,
            Self::Own { .. } => "run",
        }
    }

    /// Who acts, where the agent itself does not.
    pub const fn actor(&self) -> Actor {
        match self {
            Self::Command { .. } => Actor::Skill,
            Self::Own { .. } => Actor::Bridge,
        }
    }

    /// Seconds that it may take.
    pub fn seconds(&self, tool: &ToolPlan) -> u32 {
        let asked = self.request().and_then(|request| request.timeout);
        asked.and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(tool.limits.timeout_seconds)
    }
}

impl Session {
    /// Does it.
    pub(crate) async fn act(
        &self,
        begun: &Begun,
        work: Work,
        unwanted: &mut (impl Future<Output = ()> + Unpin),
    ) -> Done {
        match work {
            Work::Command { part, request } => {
                let patience = Duration::from_secs(u64::from(begun.tool.limits.timeout_seconds));
                let asked = request.timeout.and_then(|it| u64::try_from(it).ok());
                let patience = asked.map_or(patience, Duration::from_secs) + ANSWER_GRACE;
                let pack = begun.tool.pack.as_deref().unwrap_or_default();
                let executed = match self.skills.get(pack) {
                    Some(skill) => skill.execute(*request, patience, unwanted).await,
                    None => Executed::Left { claimed: false },
                };
                if let Executed::Answered(result) = &executed {
                    let isolation = result.meta.as_ref().and_then(|it| it.isolation.as_ref());
                    if let Some(why) = self.floor.missing(pack, isolation) {
                        let done = below_floor(&why, isolation);
                        self.end_below_floor(why);
                        return done;
                    }
                }
                let most = begun.tool.limits.output_bytes as usize;
                of_executed(executed, most, &self.logs_of(&part.0))
            }
            Work::Own { .. } => {
                let acting = self.act_itself(begun);
                let given_up = match begun.tool.name.as_str() {
                    // Nothing changes by a page that is not read to its end.
                    FETCH_URL => Outcome::Cancelled,
                    SPAWN_SUBAGENTS => failed("given up; nobody knows whether it was done"),
                    // What others see is seen through: whether it was done must be known, and it does not take long.
                    _ => return of_own(acting.await),
                };
                tokio::select! {
                    answer = acting => of_own(answer),
                    () = unwanted => unwanted_by_now(given_up),
                }
            }
        }
    }

    /// What the bridge does itself.
    async fn act_itself(&self, begun: &Begun) -> Result<ToolAnswer, Refusal> {
        let (tool, arguments) = (&begun.tool, &begun.arguments);
        let limit = Duration::from_secs(u64::from(tool.limits.timeout_seconds));
        let most = tool.limits.output_bytes as usize;
        match tool.name.as_str() {
            FETCH_URL => {
                let Some(web) = &self.web else {
                    let message = "the run may not reach the web";
                    return Err(refusal(RefusalCode::Denied, message));
                };
                fetch(&self.outward, web, arguments, &tool.limits).await
            }
            "send_channel_message" => {
                let request: MessageRequest = read(arguments)?;
                self.tell(path::MESSAGES, &request, limit, most).await
            }
            "schedule_task" => {
                let request: ScheduleRequest = read(arguments)?;
                self.tell(path::SCHEDULES, &request, limit, most).await
            }
            SPAWN_SUBAGENTS => {
                let request: SubrunsRequest = read(arguments)?;
                // As long as the run lasts: each run below has a time of its own.
                let answer = self.upward.post::<SubrunsAnswer>(path::SUBRUNS, &request).await;
                let answer = answer.map_err(unanswered)?;
                let text = serde_json::to_string(&answer)
                    .map_err(|_| refusal(RefusalCode::Unknown, "the answer cannot be told"))?;
                let (text, _) = bounded(text, most);
                Ok(ToolAnswer::Text { text })
            }
            other => {
                let message = format!("this release does not know how to act on `{other}`");
                Err(refusal(RefusalCode::Unavailable, &message))
            }
        }
    }

    async fn tell(
        &self,
        path: &'static str,
        request: &impl serde::Serialize,
        limit: Duration,
        most: usize,
    ) -> Result<ToolAnswer, Refusal> {
        let told = timeout(limit, self.upward.post::<Told>(path, request)).await;
        let told = told.map_err(|_| unanswered(Unanswered::Lost))?;
        let (text, _) = bounded(told.map_err(unanswered)?.text, most);
        Ok(ToolAnswer::Text { text })
    }
}

fn read<T: DeserializeOwned>(arguments: &Value) -> Result<T, Refusal> {
    serde_json::from_value(arguments.clone()).map_err(|error| refusal(RefusalCode::Arguments, &error.to_string()))
}

/// What is done once is not tried again: only who asks can know whether that is wanted.
fn unanswered(problem: Unanswered) -> Refusal {
    let code = match &problem {
        Unanswered::Unreachable(_) | Unanswered::Token => RefusalCode::Unavailable,
        Unanswered::Lost | Unanswered::Garbled => RefusalCode::Unknown,
        Unanswered::Refused(refusal) => match refusal.code {
            ApiRefusalCode::Request => RefusalCode::Arguments,
            ApiRefusalCode::Denied => RefusalCode::Denied,
            ApiRefusalCode::Size => RefusalCode::Size,
            ApiRefusalCode::Busy => RefusalCode::Busy,
            ApiRefusalCode::Token | ApiRefusalCode::Unavailable => RefusalCode::Unavailable,
            // It may have gone wrong after it was done.
            ApiRefusalCode::Chain | ApiRefusalCode::Failed => RefusalCode::Unknown,
        },
    };
    refusal(code, &shortened(&problem.to_string()))
}

fn of_own(answer: Result<ToolAnswer, Refusal>) -> Done {
    let (outcome, output) = match &answer {
        Ok(ToolAnswer::Page { body, truncated, .. }) => (
            Outcome::Done,
            Transferred {
                // Of what is in Base64 here.
                bytes: body.len() as u64 / 4 * 3,
                truncated: *truncated,
            },
        ),
        Ok(ToolAnswer::Text { text }) => (Outcome::Done, Transferred { bytes: text.len() as u64, truncated: false }),
        Ok(ToolAnswer::Command { .. }) => (Outcome::Done, Transferred::default()),
        Err(refusal) => (failed(&refusal.message), Transferred::default()),
    };
    Done { outcome, output, isolation: None, answer }
}

fn unwanted_by_now(outcome: Outcome) -> Done {
    Done {
        outcome,
        output: Transferred::default(),
        isolation: None,
        answer: Err(refusal(RefusalCode::Unavailable, "nobody waits for this any more")),
    }
}

/// What a skill did, told as one who may lie.
fn of_executed(executed: Executed, most: usize, logs: &str) -> Done {
    let nothing = |outcome, code, message: &str| Done {
        outcome,
        output: Transferred::default(),
        isolation: None,
        answer: Err(refusal(code, message)),
    };
    let maybe = |claimed| match claimed {
        true => RefusalCode::Unknown,
        false => RefusalCode::Unavailable,
    };
    match executed {
        Executed::Answered(result) => of_result(*result, most),
        Executed::Unbelievable(problem) => {
            let message = format!("the skill's result cannot be used: {problem}");
            nothing(failed(&message), RefusalCode::Unknown, &shortened(&message))
        }
        Executed::NotAsked(SubmitError::Request(problem)) => {
            let message = problem.to_string();
            nothing(failed(&message), RefusalCode::Arguments, &message)
        }
        Executed::NotAsked(SubmitError::Sign(error)) => {
            let message = error.to_string();
            nothing(failed(&message), RefusalCode::Unavailable, &message)
        }
        Executed::NotAsked(SubmitError::Volume(error)) => {
            let message = format!("the skill cannot be asked: {error}; see `{logs}`");
            nothing(failed(&message), RefusalCode::Unavailable, &message)
        }
        Executed::Left { claimed } => {
            let message = format!(
                "the skill's executor has been told to leave, by something else than the end of the run; see `{logs}`"
            );
            nothing(failed(&message), maybe(claimed), &message)
        }
        Executed::Restarted => {
            let message =
                format!("the skill's executor was started again, and the command may have run in part; see `{logs}`");
            nothing(failed(&message), RefusalCode::Unknown, &message)
        }
        Executed::Silent { claimed } => {
            let message = format!("{NO_ANSWER}; see `{logs}`");
            nothing(failed(&message), maybe(claimed), &message)
        }
        Executed::TakenBack => nothing(Outcome::Cancelled, RefusalCode::Unavailable, "nobody waits for this any more"),
    }
}

/// A result that is not passed on: its command was less isolated than the plan requires.
fn below_floor(why: &str, isolation: Option<&Value>) -> Done {
    Done {
        outcome: failed(why),
        output: Transferred::default(),
        isolation: isolation.and_then(seen),
        answer: Err(refusal(RefusalCode::Unavailable, &shortened(why))),
    }
}

fn of_result(result: ExecResult, most: usize) -> Done {
    let meta = result.meta.unwrap_or_default();
    let cut = meta.truncated.unwrap_or_default();
    let (stdout, more_out) = bounded(result.stdout, most);
    let (stderr, more_err) = bounded(result.stderr, most);
    let truncated = cut.stdout || cut.stderr || more_out || more_err;
    let code = i32::try_from(result.exit_code).unwrap_or(i32::MAX);
    let outcome = match (result.timed_out, meta.outcome.as_deref()) {
        (true, _) => Outcome::TimedOut,
        (false, None) => Outcome::Exited { code },
        (false, Some("cancelled")) => Outcome::Cancelled,
        (false, Some(other)) => failed(other),
    };
    Done {
        outcome,
        output: Transferred { bytes: (stdout.len() + stderr.len()) as u64, truncated },
        isolation: meta.isolation.as_ref().and_then(seen),
        answer: Ok(ToolAnswer::Command { exit_code: code, stdout, stderr, timed_out: result.timed_out, truncated }),
    }
}

/// At most so many bytes of a text, cut between characters.
fn bounded(mut text: String, most: usize) -> (String, bool) {
    if text.len() <= most {
        return (text, false);
    }
    text.truncate(text.floor_char_boundary(most));
    (text, true)
}

/// What a result says about its isolation: where the command ran, and what is said to have been enforced.
fn seen(isolation: &Value) -> Option<IsolationSeen> {
    let profile = isolation.get("profile")?.as_str()?;
    let guarantees = isolation.get("guarantees").and_then(Value::as_object);
    let enforced = guarantees.into_iter().flatten();
    let enforced = enforced.filter(|(_, standing)| standing.as_str() == Some("enforced"));
    // What is no word, or too many of them, does not get into a receipt.
    Some(IsolationSeen { profile: profile.to_owned(), guarantees: enforced.map(|(name, _)| name.clone()).collect() })
}

fn failed(why: &str) -> Outcome {
    Outcome::Failed { why: shortened(why) }
}

/// Ids as existing sidecars know them: nanoseconds since 1970, and no two the same.
fn next_id() -> RequestId {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(0));
    let last = LAST.fetch_max(now, Ordering::Relaxed);
    let id = if now > last { now } else { LAST.fetch_add(1, Ordering::Relaxed) + 1 };
    RequestId::from_nanoseconds(id)
}
