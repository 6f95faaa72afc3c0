//! Parses requests and checks their bounds, before any handler is called.

use std::collections::HashSet;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Method};
use serde::de::DeserializeOwned;
use sympozium_api::limits;
use sympozium_api::text::{Chars, printable, truncate};
use sympozium_ipc::action::{MAX_SUMMARY, printable_ascii};
use sympozium_ipc::run_api::{
    ApiRefusal, ApiRefusalCode, ApprovalRequest, MAX_REQUEST, MAX_SUBRUNS, MAX_TOKEN, MessageRequest, Report,
    ScheduleRequest, SubrunsRequest, path,
};

/// Maximum number of characters of a question's ID.
pub const MAX_APPROVAL_NAME: usize = 128;
/// Maximum number of characters of the name of a tool or a pack.
pub const MAX_TOOL_NAME: usize = 253;
/// Maximum number of characters of the name of a schedule, and of a task of a subrun.
pub const MAX_TASK_NAME: usize = 63;
/// Maximum number of characters of a task, and of a system prompt.
pub const MAX_TASK: usize = limits::VALUE;
/// Maximum number of characters of a message.
pub const MAX_MESSAGE: usize = limits::VALUE;
/// Maximum number of characters of the name of a channel, a chat or a thread.
pub const MAX_CHANNEL_NAME: usize = 256;
/// Maximum number of characters of a Kubernetes duration.
pub const MAX_TIMEOUT: usize = 32;

/// Maximum length of the error of a request that cannot be parsed.
const MAX_ERROR: Chars = Chars(256);

/// The actions of the tool `schedule_task`.
const SCHEDULE_ACTIONS: [&str; 5] = ["create", "update", "suspend", "resume", "delete"];

/// A parsed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunRequest {
    Report(Box<Report>),
    Approval(ApprovalRequest),
    Schedule(ScheduleRequest),
    Message(MessageRequest),
    Subruns(SubrunsRequest),
}

/// The kind of a request, by its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Report,
    Approval,
    Schedule,
    Message,
    Subruns,
}

impl RequestKind {
    pub(crate) fn from_path(method: &Method, target: &str) -> Result<Self, ApiRefusal> {
        let kind = match target {
            path::REPORTS => Self::Report,
            path::APPROVALS => Self::Approval,
            path::SCHEDULES => Self::Schedule,
            path::MESSAGES => Self::Message,
            path::SUBRUNS => Self::Subruns,
            _ => {
                return Err(refuse(
                    ApiRefusalCode::Request,
                    "there is no such request at the gateway\nhint: the bridge may be of another release",
                ));
            }
        };
        if *method != Method::POST {
            return Err(refuse(ApiRefusalCode::Request, "requests are sent by POST"));
        }
        Ok(kind)
    }

    /// The word in events.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Approval => "approval",
            Self::Schedule => "schedule",
            Self::Message => "message",
            Self::Subruns => "subruns",
        }
    }

    /// Parses the body of a request of this kind.
    pub(crate) fn parse_body(self, body: &[u8]) -> Result<RunRequest, ApiRefusal> {
        if body.len() > MAX_REQUEST {
            return Err(too_large());
        }
        match self {
            Self::Report => {
                let report: Report = parse(body)?;
                report.check().map_err(|error| refuse(ApiRefusalCode::Request, error.to_string()))?;
                Ok(RunRequest::Report(Box::new(report)))
            }
            Self::Approval => {
                let request: ApprovalRequest = parse(body)?;
                check_approval(&request)?;
                Ok(RunRequest::Approval(request))
            }
            Self::Schedule => {
                let request: ScheduleRequest = parse(body)?;
                check_schedule(&request)?;
                Ok(RunRequest::Schedule(request))
            }
            Self::Message => {
                let request: MessageRequest = parse(body)?;
                check_message(&request)?;
                Ok(RunRequest::Message(request))
            }
            Self::Subruns => {
                let request: SubrunsRequest = parse(body)?;
                check_subruns(&request)?;
                Ok(RunRequest::Subruns(request))
            }
        }
    }
}

/// The bearer token of the only `authorization` header, if it is valid.
pub(crate) fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let mut sent = headers.get_all(AUTHORIZATION).iter();
    let value = sent.next()?;
    // Of two headers, another server might have used the other one.
    if sent.next().is_some() {
        return None;
    }
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let plain = !token.is_empty() && token.len() <= MAX_TOKEN && token.bytes().all(|byte| byte.is_ascii_graphic());
    (plain && scheme.eq_ignore_ascii_case("bearer")).then_some(token)
}

pub(crate) fn refuse(code: ApiRefusalCode, message: impl Into<String>) -> ApiRefusal {
    let message = message.into();
    ApiRefusal { code, message }
}

