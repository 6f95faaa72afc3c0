//! Checks a model request of the agent, and decides which bytes are forwarded.
//!
//! Only the top level, `tools`, `tool_choice` and `stream_options` are parsed. Every field must be allowed by name, no
//! name may occur twice, and the tools must be functions that the plan allows. So a request cannot ask for anything
//! that the provider does by itself, whichever of two duplicate fields the provider would use. Messages are checked for
//! one thing: content that the provider would fetch from elsewhere. They and everything else are forwarded byte for
//! byte.

pub(crate) mod object;
mod remote;
mod tools;

use std::collections::BTreeSet;

use bytes::Bytes;
use serde_json::value::RawValue;
use sympozium_api::RunPlan;
use sympozium_api::run_plan::{Gate, WireFormat};
use sympozium_api::text::quote;
use sympozium_ipc::door::{Refusal, RefusalCode};

use self::object::{Fields, JsonKind, ObjectError};
use super::wire;

/// Maximum number of fields at the top level, in a tool, and in a choice.
pub const MAX_FIELDS: usize = 64;
/// Maximum number of tools.
pub const MAX_TOOLS: usize = 512;
/// Maximum nesting depth of arrays and objects.
pub const MAX_DEPTH: usize = 128;
/// Maximum number of errors in a refusal, and of names in one error.
const MAX_ERRORS: usize = 16;

/// Inserted before the first field, so that the provider reports the usage at the end of a stream.
const USAGE_FIELD: &str = r#""stream_options":{"include_usage":true},"#;
/// Replaces `stream_options` that do not ask for the usage.
const USAGE_OPTIONS: &str = r#"{"include_usage":true}"#;

/// What the model requests of a run may contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestRules {
    pub(crate) wire: WireFormat,
    pub(crate) model: String,
    /// Names of the tools whose gate is not deny.
    pub(crate) tools: BTreeSet<String>,
    /// Maximum number of bytes.
    pub(crate) max_bytes: u64,
    /// Whether the usage of a stream must be requested.
    pub(crate) requests_usage: bool,
}

/// A request that is forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedRequest {
    /// The bytes to send, in order. Slices of the agent's body, with at most one piece of ours among them.
    pub pieces: Pieces,
    /// Whether the answer is a stream of events.
    pub streamed: bool,
}

/// Bytes in up to three pieces, some of which may be empty.
pub type Pieces = [Bytes; 3];

/// The total number of bytes.
pub fn total_length(pieces: &Pieces) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

impl RequestRules {
    pub fn new(plan: &RunPlan) -> Self {
        let open = plan.tools.iter().filter(|tool| tool.gate != Gate::Deny);
        Self {
            wire: plan.model.wire,
            model: plan.model.model.clone(),
            tools: open.map(|tool| tool.name.clone()).collect(),
            max_bytes: plan.limits.model_request_bytes,
            requests_usage: plan.model.must_ask_for_usage(),
        }
    }

    /// Checks a request. Pure: the same bytes always get the same result.
    ///
    /// # Errors
    ///
    /// Returns a refusal that lists every error, as far as they can be found at once.
    pub fn check(&self, body: &Bytes) -> Result<AcceptedRequest, Refusal> {
        if body.len() as u64 > self.max_bytes {
            return Err(Refusal {
                code: RefusalCode::Size,
                message: format!("the request to the model has {} bytes; {} are allowed", body.len(), self.max_bytes),
                retry_after_ms: None,
            });
        }
        let fields = match Fields::read(body) {
            Ok(fields) => fields,
            Err(error) => return Err(build_refusal(vec![describe_parse_error(&error)])),
        };
        if depth(body) > MAX_DEPTH {
            let problem = format!("it is nested more than {MAX_DEPTH} deep");
            return Err(build_refusal(vec![problem]));
        }
        let mut problems = Vec::new();
        self.check_names(&fields, &mut problems);
        self.check_model(&fields, &mut problems);
        let streamed = check_stream(&fields, &mut problems);
        check_count(&fields, &mut problems);
        if fields.get("messages").map(JsonKind::of) != Some(JsonKind::Array) {
            problems.push("`messages` must be a list".to_owned());
        }
        let messages = fields.get("messages").map(remote::check_messages);
        let system = fields.get("system").map(remote::check_content);
        for (name, checked) in [("messages", messages), ("system", system)] {
            if let Some(Err(why)) = checked {
                problems.push(format!("`{name}` {why}"));
            }
        }
        if let Some(tools) = fields.get("tools") {
            tools::check_tools(self.wire, &self.tools, tools, &mut problems);
        }
        if let Some(choice) = fields.get("tool_choice") {
            tools::check_choice(self.wire, &self.tools, choice, &mut problems);
        }
        let options = fields.get("stream_options");
        let asks = streamed && self.requests_usage;
        let pieces = request_usage(body, options, asks, &mut problems);
        if problems.is_empty() {
            return Ok(AcceptedRequest { pieces, streamed });
        }
        Err(build_refusal(problems))
    }

