//! The model as the loop sees it: one trait with an implementation for each wire format. Nothing here does I/O.

pub mod anthropic;
mod call_ids;
mod chunks;
mod echo_fields;
mod events;
mod json;
pub mod openai;
mod provider_error;
mod unstreamed;

use bytes::Bytes;
use serde_json::{Map, Value};
use sympozium_api::run_plan::{AgentView, WireFormat};
use sympozium_api::text::Chars;

use crate::conversation::Conversation;

/// Bytes of one server-sent event, and of one response that is not streamed.
pub const MAX_EVENT: usize = 4 << 20;
/// Bytes of one response that are kept. The bridge limits the transferred bytes as well.
pub const MAX_RESPONSE: usize = 8 << 20;
/// Further calls of one response are dropped, and the model is told so.
pub const MAX_CALLS: usize = 64;
pub const MAX_ARGUMENTS: usize = 1 << 20;
pub const MAX_NAME: usize = 256;
const MAX_REFUSAL: Chars = Chars(500);

/// A wire format of a model API. Implementations do no I/O.
pub trait Model: Send + Sync {
    fn user_message(&self, text: &str) -> Bytes;

    /// The result of a call, encoded for a request.
    fn tool_result(&self, id: &str, text: &str, outcome: ToolOutcome) -> Bytes;

    /// The request body in chunks.
    fn request(&self, conversation: &Conversation, choice: ToolChoice) -> Vec<Bytes>;

    fn reader(&self, shape: BodyFormat) -> Box<dyn ResponseReader>;

    /// Interprets a response with an error status.
    fn provider_error(&self, status: u16, body: &[u8]) -> ProviderError;
}

pub fn for_view(view: &AgentView, system: &str) -> Box<dyn Model> {
    match view.wire {
        WireFormat::OpenAi => Box::new(openai::OpenAi::new(view, system)),
        WireFormat::Anthropic => Box::new(anthropic::Anthropic::new(view, system)),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolOutcome {
    Succeeded,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolChoice {
    Auto,
    NoTools,
    /// The tools are left out of the request, for servers that ignore `tool_choice`. Same as [`ToolChoice::NoTools`]
    /// where the format needs the tools because the conversation has calls.
    OmitTools,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFormat {
    EventStream,
    Json,
}

impl BodyFormat {
    /// Detects the format by the first byte, because `Content-Type` is sometimes wrong.
    pub const fn detect(first: u8) -> Self {
        match first {
            b'{' | b'[' => Self::Json,
            _ => Self::EventStream,
        }
    }
}

pub trait ResponseReader: Send {
    fn read(&mut self, bytes: &[u8]) -> Result<(), ResponseError>;

    /// Whether the response is complete, even if the body has not ended.
    fn is_complete(&self) -> bool;

    /// The text so far, for status lines.
    fn text(&self) -> &str;

    /// Called at the end of the body.
    fn finish(self: Box<Self>) -> Result<ModelResponse, ResponseError>;
}

#[derive(Debug, Clone, PartialEq)]
pub struct ModelResponse {
    pub text: String,
    /// In the model's order, at most [`MAX_CALLS`].
    pub calls: Vec<Call>,
    pub dropped_calls: usize,
    pub stop: StopReason,
    pub usage: Option<Usage>,
    /// The assistant message for later requests, with unknown fields. It holds every call of `calls` and no other;
    /// arguments that cannot be parsed are an empty object in it.
    pub message: Bytes,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Unique in the run, at most [`MAX_NAME`] bytes.
    pub id: String,
    /// As the model wrote it, cut at [`MAX_NAME`] bytes.
    pub name: String,
    pub arguments: CallArguments,
}

#[derive(Debug, Clone, PartialEq)]
pub enum CallArguments {
    Object(Map<String, Value>),
    /// Not JSON, not an object, too deep, too long or truncated; the reason is worded for the model.
    Invalid(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended its turn or calls tools.
    Finished,
    Length,
    /// The model or its provider refuses, with the reason.
    Refused(String),
    /// Any other reason, in the provider's word.
    Other(String),
}

impl StopReason {
    /// The reason is made one bounded line and is never empty.
    fn refusal(why: &str) -> Self {
        match provider_error::one_line(why, MAX_REFUSAL) {
            why if why.is_empty() => Self::Refused("without a reason".to_owned()),
            why => Self::Refused(why),
        }
    }

    /// The reason for the transcript; `None` for a normal end.
    pub fn unusual(&self) -> Option<&str> {
        match self {
            Self::Finished => None,
            Self::Length => Some("length"),
            Self::Refused(why) => Some(why),
            Self::Other(reason) => Some(reason),
        }
    }
}

/// Token counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Includes cached tokens.
    pub input: u64,
    pub cached: u64,
    pub output: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    #[error("the model's answer was cut off")]
    Truncated,
    #[error("the model's answer cannot be read: {0}")]
    Invalid(String),
    #[error("the model's answer has more than {0} bytes")]
    TooLarge(usize),
    /// The provider reports an error in the middle of the response.
    #[error("{0}")]
    Provider(ProviderError),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    pub remedy: Remedy,
    /// In the provider's words, bounded, with the HTTP status where there is one.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Transient: overload, rate limit, server error.
    Retry,
    /// The conversation exceeds the model's context.
    Shorten,
    None,
}
