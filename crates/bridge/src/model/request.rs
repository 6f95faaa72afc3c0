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
use sympozium_ipc::door::{Refusal, RefusalCode};

use self::object::{Fields, Kind, NoObject};
use super::wire;

/// Maximum number of fields at the top level, in a tool, and in a choice.
pub const MAX_FIELDS: usize = 64;
/// Maximum number of tools.
pub const MAX_TOOLS: usize = 512;
/// Maximum nesting depth of arrays and objects.
pub const MAX_DEPTH: usize = 128;
/// Maximum number of errors in a refusal, and of names in one error.
const MAX_PROBLEMS: usize = 16;

/// Inserted before the first field, so that the provider reports the usage at the end of a stream.
const ASK_FOR_USAGE: &str = r#""stream_options":{"include_usage":true},"#;
/// Replaces `stream_options` that do not ask for the usage.
const ONLY_USAGE: &str = r#"{"include_usage":true}"#;

/// What the model requests of a run may contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    pub(crate) wire: WireFormat,
    pub(crate) model: String,
    /// Names of the tools whose gate is not deny.
    pub(crate) tools: BTreeSet<String>,
    /// Maximum number of bytes.
    pub(crate) bytes: u64,
    /// Whether the usage of a stream must be requested.
    pub(crate) asks_for_usage: bool,
}

/// A request that is forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The bytes to send, in order. Slices of the agent's body, with at most one piece of ours among them.
    pub pieces: Pieces,
    /// Whether the answer is a stream of events.
    pub streamed: bool,
}

/// Bytes in up to three pieces, some of which may be empty.
pub type Pieces = [Bytes; 3];

/// The total number of bytes.
pub fn length(pieces: &Pieces) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

impl Rules {
    pub fn new(plan: &RunPlan) -> Self {
        let open = plan.tools.iter().filter(|tool| tool.gate != Gate::Deny);
        Self {
            wire: plan.model.wire,
            model: plan.model.model.clone(),
            tools: open.map(|tool| tool.name.clone()).collect(),
            bytes: plan.limits.model_request_bytes,
            asks_for_usage: wire::must_be_asked_for_usage(plan.model.wire, &plan.model.provider),
        }
    }

    /// Checks a request. Pure: the same bytes always get the same result.
    ///
    /// # Errors
    ///
    /// Returns a refusal that lists every error, as far as they can be found at once.
    pub fn check(&self, body: &Bytes) -> Result<Accepted, Refusal> {
        if body.len() as u64 > self.bytes {
            return Err(Refusal {
                code: RefusalCode::Size,
                message: format!("the request to the model has {} bytes; {} are allowed", body.len(), self.bytes),
                retry_after_ms: None,
            });
        }
        let fields = match Fields::read(body) {
            Ok(fields) => fields,
            Err(error) => return Err(refused(vec![top_level(&error)])),
        };
        if depth(body) > MAX_DEPTH {
            let problem = format!("it is nested more than {MAX_DEPTH} deep");
            return Err(refused(vec![problem]));
        }
        let mut problems = Vec::new();
        self.check_names(&fields, &mut problems);
        self.check_model(&fields, &mut problems);
        let streamed = check_stream(&fields, &mut problems);
        check_count(&fields, &mut problems);
        if fields.get("messages").map(Kind::of) != Some(Kind::Array) {
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
            tools::check(self.wire, &self.tools, tools, &mut problems);
        }
        if let Some(choice) = fields.get("tool_choice") {
            tools::check_choice(self.wire, &self.tools, choice, &mut problems);
        }
        let options = fields.get("stream_options");
        let asks = streamed && self.asks_for_usage;
        let pieces = ask_for_usage(body, options, asks, &mut problems);
        if problems.is_empty() {
            return Ok(Accepted { pieces, streamed });
        }
        Err(refused(problems))
    }

    fn check_names(&self, fields: &Fields<'_>, problems: &mut Vec<String>) {
        let unknown: Vec<&str> = fields.names().filter(|name| !wire::allows(self.wire, name)).collect();
        if unknown.is_empty() {
            return;
        }
        let word = if unknown.len() == 1 { "field" } else { "fields" };
        problems.push(format!(
            "the {word} {} cannot be used here: what a provider would act on or keep by itself is not passed on",
            listed(&unknown)
        ));
    }

    fn check_model(&self, fields: &Fields<'_>, problems: &mut Vec<String>) {
        let asked = fields.get("model").and_then(object::text);
        if asked.as_deref() != Some(self.model.as_str()) {
            problems.push(format!("`model` must be `{}`", shown(&self.model)));
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
fn ask_for_usage(body: &Bytes, options: Option<&RawValue>, must_ask: bool, problems: &mut Vec<String>) -> Pieces {
    let Some(options) = options else {
        if !must_ask {
            return whole(body);
        }
        // `messages` is there, or the request is refused: so a comma is valid here.
        let brace = body.iter().position(|byte| *byte == b'{').unwrap_or(0);
        let added = Bytes::from_static(ASK_FOR_USAGE.as_bytes());
        return [body.slice(..=brace), added, body.slice(brace + 1..)];
    };
    let read = Fields::read(options.get().as_bytes());
    let (known, asks) = match &read {
        Ok(read) => (
            read.names().all(|name| name == "include_usage")
                && read.iter().all(|(_, value)| Kind::of(value) == Kind::Bool),
            read.get("include_usage").map(RawValue::get) == Some("true"),
        ),
        Err(_) => (false, false),
    };
    if !known {
        problems.push("`stream_options` can say `include_usage` and nothing else".to_owned());
    }
    if !must_ask || asks {
        return whole(body);
    }
    // A raw value is a slice of the body.
    let start = (options.get().as_ptr() as usize).saturating_sub(body.as_ptr() as usize);
    let end = start + options.get().len();
    if end > body.len() {
        unreachable!("a value that was read from the body lies in it");
    }
    let ours = Bytes::from_static(ONLY_USAGE.as_bytes());
    [body.slice(..start), ours, body.slice(end..)]
}

fn whole(body: &Bytes) -> Pieces {
    [body.clone(), Bytes::new(), Bytes::new()]
}

fn top_level(error: &NoObject) -> String {
    match error {
        NoObject::Twice(name) => format!("the field `{}` is there twice", shown(name)),
        NoObject::TooMany => format!("it has more than {MAX_FIELDS} fields"),
        NoObject::Json(why) => format!("it is not a JSON object: {why}"),
    }
}

fn refused(mut problems: Vec<String>) -> Refusal {
    let more = problems.len().saturating_sub(MAX_PROBLEMS);
    problems.truncate(MAX_PROBLEMS);
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
fn listed(names: &[&str]) -> String {
    let first = names.iter().take(MAX_PROBLEMS);
    let mut list: Vec<String> = first.map(|name| format!("`{}`", shown(name))).collect();
    if names.len() > MAX_PROBLEMS {
        list.push(format!("{} more", names.len() - MAX_PROBLEMS));
    }
    list.join(", ")
}

fn shown(text: &str) -> String {
    sympozium_ipc::receipt::shortened(text)
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
