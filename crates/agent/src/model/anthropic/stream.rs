//! Reads a response that is streamed as server-sent events.
//!
//! The type of an event is taken from its data: some servers omit the `event` line.

use serde_json::Value;

use super::super::call_ids::CallIds;
use super::super::events::{Event, EventDecoder};
use super::super::{ModelResponse, ResponseError, ResponseReader, provider_error};
use super::response_builder::ResponseBuilder;

#[derive(Debug)]
pub struct EventStreamReader {
    events: EventDecoder,
    builder: ResponseBuilder,
    is_done: bool,
    ids: CallIds,
}

impl EventStreamReader {
    pub fn new(ids: CallIds) -> Self {
        Self { events: EventDecoder::default(), builder: ResponseBuilder::default(), is_done: false, ids }
    }

    fn handle_event(&mut self, event: Event<Value>) -> Result<(), ResponseError> {
        let mut data = match event {
            Event::Data(data) => data,
            Event::Done => {
                self.is_done = true;
                return Ok(());
            }
        };
        let index = data.get("index").and_then(Value::as_u64);
        let kind = data.get("type").and_then(Value::as_str);
        match kind.unwrap_or_default() {
            "message_start" => self.start_message(&data["message"]),
            "content_block_start" => {
                if let Value::Object(block) = data["content_block"].take() {
                    self.builder.start_block(index, block)?;
                }
            }
            "content_block_delta" => self.builder.apply_delta(index, &mut data["delta"])?,
            "message_delta" => {
                self.builder.set_stop_reason(&data["delta"]);
                self.builder.add_usage(data.get("usage"));
            }
            "message_stop" => self.is_done = true,
            "error" => return Err(ResponseError::Provider(provider_error::from_event(&data))),
            "" if data.get("error").is_some_and(|error| !error.is_null()) => {
                return Err(ResponseError::Provider(provider_error::from_event(&data)));
            }
            // Block ends and `ping` carry nothing; unknown types are ignored.
            _ => {}
        }
        Ok(())
    }

    fn start_message(&mut self, message: &Value) {
        self.builder.set_stop_reason(message);
        self.builder.add_usage(message.get("usage"));
    }
}

impl ResponseReader for EventStreamReader {
    fn read(&mut self, bytes: &[u8]) -> Result<(), ResponseError> {
        // Line by line, so that the result does not depend on how the bytes are split: everything after the end is
        // ignored, and the first error is reported.
        for line in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            if self.is_done {
                break;
            }
            for event in self.events.read(line)? {
                self.handle_event(event)?;
            }
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.is_done
    }

    fn text(&self) -> &str {
        &self.builder.text
    }

    fn finish(mut self: Box<Self>) -> Result<ModelResponse, ResponseError> {
        if !self.is_done {
            match self.events.finish() {
                Ok(Some(event)) => self.handle_event(event)?,
                Ok(None) => {}
                // The response is complete without the event.
                Err(_) if self.builder.has_stop_reason() => {}
                Err(broken) => return Err(broken),
            }
        }
        if self.is_done || self.builder.has_stop_reason() {
            Ok(self.builder.finish(&self.ids))
        } else {
            Err(ResponseError::Truncated)
        }
    }
}
