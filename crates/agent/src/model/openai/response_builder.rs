//! Builds a response from chunks or from an unstreamed completion.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};

use super::budget::Budget;
use super::call_builder::{CallBuilder, CallEncoding, EncodedCall};
use super::content::MessageContent;
use super::extra_fields::ExtraFields;
use super::text_tool_calls::{self, OfferedTools};
use super::usage;
use crate::model::call_ids::CallIds;
use crate::model::{MAX_CALLS, ModelResponse, ResponseError, StopReason, Usage, provider_error};

const MAX_REASON_CHARS: usize = 64;
/// Fields of a message that are useless in the next request: features that were never offered, and metadata about the
/// message.
const IGNORED_FIELDS: &[&str] = &["annotations", "audio", "function_call", "images", "name"];

#[derive(Debug)]
pub struct ResponseBuilder {
    content: MessageContent,
    refusal: String,
    calls: CallBuilder,
    extra: ExtraFields,
    finish_reason: Option<String>,
    usage: Option<Usage>,
    has_content: bool,
    budget: Budget,
    offered: Arc<OfferedTools>,
    ids: CallIds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// `[DONE]` or an unstreamed body.
    Done,
    /// The body ended without a marker.
    Eof,
}

impl ResponseBuilder {
    pub fn new(offered: Arc<OfferedTools>, ids: CallIds) -> Self {
        Self {
            content: MessageContent::default(),
            refusal: String::new(),
            calls: CallBuilder::default(),
            extra: ExtraFields::default(),
            finish_reason: None,
            usage: None,
            has_content: false,
            budget: Budget::default(),
            offered,
            ids,
        }
    }

    /// Returns whether the chunk has the choice.
    pub fn add_chunk(&mut self, chunk: Value, encoding: CallEncoding) -> Result<bool, ResponseError> {
        let mut chunk = match chunk {
            Value::Object(chunk) => chunk,
            // Google wraps errors in a list.
            Value::Array(items) => match items.into_iter().next() {
                Some(Value::Object(chunk)) => chunk,
                _ => return Err(invalid("a list is no part of an answer")),
            },
            _ => return Err(invalid("a part of it is not an object")),
        };
        if let Some(error) = provider_error::from_chunk(&chunk) {
            return Err(ResponseError::Provider(error));
        }
        if let Some(usage) = usage::from_chunk(&chunk) {
            self.usage = Some(usage);
        }
        let Some(Value::Array(choices)) = chunk.remove("choices") else {
            return Ok(false);
        };
        let mut has_choice = false;
        for choice in choices {
            if let Value::Object(choice) = choice
                && is_first_choice(&choice)
            {
                has_choice = true;
                self.add_choice(choice, encoding)?;
            }
        }
        Ok(has_choice)
    }

    pub fn finish_unstreamed(mut self, completion: Value) -> Result<ModelResponse, ResponseError> {
        if !self.add_chunk(completion, CallEncoding::Complete)? {
            return Err(invalid("it has no choice"));
        }
        self.finish(StreamEnd::Done)
    }

    pub fn visible(&self) -> &str {
        self.content.visible()
    }

    /// Whether nothing useful can follow: some servers leave the connection open.
    pub fn is_complete(&self) -> bool {
        self.finish_reason.is_some() && self.usage.is_some()
    }

    pub fn has_finish_reason(&self) -> bool {
        self.finish_reason.is_some()
    }

    /// Fails when the response is truncated. Servers that do not say why a model stopped are believed when they end the
    /// stream, as long as it had content and no call is incomplete.
    pub fn finish(mut self, end: StreamEnd) -> Result<ModelResponse, ResponseError> {
        let is_truncated = match (&self.finish_reason, end) {
            (Some(_), _) => false,
            (None, StreamEnd::Done) => !self.has_content,
            (None, StreamEnd::Eof) => !self.has_content || self.calls.has_open_arguments(),
        };
        if is_truncated {
            return Err(ResponseError::Truncated);
        }
        self.content.finish();
        let stop = stop_reason(self.finish_reason.as_deref().unwrap_or_default(), &self.refusal);
        // White space at the ends stays: a truncated answer may be continued.
        let mut text = self.content.visible().to_owned();
        let mut dropped = self.calls.dropped();
        let encoded_calls = if self.calls.is_empty() {
            let (encoded_calls, more) = self.extract_text_calls(&mut text);
            dropped = more;
            encoded_calls
        } else {
            let calls = std::mem::take(&mut self.calls);
            calls.finish(stop == StopReason::Length, &self.ids, &self.offered)
        };
        let (calls, encoded_messages): (Vec<_>, Vec<_>) = encoded_calls.into_iter().unzip();
        Ok(ModelResponse {
            text,
            dropped_calls: dropped,
            stop,
            usage: self.usage,
            message: self.message(encoded_messages),
            calls,
        })
    }

