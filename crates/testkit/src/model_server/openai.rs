//! OpenAI chat completions, and the errors that Azure has instead.

use hyper::body::Bytes;
use serde::Serialize;

use super::format::{Asked, CREATED, Step, call_id, json, write_json};
use super::reply::{Answer, ProviderError, Stop};

const FINGERPRINT: &str = "fp_model_server";
const TIER: &str = "default";

#[derive(Serialize)]
struct Completion<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: [Choice<'a>; 1],
    usage: Counts,
    service_tier: &'static str,
    system_fingerprint: &'static str,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u64,
    message: Message<'a>,
    logprobs: (),
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
    refusal: (),
    annotations: [(); 0],
}

#[derive(Serialize)]
struct Call<'a> {
    /// Only in streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    id: String,
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    arguments: String,
}

#[derive(Serialize)]
struct Counts {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptCounts,
    completion_tokens_details: CompletionCounts,
}

#[derive(Default, Serialize)]
struct PromptCounts {
    cached_tokens: u64,
    audio_tokens: u64,
}

#[derive(Default, Serialize)]
struct CompletionCounts {
    reasoning_tokens: u64,
    audio_tokens: u64,
    accepted_prediction_tokens: u64,
    rejected_prediction_tokens: u64,
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    service_tier: &'static str,
    system_fingerprint: &'static str,
    /// One, or none beside the usage.
    choices: Vec<ChunkChoice<'a>>,
    #[serde(skip_serializing_if = "ChunkUsage::is_absent")]
    usage: ChunkUsage,
    /// Random characters that hide how long the tokens are; here always the same.
    obfuscation: &'static str,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: u64,
    delta: Delta<'a>,
    logprobs: (),
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Delta<'a> {
    Opening { role: &'static str, content: Option<&'static str>, refusal: () },
    Text { content: &'a str },
    Call { tool_calls: [Call<'a>; 1] },
    Arguments { tool_calls: [Arguments<'a>; 1] },
    Ending {},
}

#[derive(Serialize)]
struct Arguments<'a> {
    index: usize,
    function: ArgumentsPiece<'a>,
}

#[derive(Serialize)]
struct ArgumentsPiece<'a> {
    arguments: &'a str,
}

/// The field `usage` of a chunk: absent unless it was asked for, then `null` up to the last chunk.
#[derive(Serialize)]
#[serde(untagged)]
enum ChunkUsage {
    Absent,
    Later,
    Now(Counts),
}

impl ChunkUsage {
    fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

/// A completion that is not streamed.
pub fn whole(asked: &Asked, answer: &Answer) -> Bytes {
    let calls = answer.tool_calls.iter().enumerate().map(|(index, call)| {
        let arguments = call.arguments.concat();
        Call {
            index: None,
            id: call_id(asked, answer, index),
            r#type: "function",
            function: Function { name: &call.name, arguments },
        }
    });
    json(&Completion {
        id: completion_id(asked),
        object: "chat.completion",
        created: CREATED,
        model: &asked.model,
        choices: [Choice {
            index: 0,
            message: Message {
                role: "assistant",
                content: has_content(answer).then(|| answer.text.concat()),
                tool_calls: calls.collect(),
                refusal: (),
                annotations: [],
            },
            logprobs: (),
            finish_reason: finish_reason(answer.stopped()),
        }],
        usage: counts(answer),
        service_tier: TIER,
        system_fingerprint: FINGERPRINT,
    })
}

/// The events of one step of a stream.
pub fn events(asked: &Asked, answer: &Answer, step: Step) -> Vec<Bytes> {
    let delta = match step {
        Step::TextStart | Step::TextEnd | Step::CallEnd(_) => return Vec::new(),
        Step::Opening => Delta::Opening { role: "assistant", content: has_content(answer).then_some(""), refusal: () },
        Step::Text(piece) => Delta::Text { content: &answer.text[piece] },
        Step::CallStart(call) => Delta::Call {
            tool_calls: [Call {
                index: Some(call),
                id: call_id(asked, answer, call),
                r#type: "function",
                function: Function { name: &answer.tool_calls[call].name, arguments: String::new() },
            }],
        },
        Step::Arguments(call, piece) => Delta::Arguments {
            tool_calls: [Arguments {
                index: call,
                function: ArgumentsPiece { arguments: &answer.tool_calls[call].arguments[piece] },
            }],
        },
        Step::Ending => return ending(asked, answer),
    };
    vec![event(&chunk(asked, Some((delta, None))))]
}

fn ending(asked: &Asked, answer: &Answer) -> Vec<Bytes> {
    if let Some(failure) = &answer.failure {
        return vec![event_of(&error(failure))];
    }
    let reason = finish_reason(answer.stopped());
    let mut events = vec![event(&chunk(asked, Some((Delta::Ending {}, Some(reason)))))];
    if asked.include_usage {
        let mut last = chunk(asked, None);
        last.usage = ChunkUsage::Now(counts(answer));
        events.push(event(&last));
    }
    events.push(Bytes::from_static(b"data: [DONE]\n\n"));
    events
}

fn chunk<'a>(asked: &'a Asked, choice: Option<(Delta<'a>, Option<&'static str>)>) -> Chunk<'a> {
    let choice = choice.map(|(delta, finish_reason)| ChunkChoice { index: 0, delta, logprobs: (), finish_reason });
    Chunk {
        id: completion_id(asked),
        object: "chat.completion.chunk",
        created: CREATED,
        model: &asked.model,
        service_tier: TIER,
        system_fingerprint: FINGERPRINT,
        choices: Vec::from_iter(choice),
        usage: if asked.include_usage { ChunkUsage::Later } else { ChunkUsage::Absent },
        obfuscation: "x",
    }
}

fn event(chunk: &Chunk<'_>) -> Bytes {
    let mut bytes = Vec::with_capacity(512);
    bytes.extend_from_slice(b"data: ");
    write_json(&mut bytes, chunk);
    bytes.extend_from_slice(b"\n\n");
    bytes.into()
}

fn event_of(json: &[u8]) -> Bytes {
    [b"data: ", json, b"\n\n"].concat().into()
}

/// Content is `null` where there are calls only.
fn has_content(answer: &Answer) -> bool {
    !answer.text.is_empty() || answer.tool_calls.is_empty()
}

fn completion_id(asked: &Asked) -> String {
    format!("chatcmpl-{}", asked.number)
}

fn finish_reason(stop: Stop) -> &'static str {
    match stop {
        Stop::Done => "stop",
        Stop::ToolCalls => "tool_calls",
        Stop::Length => "length",
        Stop::Refused => "content_filter",
    }
}

fn counts(answer: &Answer) -> Counts {
    let usage = answer.usage;
    Counts {
        prompt_tokens: usage.input_tokens,
        completion_tokens: usage.output_tokens,
        total_tokens: usage.input_tokens.saturating_add(usage.output_tokens),
        prompt_tokens_details: PromptCounts::default(),
        completion_tokens_details: CompletionCounts::default(),
    }
}

#[derive(Serialize)]
struct Failure<T> {
    error: T,
}

#[derive(Serialize)]
struct Reason<'a> {
    message: &'a str,
    r#type: &'a str,
    param: (),
    code: Option<&'a str>,
}

#[derive(Serialize)]
struct AzureReason<'a> {
    code: &'a str,
    message: &'a str,
}

/// An error by OpenAI.
pub fn error(error: &ProviderError) -> Bytes {
    let (kind, code) = match error.status {
        401 => ("invalid_request_error", Some("invalid_api_key")),
        429 => ("requests", Some("rate_limit_exceeded")),
        500.. => ("server_error", None),
        _ => ("invalid_request_error", None),
    };
    json(&Failure {
        error: Reason {
            message: &error.message,
            r#type: error.kind.as_deref().unwrap_or(kind),
            param: (),
            code: error.code.as_deref().or(code),
        },
    })
}

/// An error by Azure in front of the same models.
pub fn azure_error(error: &ProviderError) -> Bytes {
    let status = error.status.to_string();
    json(&Failure { error: AzureReason { code: error.code.as_deref().unwrap_or(&status), message: &error.message } })
}
