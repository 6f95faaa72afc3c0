//! Servers that speak the format badly, and models that mean harm.

use super::*;
use crate::model::anthropic::block::MAX_DEPTH;
use crate::model::anthropic::response_builder::MAX_BLOCKS;
use crate::model::echo_fields::tests::{bridge_accepts, deep};
use crate::model::{MAX_ARGUMENTS, MAX_CALLS, MAX_EVENT, MAX_NAME, MAX_RESPONSE, StopReason};

fn start(index: Value, block: Value) -> Value {
    json!({"type": "content_block_start", "index": index, "content_block": block})
}

fn delta(index: Value, delta: Value) -> Value {
    json!({"type": "content_block_delta", "index": index, "delta": delta})
}

fn text_delta(index: Value, text: &str) -> Value {
    delta(index, json!({"type": "text_delta", "text": text}))
}

fn tool(id: Value, name: Value) -> Value {
    json!({"type": "tool_use", "id": id, "name": name, "input": {}})
}

/// The arguments of a call whose JSON is this.
fn arguments(json: &str, stop: &str) -> CallArguments {
    let part = delta(json!(0), json!({"type": "input_json_delta", "partial_json": json}));
    let answer = answer_of(&[start(json!(0), tool(json!("a"), json!("list"))), part], stop);
    let sent = message(&answer)["content"][0]["input"].clone();
    let arguments = answer.calls[0].arguments.clone();
    match &arguments {
        CallArguments::Object(object) => assert_eq!(sent, Value::Object(object.clone())),
        CallArguments::Invalid(_) => assert_eq!(sent, json!({})),
    }
    arguments
}

fn invalid(json: &str, stop: &str) -> String {
    match arguments(json, stop) {
        CallArguments::Invalid(problem) => problem,
        CallArguments::Object(object) => panic!("{object:?}"),
    }
}

#[test]
fn invalid_arguments_have_a_reason() {
    const CUT: &str = "the answer was cut off by its length limit before the arguments of this call were whole; \
                       make it shorter, or do it in several steps";
    assert_eq!(invalid("{\"a\":\"b", "max_tokens"), CUT);
    assert_eq!(invalid("", "max_tokens"), CUT);
    assert_eq!(
        invalid("{\"a\":", "tool_use"),
        "the arguments are not JSON (EOF while parsing a value at line 1 column 5); write one JSON object"
    );
    assert_eq!(
        invalid("{\"a\":{\"b\":1,\"b\":2}}", "tool_use"),
        "the arguments are ambiguous (the key \"b\" is there more than once at line 1 column 15); write each key of an object once"
    );
    let not_one = "the arguments are not a JSON object; write one, with the names of the tool's parameters";
    assert_eq!(invalid("[1]", "tool_use"), not_one);
    assert_eq!(invalid("\"{}\"", "tool_use"), not_one);
    let flat = format!("{{\"a\":{}{}}}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
    assert_eq!(invalid(&flat, "tool_use"), "the arguments are nested more than 64 deep; use a flatter object");
    assert_eq!(
        invalid(&"[".repeat(60_000), "tool_use"),
        "the arguments are nested more than 64 deep; use a flatter object"
    );
    assert_eq!(
        invalid(&format!("{{\"a\":[{}0]}}", "0,".repeat(100_000)), "tool_use"),
        "the arguments have more than 65536 values; use fewer, or several calls"
    );
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_ARGUMENTS));
    assert_eq!(
        invalid(&long, "tool_use"),
        "the arguments have more than 1048576 bytes; make them shorter, or use several calls"
    );
}

