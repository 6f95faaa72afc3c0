//! The run API: requests of the bridge to the gateway, and their answers. A run's only way to the outside besides
//! egress.
//!
//! HTTP/2 with prior knowledge, on the address at which the gateway is also a proxy: a Unix socket, or TLS with ALPN
//! `h2`. Each request has `authorization: Bearer TOKEN`, the run's own token. A question to an approver is a request
//! that is answered late; when the connection is lost meanwhile it is sent again under the same name, and is the same
//! question.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `POST /v1/run/reports` | [`Report`] | [`ReportAck`] |
//! | `POST /v1/run/approvals` | [`ApprovalRequest`] | [`ApprovalAnswer`], when there is one |
//! | `POST /v1/run/schedules` | [`ScheduleRequest`] | [`TextAnswer`] |
//! | `POST /v1/run/messages` | [`MessageRequest`] | [`TextAnswer`] |
//! | `POST /v1/run/subruns` | [`SubrunsRequest`] | [`SubrunsAnswer`], when all have ended |
//!
//! A refusal has a status of 400 or more and an [`ApiRefusal`] as its body. Unknown fields are refused: a side that
//! sends fields which the other does not know is of another release.

use std::fmt;

use serde::{Deserialize, Serialize};
use sympozium_api::agent_run::AgentEndKind;
use sympozium_api::names::Digest;

use crate::receipt;

/// The paths. They contain the version of the API.
pub mod path {
    /// Reports.
    pub const REPORTS: &str = "/v1/run/reports";
    /// Questions to an approver.
    pub const APPROVALS: &str = "/v1/run/approvals";
    /// Scheduled tasks.
    pub const SCHEDULES: &str = "/v1/run/schedules";
    /// Messages to people.
    pub const MESSAGES: &str = "/v1/run/messages";
    /// Child runs.
    pub const SUBRUNS: &str = "/v1/run/subruns";
}

/// The name of the run's own credential where the gateway itself issues the token: no part has this name.
pub const RUN_CREDENTIAL: &str = "run";
/// Limit for a token, in bytes.
pub const MAX_TOKEN: usize = 16 << 10;
/// Limit for any request, in bytes. The largest report fits, whatever characters are in it.
pub const MAX_REQUEST: usize = 4 << 20;
/// Limit for any answer, in bytes.
pub const MAX_ANSWER: usize = 2 << 20;
/// Limit for the receipts in a report.
pub const MAX_RECEIPTS: usize = 128;
/// Limit for a line of the transcript, in bytes.
pub const MAX_TRANSCRIPT_LINE: usize = 256 << 10;
/// Limit for all lines of the transcript in a report, in bytes.
pub const MAX_TRANSCRIPT: usize = 512 << 10;
/// Limit for the answer of a run, or for its error, in bytes.
pub const MAX_RESULT: usize = 256 << 10;
/// Limit for the tasks in one request for child runs.
pub const MAX_SUBRUNS: usize = 32;
/// Limit for concurrent requests of one run.
pub const MAX_REQUESTS: u32 = 32;

/// The events since the last report. Reports are sent one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Report {
    /// The number of the report, from 0. A report that is sent again, because its answer was lost, counts once.
    pub number: u64,
    /// The state of the run.
    pub phase: BridgePhase,
    /// The number of the first receipt in this report, which is the number of receipts sent before.
    pub first_receipt: u64,
    /// The receipts, one line each, as [`receipt::Chain`] produced them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub receipts: Vec<String>,
    /// The hash over all receipts so far, including those of this report.
    pub head: Digest,
    /// The agent's own description of what it is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// New lines of the agent's transcript, one JSON text each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transcript: Vec<String>,
    /// The usage so far.
    pub usage: Usage,
    /// How the run ended. Only in the last report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<AgentEnd>,
}

/// The state of a run, as the bridge reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BridgePhase {
    /// The bridge waits for the agent.
    Starting,
    /// The agent is connected.
    Working,
    /// The run waits for an approver.
    Waiting,
    /// The run has ended.
    Ended,
}

/// The usage of a run so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Usage {
    /// Number of requests to the model.
    pub model_requests: u64,
    /// Number of tokens that the model read.
    pub input_tokens: u64,
    /// Number of tokens that the model wrote.
    pub output_tokens: u64,
    /// Whether some of the tokens are estimates, because the provider did not report them.
    pub estimated: bool,
    /// Number of tool calls, including refused ones.
    pub tool_calls: u64,
}

/// How the agent of a run ended, as the bridge reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is", deny_unknown_fields)]
pub enum AgentEnd {
    /// The agent gave an answer.
    #[serde(rename_all = "camelCase")]
    Answered {
        /// The answer.
        text: String,
    },
    /// The agent reported an error.
    #[serde(rename_all = "camelCase")]
    Failed {
        /// The agent's error message.
        error: String,
    },
    /// The agent disconnected without a result.
    #[serde(rename_all = "camelCase")]
    Crashed {
        /// What the bridge knows about it.
        known: String,
    },
    /// The agent never connected.
    NeverCame,
    /// The run's time was up.
    TimedOut,
    /// The run was stopped from outside.
    Stopped,
}

