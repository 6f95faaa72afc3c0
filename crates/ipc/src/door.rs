//! The door: what the agent can say to the bridge, and what it is told.
//!
//! HTTP/2 on one Unix-socket connection that the agent holds for its whole life. A call is a stream, its cancellation is
//! the stream's reset, and the end of the connection is the end of the agent. Bodies are JSON but for the model's, which
//! pass as they are, both ways.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `POST /v1/model` | the provider's request | the provider's answer, streamed |
//! | `POST /v1/tools/{name}` | [`ToolCall`] | [`ToolAnswer`] |
//! | `POST /v1/permits/{name}` | [`ToolCall`] | [`PermitAnswer`] |
//! | `POST /v1/permits/{permit}/report` | [`PermitReport`] | nothing |
//! | `POST /v1/progress` | [`Progress`] | nothing |
//! | `POST /v1/transcript` | lines of JSON | nothing |
//! | `POST /v1/result` | [`RunResult`] | nothing |
//!
//! What the bridge itself refuses has a status of 400 or more, the header [`REFUSED`], and a [`Refusal`] as its body; what a
//! provider refuses has neither. Every answer has [`REMAINING`].

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::receipt::Outcome;

/// The paths, and the version that is in them.
pub mod path {
    /// Requests to the model.
    pub const MODEL: &str = "/v1/model";
    /// Calls of tools that others act on; the tool's name follows.
    pub const TOOLS: &str = "/v1/tools/";
    /// Permits for tools that the agent acts on itself; the tool's name or the permit's number follows.
    pub const PERMITS: &str = "/v1/permits/";
    /// After a permit's number: what came of it.
    pub const REPORT: &str = "/report";
    /// What the agent is doing, for people who watch.
    pub const PROGRESS: &str = "/v1/progress";
    /// What was said.
    pub const TRANSCRIPT: &str = "/v1/transcript";
    /// The end.
    pub const RESULT: &str = "/v1/result";
}

/// The header of what the bridge itself refuses.
pub const REFUSED: &str = "sympozium-refused";
/// The header of every answer: milliseconds that the run may still work. The agent cannot know otherwise, because the run's
/// clock stands still while a person is asked.
pub const REMAINING: &str = "sympozium-remaining-ms";
/// Where the socket is, below the door's directory.
pub const SOCKET: &str = "bridge.sock";
/// Most bytes of a piece of the transcript.
pub const MAX_TRANSCRIPT_PIECE: usize = 256 << 10;
/// Most bytes of what is told about progress.
pub const MAX_PROGRESS: usize = 4 << 10;
/// Most bytes of the model's own name for a call.
pub const MAX_CALL_ID: usize = 256;

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolCall {
    /// The model's name for it.
    pub id: String,
    /// The arguments, as the model wrote them. No object in them has a key twice.
    #[serde(deserialize_with = "crate::unique_keys::deserialize")]
    pub arguments: Value,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is", deny_unknown_fields)]
pub enum ToolAnswer {
    /// A command ended.
    #[serde(rename_all = "camelCase")]
    Command {
        /// Its exit code.
        exit_code: i32,
        /// What it wrote.
        stdout: String,
        /// What it wrote beside that.
        stderr: String,
        /// Whether it was ended because its time was up.
        timed_out: bool,
        /// Whether there was more of either.
        truncated: bool,
    },
    /// Something was done, and this is said of it.
    #[serde(rename_all = "camelCase")]
    Text {
        /// What.
        text: String,
    },
    /// A page was fetched. The agent makes it readable: no parser of web pages is beside the key.
    #[serde(rename_all = "camelCase")]
    Page {
        /// The status of the last answer.
        status: u16,
        /// Where it came from in the end.
        url: String,
        /// What it says it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content_type: Option<String>,
        /// The bytes, in Base64.
        body: String,
        /// Whether there was more.
        truncated: bool,
    },
}

/// Whether the agent may act itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PermitAnswer {
    /// The permit. It is for this call and no other.
    pub permit: u64,
}

/// What came of a permit. It binds an honest agent only, and receipts say so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PermitReport {
    /// How it ended.
    pub outcome: Outcome,
    /// Bytes of the answer.
    pub bytes: u64,
    /// Milliseconds that it took.
    pub duration_ms: u64,
}

/// What the agent is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Progress {
    /// In a line.
    pub text: String,
}

/// What an agent says failed when it was told to end: whoever tells one part of a run so tells the others.
pub const ASKED_TO_END: &str = "the agent was asked to end before it had an answer";

/// How the agent ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is", deny_unknown_fields)]
pub enum RunResult {
    /// With an answer.
    #[serde(rename_all = "camelCase")]
    Answer {
        /// The answer.
        text: String,
    },
    /// Without one.
    #[serde(rename_all = "camelCase")]
    Failure {
        /// Why.
        error: String,
    },
}

/// Why the bridge refuses. The model is told the message, and can often do better.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Refusal {
    /// In a word.
    pub code: RefusalCode,
    /// In a sentence.
    pub message: String,
    /// Milliseconds after which to try again, where that helps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// Why the bridge refuses, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RefusalCode {
    /// There is no such tool.
    UnknownTool,
    /// The arguments do not fit the tool's schema.
    Arguments,
    /// The policy denies it.
    Denied,
    /// A person said no.
    Disapproved,
    /// Nobody answered in time, which means no.
    Expired,
    /// Too much is going on.
    Busy,
    /// Too often.
    Rate,
    /// More than the run may use.
    Budget,
    /// Too large.
    Size,
    /// Not a request that there is.
    Request,
    /// Who would act is not there, or gave up.
    Unavailable,
    /// Nobody knows whether it was done.
    Unknown,
    /// The model's endpoint could not be reached.
    Model,
}

impl RefusalCode {
    /// The status that goes with it.
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
        // A side that says more than the other knows is of another release.
        assert!(serde_json::from_value::<ToolCall>(json!({ "id": "1", "arguments": {}, "as": "root" })).is_err());
        // Nobody can say which of two arguments is meant.
        let twice = r#"{"id":"1","arguments":{"path":{"a":1,"a":2}}}"#;
        assert!(serde_json::from_str::<ToolCall>(twice).is_err());
        Ok(())
    }
}