pub(crate) fn too_large() -> ApiRefusal {
    refuse(ApiRefusalCode::Size, format!("a request has at most {MAX_REQUEST} bytes"))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiRefusal> {
    serde_json::from_slice(body).map_err(|error| {
        // The message may repeat names that were sent.
        let error = printable(truncate(error.to_string(), MAX_ERROR));
        let message = format!("the request is not one that this release understands: {error}");
        refuse(ApiRefusalCode::Request, message)
    })
}

/// Whether a text has between one and `most` characters.
fn is_length_valid(text: &str, most: usize) -> bool {
    // A character has at most four bytes, so long texts need not be counted.
    !text.is_empty() && text.len() <= 4 * most && text.chars().count() <= most
}

fn require_length(holds: bool, what: &str, most: usize) -> Result<(), ApiRefusal> {
    if holds {
        return Ok(());
    }
    let message = format!("{what} has between one and {most} characters");
    Err(refuse(ApiRefusalCode::Request, message))
}

fn check_approval(request: &ApprovalRequest) -> Result<(), ApiRefusal> {
    let plain = |text: &str, most| is_length_valid(text, most) && text.bytes().all(|byte| byte.is_ascii_graphic());
    let name = plain(&request.approval, MAX_APPROVAL_NAME);
    require_length(name, "the plain name of a question", MAX_APPROVAL_NAME)?;
    let packs = request.pack.iter().map(String::as_str);
    let names = packs.chain([request.tool.as_str()]);
    let tools = names.into_iter().all(|name| plain(name, MAX_TOOL_NAME));
    require_length(tools, "the plain name of a tool or a pack", MAX_TOOL_NAME)?;
    if request.action.check().is_err() {
        let message = "an action is identified by its hash: `sha256:` and 64 digits";
        return Err(refuse(ApiRefusalCode::Request, message));
    }
    let shown = is_length_valid(&request.shown, MAX_SUMMARY);
    require_length(shown, "what a person is shown", MAX_SUMMARY)?;
    if !is_printable(&request.shown) {
        let message = "what a person is shown has characters in it that are not what they look like";
        return Err(refuse(ApiRefusalCode::Request, message));
    }
    Ok(())
}

/// Whether no character can move a cursor, reverse a line or be invisible. Line breaks are those of the bridge.
fn is_printable(shown: &str) -> bool {
    let others = |letter: &char| !matches!(letter, '\n' | '\\');
    let text: String = shown.chars().filter(others).collect();
    printable_ascii(&text) == text
}

fn check_schedule(request: &ScheduleRequest) -> Result<(), ApiRefusal> {
    let name = is_length_valid(&request.name, MAX_TASK_NAME);
    require_length(name, "the name of a schedule", MAX_TASK_NAME)?;
    if !SCHEDULE_ACTIONS.contains(&request.action.as_str()) {
        let all = SCHEDULE_ACTIONS.join(", ");
        let message = format!("what becomes of a schedule is one of {all}");
        return Err(refuse(ApiRefusalCode::Request, message));
    }
    let schedule = request.schedule.as_deref();
    let schedule = schedule.is_none_or(|schedule| is_length_valid(schedule, limits::CRON));
    require_length(schedule, "the cron line of a schedule", limits::CRON)?;
    let task = request.task.as_deref().is_none_or(|task| is_length_valid(task, MAX_TASK));
    require_length(task, "the task of a schedule", MAX_TASK)
}

fn check_message(request: &MessageRequest) -> Result<(), ApiRefusal> {
    let places = [&request.chat_id, &request.thread_id];
    let places = places.into_iter().flatten().chain([&request.channel]);
    let places = places.into_iter().all(|name| is_length_valid(name, MAX_CHANNEL_NAME));
    require_length(places, "a channel, a chat or a thread", MAX_CHANNEL_NAME)?;
    require_length(is_length_valid(&request.text, MAX_MESSAGE), "a message", MAX_MESSAGE)
}

fn check_subruns(request: &SubrunsRequest) -> Result<(), ApiRefusal> {
    if !(1..=MAX_SUBRUNS).contains(&request.tasks.len()) {
        let message = format!("between one and {MAX_SUBRUNS} tasks are given at once");
        return Err(refuse(ApiRefusalCode::Request, message));
    }
    let mut names = HashSet::new();
    for task in &request.tasks {
        require_length(is_length_valid(&task.id, MAX_TASK_NAME), "the name of a task", MAX_TASK_NAME)?;
        let texts = task.system_prompt.iter().chain([&task.task]);
        let texts = texts.into_iter().all(|text| is_length_valid(text, MAX_TASK));
        require_length(texts, "a task", MAX_TASK)?;
        let timeout = task.timeout.as_deref().is_none_or(|timeout| is_length_valid(timeout, MAX_TIMEOUT));
        require_length(timeout, "the time of a task", MAX_TIMEOUT)?;
        if !names.insert(task.id.as_str()) {
            let message = "two tasks have one name";
            return Err(refuse(ApiRefusalCode::Request, message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
