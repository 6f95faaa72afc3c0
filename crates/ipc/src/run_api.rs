//! The run API: what the bridge says to the gateway, and what it is told. The way of a run to everybody outside.
//!
//! HTTP/2 with prior knowledge, on the address at which the gateway is also a proxy: a Unix socket, or TLS, where the
//! protocol is agreed on as `h2`. Each request carries `authorization: Bearer TOKEN`, the run's own token. A question that
//! a person answers is a request that is answered late; when the connection is lost meanwhile it is put again, under the
//! same name, and is the same question.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `POST /v1/run/reports` | [`Report`] | [`Noted`] |
//! | `POST /v1/run/approvals` | [`ApprovalRequest`] | [`ApprovalAnswer`], when there is one |
//! | `POST /v1/run/schedules` | [`ScheduleRequest`] | [`Told`] |
//! | `POST /v1/run/messages` | [`MessageRequest`] | [`Told`] |
//! | `POST /v1/run/subruns` | [`SubrunsRequest`] | [`SubrunsAnswer`], when all have ended |
//!
//! What is refused has a status of 400 or more and an [`ApiRefusal`] as its body. Unknown fields are refused: a side that
//! says more than the other knows is of another release.

use std::fmt;

use serde::{Deserialize, Serialize};
use sympozium_api::names::Digest;

use crate::receipt;

/// The paths, and the version that is in them.
pub mod path {
    /// What has happened.
    pub const REPORTS: &str = "/v1/run/reports";
    /// Questions to a person.
    pub const APPROVALS: &str = "/v1/run/approvals";
    /// Tasks for later.
    pub const SCHEDULES: &str = "/v1/run/schedules";
    /// Messages to people.
    pub const MESSAGES: &str = "/v1/run/messages";
    /// Runs below this one.
    pub const SUBRUNS: &str = "/v1/run/subruns";
}

/// What the run's own credential is called, where the gateway itself makes the token: no part has this name.
pub const RUN: &str = "run";
/// Most bytes of a token.
pub const MAX_TOKEN: usize = 16 << 10;
/// Most bytes of any request. The largest report fits, whatever characters are in it.
pub const MAX_REQUEST: usize = 4 << 20;
/// Most bytes of any answer.
pub const MAX_ANSWER: usize = 2 << 20;
/// Most receipts in a report.
pub const MAX_RECEIPTS: usize = 128;
/// Most bytes of a line of the transcript.
pub const MAX_TRANSCRIPT_LINE: usize = 256 << 10;
/// Most bytes of all lines of the transcript in a report.
pub const MAX_TRANSCRIPT: usize = 512 << 10;
/// Most bytes of what a run answers in the end, or of why it does not.
pub const MAX_RESULT: usize = 256 << 10;
/// Most tasks that are given to runs below at once.
pub const MAX_SUBRUNS: usize = 32;
/// Requests of one run that may be under way at a time.
pub const MAX_REQUESTS: u32 = 32;

/// What has happened since the last report. Reports are sent one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Report {
    /// Which report, from 0. One that is sent a second time, because its answer was lost, counts once.
    pub number: u64,
    /// What the run is doing.
    pub phase: Phase,
    /// The number of the first receipt in this report, which is how many were sent before.
    pub first_receipt: u64,
    /// The receipts, one line each, as [`receipt::Chain`] made them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub receipts: Vec<String>,
    /// The hash that covers all receipts so far, those of this report among them.
    pub head: Digest,
    /// What the agent says it is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// What was said, a line of JSON each. By the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transcript: Vec<String>,
    /// What was used so far.
    pub usage: Usage,
    /// How the run ended. In the last report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
}

/// What a run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// The bridge waits for the agent.
    Starting,
    /// The agent is there.
    Working,
    /// A person is asked.
    Waiting,
    /// It is over.
    Ended,
}

/// What was used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Usage {
    /// Requests to the model.
    pub model_requests: u64,
    /// Tokens that it read.
    pub input_tokens: u64,
    /// Tokens that it wrote.
    pub output_tokens: u64,
    /// Whether some of them are estimates, because the provider did not say.
    pub estimated: bool,
    /// Calls of tools, refused ones among them.
    pub tool_calls: u64,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is", deny_unknown_fields)]
