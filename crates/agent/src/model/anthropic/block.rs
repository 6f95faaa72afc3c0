//! One content block of a response: text, a call, thinking, or an unknown type, which is sent back unchanged where that
//! is allowed.

use bytes::Bytes;
use serde_json::{Map, Value};
use sympozium_ipc::unique_keys;

use super::super::echo_fields::{depth, may_echo_in_content};
use super::super::json::{MAX_VALUES, has_too_many_values};
use super::super::{CallArguments, MAX_ARGUMENTS};

/// Nesting of the arguments of a call. The bridge refuses requests that are nested deeper than 128.
pub const MAX_DEPTH: usize = 64;

#[derive(Debug)]
pub struct Block {
    pub index: Option<u64>,
    pub kind: BlockKind,
    /// The fields of `content_block_start`, without those that deltas extend.
    fields: Map<String, Value>,
    pub text: String,
    signature: String,
    input: InputBuffer,
    /// Whether the block may be sent back.
    can_echo: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    Text,
    Call,
    Thinking,
    RedactedThinking,
    Other,
}

impl BlockKind {
    pub fn from_fields(fields: &Map<String, Value>) -> Self {
        match fields.get("type").and_then(Value::as_str) {
            Some("text") => Self::Text,
            Some("tool_use") => Self::Call,
            Some("thinking") => Self::Thinking,
            Some("redacted_thinking") => Self::RedactedThinking,
            _ => Self::Other,
        }
    }
}

#[derive(Debug, Default)]
struct InputBuffer {
    json: String,
    too_long: bool,
}

impl Block {
    /// Removes fields that must not be sent back; an unknown block that has one is not sent back at all.
    pub fn start(index: Option<u64>, mut fields: Map<String, Value>) -> Self {
        let kind = BlockKind::from_fields(&fields);
        let text = match kind {
            BlockKind::Text => take_text(&mut fields, "text"),
            BlockKind::Thinking => take_text(&mut fields, "thinking"),
            BlockKind::Call | BlockKind::RedactedThinking | BlockKind::Other => String::new(),
        };
        let signature = match kind {
            BlockKind::Thinking => take_text(&mut fields, "signature"),
            _ => String::new(),
        };
        // Cache breakpoints are ours to set: a request may have only a few.
        fields.remove("cache_control");
        let count = fields.len();
        fields.retain(|name, value| match name.as_str() {
            "input" if kind == BlockKind::Call => true,
            "input" if kind == BlockKind::Other => depth(value) <= MAX_DEPTH,
            name => may_echo_in_content(name, value),
        });
        let can_echo = kind != BlockKind::Other || fields.len() == count;
        Self { index, kind, fields, text, signature, input: InputBuffer::default(), can_echo }
    }

    pub fn append_signature(&mut self, more: &str) {
        self.signature.push_str(more);
    }

    /// Returns how many bytes were kept.
    pub fn append_input(&mut self, more: &str) -> usize {
        self.input.too_long |= self.input.json.len() + more.len() > MAX_ARGUMENTS;
        if self.input.too_long {
            return 0;
        }
        self.input.json.push_str(more);
        more.len()
    }

    pub fn add_citation(&mut self, citation: Value) {
        let citation = Value::Array(vec![citation]);
        if !may_echo_in_content("citations", &citation) {
            return;
        }
        let citations = self.fields.entry("citations").or_insert(Value::Null);
        match (citations, citation) {
            (Value::Array(all), Value::Array(more)) => all.extend(more),
            (other, citation) => *other = citation,
        }
    }