impl AgentEnd {
    /// The end without its texts, as the status of a run has it.
    pub const fn kind(&self) -> AgentEndKind {
        match self {
            Self::Answered { .. } => AgentEndKind::Answered,
            Self::Failed { .. } => AgentEndKind::Failed,
            Self::Crashed { .. } => AgentEndKind::Crashed,
            Self::NeverCame => AgentEndKind::NeverCame,
            Self::TimedOut => AgentEndKind::TimedOut,
            Self::Stopped => AgentEndKind::Stopped,
        }
    }
}

/// The answer to an accepted report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReportAck {
    /// The number of the run's receipts that are stored.
    pub receipts: u64,
}

/// A question to an approver about one exact action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApprovalRequest {
    /// The question's name, unique in the run. A request with the same name is the same question.
    pub approval: String,
    /// The tool's name.
    pub tool: String,
    /// The pack whose sidecar would execute it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack: Option<String>,
    /// The hash of the exact action that is to be decided.
    pub action: Digest,
    /// The action's summary: nothing in it can move a cursor or reverse a line.
    pub shown: String,
    /// Seconds after which the question expires, which denies it.
    pub wait_seconds: u64,
}

/// The decision about a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApprovalAnswer {
    /// The name of the question.
    pub approval: String,
    /// The hash that was decided about. An answer about another hash is ignored.
    pub action: Digest,
    /// The decision.
    pub decision: Decision,
    /// The approver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The approver's reason, for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether an approval is valid for repetitions of the identical action in this run. Only if the plan permits it.
    #[serde(default)]
    pub for_the_run: bool,
}

/// The decision about a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Decision {
    /// An approver approved.
    Approved,
    /// An approver denied.
    Denied,
    /// No approver answered in time, which denies the action.
    Expired,
}

/// A scheduled task, as in the tool `schedule_task`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScheduleRequest {
    /// The schedule's name.
    pub name: String,
    /// The operation: `create`, `update`, `suspend`, `resume` or `delete`.
    pub action: String,
    /// The time, in cron syntax.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// The task's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
}

/// A message to people, as in the tool `send_channel_message`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MessageRequest {
    /// The channel.
    pub channel: String,
    /// The message text.
    pub text: String,
    /// The chat within the channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_id: Option<String>,
    /// The thread within the chat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
}

/// The result of a schedule or message request, for the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TextAnswer {
    /// The text that the model reads.
    pub text: String,
}

/// A request for child runs, as in the tool `spawn_subagents`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubrunsRequest {
    /// The tasks, one child run each.
    pub tasks: Vec<Subtask>,
    /// Whether the tasks run concurrently.
    #[serde(default)]
    pub strategy: Strategy,
    /// What happens to the other tasks when one fails.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
}

/// The task of one child run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Subtask {
    /// The agent's own name for the task.
    pub id: String,
    /// The task's text.
    pub task: String,
    /// The system prompt of the child's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Timeout, in Kubernetes' duration format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}

/// Whether child runs run concurrently.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// All at the same time.
    #[default]
    Parallel,
    /// One after the other.
    Sequential,
}

/// What happens to the other child runs when one fails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailurePolicy {
    /// They continue.
    #[default]
    Continue,
    /// They are stopped.
    FailFast,
}

/// The results of child runs, in the order of the tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubrunsAnswer {
    /// One result per task.
    pub results: Vec<SubrunResult>,
}

/// The result of one child run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubrunResult {
    /// The agent's own name for the task.
    pub id: String,
    /// The run's name, if one was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// Why there is no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A refusal of the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApiRefusal {
    /// The kind of refusal.
    pub code: ApiRefusalCode,
    /// One sentence, which the model may read.
    pub message: String,
}

/// The kind of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ApiRefusalCode {
    /// The token is missing or no longer valid.
    Token,
    /// The request is unknown or malformed.
    Request,
    /// The request is too large.
    Size,
    /// The receipts do not continue the stored chain.
    Chain,
    /// The plan does not allow it.
    Denied,
    /// Too many requests are in progress.
    Busy,
    /// This gateway does not provide it.
    Unavailable,
    /// It failed, and a retry may help.
    Failed,
}

impl ApiRefusalCode {
    /// The HTTP status of the refusal.
    pub const fn status(self) -> u16 {
        match self {
            Self::Request => 400,
            Self::Token => 401,
            Self::Denied => 403,
            Self::Chain => 409,
            Self::Size => 413,
            Self::Busy => 429,
            Self::Unavailable => 501,
            Self::Failed => 503,
        }
    }
}

impl fmt::Display for ApiRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Why a report is invalid; our bridges never send such a one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// It has more than [`MAX_RECEIPTS`] receipts.
    #[error("a report has at most {MAX_RECEIPTS} receipts")]
    Receipts,
    /// A receipt is too long.
    #[error("a receipt has at most {} bytes", receipt::MAX_LINE_BYTES)]
    Receipt,
    /// The transcript, or a line of it, is too long.
    #[error("a report has at most {MAX_TRANSCRIPT} bytes of transcript, {MAX_TRANSCRIPT_LINE} in a line")]
    Transcript,
    /// The run's answer or error is longer than [`MAX_RESULT`].
    #[error("the answer of a run has at most {MAX_RESULT} bytes")]
    Result,
    /// Phase and run end contradict each other.
    #[error("the last report says how the run ended, and no other does")]
    Ending,
}

