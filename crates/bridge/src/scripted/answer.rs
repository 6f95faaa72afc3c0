//! Writes the answer of a turn in OpenAI's format.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::ScriptedAnswer;
use super::script::{Call, ErrorAnswer, Turn};
use crate::model::usage::estimate_tokens;

/// Characters of text or arguments in one event of a stream.
const EVENT_CHARS: usize = 16;

/// The request that is answered.
pub struct RequestInfo<'r> {
    /// The number of the request, from 1.
    pub request: u64,
    pub model: &'r str,
    pub bytes: u64,
}

pub fn write_answer(turn: &Turn, about: &RequestInfo<'_>, streamed: bool) -> ScriptedAnswer {
    let (status, pieces) = match &turn.error {
        Some(error) => (
            StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            VecDeque::from([json_bytes(&error_json(error))]),
        ),
        None if streamed => (StatusCode::OK, event_stream(turn, about)),
        None => (StatusCode::OK, VecDeque::from([json_bytes(&json_answer(turn, about))])),
    };
    let is_stream = streamed && turn.error.is_none();
    ScriptedAnswer {
        status,
        content_type: if is_stream { "text/event-stream" } else { "application/json" },
        pieces,
        delay: Duration::from_millis(turn.delay_ms),
        retry_after_seconds: turn.error.as_ref().and_then(|error| error.retry_after_seconds),
    }
}

fn json_answer(turn: &Turn, about: &RequestInfo<'_>) -> Value {
    let mut message = json!({ "role": "assistant", "content": turn.say });
    if !turn.call.is_empty() {
        let call = |(index, call): (usize, &Call)| {
            json!({
                "id": call_id(call, about, index),
                "type": "function",
                "function": { "name": call.tool, "arguments": arguments_text(call) },
            })
        };
        message["tool_calls"] = turn.call.iter().enumerate().map(call).collect();
    }
    json!({
        "id": answer_id(about),
        "object": "chat.completion",
        "created": 0,
        "model": about.model,
        "choices": [{ "index": 0, "message": message, "finish_reason": finish_reason(turn) }],
        "usage": usage(turn, about),
    })
}

/// The role first, then text and calls in pieces, the finish reason, the usage, and the end marker.
fn event_stream(turn: &Turn, about: &RequestInfo<'_>) -> VecDeque<Bytes> {
    let chunk = |choices: Value, usage: Value| {
        sse_event(&json!({
            "id": answer_id(about),
            "object": "chat.completion.chunk",
            "created": 0,
            "model": about.model,
            "choices": choices,
            "usage": usage,
        }))
    };
    let delta = |delta: Value, finish: Value| {
        let choice = json!([{ "index": 0, "delta": delta, "finish_reason": finish }]);
        chunk(choice, Value::Null)
    };
    let mut events = VecDeque::new();
    events.push_back(delta(json!({ "role": "assistant", "content": "" }), Value::Null));
    for piece in split_text(turn.say.as_deref().unwrap_or_default()) {
        events.push_back(delta(json!({ "content": piece }), Value::Null));
    }
    for (index, call) in turn.call.iter().enumerate() {
        let first = json!({ "tool_calls": [{
            "index": index,
            "id": call_id(call, about, index),
            "type": "function",
            "function": { "name": call.tool, "arguments": "" },
        }] });
        events.push_back(delta(first, Value::Null));
        for piece in split_text(&arguments_text(call)) {
            let more = json!({ "tool_calls": [{ "index": index, "function": { "arguments": piece } }] });
            events.push_back(delta(more, Value::Null));
        }
    }
    events.push_back(delta(json!({}), json!(finish_reason(turn))));
    events.push_back(chunk(json!([]), usage(turn, about)));
    events.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    events
}

fn error_json(error: &ErrorAnswer) -> Value {
    json!({ "error": { "message": error.message, "type": "scripted", "param": null, "code": null } })
}

fn usage(turn: &Turn, about: &RequestInfo<'_>) -> Value {
    let text_bytes = turn.say.as_ref().map_or(0, String::len);
    let call_bytes: usize = turn.call.iter().map(|call| arguments_text(call).len()).sum();
    let (input, output) = match turn.usage {
        Some(usage) => (usage.input, usage.output),
        None => (estimate_tokens(about.bytes), estimate_tokens((text_bytes + call_bytes) as u64)),
    };
    json!({
        "prompt_tokens": input,
        "completion_tokens": output,
        "total_tokens": input.saturating_add(output),
    })
}

fn answer_id(about: &RequestInfo<'_>) -> String {
    format!("scripted-{}", about.request)
}

fn call_id(call: &Call, about: &RequestInfo<'_>, index: usize) -> String {
    let usual = || format!("call_{}_{}", about.request, index + 1);
    call.id.clone().unwrap_or_else(usual)
}

fn arguments_text(call: &Call) -> String {
    match &call.arguments {
        Value::String(text) => text.clone(),
        fields => fields.to_string(),
    }
}

fn finish_reason(turn: &Turn) -> &'static str {
    if turn.call.is_empty() { "stop" } else { "tool_calls" }
}

fn split_text(text: &str) -> impl Iterator<Item = String> {
    let letters: Vec<char> = text.chars().collect();
    let pieces: Vec<String> = letters.chunks(EVENT_CHARS).map(|chunk| chunk.iter().collect()).collect();
    pieces.into_iter()
}

fn sse_event(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}

fn json_bytes(value: &Value) -> Bytes {
    Bytes::from(value.to_string())
}