    fn add_choice(&mut self, mut choice: Map<String, Value>, encoding: CallEncoding) -> Result<(), ResponseError> {
        if let Some(error) = provider_error::from_chunk(&choice) {
            return Err(ResponseError::Provider(error));
        }
        let message = match choice.remove("delta") {
            Some(Value::Object(delta)) => Some(delta),
            _ => match choice.remove("message") {
                Some(Value::Object(message)) => Some(message),
                _ => None,
            },
        };
        if let Some(message) = message {
            self.add_message(message, encoding)?;
        }
        match choice.remove("finish_reason") {
            Some(Value::String(finish_reason)) if !finish_reason.is_empty() => {
                if finish_reason.eq_ignore_ascii_case("error") {
                    return Err(ResponseError::Provider(provider_error::unexplained()));
                }
                self.finish_reason = Some(finish_reason.chars().take(MAX_REASON_CHARS).collect());
            }
            _ => {}
        }
        Ok(())
    }

    fn add_message(&mut self, message: Map<String, Value>, encoding: CallEncoding) -> Result<(), ResponseError> {
        for (name, value) in message {
            let has_content = match name.as_str() {
                "role" => false,
                "content" => self.content.add(value, &mut self.budget)?,
                "refusal" => self.add_refusal(value)?,
                "tool_calls" => self.add_calls(value, encoding)?,
                name if IGNORED_FIELDS.contains(&name) => false,
                name => self.extra.add(name, value, &mut self.budget)?,
            };
            self.has_content |= has_content;
        }
        Ok(())
    }

    fn add_refusal(&mut self, value: Value) -> Result<bool, ResponseError> {
        let Value::String(text) = value else {
            return Ok(false);
        };
        self.budget.charge(text.len())?;
        self.refusal.push_str(&text);
        Ok(!text.is_empty())
    }

    fn add_calls(&mut self, value: Value, encoding: CallEncoding) -> Result<bool, ResponseError> {
        let Value::Array(deltas) = value else {
            return Ok(false);
        };
        let has_content = !deltas.is_empty();
        for delta in deltas {
            self.calls.add(delta, encoding, &mut self.budget)?;
        }
        Ok(has_content)
    }

    /// Removes calls that the model wrote as text from the text.
    fn extract_text_calls(&mut self, text: &mut String) -> (Vec<EncodedCall>, usize) {
        if !self.content.is_plain() {
            return (Vec::new(), 0);
        }
        let Some(found) = text_tool_calls::find_at_end(text, &self.offered) else {
            return (Vec::new(), 0);
        };
        // The visible text is the end of the content.
        let visible = self.content.visible();
        let start = self.content.len() - visible.len() + found.start;
        self.content.truncate(start);
        text.truncate(found.start);
        text.truncate(text.trim_end().len());
        let mut calls = found.calls;
        let dropped = calls.len().saturating_sub(MAX_CALLS);
        calls.truncate(MAX_CALLS);
        let named = calls.into_iter().map(|call| call.into_encoded(self.ids.assign("")));
        (named.collect(), dropped)
    }

    fn message(self, calls: Vec<Value>) -> Bytes {
        let mut message = Map::new();
        message.insert("role".to_owned(), "assistant".into());
        let content = match self.content.into_value() {
            // Null is only for messages with calls.
            Value::Null if calls.is_empty() => Value::from(""),
            content => content,
        };
        message.insert("content".to_owned(), content);
        if !self.refusal.is_empty() {
            message.insert("refusal".to_owned(), self.refusal.into());
        }
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), calls.into());
        }
        self.extra.finish(&mut message);
        Value::Object(message).to_string().into()
    }
}

/// Only one choice is requested; others are ignored.
fn is_first_choice(choice: &Map<String, Value>) -> bool {
    match choice.get("index") {
        None | Some(Value::Null) => true,
        Some(index) => index.as_u64() == Some(0),
    }
}

fn stop_reason(finish_reason: &str, refusal: &str) -> StopReason {
    if !refusal.is_empty() {
        return StopReason::refusal(refusal);
    }
    match finish_reason.to_ascii_lowercase().as_str() {
        "" | "stop" | "tool_calls" | "function_call" | "tool_use" | "end_turn" | "eos" | "stop_sequence" => {
            StopReason::Finished
        }
        "length" | "max_tokens" | "model_length" => StopReason::Length,
        "refusal" => StopReason::refusal(""),
        "content_filter" | "safety" => {
            StopReason::Refused("the provider's content filter stopped the answer".to_owned())
        }
        _ => StopReason::Other(finish_reason.to_owned()),
    }
}

fn invalid(why: &str) -> ResponseError {
    ResponseError::Invalid(why.to_owned())
}