    pub fn str_field(&self, name: &str) -> &str {
        self.fields.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// `is_truncated`: whether the response ended at its length limit in this block.
    pub fn arguments(&mut self, is_truncated: bool) -> CallArguments {
        match self.read_arguments(is_truncated) {
            Ok(object) => CallArguments::Object(object),
            Err(problem) => CallArguments::Invalid(problem),
        }
    }

    fn read_arguments(&mut self, is_truncated: bool) -> Result<Map<String, Value>, String> {
        const TRUNCATED: &str = "the answer was cut off by its length limit before the arguments of this call were whole; \
                           make it shorter, or do it in several steps";
        let started = self.fields.remove("input").unwrap_or(Value::Null);
        if self.input.too_long {
            return Err(too_long());
        }
        let json = self.input.json.trim();
        let arguments = if json.is_empty() {
            started
        } else if has_too_many_values(json.as_bytes()) {
            return Err(too_many());
        } else {
            unique_keys::from_str(json).map_err(|error| match error.classify() {
                serde_json::error::Category::Eof if is_truncated => TRUNCATED.to_owned(),
                serde_json::error::Category::Data => {
                    format!("the arguments are ambiguous ({error}); write each key of an object once")
                }
                // The parser has its own limit, above ours.
                _ if error.to_string().starts_with("recursion limit") => too_deep(),
                _ => format!("the arguments are not JSON ({error}); write one JSON object"),
            })?
        };
        match arguments {
            // A call without arguments has no deltas either: only the stop reason distinguishes it from one whose
            // deltas are missing.
            Value::Null if is_truncated => Err(TRUNCATED.to_owned()),
            Value::Object(object) if is_truncated && object.is_empty() && json.is_empty() => Err(TRUNCATED.to_owned()),
            Value::Null => Ok(Map::new()),
            Value::Object(object) if object.values().any(|value| depth(value) >= MAX_DEPTH) => Err(too_deep()),
            Value::Object(object) if encoded_length(&object) > MAX_ARGUMENTS => Err(too_long()),
            Value::Object(object) => Ok(object),
            _ => {
                Err("the arguments are not a JSON object; write one, with the names of the tool's parameters"
                    .to_owned())
            }
        }
    }

    /// The call as a block for later requests. The input is not copied: it may be large.
    pub fn into_call(mut self, id: &str, name: &str, input: Option<&Map<String, Value>>) -> Bytes {
        self.fields.insert("id".to_owned(), id.into());
        self.fields.insert("name".to_owned(), name.into());
        self.fields.remove("input");
        let mut block = Value::Object(self.fields).to_string();
        block.pop();
        let input = input.and_then(|input| serde_json::to_string(input).ok());
        let input = input.as_deref().unwrap_or("{}");
        Bytes::from(format!(r#"{block},"input":{input}}}"#))
    }

    /// The block for later requests; `None` where the API would refuse it. Not for calls.
    pub fn into_value(mut self) -> Option<Value> {
        match self.kind {
            BlockKind::Text if self.text.trim().is_empty() => return None,
            BlockKind::Text => {
                self.fields.insert("text".to_owned(), self.text.into());
            }
            // Truncated, or from a server that does not sign. The API refuses the first and does not miss the second.
            BlockKind::Thinking if self.signature.is_empty() => return None,
            BlockKind::Thinking => {
                self.fields.insert("thinking".to_owned(), self.text.into());
                self.fields.insert("signature".to_owned(), self.signature.into());
            }
            BlockKind::RedactedThinking if self.str_field("data").is_empty() => return None,
            // A block needs a type.
            BlockKind::Other if self.str_field("type").is_empty() || !self.can_echo => return None,
            BlockKind::Other if !self.input.json.is_empty() => {
                if !has_too_many_values(self.input.json.as_bytes())
                    && let Ok(input) = serde_json::from_str::<Value>(&self.input.json)
                    && depth(&input) <= MAX_DEPTH
                {
                    self.fields.insert("input".to_owned(), input);
                }
            }
            BlockKind::Call | BlockKind::RedactedThinking | BlockKind::Other => {}
        }
        Some(Value::Object(self.fields))
    }
}

fn too_deep() -> String {
    format!("the arguments are nested more than {MAX_DEPTH} deep; use a flatter object")
}

fn too_many() -> String {
    format!("the arguments have more than {MAX_VALUES} values; use fewer, or several calls")
}

fn too_long() -> String {
    format!("the arguments have more than {MAX_ARGUMENTS} bytes; make them shorter, or use several calls")
}

fn take_text(fields: &mut Map<String, Value>, name: &str) -> String {
    match fields.remove(name) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    }
}

pub fn encoded_length(object: &Map<String, Value>) -> usize {
    serde_json::to_vec(object).map_or(usize::MAX, |json| json.len())
}