#[test]
fn valid_arguments_are_kept() {
    let object = |value: Value| CallArguments::Object(value.as_object().cloned().unwrap_or_default());
    assert_eq!(arguments("", "tool_use"), object(json!({})));
    assert_eq!(arguments(" \n", "end_turn"), object(json!({})));
    assert_eq!(arguments("null", "tool_use"), object(json!({})));
    assert_eq!(arguments("{\"a\":1}", "max_tokens"), object(json!({"a": 1})));
    assert_eq!(arguments("{}", "max_tokens"), object(json!({})));
    let nested = format!("{{\"a\":{}{}}}", "[".repeat(MAX_DEPTH - 1), "]".repeat(MAX_DEPTH - 1));
    assert!(matches!(arguments(&nested, "tool_use"), CallArguments::Object(_)));
    let given = json!({"type": "tool_use", "id": "a", "name": "list", "input": {"all": true}});
    let answer = answer_of(&[start(json!(0), given)], "tool_use");
    assert_eq!(answer.calls, [call("a", "list", object(json!({"all": true})))]);
}

#[test]
fn ids_are_plain_and_unique() {
    let ids = [
        json!("call_2"),
        json!(""),
        json!("same"),
        json!("same"),
        json!("functions.list:0"),
        json!("ü"),
        json!("x".repeat(MAX_NAME + 1)),
        json!("x".repeat(MAX_NAME)),
        json!(null),
        json!(7),
    ];
    let blocks: Vec<Value> = ids.iter().map(|id| start(json!(0), tool(id.clone(), json!("list")))).collect();
    let answer = answer_of(&blocks, "tool_use");
    let found: Vec<&str> = answer.calls.iter().map(|call| call.id.as_str()).collect();
    let long = "x".repeat(MAX_NAME);
    let expected = ["call_2", "call_1", "same", "call_3", "call_4", "call_5", "call_6", &long, "call_7", "call_8"];
    assert_eq!(found, expected);
    let message = message(&answer);
    let blocks = message["content"].as_array().expect("blocks");
    let sent: Vec<&str> = blocks.iter().filter_map(|block| block["id"].as_str()).collect();
    assert_eq!(sent, found);
}

#[test]
fn an_id_is_used_once_in_a_run() {
    let model = Anthropic::new(&view(), "");
    let next = |id: &str| {
        let body = json!({"content": [tool(json!(id), json!("list"))]}).to_string();
        let mut reader = model.reader(BodyFormat::Json);
        reader.read(body.as_bytes()).expect("bytes");
        reader.finish().expect("an answer").calls[0].id.clone()
    };
    let found = ["", "call_0", "call_0", "call_1", "toolu_01"].map(next);
    assert_eq!(found, ["call_1", "call_0", "call_2", "call_3", "toolu_01"]);
}

#[test]
fn names_are_kept_as_written_and_sent_back_as_allowed() {
    let long = "ü".repeat(MAX_NAME);
    let cases = [
        ("list", "list", "list"),
        ("", "", "_"),
        ("a b/c", "a b/c", "a_b_c"),
        (long.as_str(), &long[..MAX_NAME], &"_".repeat(128)),
    ];
    for (written, kept, sent) in cases {
        let answer = answer_of(&[start(json!(0), tool(json!("a"), json!(written)))], "tool_use");
        assert_eq!(answer.calls[0].name, kept);
        assert_eq!(message(&answer)["content"][0]["name"], sent);
    }
}

#[test]
fn calls_beyond_the_bound_are_counted() {
    let blocks: Vec<Value> =
        (0..MAX_CALLS + 3).map(|at| start(json!(at), tool(json!(format!("id{at}")), json!("list")))).collect();
    let answer = answer_of(&blocks, "tool_use");
    assert_eq!((answer.calls.len(), answer.dropped_calls), (MAX_CALLS, 3));
    let sent = message(&answer)["content"].as_array().map(Vec::len);
    assert_eq!(sent, Some(MAX_CALLS));
}

