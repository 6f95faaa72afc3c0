//! The content of a message, and which part of it is visible to people.
//!
//! Models without a field for thinking write it first, between `<think>` and `</think>`. It stays in the message and is
//! not part of the text.

use serde_json::{Value, json};

use super::budget::{Budget, memory_size};
use crate::model::ResponseError;

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
/// Bytes of white space after which no `<think>` is expected.
const MAX_LEADING_SPACE: usize = 1024;

#[derive(Debug, Default)]
pub struct MessageContent {
    /// All text.
    text: String,
    /// The same as parts, if any part arrived: Mistral's thinking is a part of its own.
    parts: Option<Vec<Value>>,
    /// Whether `content` was present, even if empty.
    is_present: bool,
    thinking: ThinkingState,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ThinkingState {
    /// Thinking may still begin.
    #[default]
    Unknown,
    /// Thinking goes on; searched up to this offset.
    Open(usize),
    /// The visible text begins at this offset.
    Closed(usize),
}

impl MessageContent {
    /// Returns whether the delta had content.
    pub fn add(&mut self, value: Value, budget: &mut Budget) -> Result<bool, ResponseError> {
        match value {
            Value::String(text) => self.add_text(&text, budget),
            Value::Array(parts) => {
                let mut has_content = false;
                for part in parts {
                    has_content |= self.add_part(part, budget)?;
                }
                Ok(has_content)
            }
            _ => Ok(false),
        }
    }

    pub fn visible(&self) -> &str {
        match self.thinking {
            ThinkingState::Unknown | ThinkingState::Open(_) => "",
            ThinkingState::Closed(0) => &self.text,
            ThinkingState::Closed(start) => self.text.get(start..).unwrap_or_default().trim_start(),
        }
    }

    pub fn finish(&mut self) {
        if self.thinking == ThinkingState::Unknown {
            self.thinking = ThinkingState::Closed(0);
        }
        // Some chat templates write the start tag themselves, so that only the end tag arrives.
        if self.thinking == ThinkingState::Closed(0)
            && let Some(end) = unopened_end(&self.text)
        {
            self.thinking = ThinkingState::Closed(end);
        }
    }

    /// Whether the content is text only.
    pub fn is_plain(&self) -> bool {
        self.parts.is_none()
    }

    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Only for content that is text only.
    pub fn truncate(&mut self, length: usize) {
        if self.text.is_char_boundary(length) {
            self.text.truncate(length);
            let end = self.text.trim_end().len();
            self.text.truncate(end);
        }
    }

    /// For later requests. Servers send null when the model only calls tools.
    pub fn into_value(self) -> Value {
        match self.parts {
            Some(parts) if !parts.is_empty() => parts.into(),
            _ if self.is_present => self.text.into(),
            _ => Value::Null,
        }
    }

    fn add_text(&mut self, text: &str, budget: &mut Budget) -> Result<bool, ResponseError> {
        self.is_present = true;
        if text.is_empty() {
            return Ok(false);
        }
        budget.charge(text.len())?;
        self.text.push_str(text);
        self.thinking = update_state(self.thinking, &self.text);
        if let Some(parts) = &mut self.parts {
            budget.charge(text.len())?;
            append_part(parts, "text", text);
        }
        Ok(true)
    }

    /// Keeps text and thinking. Other parts are dropped: their effect on the bridge or the provider in the next request
    /// is unknown.
    fn add_part(&mut self, mut part: Value, budget: &mut Budget) -> Result<bool, ResponseError> {
        let kind = part.get("type").and_then(Value::as_str);
        let is_thinking = match kind {
            Some("thinking") => true,
            Some("text") => false,
            _ => return Ok(false),
        };
        let parts = self.parts.get_or_insert_default();
        if parts.is_empty() && !self.text.is_empty() {
            budget.charge(self.text.len())?;
            append_part(parts, "text", &self.text);
        }
        if !is_thinking {
            return match part.get_mut("text").map(Value::take) {
                Some(Value::String(text)) => self.add_text(&text, budget),
                _ => Ok(false),
            };
        }
        let thinking = match part.get_mut("thinking").map(Value::take) {
            Some(Value::String(text)) => text,
            Some(Value::Array(pieces)) => {
                pieces.iter().filter_map(|piece| piece.get("text").and_then(Value::as_str)).collect()
            }
            _ => return Ok(false),
        };
        budget.charge(thinking.len())?;
        if !matches!(parts.last(), Some(last) if last["type"] == "thinking") {
            let empty = json!({ "type": "thinking", "thinking": [{ "type": "text", "text": "" }] });
            budget.charge(memory_size(&empty))?;
            parts.push(empty);
        }
        if let Some(Value::String(text)) = parts.last_mut().and_then(|last| last.pointer_mut("/thinking/0/text")) {
            text.push_str(&thinking);
        }
        Ok(!thinking.is_empty())
    }
}

fn append_part(parts: &mut Vec<Value>, kind: &str, text: &str) {
    match parts.last_mut().and_then(|last| last.get_mut(kind)) {
        Some(Value::String(known)) => known.push_str(text),
        _ => parts.push(json!({ "type": kind, kind: text })),
    }
}

/// The end of thinking without a start tag. A text that merely mentions the tag does so within a line.
fn unopened_end(text: &str) -> Option<usize> {
    const BREAKS: [char; 2] = ['\n', '\r'];
    let begin = text.find(THINK).unwrap_or(text.len());
    let is_alone = |at: usize| {
        let (before, after) = (&text[..at], &text[at + THINK_END.len()..]);
        before.is_empty() || before.ends_with(BREAKS) || after.is_empty() || after.starts_with(BREAKS)
    };
    text[..begin].match_indices(THINK_END).find(|(at, _)| is_alone(*at)).map(|(at, _)| at + THINK_END.len())
}

fn update_state(before: ThinkingState, text: &str) -> ThinkingState {
    let from = match before {
        ThinkingState::Closed(start) => return ThinkingState::Closed(start),
        ThinkingState::Open(from) => from,
        ThinkingState::Unknown => {
            let trimmed = text.trim_start();
            if trimmed.starts_with(THINK) {
                text.len() - trimmed.len() + THINK.len()
            } else if THINK.starts_with(trimmed) && text.len() <= MAX_LEADING_SPACE {
                return ThinkingState::Unknown;
            } else {
                return ThinkingState::Closed(0);
            }
        }
    };
    let from = text.floor_char_boundary(from);
    match text[from..].find(THINK_END) {
        Some(found) => ThinkingState::Closed(from + found + THINK_END.len()),
        // The end tag may have arrived in part.
        None => ThinkingState::Open(from.max(text.len().saturating_sub(THINK_END.len()))),
    }
}
