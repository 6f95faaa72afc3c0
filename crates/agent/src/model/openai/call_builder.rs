//! Assembles tool calls from deltas.
//!
//! A delta says which call it belongs to by `index`, but not every server does. Google sends none; others, and proxies
//! before Google, send 0 for every call, each complete with its own id. So a delta also starts a new call when it names
//! a function and has another id, or when it names one and starts an object after the last one has ended.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value, json};

use super::arguments::{self, Completeness, NestingTracker};
use super::budget::Budget;
use super::extra_fields::ExtraFields;
use super::text_tool_calls::OfferedTools;
use crate::model::call_ids::CallIds;
use crate::model::{Call, MAX_ARGUMENTS, MAX_CALLS, MAX_NAME, ResponseError};

/// Overhead of a call, and what a dropped one is charged.
const CALL_OVERHEAD: usize = 256;
const DROPPED_CALL_COST: usize = 64;
/// Characters of a function's name that every provider accepts.
const MAX_FUNCTION_NAME: usize = 64;

#[derive(Debug, Default)]
pub struct CallBuilder {
    calls: Vec<PartialCall>,
    dropped_keys: BTreeSet<DroppedKey>,
    dropped: usize,
    /// The slot of the last delta, for deltas without index and id.
    last: Option<CallSlot>,
    last_index: Option<u64>,
}

#[derive(Debug, Default)]
struct PartialCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    tracker: NestingTracker,
    is_too_long: bool,
    extra: ExtraFields,
    function: ExtraFields,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DroppedKey {
    Index(u64),
    /// A hash, because ids may be long.
    Id(u64),
}

