//! Fuzz targets for bytes that an agent or a provider chose, before any of them is trusted.
//!
//! They are used by coverage-guided fuzzing (`make fuzz`), by the replay of the corpora on stable in `make test`, and
//! for debugging a crash. Each target states a property and panics if it does not hold.

use bytes::Bytes;
use serde_json::{Value, json};
use sympozium_api::run_plan::{Gate, ToolPlan, WireFormat};
use sympozium_ipc::door::ToolCall;
use sympozium_ipc::{ExecRequest, RequestId};

pub use crate::fetch::fuzzing::{fetch_address, fetch_body};

use crate::command;
use crate::model::redact::{MIN_SECRET, Redactor};
use crate::model::request::{MAX_FIELDS, RequestRules};
use crate::model::usage::UsageCounter;
use crate::table::ToolTable;
use sympozium_ipc::sse::{Reader, Sink};

/// Returns if every property holds for `data`, and panics otherwise.
pub type FuzzTarget = fn(data: &[u8]);

/// Every target by its name, which is also the name of its corpus and of its program in `fuzz/`.
pub const TARGETS: &[(&str, FuzzTarget)] = &[
    ("bridge_request", bridge_request),
    ("bridge_sse", bridge_sse),
    ("door_call", door_call),
    ("fetch_address", fetch_address),
    ("fetch_body", fetch_body),
];

/// Maximum number of bytes of a refusal: names are truncated in it, and so is their list.
const MAX_MESSAGE: usize = 64 << 10;

/// The tool table of the target `door_call`.
const TOOLS: &str = include_str!("fuzzing/tools.json");

/// A tool name in the first line, a call in the rest: what the table accepts is an allowed tool with arguments that
/// match its schema, and becomes a request that our sidecar parses into the same values.
pub fn door_call(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let (name, body) = data.split_at(end);
    let Ok(name) = std::str::from_utf8(name) else {
        return;
    };
    let Ok(call) = serde_json::from_slice::<ToolCall>(body) else {
        return;
    };
    let tools: Vec<ToolPlan> = match serde_json::from_str(TOOLS) {
        Ok(tools) => tools,
        Err(error) => panic!("the table is one: {error}"),
    };
    let table = match ToolTable::from_tools(&tools) {
        Ok(table) => table,
        Err(error) => panic!("{error}"),
    };
    let found = match table.look_up(name, call.arguments, None) {
        Ok(found) => found,
        Err(refusal) => {
            assert!(refusal.message.len() <= MAX_MESSAGE);
            return;
        }
    };
    assert_eq!(found.tool.name, name);
    assert_ne!(found.tool.gate, Gate::Deny);
    let target = found.tool.pack.as_deref().unwrap_or_default();
    let id = RequestId::from_nanoseconds(1);
    let Ok(request) = command::build_request(id.clone(), found.tool, target, &found.arguments) else {
        return;
    };
    assert_eq!(request.target.as_deref(), Some(target));
    if let Ok(json) = request.to_json() {
        match ExecRequest::parse(&json, &id) {
            Ok(read) => assert_eq!(read, request),
            Err(problem) => panic!("{problem}"),
        }
    }
}

/// A request is forwarded unchanged, except that a stream asks for its usage. It offers only allowed functions.
/// Forwarding is idempotent.
pub fn bridge_request(data: &[u8]) {
    for wire in [WireFormat::OpenAi, WireFormat::Anthropic] {
        let rules = RequestRules {
            wire,
            model: "m".to_owned(),
            tools: ["a", "b"].map(str::to_owned).into(),
            max_bytes: 1 << 20,
            requests_usage: wire == WireFormat::OpenAi,
        };
        let body = Bytes::copy_from_slice(data);
        let accepted = match rules.check(&body) {
            Ok(accepted) => accepted,
            Err(refusal) => {
                assert!(refusal.message.len() <= MAX_MESSAGE);
                continue;
            }
        };
        let out = Bytes::from(accepted.pieces.concat());
        assert_eq!(rules.check(&out).map(|checked| checked.pieces.concat()), Ok(out.to_vec()));
        let read = |bytes: &[u8]| match serde_json::from_slice::<Value>(bytes) {
            Ok(Value::Object(fields)) => Some(fields),
            // Numbers out of every range are valid JSON all the same.
            _ => None,
        };
        let (Some(mut came), Some(mut goes)) = (read(data), read(&out)) else {
            continue;
        };
        assert!(goes.len() <= MAX_FIELDS + 1);
        assert_eq!(goes.get("model"), Some(&json!("m")));
        check_tools(wire, goes.get("tools"));
        check_content(goes.get("messages"));
        if accepted.streamed && wire == WireFormat::OpenAi {
            let asks = Some(json!({ "include_usage": true }));
            assert_eq!(goes.remove("stream_options"), asks);
            came.remove("stream_options");
        }
        assert_eq!(goes, came);
    }
}

