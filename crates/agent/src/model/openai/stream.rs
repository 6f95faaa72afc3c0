//! Reads a response that is streamed as server-sent events.

use serde_json::Value;

use super::call_builder::CallEncoding;
use super::response_builder::{ResponseBuilder, StreamEnd};
use crate::model::events::{Event, EventDecoder};
use crate::model::{ModelResponse, ResponseError, ResponseReader};

#[derive(Debug)]
pub struct EventStreamReader {
    events: EventDecoder,
    builder: ResponseBuilder,
    is_done: bool,
}

impl EventStreamReader {
    pub fn new(builder: ResponseBuilder) -> Self {
        Self { events: EventDecoder::default(), builder, is_done: false }
    }

    fn add(&mut self, event: Event<Value>) -> Result<(), ResponseError> {
        match event {
            // Everything after the end is ignored.
            _ if self.is_done => {}
            Event::Done => self.is_done = true,
            Event::Data(chunk) => {
                self.builder.add_chunk(chunk, CallEncoding::Deltas)?;
            }
        }
        Ok(())
    }
}

impl ResponseReader for EventStreamReader {
    fn read(&mut self, bytes: &[u8]) -> Result<(), ResponseError> {
        if self.is_done {
            return Ok(());
        }
        for event in self.events.read(bytes)? {
            self.add(event)?;
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.is_done || self.builder.is_complete()
    }

    fn text(&self) -> &str {
        self.builder.visible()
    }

    fn finish(mut self: Box<Self>) -> Result<ModelResponse, ResponseError> {
        if !self.is_done {
            match self.events.finish() {
                Ok(Some(event)) => self.add(event)?,
                Ok(None) => {}
                // The response is complete without the partial event.
                Err(_) if self.builder.has_finish_reason() => {}
                Err(error) => return Err(error),
            }
        }
        let end = if self.is_done { StreamEnd::Done } else { StreamEnd::Eof };
        self.builder.finish(end)
    }
}
