//! Anthropic messages.

use hyper::body::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::format::{Asked, Step, call_id, json, write_json};
use super::reply::{Answer, ProviderError, Stop};

#[derive(Serialize)]
struct Message<'a> {
    id: String,
    r#type: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Block<'a>>,
    stop_reason: Option<&'static str>,
    stop_sequence: (),
    usage: Counts,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Text { text: String },
    ToolUse { id: String, name: &'a str, input: Value },
}

#[derive(Serialize)]
struct Counts {
    input_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
    output_tokens: u64,
    service_tier: &'static str,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event<'a> {
    MessageStart { message: Message<'a> },
    ContentBlockStart { index: usize, content_block: Block<'a> },
    Ping,
    ContentBlockDelta { index: usize, delta: Delta<'a> },
    ContentBlockStop { index: usize },
    MessageDelta { delta: MessageDelta, usage: OutputCount },
    MessageStop,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Delta<'a> {
    TextDelta { text: &'a str },
    InputJsonDelta { partial_json: &'a str },
}

#[derive(Serialize)]
struct MessageDelta {
    stop_reason: &'static str,
    stop_sequence: (),
}

#[derive(Serialize)]
struct OutputCount {
    output_tokens: u64,
}

/// A message that is not streamed.
pub fn whole(asked: &Asked, answer: &Answer) -> Bytes {
    let text = (!answer.text.is_empty()).then(|| Block::Text { text: answer.text.concat() });
    let calls = answer.tool_calls.iter().enumerate().map(|(index, call)| {
        let arguments = call.arguments.concat();
        Block::ToolUse {
            id: call_id(asked, answer, index),
            name: &call.name,
            // What is no JSON has no place here but as a text; streamed, it comes through as it is.
            input: serde_json::from_str(&arguments).unwrap_or(Value::String(arguments)),
        }
    });
    let content = text.into_iter().chain(calls).collect();
    let reason = stop_reason(answer.stopped());
    let output = answer.usage.output_tokens;
    json(&message(asked, answer, content, Some(reason), output))
}

/// The events of one step of a stream.
pub fn events(asked: &Asked, answer: &Answer, step: Step) -> Vec<Bytes> {
    // The text, where there is one, is the first block.
    let block = |call| call + usize::from(!answer.text.is_empty());
    match step {
        // One token of output is counted before there is any.
        Step::Opening => vec![event(&Event::MessageStart { message: message(asked, answer, Vec::new(), None, 1) })],
        Step::TextStart => {
            let start =
                event(&Event::ContentBlockStart { index: 0, content_block: Block::Text { text: String::new() } });
            vec![start, event(&Event::Ping)]
        }
        Step::Text(piece) => {
            vec![event(&Event::ContentBlockDelta { index: 0, delta: Delta::TextDelta { text: &answer.text[piece] } })]
        }
        Step::TextEnd => vec![event(&Event::ContentBlockStop { index: 0 })],
        Step::CallStart(call) => {
            let start = event(&Event::ContentBlockStart {
                index: block(call),
                content_block: Block::ToolUse {
                    id: call_id(asked, answer, call),
                    name: &answer.tool_calls[call].name,
                    input: Value::Object(serde_json::Map::new()),
                },
            });
            let empty = event(&input(block(call), ""));
            if block(call) == 0 { vec![start, event(&Event::Ping), empty] } else { vec![start, empty] }
        }
        Step::Arguments(call, piece) => {
            vec![event(&input(block(call), &answer.tool_calls[call].arguments[piece]))]
        }
        Step::CallEnd(call) => vec![event(&Event::ContentBlockStop { index: block(call) })],
        Step::Ending => ending(answer),
    }
}

fn ending(answer: &Answer) -> Vec<Bytes> {
    if let Some(failure) = &answer.failure {
        let mut bytes = b"event: error\ndata: ".to_vec();
        write_json(&mut bytes, &Failure::new(failure, None));
        bytes.extend_from_slice(b"\n\n");
        return vec![bytes.into()];
    }
    let delta = event(&Event::MessageDelta {
        delta: MessageDelta { stop_reason: stop_reason(answer.stopped()), stop_sequence: () },
        usage: OutputCount { output_tokens: answer.usage.output_tokens },
    });
    vec![delta, event(&Event::MessageStop)]
}

fn input(index: usize, partial_json: &str) -> Event<'_> {
    Event::ContentBlockDelta { index, delta: Delta::InputJsonDelta { partial_json } }
}

fn message<'a>(
    asked: &'a Asked,
    answer: &Answer,
    content: Vec<Block<'a>>,
    stop_reason: Option<&'static str>,
    output_tokens: u64,
) -> Message<'a> {
    Message {
        id: format!("msg_{}", asked.number),
        r#type: "message",
        role: "assistant",
        model: &asked.model,
        content,
        stop_reason,
        stop_sequence: (),
        usage: Counts {
            input_tokens: answer.usage.input_tokens,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: 0,
            output_tokens,
            service_tier: "standard",
        },
    }
}

fn event(event: &Event<'_>) -> Bytes {
    let name = match event {
        Event::MessageStart { .. } => "message_start",
        Event::ContentBlockStart { .. } => "content_block_start",
        Event::Ping => "ping",
        Event::ContentBlockDelta { .. } => "content_block_delta",
        Event::ContentBlockStop { .. } => "content_block_stop",
        Event::MessageDelta { .. } => "message_delta",
        Event::MessageStop => "message_stop",
    };
    let mut bytes = Vec::with_capacity(256);
    bytes.extend_from_slice(b"event: ");
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(b"\ndata: ");
    write_json(&mut bytes, event);
    bytes.extend_from_slice(b"\n\n");
    bytes.into()
}

fn stop_reason(stop: Stop) -> &'static str {
    match stop {
        Stop::Done => "end_turn",
        Stop::ToolCalls => "tool_use",
        Stop::Length => "max_tokens",
        Stop::Refused => "refusal",
    }
}

#[derive(Serialize)]
struct Failure<'a> {
    r#type: &'static str,
    error: Reason<'a>,
    /// Not in streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
}

#[derive(Serialize)]
struct Reason<'a> {
    r#type: &'a str,
    message: &'a str,
}

impl<'a> Failure<'a> {
    fn new(error: &'a ProviderError, request_id: Option<&'a str>) -> Self {
        let kind = match error.status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            529 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        Self {
            r#type: "error",
            error: Reason { r#type: error.kind.as_deref().unwrap_or(kind), message: &error.message },
            request_id,
        }
    }
}

/// An error in place of a message.
pub fn error(error: &ProviderError, request_id: &str) -> Bytes {
    json(&Failure::new(error, Some(request_id)))
}
