//! Golden conversions both ways, and what servers do that no documentation has.

mod calls;
mod errors;
mod golden;
mod text;

use proptest::prelude::*;
use serde_json::{Value, json};
use sympozium_api::run_plan::AgentView;

use super::*;
use crate::model::{Call, CallArguments, ModelResponse, ResponseError, StopReason, Usage};

/// Streams as vendors document them, with our own words in them.
const STREAMS: &[(&str, &str)] = &[
    ("azure", include_str!("fixtures/azure.sse")),
    ("bare", include_str!("fixtures/bare.sse")),
    ("deepseek", include_str!("fixtures/deepseek.sse")),
    ("gemini", include_str!("fixtures/gemini.sse")),
    ("llama-cpp", include_str!("fixtures/llama-cpp.sse")),
    ("llama-cpp-text-call", include_str!("fixtures/llama-cpp-text-call.sse")),
    ("mistral", include_str!("fixtures/mistral.sse")),
    ("ollama", include_str!("fixtures/ollama.sse")),
    ("openai", include_str!("fixtures/openai.sse")),
    ("openai-refusal", include_str!("fixtures/openai-refusal.sse")),
    ("openrouter", include_str!("fixtures/openrouter.sse")),
    ("openrouter-error", include_str!("fixtures/openrouter-error.sse")),
    ("vllm", include_str!("fixtures/vllm.sse")),
];

fn view() -> AgentView {
    serde_json::from_str(include_str!("fixtures/view.json")).expect("a view")
}

fn model() -> OpenAi {
    OpenAi::new(&view(), "You help.")
}

fn read(shape: BodyFormat, body: &str) -> Result<ModelResponse, ResponseError> {
    let mut reader = model().reader(shape);
    reader.read(body.as_bytes())?;
    reader.finish()
}

fn answer(body: &str) -> ModelResponse {
    read(BodyFormat::EventStream, body).expect("an answer")
}

/// A stream of these chunks, without its end.
fn chunks(chunks: &[Value]) -> String {
    let event = |chunk: &Value| format!("data: {chunk}\n\n");
    chunks.iter().map(event).collect()
}

/// A chunk with this delta.
fn delta(delta: &Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta}]})
}

/// The last chunk.
fn end(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

/// A stream of these deltas, to its end.
fn deltas(deltas: &[Value], reason: &str) -> String {
    let mut all: Vec<Value> = deltas.iter().map(delta).collect();
    all.push(end(reason));
    chunks(&all) + "data: [DONE]\n\n"
}

fn message(answer: &ModelResponse) -> Value {
    serde_json::from_slice(&answer.message).expect("a message is JSON")
}

fn object(value: Value) -> CallArguments {
    match value {
        Value::Object(fields) => CallArguments::Object(fields),
        _ => unreachable!("the test says an object"),
    }
}

#[test]
fn a_stream_is_complete_after_done_or_after_finish_reason_and_usage() {
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}});
    let message_delta = delta(&json!({"content": "Hi"}));
    for (stream, is_complete) in [
        (chunks(std::slice::from_ref(&message_delta)), false),
        (chunks(&[message_delta.clone(), end("stop")]), false),
        (chunks(&[message_delta.clone(), usage.clone()]), false),
        (chunks(&[message_delta.clone(), end("stop"), usage.clone()]), true),
        (chunks(&[message_delta.clone(), usage, end("stop")]), true),
        (chunks(&[message_delta]) + "data: [DONE]\n\n", true),
    ] {
        let mut reader = model().reader(BodyFormat::EventStream);
        reader.read(stream.as_bytes()).expect("it reads");
        assert_eq!(reader.is_complete(), is_complete, "{stream}");
    }
}

