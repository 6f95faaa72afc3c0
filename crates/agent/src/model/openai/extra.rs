//! Fields that nobody here knows, kept for the next request.
//!
//! Providers put into a message what they want to see again: signatures of thoughts (Google, in `extra_content` of a call:
//! without them Gemini 3 answers 400), blocks of reasoning (OpenRouter, in `reasoning_details`), reasoning as text
//! (`reasoning_content` of DeepSeek, vLLM, llama.cpp; `reasoning` of OpenRouter, Ollama).
//!
//! All of it goes back as it came, reasoning included. DeepSeek's guide to its thinking mode says why: where a turn called
//! tools, its `reasoning_content` must be in every later request or the answer is 400, also where it is an empty text;
//! where it did not, the field is ignored. Others use it where their model's template does, and ignore it otherwise. What
//! was never sent to us is never sent to them.

use serde_json::{Map, Value};

use super::budget::{Budget, weight};
use crate::model::{Broken, returned};

/// Fields of a message, or of a call, that are kept.
const MAX_FIELDS: usize = 32;
/// How the names of fields begin whose texts come in pieces.
const IN_PIECES: &str = "reasoning";
/// The list whose items come in pieces, too.
const DETAILS: &str = "reasoning_details";

/// Fields by their names.
#[derive(Debug, Default)]
pub struct Extra {
    fields: Map<String, Value>,
}

impl Extra {
    /// Adds what a piece says of a field; whether it says anything.
    ///
    /// # Errors
    ///
    /// When the answer has become too large.
    pub fn add(&mut self, name: &str, value: Value, budget: &mut Budget) -> Result<bool, Broken> {
        if is_nothing(name, &value) || !returned::beside_content(name, &value) {
            return Ok(false);
        }
        let says = !matches!(&value, Value::String(text) if text.is_empty());
        if let Some(known) = self.fields.get_mut(name) {
            merge(name, known, value, budget)?;
            return Ok(says);
        }
        if self.fields.len() >= MAX_FIELDS {
            return Ok(false);
        }
        budget.take(name.len() + weight(&value))?;
        let kept = self.fields.entry(name).or_insert(value);
        if let (DETAILS, Value::Array(details)) = (name, kept) {
            budget.give(join_list(details, 0));
        }
        Ok(says)
    }

    /// Puts the fields into an object that has none of their names.
    pub fn finish(self, object: &mut Map<String, Value>) {
        for (name, value) in self.fields {
            if let serde_json::map::Entry::Vacant(place) = object.entry(name) {
                place.insert(value);
            }
        }
    }
}

/// An empty text of reasoning is something: see above.
fn is_nothing(name: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty() && !name.starts_with(IN_PIECES),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Texts of reasoning go on, lists go on, objects are merged; of anything else the last one counts.
fn merge(name: &str, known: &mut Value, value: Value, budget: &mut Budget) -> Result<(), Broken> {
    match (known, value) {
        (Value::String(known), Value::String(more)) if name.starts_with(IN_PIECES) => {
            budget.take(more.len())?;
            known.push_str(&more);
        }
        (Value::Array(known), Value::Array(more)) => {
            budget.take(more.iter().map(weight).sum())?;
            let start = known.len();
            known.extend(more);
            if name == DETAILS {
                budget.give(join_list(known, start));
            }
        }
        (Value::Object(known), Value::Object(more)) => {
            for (name, value) in more {
                match known.get_mut(&name) {
                    // Below the first level no name means anything to us.
                    Some(known) => merge("", known, value, budget)?,
                    None => {
                        budget.take(name.len() + weight(&value))?;
                        known.insert(name, value);
                    }
                }
            }
        }
        (known, value) => {
            budget.take(weight(&value))?;
            budget.give(weight(known));
            *known = value;
        }
    }
    Ok(())
}

/// Puts the pieces of a block of reasoning together, from this item on. OpenRouter sends a block as one item for every few
/// letters, each with the block's `index`; kept like that, a thought would be sent again at twenty times its length.
///
/// Gives what need not be kept for that, so that a long thought is not taken for a large one.
fn join_list(details: &mut Vec<Value>, start: usize) -> usize {
    let mut saved = 0;
    let fresh = details.split_off(start.min(details.len()));
    for item in fresh {
        let joined = match (details.last_mut(), &item) {
            (Some(Value::Object(last)), Value::Object(next)) => join(last, next),
            _ => None,
        };
        match joined {
            Some(kept) => saved += weight(&item).saturating_sub(kept),
            None => details.push(item),
        }
    }
    saved
}

/// Joins two pieces of one block, and says what of the second is kept; not, where they are of two.
fn join(last: &mut Map<String, Value>, next: &Map<String, Value>) -> Option<usize> {
    let text = match next.get("type").and_then(Value::as_str) {
        Some("reasoning.text") => "text",
        Some("reasoning.summary") => "summary",
        // Encrypted ones come whole.
        _ => return None,
    };
    let is_same = |name: &str| last.get(name) == next.get(name);
    let is_one = next.get("index").is_some_and(Value::is_u64) && ["type", "index", "format"].into_iter().all(is_same);
    // Once a block is signed, it is over.
    let signature = last.get("signature").and_then(Value::as_str);
    if !is_one || signature.is_some_and(|it| !it.is_empty()) {
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
                kept += name.len() + weight(value);
                last.insert(name.clone(), value.clone());
            }
        }
    }
    Some(kept)
}