/// Whether they come in a stream or at once.
#[test]
fn any_number_of_calls_is_counted() {
    let many = 10_000;
    let expected = (MAX_CALLS, many - MAX_CALLS, StopReason::Finished);
    let counts = |answer: ModelResponse| (answer.calls.len(), answer.dropped_calls, answer.stop);
    let part = json!({"type": "input_json_delta", "partial_json": "{\"all\":true}"});
    let blocks: Vec<Value> = (0..many)
        .flat_map(|at| {
            let call = tool(json!(format!("id{at}")), json!("list"));
            [start(json!(at), call), delta(json!(at), part.clone())]
        })
        .collect();
    assert_eq!(counts(answer_of(&blocks, "tool_use")), expected);
    let blocks = vec![tool(json!("a"), json!("list")); many];
    let body = json!({"content": blocks, "stop_reason": "tool_use"}).to_string();
    assert_eq!(counts(whole(&body).expect("an answer")), expected);
}

#[test]
fn dropped_blocks_do_not_affect_kept_ones() {
    let part = |json: &str| json!({"type": "input_json_delta", "partial_json": json});
    // With numbers that come twice, with their own, and without any.
    for index in [|_| json!(0), |at| json!(at), |_| json!(null)] {
        let mut blocks: Vec<Value> =
            (0..MAX_CALLS).map(|at| start(index(at), tool(json!(format!("id{at}")), json!("list")))).collect();
        blocks.push(delta(index(MAX_CALLS - 1), part("{\"a\":1}")));
        for at in MAX_CALLS..MAX_CALLS + 2 {
            blocks.push(start(index(at), tool(json!("b"), json!("list"))));
            blocks.push(delta(index(at), part("{\"b\":2}")));
        }
        blocks.push(text_delta(index(MAX_CALLS + 2), "So."));
        blocks.push(start(index(MAX_CALLS + 3), tool(json!("c"), json!("list"))));
        blocks.push(delta(index(MAX_CALLS + 3), part("{\"c\"")));
        let answer = answer_of(&blocks, "max_tokens");
        assert_eq!((answer.text.as_str(), answer.dropped_calls), ("So.", 3));
        let object = |value: Value| value.as_object().cloned().map(CallArguments::Object);
        let last = answer.calls.last().map(|call| call.arguments.clone());
        assert_eq!(last, object(json!({"a": 1})));
        let first = answer.calls.first().map(|call| call.arguments.clone());
        assert_eq!(first, object(json!({})));
    }
}

#[test]
fn blocks_of_other_kinds_are_bounded_in_number() {
    let kinds = [
        json!({"type": "text", "text": "x"}),
        json!({"type": "thinking", "thinking": "x", "signature": "s"}),
        json!({"type": "new"}),
    ];
    for kind in kinds {
        let mut blocks = vec![start(json!(0), kind); MAX_BLOCKS + 10];
        blocks.push(start(json!(1), tool(json!("a"), json!("list"))));
        // What belongs to a text that is left out is left out, too.
        blocks.push(start(json!(2), json!({"type": "text", "text": "y"})));
        blocks.push(text_delta(json!(2), "y"));
        let answer = answer_of(&blocks, "end_turn");
        assert_eq!((answer.calls.len(), answer.dropped_calls), (0, 1));
        assert!(!answer.text.contains('y'));
        let sent = serde_json::from_slice::<Value>(&answer.message).unwrap_or_default();
        let count = sent["content"].as_array().map_or(0, Vec::len);
        assert!(count <= MAX_BLOCKS, "{count}");
    }
}

