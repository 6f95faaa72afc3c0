//! What a receipt says. No argument and no output is in it, only hashes and sizes of them: receipts are kept and shown.

use serde::{Deserialize, Serialize};
use sympozium_api::names::Digest;
use sympozium_api::run_plan::Gate;
use sympozium_api::text::is_visible;

/// Most characters of a text in a receipt.
pub const MAX_TEXT: usize = 256;
/// The largest number in a receipt: beyond it, JSON is not read alike everywhere, and a line would not be read at all.
pub const MAX_NUMBER: u64 = (1 << 53) - 1;
/// Most guarantees that a receipt names, and most characters of one, or of a profile.
const MAX_GUARANTEES: usize = 16;
const MAX_WORD: usize = 32;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Receipt {
    /// Its place in the chain, from 0.
    pub number: u64,
    /// The hash of the line before; of the first, the digest of the plan.
    pub previous: Digest,
    /// When, in milliseconds since 1970. By the clock of who wrote it.
    pub at_ms: u64,
    /// What happened.
    pub event: Event,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind", deny_unknown_fields)]
pub enum Event {
    /// The bridge began.
    #[serde(rename_all = "camelCase")]
    Started {
        /// The run's UID.
        run: String,
        /// The program and its version.
        by: String,
    },
    /// A tool was asked for, and this was the answer. Nothing had happened yet.
    #[serde(rename_all = "camelCase")]
    Called {
        /// The call, unique in the run.
        call: u64,
        /// The tool.
        tool: String,
        /// The pack whose sidecar would act.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pack: Option<String>,
        /// The hash of the arguments.
        arguments: Digest,
        /// The gate that the plan has for it; none when it has no such tool.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gate: Option<Gate>,
        /// What was decided.
        decided: Decided,
        /// Why not, where it was not allowed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A person was asked about an action.
    #[serde(rename_all = "camelCase")]
    Asked {
        /// The call.
        call: u64,
        /// The hash of the exact action: what a person decides about.
        action: Digest,
        /// The request for approval.
        approval: String,
    },
    /// A person decided, or nobody did in time.
    #[serde(rename_all = "camelCase")]
    Answered {
        /// The call.
        call: u64,
        /// The hash of the exact action, as it was answered.
        action: Digest,
        /// The answer.
        decided: Decided,
        /// Whose it is; nobody's when the time ran out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// A call ended.
    #[serde(rename_all = "camelCase")]
    Acted {
        /// The call.
        call: u64,
        /// Who acted. What the agent says of itself binds an honest one only.
        by: Actor,
        /// The hash of the exact action.
        action: Digest,
        /// How it ended.
        outcome: Outcome,
        /// What it wrote.
        output: Transferred,
        /// Milliseconds that it took.
        duration_ms: u64,
        /// The isolation that was live.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        isolation: Option<IsolationSeen>,
    },
    /// The model was asked.
    #[serde(rename_all = "camelCase")]
    Model {
        /// Which request this was.
        request: u64,
        /// The status of the answer; none when there was no answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
        /// Bytes to and from it.
        sent_bytes: u64,
        /// Bytes from it.
        received_bytes: u64,
        /// Tokens that it read, where it said so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input_tokens: Option<u64>,
        /// Tokens that it wrote, where it said so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output_tokens: Option<u64>,
        /// Milliseconds that it took.
        duration_ms: u64,
        /// Why there was no answer, or not all of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// Something was in a skill's `/ipc` that neither the bridge wrote nor an honest executor.
    #[serde(rename_all = "camelCase")]
    Foreign {
        /// The pack whose `/ipc` it is.
        pack: String,
        /// What it was.
        what: ForeignKind,
        /// The name of the file.
        name: String,
        /// Whether it ended the run.
        ends_run: bool,
    },
    /// The run ended.
    #[serde(rename_all = "camelCase")]
    Ended {
        /// How.
        outcome: Outcome,
        /// The hash of its answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<Digest>,
    },
}

/// What was found in a skill's `/ipc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ForeignKind {
    /// A request that the bridge did not write, one of its own that was changed or came a second time, or the chance of one: the
    /// bridge could not see all.
    Request,
    /// A claim of no request of the bridge.
    Claim,
    /// A result of no request of the bridge, or a second one.
    Result,
    /// A `done` before the end of the run.
    Done,
    /// The announcement of a further start of the executor.
    Start,
}

/// What was decided about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Decided {
    /// It may happen.
    Allowed,
    /// A person is asked.
    Waiting,
    /// It may not.
    Denied,
    /// It was no call that could happen: no such tool, arguments that do not fit, too many at a time.
    Refused,
    /// Nobody answered in time, which means no.
    Expired,
}

/// Who acted.
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

/// How something ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is", deny_unknown_fields)]
pub enum Outcome {
    /// As it should.
    Done,
    /// By itself, with this code.
    #[serde(rename_all = "camelCase")]
    Exited {
        /// The code.
        code: i32,
    },
    /// It was ended, because its time was up.
    TimedOut,
    /// It was ended, because nobody wanted it any more.
    Cancelled,
    /// It could not be done, or nobody knows whether it was.
    #[serde(rename_all = "camelCase")]
    Failed {
        /// Why.
        why: String,
    },
}

/// How much something wrote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Transferred {
    /// Bytes that were kept.
    pub bytes: u64,
    /// Whether there were more.
    pub truncated: bool,
}

/// The isolation that was live, as the executor said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IsolationSeen {
    /// Where the command ran.
    pub profile: String,
    /// What was enforced around it.
    pub guarantees: Vec<String>,
}

