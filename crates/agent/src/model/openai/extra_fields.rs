//! Unknown fields, kept for the next request.
//!
//! Providers expect some fields back: signatures of thinking (Google, in `extra_content` of a call: without them Gemini
//! 3 answers 400), reasoning blocks (OpenRouter, in `reasoning_details`), reasoning as text (`reasoning_content` of
//! DeepSeek, vLLM, llama.cpp; `reasoning` of OpenRouter, Ollama).
//!
//! All of it is sent back unchanged, including reasoning. DeepSeek's guide to its thinking mode says why: when a turn
//! called tools, its `reasoning_content` must be in every later request or the answer is 400, even if it is an empty
//! text; otherwise the field is ignored. Others use it where their model's template does. Fields that a provider never
//! sent are never sent to it.

use serde_json::{Map, Value};

use super::budget::{Budget, memory_size};
use crate::model::{ResponseError, echo_fields};

const MAX_FIELDS: usize = 32;
/// Fields with this prefix arrive as text in deltas.
const REASONING_PREFIX: &str = "reasoning";
/// The list whose items arrive in deltas, too.
const DETAILS: &str = "reasoning_details";

#[derive(Debug, Default)]
pub struct ExtraFields {
    fields: Map<String, Value>,
}

impl ExtraFields {
    /// Returns whether the delta had content.
    pub fn add(&mut self, name: &str, value: Value, budget: &mut Budget) -> Result<bool, ResponseError> {
        if is_empty(name, &value) || !echo_fields::may_echo_field(name, &value) {
            return Ok(false);
        }
        let has_content = !matches!(&value, Value::String(text) if text.is_empty());
        if let Some(known) = self.fields.get_mut(name) {
            merge(name, known, value, budget)?;
            return Ok(has_content);
        }
        if self.fields.len() >= MAX_FIELDS {
            return Ok(false);
        }
        budget.charge(name.len() + memory_size(&value))?;
        let kept = self.fields.entry(name).or_insert(value);
        if let (DETAILS, Value::Array(details)) = (name, kept) {
            budget.refund(join_details(details, 0));
        }
        Ok(has_content)
    }

    /// Adds the fields to an object, unless it has one of the name.
    pub fn finish(self, object: &mut Map<String, Value>) {
        for (name, value) in self.fields {
            if let serde_json::map::Entry::Vacant(place) = object.entry(name) {
                place.insert(value);
            }
        }
    }
}

/// An empty text of reasoning counts: see the module.
fn is_empty(name: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty() && !name.starts_with(REASONING_PREFIX),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Appends reasoning and lists, merges objects; otherwise the last value counts.
fn merge(name: &str, known: &mut Value, value: Value, budget: &mut Budget) -> Result<(), ResponseError> {
    match (known, value) {
        (Value::String(known), Value::String(more)) if name.starts_with(REASONING_PREFIX) => {
            budget.charge(more.len())?;
            known.push_str(&more);
        }
        (Value::Array(known), Value::Array(more)) => {
            budget.charge(more.iter().map(memory_size).sum())?;
            let start = known.len();
            known.extend(more);
            if name == DETAILS {
                budget.refund(join_details(known, start));
            }
        }
        (Value::Object(known), Value::Object(more)) => {
            for (name, value) in more {
                match known.get_mut(&name) {
                    // Names have a meaning only at the top level.
                    Some(known) => merge("", known, value, budget)?,
                    None => {
                        budget.charge(name.len() + memory_size(&value))?;
                        known.insert(name, value);
                    }
                }
            }
        }
        (known, value) => {
            budget.charge(memory_size(&value))?;
            budget.refund(memory_size(known));
            *known = value;
        }
    }
    Ok(())
}

/// Joins the deltas of one reasoning block, from `start` on. OpenRouter sends an item for every few letters, each with
/// the block's `index`; unjoined they would be sent back at twenty times the length.
///
/// Returns the bytes saved, to be refunded.
fn join_details(details: &mut Vec<Value>, start: usize) -> usize {
    let mut saved = 0;
    let fresh = details.split_off(start.min(details.len()));
    for item in fresh {
        let joined = match (details.last_mut(), &item) {
            (Some(Value::Object(last)), Value::Object(next)) => join_detail(last, next),
            _ => None,
        };
        match joined {
            Some(kept) => saved += memory_size(&item).saturating_sub(kept),
            None => details.push(item),
        }
    }
    saved
}

/// Returns the bytes kept of the second; `None` if the items belong to different blocks.
fn join_detail(last: &mut Map<String, Value>, next: &Map<String, Value>) -> Option<usize> {
    let text = match next.get("type").and_then(Value::as_str) {
        Some("reasoning.text") => "text",
        Some("reasoning.summary") => "summary",
        // Encrypted blocks arrive complete.
        _ => return None,
    };
    let is_same = |name: &str| last.get(name) == next.get(name);
    let is_same_block =
        next.get("index").is_some_and(Value::is_u64) && ["type", "index", "format"].into_iter().all(is_same);
    // A signature ends a block.
    let signature = last.get("signature").and_then(Value::as_str);
    if !is_same_block || signature.is_some_and(|signature| !signature.is_empty()) {
        return None;
    }
    let mut kept = 0;
    for (name, value) in next {
        match (last.get_mut(name), value) {
            (Some(Value::String(known)), Value::String(more)) if name == text => {
                kept += more.len();
                known.push_str(more);
            }
            (_, Value::Null) => {}
            (Some(known), value) if known == value => {}
            _ => {
                kept += name.len() + memory_size(value);
                last.insert(name.clone(), value.clone());
            }
        }
    }
    Some(kept)
}