pub enum Ending {
    /// With an answer.
    #[serde(rename_all = "camelCase")]
    Answered {
        /// The answer.
        text: String,
    },
    /// The agent says why there is none.
    #[serde(rename_all = "camelCase")]
    Failed {
        /// Why.
        error: String,
    },
    /// The agent left without a word.
    #[serde(rename_all = "camelCase")]
    Crashed {
        /// What is known.
        known: String,
    },
    /// The agent never came.
    NeverCame,
    /// Its time was up.
    TimedOut,
    /// It was told to end.
    Stopped,
}

/// A report was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Noted {
    /// How many receipts of the run are kept now.
    pub receipts: u64,
}

/// A person is asked about one exact action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApprovalRequest {
    /// The question's name, unique in the run. Under the same name it is the same question.
    pub approval: String,
    /// The tool.
    pub tool: String,
    /// The pack whose sidecar would act.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack: Option<String>,
    /// The hash of the exact action: what is decided about.
    pub action: Digest,
    /// The action, for a person to read: nothing in it can move a cursor or reverse a line.
    pub shown: String,
    /// Seconds after which the answer is no.
    pub wait_seconds: u64,
}

/// A person's answer, or that there was none in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApprovalAnswer {
    /// The question.
    pub approval: String,
    /// The hash that was decided about. An answer about another is none.
    pub action: Digest,
    /// What was decided.
    pub decision: Decision,
    /// By whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why, for the model to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether a yes is for the identical action as often as the run repeats it. Counts only where the plan permits it.
    #[serde(default)]
    pub for_the_run: bool,
}

/// What a person decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Decision {
    /// Yes.
    Approved,
    /// No.
    Denied,
    /// Nobody answered in time, which means no.
    Expired,
}

/// A task for later, as the tool `schedule_task` has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScheduleRequest {
    /// Which schedule.
    pub name: String,
    /// What becomes of it: `create`, `update`, `suspend`, `resume` or `delete`.
    pub action: String,
    /// When, as cron writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// What is to be done then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
}

/// A message to people, as the tool `send_channel_message` has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MessageRequest {
    /// The channel.
    pub channel: String,
    /// What is said.
    pub text: String,
    /// Which chat of the channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_id: Option<String>,
    /// Which thread of the chat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
}

/// What came of a schedule or a message, for the model to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Told {
    /// What.
    pub text: String,
}

/// Runs below this one, as the tool `spawn_subagents` has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubrunsRequest {
    /// The tasks.
    pub tasks: Vec<Subtask>,
    /// Whether one waits for the other.
    #[serde(default)]
    pub strategy: Strategy,
    /// What becomes of the others when one fails.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
}

/// One task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Subtask {
    /// What the agent calls it.
    pub id: String,
    /// What is to be done.
    pub task: String,
    /// What that agent is told before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// How long it may take, as Kubernetes writes times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}

/// Whether tasks wait for each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// They do not.
    #[default]
    Parallel,
    /// Each waits for the one before.
    Sequential,
}

/// What becomes of the others when a task fails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailurePolicy {
    /// They go on.
    #[default]
    Continue,
    /// They are ended.
    FailFast,
}

/// What came of the runs below, in the order of the tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubrunsAnswer {
    /// One for each task.
    pub results: Vec<SubrunResult>,
}

/// What came of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubrunResult {
    /// What the agent called it.
    pub id: String,
    /// The run's name, where one was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Why the gateway refuses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApiRefusal {
    /// In a word.
    pub code: ApiRefusalCode,
    /// In a sentence, which the model may read.
    pub message: String,
}

/// Why the gateway refuses, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ApiRefusalCode {
    /// No token, or none that is good any more.
    Token,
    /// Not a request that there is.
    Request,
    /// Larger than a request may be.
    Size,
    /// Receipts that do not follow from those before.
    Chain,
    /// The plan does not have it.
    Denied,
    /// Too much is going on.
    Busy,
    /// Nobody here does that.
    Unavailable,
    /// It went wrong, and trying again may help.
    Failed,
}

