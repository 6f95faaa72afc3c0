//! One block of an answer: a text, a call, a thought, or something that we do not know and keep as it is, where it may go back.

use bytes::Bytes;
use serde_json::{Map, Value};
use sympozium_ipc::unique_keys;

use super::super::json::{MAX_VALUES, has_too_many_values};
use super::super::returned::{in_content, levels};
use super::super::{Arguments, MAX_ARGUMENTS};

/// How deep the arguments of a call may be nested. The bridge takes no request that is nested deeper than 128.
pub const MAX_DEPTH: usize = 64;

/// A block as it grows.
#[derive(Debug)]
pub struct Block {
    /// The provider's number for it.
    pub index: Option<u64>,
    /// What it is.
    pub kind: Kind,
    /// As it started, without what grows.
    fields: Map<String, Value>,
    /// The text, or the thought.
    pub text: String,
    /// By which the provider knows its own thought again.
    signature: String,
    /// The JSON of its input, where that comes in parts.
    input: Input,
    /// Whether it may go back.
    is_returned: bool,
}

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// For people.
    Text,
    /// A call of a tool.
    Call,
    /// What the model thought.
    Thought,
    /// What it thought, not to be read.
    HiddenThought,
    /// Anything else.
    Other,
}

impl Kind {
    /// Of a block with these fields.
    pub fn of(fields: &Map<String, Value>) -> Self {
        match fields.get("type").and_then(Value::as_str) {
            Some("text") => Self::Text,
            Some("tool_use") => Self::Call,
            Some("thinking") => Self::Thought,
            Some("redacted_thinking") => Self::HiddenThought,
            _ => Self::Other,
        }
    }
}

#[derive(Debug, Default)]
struct Input {
    json: String,
    too_long: bool,
}

impl Block {
    /// A block as it starts. Fields that must not go back are left out; of a block that we do not know nothing is left then.
    pub fn start(index: Option<u64>, mut fields: Map<String, Value>) -> Self {
        let kind = Kind::of(&fields);
        let text = match kind {
            Kind::Text => take_text(&mut fields, "text"),
            Kind::Thought => take_text(&mut fields, "thinking"),
            Kind::Call | Kind::HiddenThought | Kind::Other => String::new(),
        };
        let signature = match kind {
            Kind::Thought => take_text(&mut fields, "signature"),
            _ => String::new(),
        };
        // Marks for the cache are ours to set: there may be only a few in a request.
        fields.remove("cache_control");
        let count = fields.len();
        fields.retain(|name, it| match name.as_str() {
            "input" if kind == Kind::Call => true,
            "input" if kind == Kind::Other => levels(it) <= MAX_DEPTH,
            name => in_content(name, it),
        });
        let is_returned = kind != Kind::Other || fields.len() == count;
        Self { index, kind, fields, text, signature, input: Input::default(), is_returned }
    }

    /// More of a signature.
    pub fn sign(&mut self, more: &str) {
        self.signature.push_str(more);
    }

    /// More of the input. Returns how many bytes are kept.
    pub fn input(&mut self, more: &str) -> usize {
        self.input.too_long |= self.input.json.len() + more.len() > MAX_ARGUMENTS;
        if self.input.too_long {
            return 0;
        }
        self.input.json.push_str(more);
        more.len()
    }

    /// A source for a text.
    pub fn cite(&mut self, citation: Value) {
        let citation = Value::Array(vec![citation]);
        if !in_content("citations", &citation) {
            return;
        }
        let citations = self.fields.entry("citations").or_insert(Value::Null);
        match (citations, citation) {
            (Value::Array(all), Value::Array(more)) => all.extend(more),
            (other, citation) => *other = citation,
        }
    }

    /// A field that is a text.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// The arguments of a call. `is_cut` says whether the answer ended here because of its length.
    pub fn arguments(&mut self, is_cut: bool) -> Arguments {
        match self.read_arguments(is_cut) {
            Ok(object) => Arguments::Object(object),
            Err(problem) => Arguments::Unreadable(problem),
        }
    }

    fn read_arguments(&mut self, is_cut: bool) -> Result<Map<String, Value>, String> {
        const CUT: &str = "the answer was cut off by its length limit before the arguments of this call were whole; \
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
                serde_json::error::Category::Eof if is_cut => CUT.to_owned(),
                serde_json::error::Category::Data => {
                    format!("the arguments are ambiguous ({error}); write each key of an object once")
                }
                // The parser has a bound of its own, above ours.
                _ if error.to_string().starts_with("recursion limit") => too_deep(),
                _ => format!("the arguments are not JSON ({error}); write one JSON object"),
            })?
        };
        match arguments {
            // A call without arguments has no parts either: only the stop tells it from one whose first part is missing.
            Value::Null if is_cut => Err(CUT.to_owned()),
            Value::Object(object) if is_cut && object.is_empty() && json.is_empty() => Err(CUT.to_owned()),
            Value::Null => Ok(Map::new()),
            Value::Object(object) if object.values().any(|it| levels(it) >= MAX_DEPTH) => Err(too_deep()),
            Value::Object(object) if encoded_length(&object) > MAX_ARGUMENTS => Err(too_long()),
            Value::Object(object) => Ok(object),
            _ => {
                Err("the arguments are not a JSON object; write one, with the names of the tool's parameters"
                    .to_owned())
            }
        }
    }

    /// The block of a call as it stands in later requests. The input is not copied: it may be large.
    pub fn into_call(mut self, id: &str, name: &str, input: Option<&Map<String, Value>>) -> Bytes {
        self.fields.insert("id".to_owned(), id.into());
        self.fields.insert("name".to_owned(), name.into());
        self.fields.remove("input");
        let mut block = Value::Object(self.fields).to_string();
        block.pop();
        let input = input.and_then(|it| serde_json::to_string(it).ok());
        let input = input.as_deref().unwrap_or("{}");
        Bytes::from(format!(r#"{block},"input":{input}}}"#))
    }

    /// The block as it stands in later requests; nothing where the API would refuse it. Not for calls.
    pub fn into_value(mut self) -> Option<Value> {
        match self.kind {
            Kind::Text if self.text.trim().is_empty() => return None,
            Kind::Text => {
                self.fields.insert("text".to_owned(), self.text.into());
            }
            // Cut off before it was signed, or by a server that does not sign: the first is refused, the second is not
            // missed.
            Kind::Thought if self.signature.is_empty() => return None,
            Kind::Thought => {
                self.fields.insert("thinking".to_owned(), self.text.into());
                self.fields.insert("signature".to_owned(), self.signature.into());
            }
            Kind::HiddenThought if self.field("data").is_empty() => return None,
            // Without a type it is no block of theirs.
            Kind::Other if self.field("type").is_empty() || !self.is_returned => return None,
            Kind::Other if !self.input.json.is_empty() => {
                if !has_too_many_values(self.input.json.as_bytes())
                    && let Ok(input) = serde_json::from_str::<Value>(&self.input.json)
                    && levels(&input) <= MAX_DEPTH
                {
                    self.fields.insert("input".to_owned(), input);
                }
            }
            Kind::Call | Kind::HiddenThought | Kind::Other => {}
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

/// Bytes of an object as it is sent.
pub fn encoded_length(object: &Map<String, Value>) -> usize {
    serde_json::to_vec(object).map_or(usize::MAX, |json| json.len())
}
