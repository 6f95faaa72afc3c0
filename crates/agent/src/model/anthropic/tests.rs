//! Responses as providers send them: streamed, unstreamed, malformed and hostile.

mod hostile;
mod malformed;
mod responses;

use bytes::Bytes;
use serde_json::{Value, json};
use sympozium_api::run_plan::AgentView;

use super::*;
use crate::model::{Call, CallArguments, ModelResponse, ResponseError};

/// A view with two tools; the schema of one has more than the common keywords.
pub fn view() -> AgentView {
    let view = json!({
        "format": "sympozium.ai/run-plan/v1",
        "run": "a-run",
        "agent": "an-agent",
        "task": {"useContext": false, "mode": "task"},
        "wire": "anthropic",
        "model": "a-model",
        "tools": [
            {"name": "list", "description": "Lists.", "parameters": {}, "native": true},
            {"name": "read_file", "description": "Reads a \"file\".", "native": true, "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string", "minLength": 1, "pattern": "^/"}},
                "required": ["path"],
                "additionalProperties": false,
                "$defs": {"unused": {"enum": [1, null]}},
            }},
        ],
        "skills": [],
        "roots": [],
        "limits": {
            "iterations": 1,
            "modelRequests": 1,
            "modelRequestsPerMinute": 1,
            "modelRequestBytes": 1,
            "modelAnswerBytes": 1,
            "toolCalls": 1,
            "concurrentToolCalls": 1,
            "resultBytes": 1,
            "transcriptBytes": 1,
        },
        "runSeconds": 60,
    });
    serde_json::from_value(view).expect("a view")
}

/// The body of a request.
pub fn body(chunks: Vec<Bytes>) -> Value {
    serde_json::from_slice(&chunks.concat()).expect("a body is JSON")
}

pub fn call(id: &str, name: &str, arguments: CallArguments) -> Call {
    Call { id: id.to_owned(), name: name.to_owned(), arguments }
}

/// What a body says that came at once.
pub fn whole(body: &str) -> Result<ModelResponse, ResponseError> {
    read(BodyFormat::Json, body, body.len())
}

/// What a stream says.
pub fn stream(text: &str) -> Result<ModelResponse, ResponseError> {
    read(BodyFormat::EventStream, text, text.len())
}

/// Reads a body in chunks of this size.
pub fn read(shape: BodyFormat, text: &str, size: usize) -> Result<ModelResponse, ResponseError> {
    let mut reader = Anthropic::new(&view(), "").reader(shape);
    for chunk in text.as_bytes().chunks(size.max(1)) {
        reader.read(chunk)?;
    }
    reader.finish()
}

/// A stream of these events.
pub fn events(events: &[Value]) -> String {
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}

/// A stream with these events between its usual start and its usual end.
pub fn answer_of(blocks: &[Value], stop: &str) -> ModelResponse {
    let mut all = vec![json!({"type": "message_start", "message": {}})];
    all.extend_from_slice(blocks);
    all.push(json!({"type": "message_delta", "delta": {"stop_reason": stop}}));
    all.push(json!({"type": "message_stop"}));
    stream(&events(&all)).expect("an answer")
}

/// A message, read again.
pub fn message(answer: &ModelResponse) -> Value {
    serde_json::from_slice(&answer.message).expect("a message is JSON")
}
