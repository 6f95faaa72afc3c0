//! What the model says, and which part of it is for people.
//!
//! Models without a place for their thoughts write them first, between `<think>` and `</think>`. They stay in the message
//! and are no part of the text.

use serde_json::{Value, json};

use super::budget::{Budget, weight};
use crate::model::Broken;

const THINK: &str = "<think>";
const END_OF_THINK: &str = "</think>";
/// Bytes of white space after which nobody begins to think.
const MAX_SPACE: usize = 1024;

/// The content of a message, while it comes.
#[derive(Debug, Default)]
pub struct Content {
    /// Every text of it.
    text: String,
    /// The same in parts, where any of it came in parts: Mistral's thoughts are parts of their own.
    parts: Option<Vec<Value>>,
    /// Whether there was any, be it empty.
    came: bool,
    thought: Thought,
}

/// Where thoughts end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Thought {
    /// It may yet begin.
    #[default]
    Unclear,
    /// It goes on; up to here there is no end.
    Open(usize),
    /// What people read begins here.
    Over(usize),
}

impl Content {
    /// Adds what a piece says; whether it says anything.
    ///
    /// # Errors
    ///
    /// When the answer has become too large.
    pub fn add(&mut self, value: Value, budget: &mut Budget) -> Result<bool, Broken> {
        match value {
            Value::String(text) => self.add_text(&text, budget),
            Value::Array(parts) => {
                let mut says = false;
                for part in parts {
                    says |= self.add_part(part, budget)?;
                }
                Ok(says)
            }
            _ => Ok(false),
        }
    }

    /// What people read, so far.
    pub fn visible(&self) -> &str {
        match self.thought {
            Thought::Unclear | Thought::Open(_) => "",
            Thought::Over(0) => &self.text,
            Thought::Over(start) => self.text.get(start..).unwrap_or_default().trim_start(),
        }
    }

    /// Nothing more comes.
    pub fn end(&mut self) {
        if self.thought == Thought::Unclear {
            self.thought = Thought::Over(0);
        }
        // Templates of some models begin the thoughts themselves, so that only their end is written.
        if self.thought == Thought::Over(0)
            && let Some(end) = lone_end(&self.text)
        {
            self.thought = Thought::Over(end);
        }
    }

    /// The text, where the content is nothing but text.
    pub fn is_plain(&self) -> bool {
        self.parts.is_none()
    }

    /// Bytes of the text.
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Leaves the text out from here on. Only where the content is nothing but text.
    pub fn truncate(&mut self, length: usize) {
        if self.text.is_char_boundary(length) {
            self.text.truncate(length);
            let end = self.text.trim_end().len();
            self.text.truncate(end);
        }
    }

    /// As it stands in later requests. A model that only calls tools says nothing, and servers say that as null.
    pub fn into_value(self) -> Value {
        match self.parts {
            Some(parts) if !parts.is_empty() => parts.into(),
            _ if self.came => self.text.into(),
            _ => Value::Null,
        }
    }

    fn add_text(&mut self, text: &str, budget: &mut Budget) -> Result<bool, Broken> {
        self.came = true;
        if text.is_empty() {
            return Ok(false);
        }
        budget.take(text.len())?;
        self.text.push_str(text);
        self.thought = look(self.thought, &self.text);
        if let Some(parts) = &mut self.parts {
            budget.take(text.len())?;
            add_to(parts, "text", text);
        }
        Ok(true)
    }

    /// Texts and thoughts are kept, in parts; of other parts nobody here knows what they would make the bridge or the
    /// provider do with them in the next request.
    fn add_part(&mut self, mut part: Value, budget: &mut Budget) -> Result<bool, Broken> {
        let kind = part.get("type").and_then(Value::as_str);
        let is_thought = match kind {
            Some("thinking") => true,
            Some("text") => false,
            _ => return Ok(false),
        };
        let parts = self.parts.get_or_insert_default();
        if parts.is_empty() && !self.text.is_empty() {
            budget.take(self.text.len())?;
            add_to(parts, "text", &self.text);
        }
        if !is_thought {
            return match part.get_mut("text").map(Value::take) {
                Some(Value::String(text)) => self.add_text(&text, budget),
                _ => Ok(false),
            };
        }
        let thought = match part.get_mut("thinking").map(Value::take) {
            Some(Value::String(text)) => text,
            Some(Value::Array(pieces)) => {
                pieces.iter().filter_map(|piece| piece.get("text").and_then(Value::as_str)).collect()
            }
            _ => return Ok(false),
        };
        budget.take(thought.len())?;
        if !matches!(parts.last(), Some(last) if last["type"] == "thinking") {
            let empty = json!({ "type": "thinking", "thinking": [{ "type": "text", "text": "" }] });
            budget.take(weight(&empty))?;
            parts.push(empty);
        }
        if let Some(Value::String(text)) = parts.last_mut().and_then(|last| last.pointer_mut("/thinking/0/text")) {
            text.push_str(&thought);
        }
        Ok(!thought.is_empty())
    }
}

/// Adds a text to the last part, or as a part of its own.
fn add_to(parts: &mut Vec<Value>, kind: &str, text: &str) {
    match parts.last_mut().and_then(|last| last.get_mut(kind)) {
        Some(Value::String(known)) => known.push_str(text),
        _ => parts.push(json!({ "type": kind, kind: text })),
    }
}

/// Where thoughts end that nobody has seen begin. Whoever only mentions the mark does so within a line.
fn lone_end(text: &str) -> Option<usize> {
    const BREAKS: [char; 2] = ['\n', '\r'];
    let begin = text.find(THINK).unwrap_or(text.len());
    let is_alone = |at: usize| {
        let (before, after) = (&text[..at], &text[at + END_OF_THINK.len()..]);
        before.is_empty() || before.ends_with(BREAKS) || after.is_empty() || after.starts_with(BREAKS)
    };
    text[..begin].match_indices(END_OF_THINK).find(|(at, _)| is_alone(*at)).map(|(at, _)| at + END_OF_THINK.len())
}

/// Where thoughts end, now that there is this text.
fn look(before: Thought, text: &str) -> Thought {
    let from = match before {
        Thought::Over(start) => return Thought::Over(start),
        Thought::Open(from) => from,
        Thought::Unclear => {
            let said = text.trim_start();
            if said.starts_with(THINK) {
                text.len() - said.len() + THINK.len()
            } else if THINK.starts_with(said) && text.len() <= MAX_SPACE {
                return Thought::Unclear;
            } else {
                return Thought::Over(0);
            }
        }
    };
    let from = text.floor_char_boundary(from);
    match text[from..].find(END_OF_THINK) {
        Some(found) => Thought::Over(from + found + END_OF_THINK.len()),
        // The end may have come in part.
        None => Thought::Open(from.max(text.len().saturating_sub(END_OF_THINK.len()))),
    }
}
