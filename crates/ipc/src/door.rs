//! The door: requests of the agent to the bridge, and their answers.
//!
//! HTTP/2 on one Unix-socket connection that the agent keeps for its whole life. A call is a stream, its cancellation
//! is the stream's reset, and the end of the connection is the end of the agent. Bodies are JSON, except for the
//! model's, which are passed through unchanged in both directions.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `POST /v1/model` | the provider's request | the provider's answer, streamed |
//! | `POST /v1/tools/{name}` | [`ToolCall`] | [`ToolAnswer`] |
//! | `POST /v1/permits/{name}` | [`ToolCall`] | [`PermitAnswer`] |
//! | `POST /v1/permits/{permit}/report` | [`PermitReport`] | nothing |
//! | `POST /v1/progress` | [`Progress`] | nothing |
//! | `POST /v1/transcript` | lines of JSON | nothing |
//! | `POST /v1/result` | [`AgentResult`] | nothing |
//!
//! A refusal of the bridge has a status of 400 or more, the header [`REFUSED_HEADER`], and a [`Refusal`] as its body;
//! an error of a provider has neither. Every answer has [`REMAINING_HEADER`].

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::receipt::Outcome;

/// The paths. They contain the version of the protocol.
pub mod path {
    /// Requests to the model.
    pub const MODEL: &str = "/v1/model";
    /// Calls of tools that another part executes; followed by the tool's name.
    pub const TOOLS: &str = "/v1/tools/";
    /// Permits for tools that the agent executes itself; followed by the tool's name or the permit's number.
    pub const PERMITS: &str = "/v1/permits/";
    /// After a permit's number: the report about its use.
    pub const REPORT: &str = "/report";
    /// The agent's progress, for people who watch.
    pub const PROGRESS: &str = "/v1/progress";
    /// The agent's transcript.
    pub const TRANSCRIPT: &str = "/v1/transcript";
    /// The agent's result.
    pub const RESULT: &str = "/v1/result";
}

/// The header of refusals of the bridge.
pub const REFUSED_HEADER: &str = "sympozium-refused";
/// The header of every answer: milliseconds that the run has left. The agent cannot measure that itself, because the
/// run's clock stops while an approver is asked.
pub const REMAINING_HEADER: &str = "sympozium-remaining-ms";
/// The name of the socket in the door's directory.
pub const SOCKET_NAME: &str = "bridge.sock";
/// Limit for a chunk of the transcript, in bytes.
pub const MAX_TRANSCRIPT_CHUNK: usize = 256 << 10;
/// Limit for a progress text, in bytes.
pub const MAX_PROGRESS: usize = 4 << 10;
/// Limit for the model's id of a call, in bytes.
pub const MAX_CALL_ID: usize = 256;

/// A tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolCall {
    /// The model's id of the call.
    pub id: String,
    /// The arguments, as the model wrote them. No object in them has a duplicate key.
    #[serde(deserialize_with = "crate::unique_keys::deserialize")]
    pub arguments: Value,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is", deny_unknown_fields)]
pub enum ToolAnswer {
    /// A command ended.
    #[serde(rename_all = "camelCase")]
    Command {
        /// Its exit code.
        exit_code: i32,
        /// Its standard output.
        stdout: String,
        /// Its standard error.
        stderr: String,
        /// Whether it was killed because its time was up.
        timed_out: bool,
        /// Whether either output was truncated.
        truncated: bool,
    },
    /// A tool without a command succeeded.
    #[serde(rename_all = "camelCase")]
    Text {
        /// The result's text.
        text: String,
    },
    /// A page was fetched. The agent converts it to text, so that no parser of web pages runs beside the model key.
    #[serde(rename_all = "camelCase")]
    Page {
        /// The HTTP status of the last response.
        status: u16,
        /// The URL after redirects.
        url: String,
        /// The content type that the server sent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content_type: Option<String>,
        /// The content, in Base64.
        body: String,
        /// Whether the content was truncated.
        truncated: bool,
    },
}

/// The permit of the bridge to execute a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PermitAnswer {
    /// The permit's number. It is valid for this call only.
    pub permit: u64,
}

/// The report about a permit. Only an honest agent tells the truth here, and receipts state that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PermitReport {
    /// The result.
    pub outcome: Outcome,
    /// Size of the answer in bytes.
    pub bytes: u64,
    /// Duration in milliseconds.
    pub duration_ms: u64,
}

/// What the agent is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Progress {
    /// One line of text.
    pub text: String,
}

/// The agent's error message when it was asked to shut down: the other parts of the run were asked as well.
pub const SHUTDOWN_ERROR: &str = "the agent was asked to end before it had an answer";

/// The result that the agent hands over when it ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is", deny_unknown_fields)]
pub enum AgentResult {
    /// With an answer.
    #[serde(rename_all = "camelCase")]
    Answer {
        /// The answer.
        text: String,
    },
    /// With an error.
    #[serde(rename_all = "camelCase")]
    Failure {
        /// The error message.
        error: String,
    },
}

/// A refusal of the bridge. The model reads the message, and can often correct the call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Refusal {
    /// The kind of refusal.
    pub code: RefusalCode,
    /// One sentence.
    pub message: String,
    /// Milliseconds to wait before a retry, where that helps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// The kind of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RefusalCode {
    /// There is no such tool.
    UnknownTool,
    /// The arguments do not match the tool's schema.
    Arguments,
    /// The policy denies it.
    Denied,
    /// An approver denied it.
    Disapproved,
    /// No approver answered in time, which denies it.
    Expired,
    /// Too many calls are in progress.
    Busy,
    /// Calls are too frequent.
    Rate,
    /// The run's budget is exhausted.
    Budget,
    /// The request is too large.
    Size,
    /// The request is unknown or malformed.
    Request,
    /// The part that would execute it is not available, or gave up.
    Unavailable,
    /// It is unknown whether it was executed.
    Unknown,
    /// The model's endpoint could not be reached.
    Model,
}

impl RefusalCode {
    /// The HTTP status of the refusal.
    pub const fn status(self) -> u16 {
        match self {
            Self::Arguments | Self::Request => 400,
            Self::Denied | Self::Disapproved | Self::Expired => 403,
            Self::UnknownTool => 404,
            Self::Size => 413,
            Self::Busy | Self::Rate | Self::Budget => 429,
            Self::Unavailable | Self::Unknown | Self::Model => 502,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_words_on_the_wire() -> serde_json::Result<()> {
        let answer = ToolAnswer::Command {
            exit_code: 1,
            stdout: "a".to_owned(),
            stderr: String::new(),
            timed_out: false,
            truncated: true,
        };
        let written = json!({
            "is": "command", "exitCode": 1, "stdout": "a", "stderr": "", "timedOut": false, "truncated": true,
        });
        assert_eq!(serde_json::to_value(&answer)?, written);
        assert_eq!(serde_json::from_value::<ToolAnswer>(written)?, answer);
        let refusal = Refusal {
            code: RefusalCode::UnknownTool,
            message: "there is no tool `x`".to_owned(),
            retry_after_ms: None,
        };
        let written = json!({ "code": "unknownTool", "message": "there is no tool `x`" });
        assert_eq!(serde_json::to_value(&refusal)?, written);
        // A side that sends fields which the other does not know is of another release.
        assert!(serde_json::from_value::<ToolCall>(json!({ "id": "1", "arguments": {}, "as": "root" })).is_err());
        // It is undefined which of two arguments is meant.
        let twice = r#"{"id":"1","arguments":{"path":{"a":1,"a":2}}}"#;
        assert!(serde_json::from_str::<ToolCall>(twice).is_err());
        Ok(())
    }
}