/// The bridge refuses a conversation for good in which one such message stands.
#[test]
fn content_that_the_bridge_refuses_is_not_in_the_message() {
    let place = json!({"a": [{"file_id": "x"}]});
    let cite = |citation: Value| delta(json!(0), json!({"type": "citations_delta", "citation": citation}));
    let blocks = [
        start(
            json!(0),
            json!({"type": "text", "text": "Hello", "URL": "http://x", "kept": deep(12), "deep": deep(13), "more": place}),
        ),
        cite(json!({"type": "web", "url": "http://x"})),
        cite(json!({"type": "page", "deep": deep(11)})),
        cite(json!({"type": "page", "kept": deep(10)})),
        start(json!(1), json!({"type": "new", "kept": deep(12)})),
        start(json!(2), json!({"type": "new", "deep": deep(13)})),
        start(json!(3), json!({"type": "new", "content": [{"type": "x", "Image_Url": "http://x"}]})),
        start(json!(4), json!({"type": "new", "input": {"url": "http://x", "a": deep(60)}})),
        start(json!(5), json!({"type": "new", "input": deep(65)})),
        start(json!(6), json!({"type": "thinking", "thinking": "hm", "signature": "s", "uri": 1})),
        start(json!(7), json!({"type": "redacted_thinking", "data": "x", "container_id": 1})),
        start(
            json!(8),
            json!({"type": "tool_use", "id": "a", "name": "list", "input": {"url": "http://x"}, "file_ids": [], "caller": {"type": "direct"}}),
        ),
    ];
    let message = message(&answer_of(&blocks, "tool_use"));
    let expected = json!({"role": "assistant", "content": [
        {"type": "text", "text": "Hello", "kept": deep(12), "citations": [{"type": "page", "kept": deep(10)}]},
        {"type": "new", "kept": deep(12)},
        {"type": "new", "input": {"url": "http://x", "a": deep(60)}},
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "tool_use", "id": "a", "name": "list", "input": {"url": "http://x"}, "caller": {"type": "direct"}},
    ]});
    assert_eq!(message, expected);
    assert!(bridge_accepts(&message));
}

#[test]
fn content_that_the_api_refuses_is_not_in_the_message() {
    let text = |text: &str| start(json!(0), json!({"type": "text", "text": text}));
    let thinking =
        |signature: &str| start(json!(1), json!({"type": "thinking", "thinking": "hm", "signature": signature}));
    let hidden = start(json!(2), json!({"type": "redacted_thinking", "data": "x"}));
    let untyped = start(json!(2), json!({"text": "no type"}));
    let blank = answer_of(&[text(""), text(" \n"), thinking(""), untyped.clone()], "end_turn");
    assert_eq!(blank.message, Bytes::new());
    let only_thinking = answer_of(&[thinking("s"), hidden.clone()], "max_tokens");
    assert_eq!(only_thinking.message, Bytes::new());
    let mixed = [thinking(""), thinking("s"), text("  "), text("So. \n"), hidden, thinking("t")];
    let expected = json!({"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "So. \n"},
    ]});
    assert_eq!(message(&answer_of(&mixed, "end_turn")), expected);
}

#[test]
fn cache_breakpoints_of_the_provider_are_removed() {
    let mark = json!({"type": "ephemeral"});
    let text = json!({"type": "text", "text": "Hello", "cache_control": mark, "other": 1});
    let new = json!({"type": "new", "cache_control": mark});
    let answer = answer_of(&[start(json!(0), text), start(json!(1), new)], "end_turn");
    let expected = json!([{"type": "text", "text": "Hello", "other": 1}, {"type": "new"}]);
    assert_eq!(message(&answer)["content"], expected);
}

#[test]
fn indexes_may_be_missing_doubled_or_absurd() {
    let text = json!({"type": "text", "text": ""});
    let spoken = [
        vec![text_delta(json!(null), "a"), text_delta(json!(null), "b")],
        vec![start(json!(9), text.clone()), text_delta(json!(9), "ab")],
        vec![start(json!(u64::MAX), text.clone()), text_delta(json!(u64::MAX), "ab")],
        vec![start(json!(-1), text.clone()), text_delta(json!("x"), "ab")],
        vec![
            start(json!(0), text.clone()),
            text_delta(json!(0), "a"),
            start(json!(0), text.clone()),
            text_delta(json!(0), "b"),
        ],
        vec![
            start(json!(1), text.clone()),
            start(json!(0), text),
            text_delta(json!(1), "a"),
            text_delta(json!(0), "b"),
        ],
        vec![start(json!(0), json!({"type": "thinking"})), text_delta(json!(0), "ab")],
    ];
    for blocks in spoken {
        assert_eq!(answer_of(&blocks, "end_turn").text, "ab", "{blocks:?}");
    }
}