impl ApiRefusalCode {
    /// The status that goes with it.
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

/// Why a report is not one that a bridge of ours sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadReport {
    /// More receipts than fit.
    #[error("a report has at most {MAX_RECEIPTS} receipts")]
    Receipts,
    /// A receipt that is too long.
    #[error("a receipt has at most {} bytes", receipt::MAX_LINE_BYTES)]
    Receipt,
    /// More of the transcript than fits.
    #[error("a report has at most {MAX_TRANSCRIPT} bytes of transcript, {MAX_TRANSCRIPT_LINE} in a line")]
    Transcript,
    /// A longer answer than a run may have.
    #[error("the answer of a run has at most {MAX_RESULT} bytes")]
    Result,
    /// It ended, and did not say how; or the other way round.
    #[error("the last report says how the run ended, and no other does")]
    Ending,
}

impl Report {
    /// Checks the bounds. The chain is checked by who keeps it.
    ///
    /// # Errors
    ///
    /// With the bound that does not hold.
    pub fn check(&self) -> Result<(), BadReport> {
        if self.receipts.len() > MAX_RECEIPTS {
            return Err(BadReport::Receipts);
        }
        if self.receipts.iter().any(|it| it.len() > receipt::MAX_LINE_BYTES) {
            return Err(BadReport::Receipt);
        }
        let line = self.transcript.iter().map(String::len).max().unwrap_or(0);
        let all: usize = self.transcript.iter().map(String::len).sum();
        if line > MAX_TRANSCRIPT_LINE || all > MAX_TRANSCRIPT {
            return Err(BadReport::Transcript);
        }
        let said = match &self.ending {
            Some(Ending::Answered { text: said }) => said,
            Some(Ending::Failed { error: said } | Ending::Crashed { known: said }) => said,
            Some(Ending::NeverCame | Ending::TimedOut | Ending::Stopped) | None => "",
        };
        if said.len() > MAX_RESULT {
            return Err(BadReport::Result);
        }
        if self.ending.is_some() != (self.phase == Phase::Ended) {
            return Err(BadReport::Ending);
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
            phase: Phase::Working,
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
        assert!(serde_json::from_value::<Told>(json!({ "text": "a", "more": 1 })).is_err());
        Ok(())
    }

    /// Where it would not, an agent could keep a run's end from being reported by what it says.
    #[test]
    fn the_largest_report_fits_into_a_request() -> serde_json::Result<()> {
        // What is longest as JSON: a receipt and a line of the transcript are JSON themselves, an answer is anything.
        let quotes = |bytes| "\"".repeat(bytes);
        let report = Report {
            phase: Phase::Ended,
            receipts: vec![quotes(receipt::MAX_LINE_BYTES); MAX_RECEIPTS],
            transcript: vec![quotes(MAX_TRANSCRIPT_LINE); MAX_TRANSCRIPT / MAX_TRANSCRIPT_LINE],
            progress: Some("\u{1}".repeat(4 * receipt::MAX_TEXT)),
            ending: Some(Ending::Answered { text: "\u{1}".repeat(MAX_RESULT) }),
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
        assert_eq!(with(|it| it.receipts = vec![String::new(); MAX_RECEIPTS]), Ok(()));
        assert_eq!(with(|it| it.receipts = vec![String::new(); MAX_RECEIPTS + 1]), Err(BadReport::Receipts));
        let mut long = report();
        long.receipts = line(receipt::MAX_LINE_BYTES + 1);
        assert_eq!(long.check(), Err(BadReport::Receipt));
        let mut long = report();
        long.transcript = line(MAX_TRANSCRIPT_LINE);
        assert_eq!(long.check(), Ok(()));
        long.transcript = line(MAX_TRANSCRIPT_LINE + 1);
        assert_eq!(long.check(), Err(BadReport::Transcript));
        assert_eq!(with(|it| it.phase = Phase::Ended), Err(BadReport::Ending));
        assert_eq!(with(|it| it.ending = Some(Ending::TimedOut)), Err(BadReport::Ending));
    }
}
