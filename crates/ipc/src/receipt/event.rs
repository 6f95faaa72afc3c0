//! The content of a receipt. It has no arguments and no output, only their hashes and sizes: receipts are stored and
//! shown.

use serde::{Deserialize, Serialize};
use sympozium_api::names::Digest;
use sympozium_api::run_plan::Gate;
use sympozium_api::text::is_visible;

/// Limit for a text in a receipt, in characters.
pub const MAX_TEXT: usize = 256;
/// The largest number in a receipt: JSON parsers may not read larger ones exactly, and a line would be invalid.
pub const MAX_NUMBER: u64 = (1 << 53) - 1;
/// Limits for the guarantees in a receipt: how many, and the characters of one or of a profile.
const MAX_GUARANTEES: usize = 16;
const MAX_WORD: usize = 32;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Receipt {
    /// Its position in the chain, from 0.
    pub number: u64,
    /// The hash of the previous line; in the first line, the digest of the plan.
    pub previous: Digest,
    /// The time in milliseconds since 1970, by the writer's clock.
    pub at_ms: u64,
    /// The event.
    pub event: Event,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind", deny_unknown_fields)]
pub enum Event {
    /// The bridge started.
    #[serde(rename_all = "camelCase")]
    Started {
        /// The run's UID.
        run: String,
        /// The program and its version.
        by: String,
    },
    /// A tool was called, and this was decided. Nothing was executed yet.
    #[serde(rename_all = "camelCase")]
    Called {
        /// The number of the call, unique in the run.
        call: u64,
        /// The tool's name.
        tool: String,
        /// The pack whose sidecar would execute it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pack: Option<String>,
        /// The hash of the arguments.
        arguments: Digest,
        /// The tool's gate in the plan; absent for an unknown tool.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gate: Option<Gate>,
        /// The decision.
        decided: CallDecision,
        /// Why the call was not allowed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A question about an action was sent to an approver.
    #[serde(rename_all = "camelCase")]
    Asked {
        /// The number of the call.
        call: u64,
        /// The hash of the exact action that is to be decided.
        action: Digest,
        /// The name of the question.
        approval: String,
    },
    /// An approver decided, or the question expired.
    #[serde(rename_all = "camelCase")]
    Answered {
        /// The number of the call.
        call: u64,
        /// The hash of the exact action, as it is in the answer.
        action: Digest,
        /// The decision.
        decided: CallDecision,
        /// The approver; absent when the question expired.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// A call ended.
    #[serde(rename_all = "camelCase")]
    Acted {
        /// The number of the call.
        call: u64,
        /// Who executed it. What the agent reports about itself is reliable only if the agent is honest.
        by: Actor,
        /// The hash of the exact action.
        action: Digest,
        /// The result.
        outcome: Outcome,
        /// The size of the output.
        output: OutputSize,
        /// Duration in milliseconds.
        duration_ms: u64,
        /// The isolation that was live.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        isolation: Option<ReportedIsolation>,
    },
    /// A request was sent to the model.
    #[serde(rename_all = "camelCase")]
    Model {
        /// The number of the request.
        request: u64,
        /// The HTTP status of the answer; absent when there was no answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
        /// Bytes that were sent.
        sent_bytes: u64,
        /// Bytes that were received.
        received_bytes: u64,
        /// Tokens that the model read, if the provider reported them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input_tokens: Option<u64>,
        /// Tokens that the model wrote, if the provider reported them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output_tokens: Option<u64>,
        /// Duration in milliseconds.
        duration_ms: u64,
        /// Why there was no answer, or only a part of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// An entry was found in a skill's `/ipc` that neither the bridge nor an honest executor wrote.
    #[serde(rename_all = "camelCase")]
    Foreign {
        /// The pack whose `/ipc` it is.
        pack: String,
        /// The kind of entry.
        what: ForeignKind,
        /// The file name.
        name: String,
        /// Whether it ended the run.
        ends_run: bool,
    },
    /// The run ended.
    #[serde(rename_all = "camelCase")]
    Ended {
        /// The result.
        outcome: Outcome,
        /// The hash of the run's answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<Digest>,
    },
}

/// The kind of a foreign entry in a skill's `/ipc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ForeignKind {
    /// A request that the bridge did not write, one of its own that was changed or came a second time, or the chance of one: the
    /// bridge could not see all.
    Request,
    /// A claim without a request of the bridge.
    Claim,
    /// A result of no request of the bridge, or a second one.
    Result,
    /// A `done` before the end of the run.
    Done,
    /// The announcement of another start of the executor.
    Start,
}

/// The decision about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CallDecision {
    /// It may be executed.
    Allowed,
    /// An approver is asked.
    Waiting,
    /// It may not be executed.
    Denied,
    /// It was not a valid call: unknown tool, invalid arguments, too many at a time.
    Refused,
    /// No approver answered in time, which denies it.
    Expired,
}

/// Who executed a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Actor {
    /// The agent itself, with a permit.
    Agent,
    /// The bridge.
    Bridge,
    /// The sidecar of a pack.
    Skill,
}

/// The result of a call or a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is", deny_unknown_fields)]
pub enum Outcome {
    /// It succeeded.
    Done,
    /// The program exited with this code.
    #[serde(rename_all = "camelCase")]
    Exited {
        /// The exit code.
        code: i32,
    },
    /// It was stopped because its time was up.
    TimedOut,
    /// It was stopped because it was cancelled.
    Cancelled,
    /// It failed, or it is unknown whether it was executed.
    #[serde(rename_all = "camelCase")]
    Failed {
        /// The reason.
        why: String,
    },
}

/// The size of an output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OutputSize {
    /// Bytes that were kept.
    pub bytes: u64,
    /// Whether there was more.
    pub truncated: bool,
}

