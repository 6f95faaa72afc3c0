//! Messages as Anthropic has them, and as many other servers speak them.
//!
//! What the API refuses is never sent: empty texts, ids and names with other characters, a message of the model that ends
//! with what it thought, thoughts without a signature. One refused message would end a run, as it stands in every later
//! request.

mod answer;
mod block;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod request;
mod stream;
mod thinking;

#[cfg(test)]
mod tests;

use bytes::Bytes;
use sympozium_api::run_plan::AgentView;

use super::ids::{Form, Ids};
use super::whole::Whole;
use super::{Choice, Model, Outcome, Problem, Reader, Shape, problem};
use crate::conversation::Conversation;

/// The format.
#[derive(Debug)]
pub struct Anthropic {
    head: request::Head,
    ids: Ids,
}

impl Anthropic {
    /// Of a view. `system` is what the model is told before everything else.
    pub fn new(view: &AgentView, system: &str) -> Self {
        Self { head: request::Head::new(view, system), ids: Ids::new(Form::Plain) }
    }
}

impl Model for Anthropic {
    fn user(&self, text: &str) -> Bytes {
        request::user(text)
    }

    fn result(&self, id: &str, text: &str, outcome: Outcome) -> Bytes {
        request::result(id, text, outcome)
    }

    fn request(&self, conversation: &Conversation, choice: Choice) -> Vec<Bytes> {
        self.head.request(conversation, choice)
    }

    fn reader(&self, shape: Shape) -> Box<dyn Reader> {
        match shape {
            Shape::Stream => Box::new(stream::Stream::new(self.ids.clone())),
            Shape::Whole => {
                let ids = self.ids.clone();
                Box::new(Whole::new(move |message| answer::whole(message, &ids)))
            }
        }
    }

    fn problem(&self, status: u16, body: &[u8]) -> Problem {
        problem::of(status, body)
    }
}
