//! The Anthropic Messages API, which many other servers implement as well.
//!
//! What the API refuses must never be sent: empty texts, invalid characters in ids and names, a message of the model
//! that ends with thinking, thinking without a signature. One refused message would end the run, because it is in every
//! later request.

mod block;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod request;
mod response_builder;
mod stream;
mod thinking;

#[cfg(test)]
mod tests;

use bytes::Bytes;
use sympozium_api::run_plan::AgentView;

use super::call_ids::{CallIds, IdFormat};
use super::unstreamed::UnstreamedReader;
use super::{BodyFormat, Model, ProviderError, ResponseReader, ToolChoice, ToolOutcome, provider_error};
use crate::conversation::Conversation;

/// The format.
#[derive(Debug)]
pub struct Anthropic {
    head: request::RequestHead,
    ids: CallIds,
}

impl Anthropic {
    /// `system` is the system prompt.
    pub fn new(view: &AgentView, system: &str) -> Self {
        Self { head: request::RequestHead::new(view, system), ids: CallIds::new(IdFormat::Plain) }
    }
}

impl Model for Anthropic {
    fn user_message(&self, text: &str) -> Bytes {
        request::user_message(text)
    }

    fn tool_result(&self, id: &str, text: &str, outcome: ToolOutcome) -> Bytes {
        request::tool_result(id, text, outcome)
    }

    fn request(&self, conversation: &Conversation, choice: ToolChoice) -> Vec<Bytes> {
        self.head.request(conversation, choice)
    }

    fn reader(&self, shape: BodyFormat) -> Box<dyn ResponseReader> {
        match shape {
            BodyFormat::EventStream => Box::new(stream::EventStreamReader::new(self.ids.clone())),
            BodyFormat::Json => {
                let ids = self.ids.clone();
                Box::new(UnstreamedReader::new(move |message| response_builder::from_message(message, &ids)))
            }
        }
    }

    fn provider_error(&self, status: u16, body: &[u8]) -> ProviderError {
        provider_error::from_response(status, body)
    }
}