#[test]
fn an_end_may_be_missing_when_the_reason_is_there() {
    let first = text_delta(json!(0), "Done.");
    let reason = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}});
    let without_stop = events(&[first.clone(), reason.clone()]);
    let text = |read: Result<ModelResponse, ResponseError>| read.map(|response| (response.text, response.stop));
    let whole = Ok(("Done.".to_owned(), StopReason::Finished));
    assert_eq!(text(stream(&without_stop)), whole);
    assert_eq!(text(stream(without_stop.trim_end())), whole);
    assert_eq!(text(stream(&format!("{without_stop}data: {{\"type\":\"mess"))), whole);
    let without_reason = events(&[first.clone(), json!({"type": "message_stop"})]);
    assert_eq!(text(stream(&without_reason)), whole);
    let done = format!("{}data: [DONE]\n\n", events(std::slice::from_ref(&first)));
    assert_eq!(text(stream(&done)), whole);
    assert_eq!(text(stream(&format!("{done}data: not JSON\n\n"))), whole);
    for truncated in ["", ": only a comment\n\n", "data: {\"type\":\"pi", &events(&[first])] {
        assert_eq!(stream(truncated), Err(ResponseError::Truncated), "{truncated:?}");
    }
}

#[test]
fn invalid_responses_are_refused() {
    let invalid = |read: Result<ModelResponse, ResponseError>| matches!(read, Err(ResponseError::Invalid(_)));
    assert!(invalid(stream("data: hello\n\n")));
    let orphan = delta(json!(0), json!({"type": "input_json_delta", "partial_json": "{"}));
    assert!(invalid(stream(&events(&[orphan]))));
    let many = format!("{{\"content\":[{}0]}}", "0,".repeat(1 << 20));
    assert!(invalid(whole(&many)));
    assert!(invalid(stream(&format!("data: {many}\n\n"))));
    assert!(invalid(whole("{}")));
    assert!(invalid(whole("[]")));
    assert!(invalid(whole("<html>")));
    assert_eq!(whole(""), Err(ResponseError::Truncated));
    assert_eq!(whole("{\"content\":[{\"ty"), Err(ResponseError::Truncated));
    let error = "{\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"Broken\"}}";
    assert!(matches!(whole(error), Err(ResponseError::Provider(_))));
    assert!(matches!(stream(&format!("data: {error}\n\n")), Err(ResponseError::Provider(_))));
    let bare = "data: {\"error\":{\"message\":\"Broken\"}}\n\n";
    assert!(matches!(stream(bare), Err(ResponseError::Provider(_))));
}

#[test]
fn oversized_responses_are_refused() {
    let part = text_delta(json!(0), &"x".repeat(1 << 20));
    let parts = vec![part; (MAX_RESPONSE >> 20) + 1];
    assert_eq!(stream(&events(&parts)), Err(ResponseError::TooLarge(MAX_RESPONSE)));
    let one = text_delta(json!(0), &"x".repeat(MAX_EVENT));
    assert_eq!(stream(&events(&[one])), Err(ResponseError::TooLarge(MAX_EVENT)));
    assert_eq!(whole(&" ".repeat(MAX_EVENT + 1)), Err(ResponseError::TooLarge(MAX_EVENT)));
}

#[test]
fn content_may_be_a_text() {
    let answer = whole(r#"{"content":"Hello","stop_reason":"end_turn"}"#).expect("an answer");
    let expected = json!({"role": "assistant", "content": [{"type": "text", "text": "Hello"}]});
    assert_eq!((answer.text.as_str(), message(&answer)), ("Hello", expected));
}

#[test]
fn the_corpus_holds() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/agent_anthropic");
    let seeds = std::fs::read_dir(corpus).expect("a corpus");
    let mut count = 0;
    for seed in seeds {
        let data = std::fs::read(seed.expect("an entry").path()).expect("a seed");
        crate::model::anthropic::fuzzing::agent_anthropic(&data);
        count += 1;
    }
    assert!(count >= 10, "{count} seeds");
}
