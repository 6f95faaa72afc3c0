//! Calls that a model wrote as text.
//!
//! Small models, and servers that do not know the template of a model, give calls as text at the end of the content:
//!
//! ```text
//! <tool_call>{"name": "read_file", "arguments": {"path": "a"}}</tool_call>
//! <tool_call><function=read_file><parameter=path>a</parameter></function></tool_call>
//! ```
//!
//! They are taken for calls only where nothing else can be meant: blocks at the very end, with nothing between and after
//! them, of tools that are offered. A model that shows somebody such a block goes on talking.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use sympozium_api::run_plan::OfferedTool;

use super::arguments::{self, Read};
use super::calls::{self, Made};
use super::extra::Extra;
use crate::model::json::has_too_many_values;
use crate::model::{Arguments, MAX_ARGUMENTS};

const BLOCK: &str = "<tool_call>";
const END_OF_BLOCK: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const END_OF_FUNCTION: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const END_OF_PARAMETER: &str = "</parameter>";

/// The tools that are offered: by name, the parameters that are texts.
#[derive(Debug, Default)]
pub struct Offered {
    tools: BTreeMap<String, Vec<String>>,
}

impl Offered {
    /// Those of a view.
    pub fn new(tools: &[OfferedTool]) -> Self {
        let texts = |tool: &OfferedTool| match tool.parameters.0.get("properties") {
            Some(Value::Object(properties)) => properties
                .iter()
                .filter(|(_, schema)| schema.get("type").and_then(Value::as_str) == Some("string"))
                .map(|(name, _)| name.clone())
                .collect(),
            _ => Vec::new(),
        };
        let tools = tools.iter().map(|tool| (tool.name.clone(), texts(tool)));
        Self { tools: tools.collect() }
    }

    /// Whether a tool is.
    pub fn has(&self, tool: &str) -> bool {
        self.tools.contains_key(tool)
    }

    fn is_text(&self, tool: &str, parameter: &str) -> bool {
        let texts = self.tools.get(tool);
        texts.is_some_and(|texts| texts.iter().any(|it| it == parameter))
    }
}

/// What was found.
#[derive(Debug, PartialEq)]
pub struct Found {
    /// Where the first block begins.
    pub start: usize,
    /// The calls, in order.
    pub calls: Vec<Written>,
}

/// A call that was written as text.
#[derive(Debug, PartialEq)]
pub struct Written {
    name: String,
    read: Read,
}

impl Written {
    /// The call, by this id.
    pub fn make(self, id: String) -> Made {
        let sent = self.name.clone();
        let none = Extra::default;
        calls::make(id, self.name, sent, self.read, none(), none())
    }
}

/// The calls at the end of a text, if there are any.
pub fn at_end(text: &str, offered: &Offered) -> Option<Found> {
    let mut rest = text.trim_end();
    let mut calls = Vec::new();
    while let Some(before) = rest.strip_suffix(END_OF_BLOCK) {
        let Some(start) = before.rfind(BLOCK) else {
            break;
        };
        let block = before[start + BLOCK.len()..].trim();
        let Some(call) = from_json(block).or_else(|| from_tags(block, offered)) else {
            break;
        };
        if !offered.has(&call.name) {
            break;
        }
        calls.push(call);
        // The white space before a block stays: it may be the end of what was said.
        rest = &before[..start];
        if !rest.trim_end().ends_with(END_OF_BLOCK) {
            break;
        }
        rest = rest.trim_end();
    }
    calls.reverse();
    let start = match calls.is_empty() {
        true => return None,
        false => rest.len(),
    };
    Some(Found { start, calls })
}

/// `{"name": …, "arguments": {…}}`; some say `parameters`.
fn from_json(block: &str) -> Option<Written> {
    if block.len() > MAX_ARGUMENTS || has_too_many_values(block.as_bytes()) {
        return None;
    }
    let Ok(Value::Object(mut fields)) = serde_json::from_str(block) else {
        return None;
    };
    let Some(Value::String(name)) = fields.remove("name") else {
        return None;
    };
    let value = fields.remove("arguments").or_else(|| fields.remove("parameters")).unwrap_or_default();
    let text = value.to_string();
    let read = arguments::of(value, text);
    Some(Written { name, read })
}

/// `<function=…><parameter=…>…</parameter></function>`.
fn from_tags(block: &str, offered: &Offered) -> Option<Written> {
    if block.len() > MAX_ARGUMENTS || has_too_many_values(block.as_bytes()) {
        return None;
    }
    let inner = block.strip_prefix(FUNCTION)?.strip_suffix(END_OF_FUNCTION)?;
    let (name, mut rest) = inner.split_once('>')?;
    let name = name.trim();
    let mut fields = Map::new();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            break;
        }
        let (key, after) = rest.strip_prefix(PARAMETER)?.split_once('>')?;
        let (value, after) = after.split_once(END_OF_PARAMETER)?;
        let key = key.trim();
        let value = in_lines(value);
        let value = if offered.is_text(name, key) { value.into() } else { as_json(value) };
        fields.insert(key.to_owned(), value);
        rest = after;
    }
    let written = Value::Object(fields.clone()).to_string();
    let arguments = Arguments::Object(fields);
    Some(Written { name: name.to_owned(), read: Read { arguments, written } })
}

/// A value in lines of its own is without the ends of those lines.
fn in_lines(value: &str) -> &str {
    let value = value.strip_prefix("\r\n").or(value.strip_prefix('\n')).unwrap_or(value);
    value.strip_suffix("\r\n").or(value.strip_suffix('\n')).unwrap_or(value)
}

/// What parses as anything but a text is that; all else is a text.
fn as_json(value: &str) -> Value {
    match serde_json::from_str(value) {
        Ok(Value::String(_)) | Err(_) => value.into(),
        Ok(value) => value,
    }
}
