//! Reads an answer that comes as server-sent events.
//!
//! The type of an event is taken from its data: some servers leave out the line that repeats it.

use serde_json::Value;

use super::super::events::{Event, Events};
use super::super::ids::Ids;
use super::super::{Answer, Broken, Reader, problem};
use super::answer::Draft;

/// An answer that is read.
#[derive(Debug)]
pub struct Stream {
    events: Events,
    draft: Draft,
    /// Whether the provider has said that nothing follows.
    is_over: bool,
    ids: Ids,
}

impl Stream {
    /// Before anything came.
    pub fn new(ids: Ids) -> Self {
        Self { events: Events::default(), draft: Draft::default(), is_over: false, ids }
    }

    fn take(&mut self, event: Event<Value>) -> Result<(), Broken> {
        let mut data = match event {
            Event::Data(data) => data,
            Event::Done => {
                self.is_over = true;
                return Ok(());
            }
        };
        let index = data.get("index").and_then(Value::as_u64);
        let kind = data.get("type").and_then(Value::as_str);
        match kind.unwrap_or_default() {
            "message_start" => self.start(&data["message"]),
            "content_block_start" => {
                if let Value::Object(block) = data["content_block"].take() {
                    self.draft.start(index, block)?;
                }
            }
            "content_block_delta" => self.draft.grow(index, &mut data["delta"])?,
            "message_delta" => {
                self.draft.stop(&data["delta"]);
                self.draft.cost(data.get("usage"));
            }
            "message_stop" => self.is_over = true,
            "error" => return Err(Broken::Provider(problem::of_error(&data))),
            "" if data.get("error").is_some_and(|it| !it.is_null()) => {
                return Err(Broken::Provider(problem::of_error(&data)));
            }
            // The ends of blocks say nothing that is not known, `ping` says nothing at all, and there will be more kinds.
            _ => {}
        }
        Ok(())
    }

    fn start(&mut self, message: &Value) {
        self.draft.stop(message);
        self.draft.cost(message.get("usage"));
    }
}

impl Reader for Stream {
    fn read(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        // Line by line, so that the same bytes mean the same in whatever pieces they come: what follows the end of an
        // answer is not looked at, and the first problem is the one that is told.
        for line in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            if self.is_over {
                break;
            }
            for event in self.events.read(line)? {
                self.take(event)?;
            }
        }
        Ok(())
    }

    fn is_whole(&self) -> bool {
        self.is_over
    }

    fn text(&self) -> &str {
        &self.draft.text
    }

    fn finish(mut self: Box<Self>) -> Result<Answer, Broken> {
        if !self.is_over {
            match self.events.last() {
                Ok(Some(event)) => self.take(event)?,
                Ok(None) => {}
                // The model had said all it had to say.
                Err(_) if self.draft.has_stopped() => {}
                Err(broken) => return Err(broken),
            }
        }
        if self.is_over || self.draft.has_stopped() { Ok(self.draft.finish(&self.ids)) } else { Err(Broken::CutOff) }
    }
}