/// The isolation that was live, as the executor reported it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReportedIsolation {
    /// The profile.
    pub profile: String,
    /// The guarantees that were enforced.
    pub guarantees: Vec<String>,
}

impl Event {
    /// The event within the limits of a receipt, whatever others have put into it: numbers that every parser reads
    /// exactly, texts that are truncated and printable, words that are words. A chain accepts every event that was
    /// truncated.
    #[must_use]
    pub fn truncate(self) -> Self {
        match self {
            Self::Started { run, by } => Self::Started { run: to_receipt_text(&run), by: to_receipt_text(&by) },
            Self::Called { call, tool, pack, arguments, gate, decided, reason } => Self::Called {
                call: clamp_number(call),
                tool: to_receipt_text(&tool),
                pack: pack.as_deref().map(to_receipt_text),
                arguments,
                gate,
                decided,
                reason: reason.as_deref().map(to_receipt_text),
            },
            Self::Asked { call, action, approval } => {
                Self::Asked { call: clamp_number(call), action, approval: to_receipt_text(&approval) }
            }
            Self::Answered { call, action, decided, by } => {
                Self::Answered { call: clamp_number(call), action, decided, by: by.as_deref().map(to_receipt_text) }
            }
            Self::Acted { call, by, action, outcome, output, duration_ms, isolation } => Self::Acted {
                call: clamp_number(call),
                by,
                action,
                outcome: outcome.truncate(),
                output: OutputSize { bytes: clamp_number(output.bytes), ..output },
                duration_ms: clamp_number(duration_ms),
                isolation: isolation.map(ReportedIsolation::truncate),
            },
            Self::Model {
                request,
                status,
                sent_bytes,
                received_bytes,
                input_tokens,
                output_tokens,
                duration_ms,
                error,
            } => Self::Model {
                request: clamp_number(request),
                status,
                sent_bytes: clamp_number(sent_bytes),
                received_bytes: clamp_number(received_bytes),
                input_tokens: input_tokens.map(clamp_number),
                output_tokens: output_tokens.map(clamp_number),
                duration_ms: clamp_number(duration_ms),
                error: error.as_deref().map(to_receipt_text),
            },
            Self::Foreign { pack, what, name, ends_run } => {
                Self::Foreign { pack: to_receipt_text(&pack), what, name: to_receipt_text(&name), ends_run }
            }
            Self::Ended { outcome, result } => Self::Ended { outcome: outcome.truncate(), result },
        }
    }
}

impl Outcome {
    fn truncate(self) -> Self {
        match self {
            Self::Failed { why } => Self::Failed { why: to_receipt_text(&why) },
            other => other,
        }
    }
}

impl ReportedIsolation {
    fn truncate(self) -> Self {
        let is_word = |word: &String| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            !word.is_empty() && word.len() <= MAX_WORD && word.bytes().all(plain)
        };
        let guarantees = self.guarantees.into_iter().filter(is_word);
        Self {
            profile: Some(self.profile).filter(is_word).unwrap_or_default(),
            guarantees: guarantees.take(MAX_GUARANTEES).collect(),
        }
    }
}

fn clamp_number(number: u64) -> u64 {
    number.min(MAX_NUMBER)
}

/// Foreign text in the form that receipts store and hash: at most [`MAX_TEXT`] characters, with U+FFFD in place of those
/// that are not visible. Text in this form is not changed.
pub fn to_receipt_text(text: &str) -> String {
    const CUT: char = '…';
    let mut letters = text.chars();
    let mut short: String =
        letters.by_ref().take(MAX_TEXT).map(|letter| if is_visible(letter) { letter } else { '\u{fffd}' }).collect();
    if letters.next().is_some() {
        short.pop();
        short.push(CUT);
    }
    short
}