fn check_tools(wire: WireFormat, tools: Option<&Value>) {
    for tool in tools.and_then(Value::as_array).into_iter().flatten() {
        let (function, kinds) = match wire {
            WireFormat::OpenAi => (&tool["function"], [json!("function"), json!("function")]),
            WireFormat::Anthropic => (tool, [json!("custom"), Value::Null]),
        };
        assert!(kinds.contains(&tool["type"]), "{tool}");
        assert!(["a", "b"].map(Value::from).contains(&function["name"]), "{tool}");
    }
}

/// As a provider reads it: nothing that it would fetch, or has stored.
fn check_content(messages: Option<&Value>) {
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    for part in list(messages).iter().flat_map(|message| list(message.get("content"))) {
        let places = [&part["image_url"], &part["image_url"]["url"], &part["source"]["url"]];
        let mut places = places.into_iter().filter_map(Value::as_str);
        assert!(places.all(|place| place.starts_with("data:")), "{part}");
        assert!(part["file"].get("file_id").is_none() && part["source"].get("file_id").is_none());
    }
}

/// Events, usage and redaction do not depend on how the bytes are split, and no event is invented.
pub fn bridge_sse(data: &[u8]) {
    let pieces: Vec<&[u8]> = match data.first() {
        Some(first) => data.chunks(usize::from(*first % 13) + 1).collect(),
        None => Vec::new(),
    };
    let whole = events(&[data]);
    assert_eq!(events(&pieces), whole);
    let found: usize = whole.iter().map(Vec::len).sum();
    assert!(found <= data.len());

    for content_type in [&b"text/event-stream"[..], b"application/json"] {
        for wire in [WireFormat::OpenAi, WireFormat::Anthropic] {
            let count = |pieces: &[&[u8]]| {
                let mut counter = UsageCounter::new(wire, Some(content_type));
                pieces.iter().for_each(|piece| counter.count(piece));
                counter.finish()
            };
            assert_eq!(count(&pieces), count(&[data]));
        }
    }

    if data.len() >= MIN_SECRET {
        redact(&data[..MIN_SECRET], &pieces);
    }
}

#[derive(Default)]
struct Events {
    whole: Vec<Vec<u8>>,
    open: Vec<u8>,
}

impl Sink for Events {
    fn data(&mut self, bytes: &[u8]) {
        self.open.extend_from_slice(bytes);
    }

    fn end_event(&mut self) {
        self.whole.push(std::mem::take(&mut self.open));
    }
}

fn events(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
    let (mut reader, mut events) = (Reader::default(), Events::default());
    pieces.iter().for_each(|piece| reader.read(piece, &mut events));
    events.whole
}

/// The secret is nowhere in the output, and everything else is where it was.
fn redact(secret: &[u8], pieces: &[&[u8]]) {
    let Some(mut redactor) = Redactor::new(Bytes::copy_from_slice(secret)) else {
        unreachable!("it is long enough");
    };
    let mut out = Vec::new();
    for piece in pieces {
        out.extend_from_slice(&redactor.pass(Bytes::copy_from_slice(piece)));
    }
    out.extend_from_slice(&redactor.finish());
    let came = pieces.concat();
    assert_eq!(out.len(), came.len());
    // Stars that the redactor wrote may complete a secret that contains stars.
    let finds = || out.windows(secret.len()).any(|window| window == secret);
    assert!(secret.contains(&b'*') || !finds());
    assert!(out.iter().zip(&came).all(|(out, came)| out == came || *out == b'*'));
}

#[cfg(test)]
mod tests;