    fn check_names(&self, fields: &Fields<'_>, problems: &mut Vec<String>) {
        let unknown: Vec<&str> = fields.names().filter(|name| !wire::is_field_allowed(self.wire, name)).collect();
        if unknown.is_empty() {
            return;
        }
        let word = if unknown.len() == 1 { "field" } else { "fields" };
        problems.push(format!(
            "the {word} {} cannot be used here: what a provider would act on or keep by itself is not passed on",
            list_names(&unknown)
        ));
    }

    fn check_model(&self, fields: &Fields<'_>, problems: &mut Vec<String>) {
        let asked = fields.get("model").and_then(object::as_text);
        if asked.as_deref() != Some(self.model.as_str()) {
            problems.push(format!("`model` must be {}", quote(&self.model)));
        }
    }
}

fn check_stream(fields: &Fields<'_>, problems: &mut Vec<String>) -> bool {
    match fields.get("stream").map(RawValue::get) {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => {
            problems.push("`stream` must be true or false".to_owned());
            false
        }
    }
}

/// One answer to one request, because tokens are counted for one.
fn check_count(fields: &Fields<'_>, problems: &mut Vec<String>) {
    if !matches!(fields.get("n").map(RawValue::get), None | Some("1")) {
        problems.push("`n` must be 1".to_owned());
    }
}

/// The bytes to send: those of the agent, with a request for the usage where it is needed.
fn request_usage(body: &Bytes, options: Option<&RawValue>, must_ask: bool, problems: &mut Vec<String>) -> Pieces {
    let Some(options) = options else {
        if !must_ask {
            return single_piece(body);
        }
        // `messages` is there, or the request is refused: so a comma is valid here.
        let brace = body.iter().position(|byte| *byte == b'{').unwrap_or(0);
        let added = Bytes::from_static(USAGE_FIELD.as_bytes());
        return [body.slice(..=brace), added, body.slice(brace + 1..)];
    };
    let read = Fields::read(options.get().as_bytes());
    let (known, asks) = match &read {
        Ok(read) => (
            read.names().all(|name| name == "include_usage")
                && read.iter().all(|(_, value)| JsonKind::of(value) == JsonKind::Bool),
            read.get("include_usage").map(RawValue::get) == Some("true"),
        ),
        Err(_) => (false, false),
    };
    if !known {
        problems.push("`stream_options` can say `include_usage` and nothing else".to_owned());
    }
    if !must_ask || asks {
        return single_piece(body);
    }
    // A raw value is a slice of the body.
    let start = (options.get().as_ptr() as usize).saturating_sub(body.as_ptr() as usize);
    let end = start + options.get().len();
    if end > body.len() {
        unreachable!("a value that was read from the body lies in it");
    }
    let ours = Bytes::from_static(USAGE_OPTIONS.as_bytes());
    [body.slice(..start), ours, body.slice(end..)]
}

fn single_piece(body: &Bytes) -> Pieces {
    [body.clone(), Bytes::new(), Bytes::new()]
}

fn describe_parse_error(error: &ObjectError) -> String {
    match error {
        ObjectError::Duplicate(name) => format!("the field {} is there twice", quote(name)),
        ObjectError::TooMany => format!("it has more than {MAX_FIELDS} fields"),
        ObjectError::Json(why) => format!("it is not a JSON object: {why}"),
    }
}

fn build_refusal(mut problems: Vec<String>) -> Refusal {
    let more = problems.len().saturating_sub(MAX_ERRORS);
    problems.truncate(MAX_ERRORS);
    if more > 0 {
        problems.push(format!("and {more} more"));
    }
    Refusal {
        code: RefusalCode::Request,
        message: format!("the request to the model is refused: {}", problems.join("; ")),
        retry_after_ms: None,
    }
}

/// A list of names for an error, truncated.
fn list_names(names: &[&str]) -> String {
    let first = names.iter().take(MAX_ERRORS);
    let mut list: Vec<String> = first.map(|name| quote(name)).collect();
    if names.len() > MAX_ERRORS {
        list.push(format!("{} more", names.len() - MAX_ERRORS));
    }
    list.join(", ")
}

/// The nesting depth of JSON. It was parsed before, so only brackets outside of strings matter.
fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => skip_string(&mut bytes),
            _ => {}
        }
    }
    deepest
}

fn skip_string(bytes: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => {
                bytes.next();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