#[test]
fn a_stream_without_finish_reason_is_accepted_unless_truncated() {
    let message_delta = delta(&json!({"content": "Hi"}));
    let role = delta(&json!({"role": "assistant", "content": ""}));
    let open = delta(
        &json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "read_file", "arguments": "{\"pa"}}]}),
    );
    let whole =
        delta(&json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "list_packs", "arguments": "{}"}}]}));
    for (stream, expected) in [
        (chunks(std::slice::from_ref(&message_delta)), Ok(StopReason::Finished)),
        (chunks(&[message_delta.clone(), whole]), Ok(StopReason::Finished)),
        (chunks(&[role.clone(), end("stop")]), Ok(StopReason::Finished)),
        (chunks(&[message_delta.clone(), end("")]), Ok(StopReason::Finished)),
        (chunks(&[end("length")]), Ok(StopReason::Length)),
        (chunks(&[end("max_tokens")]), Ok(StopReason::Length)),
        (chunks(&[end("TOOL_CALLS")]), Ok(StopReason::Finished)),
        (chunks(&[end("function_call")]), Ok(StopReason::Finished)),
        (chunks(&[end("recitation")]), Ok(StopReason::Other("recitation".to_owned()))),
        (
            chunks(&[end("content_filter")]),
            Ok(StopReason::Refused("the provider's content filter stopped the answer".to_owned())),
        ),
        // Half an event after the last word.
        (chunks(&[message_delta.clone(), end("stop")]) + "data: {\"cho", Ok(StopReason::Finished)),
        (chunks(std::slice::from_ref(&message_delta)) + "data: {\"cho", Err(ResponseError::Truncated)),
        (chunks(&[message_delta, open]), Err(ResponseError::Truncated)),
        (chunks(&[role]), Err(ResponseError::Truncated)),
        ("data: [DONE]\n\n".to_owned(), Err(ResponseError::Truncated)),
        (String::new(), Err(ResponseError::Truncated)),
        (": ping\n\n".to_owned(), Err(ResponseError::Truncated)),
    ] {
        let stop = read(BodyFormat::EventStream, &stream).map(|response| response.stop);
        assert_eq!(stop, expected, "{stream}");
    }
}

