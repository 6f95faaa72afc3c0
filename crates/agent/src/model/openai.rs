//! The OpenAI chat completions API, and the many that are compatible or nearly so: Azure, llama.cpp, Ollama, vLLM, LM
//! Studio, OpenRouter, DeepSeek, Mistral, Google.
//!
//! Requests use only what all of them accept. Responses are parsed as leniently as possible without guessing: fields
//! may be missing, repeated, of another type, or unknown.

mod arguments;
mod budget;
mod call_builder;
mod content;
mod extra_fields;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod request;
mod response_builder;
mod stream;
mod text_tool_calls;
mod usage;

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use sympozium_api::run_plan::AgentView;

use self::request::RequestTemplate;
use self::response_builder::ResponseBuilder;
use self::stream::EventStreamReader;
use self::text_tool_calls::OfferedTools;
use super::call_ids::{CallIds, IdFormat};
use super::unstreamed::UnstreamedReader;
use super::{BodyFormat, Model, ProviderError, ResponseReader, ToolChoice, ToolOutcome, provider_error};
use crate::conversation::Conversation;

#[derive(Debug)]
pub struct OpenAi {
    template: RequestTemplate,
    offered_tools: Arc<OfferedTools>,
    ids: CallIds,
}

impl OpenAi {
    pub fn new(view: &AgentView, system: &str) -> Self {
        Self {
            template: RequestTemplate::new(view, system),
            offered_tools: Arc::new(OfferedTools::new(&view.tools)),
            ids: CallIds::new(IdFormat::Any),
        }
    }
}

impl Model for OpenAi {
    fn user_message(&self, text: &str) -> Bytes {
        request::user_message(text)
    }

    /// The format has no field for the outcome: the text says it.
    fn tool_result(&self, id: &str, text: &str, _outcome: ToolOutcome) -> Bytes {
        json!({ "role": "tool", "tool_call_id": id, "content": text }).to_string().into()
    }

    fn request(&self, conversation: &Conversation, choice: ToolChoice) -> Vec<Bytes> {
        self.template.request(conversation, choice)
    }

    fn reader(&self, shape: BodyFormat) -> Box<dyn ResponseReader> {
        let builder = ResponseBuilder::new(Arc::clone(&self.offered_tools), self.ids.clone());
        match shape {
            BodyFormat::EventStream => Box::new(EventStreamReader::new(builder)),
            BodyFormat::Json => Box::new(UnstreamedReader::new(|completion| builder.finish_unstreamed(completion))),
        }
    }

    fn provider_error(&self, status: u16, body: &[u8]) -> ProviderError {
        provider_error::from_response(status, body)
    }
}

#[cfg(test)]
mod tests;