impl Report {
    /// Checks the limits. The chain of receipts is checked by the store.
    ///
    /// # Errors
    ///
    /// The limit that is exceeded.
    pub fn check(&self) -> Result<(), ReportError> {
        if self.receipts.len() > MAX_RECEIPTS {
            return Err(ReportError::Receipts);
        }
        if self.receipts.iter().any(|line| line.len() > receipt::MAX_LINE_BYTES) {
            return Err(ReportError::Receipt);
        }
        let line = self.transcript.iter().map(String::len).max().unwrap_or(0);
        let all: usize = self.transcript.iter().map(String::len).sum();
        if line > MAX_TRANSCRIPT_LINE || all > MAX_TRANSCRIPT {
            return Err(ReportError::Transcript);
        }
        let result = match &self.ending {
            Some(AgentEnd::Answered { text: result }) => result,
            Some(AgentEnd::Failed { error: result } | AgentEnd::Crashed { known: result }) => result,
            Some(AgentEnd::NeverCame | AgentEnd::TimedOut | AgentEnd::Stopped) | None => "",
        };
        if result.len() > MAX_RESULT {
            return Err(ReportError::Result);
        }
        if self.ending.is_some() != (self.phase == BridgePhase::Ended) {
            return Err(ReportError::Ending);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report() -> Report {
        Report {
            number: 3,
            phase: BridgePhase::Working,
            first_receipt: 7,
            receipts: vec!["{}".to_owned()],
            head: Digest::new("sha256:00"),
            progress: None,
            transcript: Vec::new(),
            usage: Usage::default(),
            ending: None,
        }
    }

    #[test]
    fn the_words_on_the_wire() -> serde_json::Result<()> {
        let written = json!({
            "number": 3, "phase": "working", "firstReceipt": 7, "receipts": ["{}"], "head": "sha256:00",
            "usage": { "modelRequests": 0, "inputTokens": 0, "outputTokens": 0, "estimated": false, "toolCalls": 0 },
        });
        assert_eq!(serde_json::to_value(report())?, written);
        assert_eq!(serde_json::from_value::<Report>(written)?, report());
        let spawn = json!({ "tasks": [{ "id": "a", "task": "b" }], "failurePolicy": "fail-fast" });
        let spawn: SubrunsRequest = serde_json::from_value(spawn)?;
        assert_eq!(spawn.strategy, Strategy::Parallel);
        assert_eq!(spawn.failure_policy, FailurePolicy::FailFast);
        assert!(serde_json::from_value::<TextAnswer>(json!({ "text": "a", "more": 1 })).is_err());
        Ok(())
    }

    /// Otherwise an agent could prevent a run's end from being reported by the length of its text.
    #[test]
    fn the_largest_report_fits_into_a_request() -> serde_json::Result<()> {
        // The longest as JSON: a receipt and a line of the transcript are JSON themselves, an answer is any text.
        let quotes = |bytes| "\"".repeat(bytes);
        let report = Report {
            phase: BridgePhase::Ended,
            receipts: vec![quotes(receipt::MAX_LINE_BYTES); MAX_RECEIPTS],
            transcript: vec![quotes(MAX_TRANSCRIPT_LINE); MAX_TRANSCRIPT / MAX_TRANSCRIPT_LINE],
            progress: Some("\u{1}".repeat(4 * receipt::MAX_TEXT)),
            ending: Some(AgentEnd::Answered { text: "\u{1}".repeat(MAX_RESULT) }),
            ..report()
        };
        assert_eq!(report.check(), Ok(()));
        assert!(serde_json::to_vec(&report)?.len() <= MAX_REQUEST);
        Ok(())
    }

    #[test]
    fn reports_have_bounds() {
        assert_eq!(report().check(), Ok(()));
        let with = |change: fn(&mut Report)| {
            let mut report = report();
            change(&mut report);
            report.check()
        };
        let line = |bytes| vec!["x".repeat(bytes)];
        assert_eq!(with(|report| report.receipts = vec![String::new(); MAX_RECEIPTS]), Ok(()));
        assert_eq!(with(|report| report.receipts = vec![String::new(); MAX_RECEIPTS + 1]), Err(ReportError::Receipts));
        let mut long = report();
        long.receipts = line(receipt::MAX_LINE_BYTES + 1);
        assert_eq!(long.check(), Err(ReportError::Receipt));
        let mut long = report();
        long.transcript = line(MAX_TRANSCRIPT_LINE);
        assert_eq!(long.check(), Ok(()));
        long.transcript = line(MAX_TRANSCRIPT_LINE + 1);
        assert_eq!(long.check(), Err(ReportError::Transcript));
        assert_eq!(with(|report| report.phase = BridgePhase::Ended), Err(ReportError::Ending));
        assert_eq!(with(|report| report.ending = Some(AgentEnd::TimedOut)), Err(ReportError::Ending));
    }
}