#[test]
fn invalid_responses_are_errors() {
    let invalid = |why: &str| ResponseError::Invalid(why.to_owned());
    for (shape, body, expected) in [
        (BodyFormat::EventStream, "data: 7\n\n", invalid("a part of it is not an object")),
        (BodyFormat::EventStream, "data: []\n\n", invalid("a list is no part of an answer")),
        (BodyFormat::EventStream, "data: {]\n\n", invalid("key must be a string at line 1 column 2")),
        (BodyFormat::Json, "{}", invalid("it has no choice")),
        (BodyFormat::Json, r#"{"choices": []}"#, invalid("it has no choice")),
        (BodyFormat::Json, r#"{"choices": ["#, ResponseError::Truncated),
        (BodyFormat::Json, "", ResponseError::Truncated),
        (BodyFormat::Json, "<html>", invalid("expected value at line 1 column 1")),
    ] {
        assert_eq!(read(shape, body), Err(expected), "{body}");
    }
    let deep = format!("data: {}\n\n", "[".repeat(10_000));
    let expected = invalid("recursion limit exceeded at line 1 column 128");
    assert_eq!(read(BodyFormat::EventStream, &deep), Err(expected));
}

#[test]
fn the_body_format_is_detected() {
    for body in [
        include_str!("fixtures/openai.sse"),
        include_str!("fixtures/unstreamed.json"),
        ": wait\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n",
    ] {
        let answer = read(BodyFormat::detect(body.as_bytes()[0]), body);
        assert!(answer.is_ok(), "{answer:?}");
    }
    for shape in [BodyFormat::EventStream, BodyFormat::Json] {
        assert_eq!(read(shape, " \n"), Err(ResponseError::Truncated));
    }
}

/// As a tree, this would be many times as large as it is.
#[test]
fn values_are_bounded_in_number() {
    let many = format!("[{}0]", "0,".repeat(1 << 20));
    let chunk = format!(r#"{{"choices":[{{"message":{{"content":"Hi","more":{many}}}}}]}}"#);
    let invalid = Err(ResponseError::Invalid("it has more than 65536 values".to_owned()));
    assert_eq!(read(BodyFormat::Json, &chunk), invalid);
    let stream = format!("data: {chunk}\n\ndata: [DONE]\n\n");
    assert_eq!(read(BodyFormat::EventStream, &stream), invalid);
    // What a call is called with is a text, until it is read.
    let arguments = format!("{{\"path\":[{}0]}}", "0,".repeat(100_000));
    let function = json!({"name": "read_file", "arguments": arguments});
    let call = json!({"tool_calls": [{"index": 0, "id": "a", "function": function}]});
    let answer = answer(&deltas(&[call], "tool_calls"));
    let why = "the arguments have more than 65536 values; use fewer, or do it in several steps";
    let expected = CallArguments::Invalid(why.to_owned());
    assert_eq!(answer.calls[0].arguments, expected);
}

#[test]
fn a_lone_surrogate_does_not_invalidate_a_response() {
    let chunk = r#"{"choices":[{"index":0,"delta":{"content":"a\ud83d b"},"finish_reason":"stop"}]}"#;
    let expected = Ok("a\u{fffd} b".to_owned());
    let text = |shape, body: &str| read(shape, body).map(|response| response.text);
    assert_eq!(text(BodyFormat::Json, chunk), expected);
    assert_eq!(text(BodyFormat::EventStream, &format!("data: {chunk}\n\n")), expected);
}

#[test]
fn a_response_is_bounded_whatever_it_contains() {
    use crate::model::{MAX_EVENT, MAX_RESPONSE};
    let text = "x".repeat(1 << 20);
    for piece in [
        json!({"content": text}),
        json!({"refusal": text}),
        json!({"reasoning_content": text}),
        json!({"content": [{"type": "thinking", "thinking": text}]}),
        json!({"reasoning_details": [{"type": "other", "data": text}]}),
        json!({"more": [text]}),
    ] {
        let event = chunks(&[delta(&piece)]);
        let mut reader = model().reader(BodyFormat::EventStream);
        let mut count = 0;
        let broken = loop {
            count += 1;
            match reader.read(event.as_bytes()) {
                Ok(()) => assert!(count < 20, "it must end"),
                Err(broken) => break broken,
            }
        };
        assert_eq!(broken, ResponseError::TooLarge(MAX_RESPONSE));
        assert!((7..=9).contains(&count), "{count}");
    }
    for shape in [BodyFormat::EventStream, BodyFormat::Json] {
        let mut reader = model().reader(shape);
        let piece = match shape {
            BodyFormat::EventStream => format!("data: {text}"),
            BodyFormat::Json => format!("{{\"{text}"),
        };
        reader.read(piece.as_bytes()).expect("the first fits");
        let rest: Result<Vec<()>, ResponseError> = (0..5).map(|_| reader.read(text.as_bytes())).collect();
        assert_eq!(rest, Err(ResponseError::TooLarge(MAX_EVENT)));
    }
    // Only the last of repeated values counts.
    let again = chunks(&[delta(&json!({"more": text}))]);
    let mut reader = model().reader(BodyFormat::EventStream);
    for _ in 0..20 {
        reader.read(again.as_bytes()).expect("it does not grow");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The response does not depend on how the stream is split.
    #[test]
    fn splits_do_not_matter(which in 0..STREAMS.len(), cuts in prop::collection::vec(0_usize..4000, 0..12)) {
        let (_, stream) = STREAMS[which];
        let bytes = stream.as_bytes();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let mut reader = model().reader(BodyFormat::EventStream);
        let mut broken = Ok(());
        for cut in cuts.windows(2) {
            broken = broken.and_then(|()| reader.read(&bytes[cut[0]..cut[1]]));
        }
        let answer = broken.and_then(|()| reader.finish());
        prop_assert_eq!(answer, read(BodyFormat::EventStream, stream));
    }

    /// What a model says in whatever order of brackets, it is an answer.
    #[test]
    fn any_text_is_a_response(text in "(<think>|</think>|<tool_call>|</tool_call>|<function=read_file>|<parameter=path>|</parameter>|</function>|\\{\"name\":\"read_file\"\\}|ö| ){0,12}") {
        let body = deltas(&[json!({"content": text})], "stop");
        let mut data = vec![3];
        data.extend_from_slice(body.as_bytes());
        fuzzing::agent_openai(&data);
    }
}

/// The seeds of the fuzz targets hold what the targets state.
#[test]
fn fixtures_keep_the_properties() {
    for (_, stream) in STREAMS {
        for cut in [0, 1, 6, 63, 255] {
            let mut data = vec![cut];
            data.extend_from_slice(stream.as_bytes());
            fuzzing::agent_sse(&data);
            fuzzing::agent_openai(&data);
        }
    }
}