impl Event {
    /// The same within the bounds of a receipt, whatever others have put into it: numbers that everybody reads alike, texts that
    /// are cut, words that are words. A chain takes every event that went through here.
    #[must_use]
    pub fn bounded(self) -> Self {
        match self {
            Self::Started { run, by } => Self::Started { run: shortened(&run), by: shortened(&by) },
            Self::Called { call, tool, pack, arguments, gate, decided, reason } => Self::Called {
                call: number(call),
                tool: shortened(&tool),
                pack: pack.as_deref().map(shortened),
                arguments,
                gate,
                decided,
                reason: reason.as_deref().map(shortened),
            },
            Self::Asked { call, action, approval } => {
                Self::Asked { call: number(call), action, approval: shortened(&approval) }
            }
            Self::Answered { call, action, decided, by } => {
                Self::Answered { call: number(call), action, decided, by: by.as_deref().map(shortened) }
            }
            Self::Acted { call, by, action, outcome, output, duration_ms, isolation } => Self::Acted {
                call: number(call),
                by,
                action,
                outcome: outcome.bounded(),
                output: Transferred { bytes: number(output.bytes), ..output },
                duration_ms: number(duration_ms),
                isolation: isolation.map(IsolationSeen::bounded),
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
                request: number(request),
                status,
                sent_bytes: number(sent_bytes),
                received_bytes: number(received_bytes),
                input_tokens: input_tokens.map(number),
                output_tokens: output_tokens.map(number),
                duration_ms: number(duration_ms),
                error: error.as_deref().map(shortened),
            },
            Self::Foreign { pack, what, name, ends_run } => {
                Self::Foreign { pack: shortened(&pack), what, name: shortened(&name), ends_run }
            }
            Self::Ended { outcome, result } => Self::Ended { outcome: outcome.bounded(), result },
        }
    }
}

impl Outcome {
    fn bounded(self) -> Self {
        match self {
            Self::Failed { why } => Self::Failed { why: shortened(&why) },
            other => other,
        }
    }
}

impl IsolationSeen {
    fn bounded(self) -> Self {
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

fn number(number: u64) -> u64 {
    number.min(MAX_NUMBER)
}

/// A text of others as a receipt may hold it: cut, and without characters that nobody sees or that change how others are seen.
pub fn shortened(text: &str) -> String {
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
