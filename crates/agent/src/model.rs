//! The model as the loop sees it: one trait, two wire formats behind it. Nothing here does I/O.

pub mod anthropic;
mod events;
mod ids;
mod json;
pub mod openai;
mod pieces;
mod problem;
mod returned;
mod whole;

use bytes::Bytes;
use serde_json::{Map, Value};
use sympozium_api::run_plan::{AgentView, WireFormat};
use sympozium_api::text::Chars;

use crate::conversation::Conversation;

/// Bytes of one event of a stream, and of one answer that is not streamed.
pub const MAX_EVENT: usize = 4 << 20;
/// Bytes of everything that is kept of one answer. The bridge has a bound for the whole of it, too.
pub const MAX_ANSWER: usize = 8 << 20;
/// Calls of one answer that are kept. The model is told of those that are not.
pub const MAX_CALLS: usize = 64;
/// Bytes of the arguments of one call.
pub const MAX_ARGUMENTS: usize = 1 << 20;
/// Bytes of the name of a tool, and of the id of a call.
pub const MAX_NAME: usize = 256;
/// Characters of what is told about a refusal.
const MAX_REFUSAL: Chars = Chars(500);

/// A wire format. Both are pure: bytes in, bytes out.
pub trait Model: Send + Sync {
    /// A message of the user.
    fn user(&self, text: &str) -> Bytes;

    /// The result of a call, as it stands in a request.
    fn result(&self, id: &str, text: &str, outcome: Outcome) -> Bytes;

    /// The whole request, in the pieces that make its body.
    fn request(&self, conversation: &Conversation, choice: Choice) -> Vec<Bytes>;

    /// A reader for one answer.
    fn reader(&self, shape: Shape) -> Box<dyn Reader>;

    /// What an answer with this status and body means, which is no answer of the model.
    fn problem(&self, status: u16, body: &[u8]) -> Problem;
}

/// The format that a view asks for. `system` is what the model is told before everything else.
pub fn of(view: &AgentView, system: &str) -> Box<dyn Model> {
    match view.wire {
        WireFormat::OpenAi => Box::new(openai::OpenAi::new(view, system)),
        WireFormat::Anthropic => Box::new(anthropic::Anthropic::new(view, system)),
    }
}

/// How a call went, for formats that have a place for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// As asked.
    Done,
    /// Not.
    Failed,
}

/// Whether the model may call tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// As it likes.
    Free,
    /// It is to answer now.
    NoTools,
    /// It is to answer now, and is not even told of the tools: for servers that pass over [`Choice::NoTools`]. Where the
    /// format does not allow that, it is the same.
    Bare,
}

/// How an answer is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// As server-sent events.
    Stream,
    /// As one JSON object: servers that do not stream.
    Whole,
}

impl Shape {
    /// What begins with this byte. Heads of answers say it, too, and are sometimes wrong; no line of a stream begins so.
    pub const fn of(first: u8) -> Self {
        match first {
            b'{' | b'[' => Self::Whole,
            _ => Self::Stream,
        }
    }
}

/// Reads one answer, as it comes.
pub trait Reader: Send {
    /// More bytes.
    ///
    /// # Errors
    ///
    /// When this is no answer, or the provider says that it broke.
    fn read(&mut self, bytes: &[u8]) -> Result<(), Broken>;

    /// Whether the answer is whole, whatever may still come.
    fn is_whole(&self) -> bool;

    /// The text so far, for people who watch.
    fn text(&self) -> &str;

    /// The answer, when nothing more comes.
    ///
    /// # Errors
    ///
    /// When it broke off.
    fn finish(self: Box<Self>) -> Result<Answer, Broken>;
}

/// What the model said.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// What people read.
    pub text: String,
    /// Calls of tools, in the model's order: at most [`MAX_CALLS`].
    pub calls: Vec<Call>,
    /// How many more there were.
    pub calls_left_out: usize,
    /// Why it stopped.
    pub stop: Stop,
    /// What it cost, where the provider says.
    pub usage: Option<Usage>,
    /// The message as it stands in later requests: everything that was said, what we do not know included. It holds every
    /// call of `calls` and no other; arguments that could not be read are an empty object in it.
    pub message: Bytes,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The model's name for it: unique in the answer, at most [`MAX_NAME`] bytes.
    pub id: String,
    /// The tool, as the model wrote it, cut at [`MAX_NAME`] bytes.
    pub name: String,
    /// What it is called with.
    pub arguments: Arguments,
}

/// The arguments of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Arguments {
    /// As they should be.
    Object(Map<String, Value>),
    /// Not JSON, not an object, too deep, too long, or cut off: why, in words for the model.
    Unreadable(String),
}

/// Why the model stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// It had nothing more to say, or it calls tools.
    Finished,
    /// It may not write more.
    Length,
    /// It does not want to, or its provider does not let it: with what it says about that.
    Refused(String),
    /// Anything else, in the provider's word.
    Other(String),
}

impl Stop {
    /// A refusal, in these words of a provider: in one line, bounded, and never without any.
    fn refused(why: &str) -> Self {
        match problem::line(why, MAX_REFUSAL) {
            why if why.is_empty() => Self::Refused("without a reason".to_owned()),
            why => Self::Refused(why),
        }
    }

    /// In words, where it is unusual.
    pub fn told(&self) -> Option<&str> {
        match self {
            Self::Finished => None,
            Self::Length => Some("length"),
            Self::Refused(why) => Some(why),
            Self::Other(reason) => Some(reason),
        }
    }
}

/// What an answer cost, in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Read by the model, what was cached included.
    pub input: u64,
    /// Of those, read from a cache.
    pub cached: u64,
    /// Written.
    pub output: u64,
}

/// Why an answer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// It broke off.
    #[error("the model's answer broke off")]
    CutOff,
    /// It is not what the format says.
    #[error("the model's answer cannot be read: {0}")]
    Unreadable(String),
    /// It is too large.
    #[error("the model's answer has more than {0} bytes")]
    TooLarge(usize),
    /// The provider says that something went wrong, in the middle of the answer.
    #[error("{0}")]
    Provider(Problem),
}

/// What a provider says went wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// What can be done about it.
    pub remedy: Remedy,
    /// In the provider's words, bounded, with the status where there is one.
    pub message: String,
}

/// What can be done about a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Try again later: too much load, too many requests, an error of theirs.
    Retry,
    /// Say less: the conversation is longer than the model reads.
    Shorten,
    /// Nothing.
    None,
}
