//! Chat completions as OpenAI has them, and as the many servers have them that say the same, or nearly: Azure, llama.cpp,
//! Ollama, vLLM, LM Studio, OpenRouter, DeepSeek, Mistral, Google.
//!
//! What we say is what all of them take. What they say is read as leniently as can be without guessing: fields may be
//! missing, repeated, of another kind, and there may be fields that nobody here knows.

mod arguments;
mod budget;
mod calls;
mod content;
mod extra;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod gathering;
mod recovered;
mod request;
mod stream;
mod usage;

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use sympozium_api::run_plan::AgentView;

use self::gathering::Gathering;
use self::recovered::Offered;
use self::request::Frame;
use self::stream::Stream;
use super::ids::{Form, Ids};
use super::whole::Whole;
use super::{Choice, Model, Outcome, Problem, Reader, Shape, problem};
use crate::conversation::Conversation;

/// The format.
#[derive(Debug)]
pub struct OpenAi {
    frame: Frame,
    offered: Arc<Offered>,
    ids: Ids,
}

impl OpenAi {
    /// Of a view: everything of a request that does not change is encoded here, once.
    pub fn new(view: &AgentView, system: &str) -> Self {
        Self { frame: Frame::new(view, system), offered: Arc::new(Offered::new(&view.tools)), ids: Ids::new(Form::Any) }
    }
}

impl Model for OpenAi {
    fn user(&self, text: &str) -> Bytes {
        request::user(text)
    }

    /// There is no place for how a call went: the text says so.
    fn result(&self, id: &str, text: &str, _outcome: Outcome) -> Bytes {
        json!({ "role": "tool", "tool_call_id": id, "content": text }).to_string().into()
    }

    fn request(&self, conversation: &Conversation, choice: Choice) -> Vec<Bytes> {
        self.frame.request(conversation, choice)
    }

    fn reader(&self, shape: Shape) -> Box<dyn Reader> {
        let gathering = Gathering::new(Arc::clone(&self.offered), self.ids.clone());
        match shape {
            Shape::Stream => Box::new(Stream::new(gathering)),
            Shape::Whole => Box::new(Whole::new(|completion| gathering.whole(completion))),
        }
    }

    fn problem(&self, status: u16, body: &[u8]) -> Problem {
        problem::of(status, body)
    }
}

#[cfg(test)]
mod tests;