#[derive(Debug, Clone, Copy)]
enum CallSlot {
    Kept(usize),
    Dropped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEncoding {
    Deltas,
    Complete,
}

#[derive(Debug, Default)]
struct CallDelta {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    extra: Map<String, Value>,
    function: Map<String, Value>,
}

/// A call, and its JSON for later requests.
pub type EncodedCall = (Call, Value);

impl CallBuilder {
    pub fn add(&mut self, delta: Value, encoding: CallEncoding, budget: &mut Budget) -> Result<(), ResponseError> {
        let Value::Object(delta) = delta else {
            return Ok(());
        };
        let delta = CallDelta::from_fields(delta);
        let slot = match (encoding, self.find_slot(&delta)) {
            (CallEncoding::Deltas, Some(slot)) => slot,
            _ => self.start_call(&delta, budget)?,
        };
        self.last = Some(slot);
        self.last_index = delta.index;
        match slot {
            CallSlot::Kept(at) => match self.calls.get_mut(at) {
                Some(call) => call.add(delta, budget),
                None => Ok(()),
            },
            CallSlot::Dropped => Ok(()),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub fn dropped(&self) -> usize {
        self.dropped
    }

    pub fn has_open_arguments(&self) -> bool {
        self.calls.iter().any(|call| call.tracker.is_open())
    }

    pub fn finish(self, is_truncated: bool, ids: &CallIds, offered: &OfferedTools) -> Vec<EncodedCall> {
        let count = self.calls.len();
        let mut encoded_calls = Vec::with_capacity(count);
        for (index, call) in self.calls.into_iter().enumerate() {
            if call.is_empty() {
                continue;
            }
            let completeness = if call.is_too_long {
                Completeness::TooLong
            } else if is_truncated && index + 1 == count {
                Completeness::Truncated
            } else {
                Completeness::Complete
            };
            let id = ids.assign(&call.id);
            let parsed = arguments::parse(call.arguments, completeness);
            let sent_name = sanitize_name(&call.name, offered);
            encoded_calls.push(encode_call(id, call.name, sent_name, parsed, call.extra, call.function));
        }
        encoded_calls
    }

    /// `None` when the delta starts a call.
    fn find_slot(&self, delta: &CallDelta) -> Option<CallSlot> {
        let follows = delta.id.is_empty() && delta.index == self.last_index;
        if let (true, Some(CallSlot::Dropped)) = (follows, self.last) {
            return (!delta.starts_call()).then_some(CallSlot::Dropped);
        }
        let found = match delta.index {
            Some(index) => self.calls.iter().rposition(|call| call.index == Some(index)),
            None if !delta.id.is_empty() => self.calls.iter().rposition(|call| call.has_id(&delta.id)),
            None => match self.last? {
                CallSlot::Kept(at) => Some(at),
                CallSlot::Dropped => return Some(CallSlot::Dropped),
            },
        };
        match found {
            Some(at) => {
                let call = self.calls.get(at)?;
                (!call.is_ended_by(delta)).then_some(CallSlot::Kept(at))
            }
            None => self.dropped_keys.contains(&delta.dropped_key()?).then_some(CallSlot::Dropped),
        }
    }

    fn start_call(&mut self, delta: &CallDelta, budget: &mut Budget) -> Result<CallSlot, ResponseError> {
        if self.calls.len() < MAX_CALLS {
            budget.charge(CALL_OVERHEAD)?;
            self.calls.push(PartialCall { index: delta.index, ..PartialCall::default() });
            return Ok(CallSlot::Kept(self.calls.len() - 1));
        }
        let is_kept_index = self.calls.iter().any(|call| call.index == delta.index);
        let other = match delta.dropped_key() {
            // A kept call has the same index; only the id distinguishes them.
            Some(DroppedKey::Index(_)) if is_kept_index => delta.dropped_key_by_id(),
            other => other,
        };
        let is_new = match other {
            Some(other) => self.dropped_keys.insert(other),
            None => true,
        };
        if is_new {
            budget.charge(DROPPED_CALL_COST)?;
            self.dropped += 1;
        }
        Ok(CallSlot::Dropped)
    }
}

impl CallDelta {
    fn from_fields(mut fields: Map<String, Value>) -> Self {
        let text = |value: Option<Value>| match value {
            Some(Value::String(text)) => text,
            _ => String::new(),
        };
        let index = fields.remove("index").and_then(|field| field.as_u64());
        let id = text(fields.remove("id"));
        fields.remove("type");
        let mut function = match fields.remove("function") {
            Some(Value::Object(function)) => function,
            _ => Map::new(),
        };
        Self {
            index,
            id,
            name: text(function.remove("name")),
            arguments: match function.remove("arguments") {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text,
                // Some servers send the object itself.
                Some(other) => other.to_string(),
            },
            extra: fields,
            function,
        }
    }

    fn starts_object(&self) -> bool {
        self.arguments.trim_start().starts_with('{')
    }

    fn starts_call(&self) -> bool {
        !self.name.is_empty() && (self.arguments.is_empty() || self.starts_object())
    }

    fn dropped_key(&self) -> Option<DroppedKey> {
        match self.index {
            Some(index) => Some(DroppedKey::Index(index)),
            None => self.dropped_key_by_id(),
        }
    }

    fn dropped_key_by_id(&self) -> Option<DroppedKey> {
        if self.id.is_empty() {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        self.id.hash(&mut hasher);
        Some(DroppedKey::Id(hasher.finish()))
    }
}

impl PartialCall {
    /// Whether a delta that seems to belong to this call starts the next one.
    fn is_ended_by(&self, delta: &CallDelta) -> bool {
        if delta.name.is_empty() || self.name.is_empty() {
            return false;
        }
        let is_other = !delta.id.is_empty() && !self.id.is_empty() && !self.has_id(&delta.id);
        let is_known = !delta.id.is_empty() && self.has_id(&delta.id);
        let is_complete = self.tracker.is_closed() && delta.starts_object();
        let has_other_name = delta.index.is_none() && delta.name != self.name;
        is_other || (!is_known && (is_complete || has_other_name))
    }

    /// The stored id may have been cut.
    fn has_id(&self, id: &str) -> bool {
        self.id == id[..id.floor_char_boundary(MAX_NAME)]
    }

    fn add(&mut self, delta: CallDelta, budget: &mut Budget) -> Result<(), ResponseError> {
        if self.id.is_empty() && !delta.id.is_empty() {
            self.id = delta.id[..delta.id.floor_char_boundary(MAX_NAME)].to_owned();
            budget.charge(self.id.len())?;
        }
        self.add_name(&delta.name, budget)?;
        // Some servers repeat the complete call.
        let is_repeated = self.tracker.is_closed() && delta.starts_object();
        if !is_repeated {
            self.add_arguments(&delta.arguments, budget)?;
        }
        for (name, value) in delta.extra {
            self.extra.add(&name, value, budget)?;
        }
        for (name, value) in delta.function {
            self.function.add(&name, value, budget)?;
        }
        Ok(())
    }

    /// A name comes complete, repeated with every delta, or, rarely, in parts before any arguments.
    fn add_name(&mut self, name: &str, budget: &mut Budget) -> Result<(), ResponseError> {
        let is_known = self.name == name || !self.arguments.is_empty() || self.is_too_long;
        if name.is_empty() || (is_known && !self.name.is_empty()) {
            return Ok(());
        }
        let room = MAX_NAME.saturating_sub(self.name.len());
        let name = &name[..name.floor_char_boundary(room)];
        budget.charge(name.len())?;
        self.name.push_str(name);
        Ok(())
    }

    fn add_arguments(&mut self, text: &str, budget: &mut Budget) -> Result<(), ResponseError> {
        self.tracker.feed(text);
        if self.is_too_long {
            return Ok(());
        }
        if self.arguments.len() + text.len() > MAX_ARGUMENTS {
            self.is_too_long = true;
            budget.refund(self.arguments.len());
            self.arguments = String::new();
            return Ok(());
        }
        budget.charge(text.len())?;
        self.arguments.push_str(text);
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.id.is_empty() && self.name.is_empty() && self.arguments.trim().is_empty() && !self.is_too_long
    }
}

pub fn encode_call(
    id: String,
    name: String,
    sent_name: String,
    parsed: arguments::ParsedArguments,
    extra: ExtraFields,
    function_extra: ExtraFields,
) -> EncodedCall {
    let mut function = Map::new();
    function.insert("name".to_owned(), sent_name.into());
    function.insert("arguments".to_owned(), parsed.written.into());
    function_extra.finish(&mut function);
    let mut call = Map::new();
    call.insert("id".to_owned(), json!(id));
    call.insert("type".to_owned(), "function".into());
    call.insert("function".to_owned(), function.into());
    extra.finish(&mut call);
    let arguments = parsed.arguments;
    (Call { id, name, arguments }, call.into())
}

/// Providers refuse a conversation with a call whose name no function could have, so an invented name would end the
/// run.
fn sanitize_name(name: &str, offered: &OfferedTools) -> String {
    if offered.has(name) {
        return name.to_owned();
    }
    let plain = |character: char| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' => character,
        _ => '_',
    };
    let name: String = name.chars().take(MAX_FUNCTION_NAME).map(plain).collect();
    if name.is_empty() {
        return "unnamed".to_owned();
    }
    name
}
