//! Tool calls that a model wrote as text.
//!
//! Small models, and servers that lack a model's chat template, put calls at the end of the content:
//!
//! ```text
//! <tool_call>{"name": "read_file", "arguments": {"path": "a"}}</tool_call>
//! <tool_call><function=read_file><parameter=path>a</parameter></function></tool_call>
//! ```
//!
//! Only unambiguous ones count: blocks at the very end, with nothing between and after them, of tools that are offered.
//! A model that merely quotes such a block goes on writing.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use sympozium_api::run_plan::OfferedTool;

use super::arguments::{self, ParsedArguments};
use super::call_builder::{self, EncodedCall};
use super::extra_fields::ExtraFields;
use crate::model::json::has_too_many_values;
use crate::model::{CallArguments, MAX_ARGUMENTS};

const CALL_START: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";
const FUNCTION_START: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER_START: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// The string parameters of each offered tool.
#[derive(Debug, Default)]
pub struct OfferedTools {
    tools: BTreeMap<String, Vec<String>>,
}

impl OfferedTools {
    pub fn new(tools: &[OfferedTool]) -> Self {
        let string_parameters = |tool: &OfferedTool| match tool.parameters.0.get("properties") {
            Some(Value::Object(properties)) => properties
                .iter()
                .filter(|(_, schema)| schema.get("type").and_then(Value::as_str) == Some("string"))
                .map(|(name, _)| name.clone())
                .collect(),
            _ => Vec::new(),
        };
        let tools = tools.iter().map(|tool| (tool.name.clone(), string_parameters(tool)));
        Self { tools: tools.collect() }
    }

    pub fn has(&self, tool: &str) -> bool {
        self.tools.contains_key(tool)
    }

    fn is_string(&self, tool: &str, parameter: &str) -> bool {
        let string_parameters = self.tools.get(tool);
        string_parameters.is_some_and(|string_parameters| string_parameters.iter().any(|name| name == parameter))
    }
}

#[derive(Debug, PartialEq)]
pub struct TextCalls {
    /// Offset of the first block.
    pub start: usize,
    pub calls: Vec<TextCall>,
}

#[derive(Debug, PartialEq)]
pub struct TextCall {
    name: String,
    arguments: ParsedArguments,
}

impl TextCall {
    pub fn into_encoded(self, id: String) -> EncodedCall {
        let sent_name = self.name.clone();
        let none = ExtraFields::default;
        call_builder::encode_call(id, self.name, sent_name, self.arguments, none(), none())
    }
}

pub fn find_at_end(text: &str, offered: &OfferedTools) -> Option<TextCalls> {
    let mut rest = text.trim_end();
    let mut calls = Vec::new();
    while let Some(before) = rest.strip_suffix(CALL_END) {
        let Some(start) = before.rfind(CALL_START) else {
            break;
        };
        let block = before[start + CALL_START.len()..].trim();
        let Some(call) = from_json(block).or_else(|| from_tags(block, offered)) else {
            break;
        };
        if !offered.has(&call.name) {
            break;
        }
        calls.push(call);
        // White space before a block stays: it may belong to the text.
        rest = &before[..start];
        if !rest.trim_end().ends_with(CALL_END) {
            break;
        }
        rest = rest.trim_end();
    }
    calls.reverse();
    let start = if calls.is_empty() { return None } else { rest.len() };
    Some(TextCalls { start, calls })
}

/// `{"name": …, "arguments": {…}}`; some models write `parameters`.
fn from_json(block: &str) -> Option<TextCall> {
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
    let arguments = arguments::from_value(value, text);
    Some(TextCall { name, arguments })
}

/// `<function=…><parameter=…>…</parameter></function>`.
fn from_tags(block: &str, offered: &OfferedTools) -> Option<TextCall> {
    if block.len() > MAX_ARGUMENTS || has_too_many_values(block.as_bytes()) {
        return None;
    }
    let inner = block.strip_prefix(FUNCTION_START)?.strip_suffix(FUNCTION_END)?;
    let (name, mut rest) = inner.split_once('>')?;
    let name = name.trim();
    let mut fields = Map::new();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            break;
        }
        let (key, after) = rest.strip_prefix(PARAMETER_START)?.split_once('>')?;
        let (value, after) = after.split_once(PARAMETER_END)?;
        let key = key.trim();
        let value = trim_line_breaks(value);
        let value = if offered.is_string(name, key) { value.into() } else { json_or_string(value) };
        fields.insert(key.to_owned(), value);
        rest = after;
    }
    let json = Value::Object(fields.clone()).to_string();
    let arguments = CallArguments::Object(fields);
    Some(TextCall { name: name.to_owned(), arguments: ParsedArguments { arguments, written: json } })
}

/// Removes the line breaks around a value on lines of its own.
fn trim_line_breaks(value: &str) -> &str {
    let value = value.strip_prefix("\r\n").or(value.strip_prefix('\n')).unwrap_or(value);
    value.strip_suffix("\r\n").or(value.strip_suffix('\n')).unwrap_or(value)
}

/// Everything that does not parse, or parses as a string, is a string.
fn json_or_string(value: &str) -> Value {
    match serde_json::from_str(value) {
        Ok(Value::String(_)) | Err(_) => value.into(),
        Ok(value) => value,
    }
}
