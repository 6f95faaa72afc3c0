//! Streams as they are documented, and back again.

use proptest::prelude::*;

use super::*;
use crate::conversation::{Conversation, EncodedResult};
use crate::model::{ProviderError, Remedy, StopReason, Usage};

/// A stream from `fixtures`, by its name.
macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../fixtures/", $name))
    };
}

const STREAMS: &[(&str, &str)] = &[
    ("text", fixture!("text.sse")),
    ("tool_use", fixture!("tool_use.sse")),
    ("several_tools", fixture!("several_tools.sse")),
    ("thinking", fixture!("thinking.sse")),
    ("redacted_thinking", fixture!("redacted_thinking.sse")),
    ("cut_in_a_call", fixture!("cut_in_a_call.sse")),
    ("refusal", fixture!("refusal.sse")),
    ("unknown_block", fixture!("unknown_block.sse")),
];

/// An answer as a snapshot shows it: its message as JSON.
fn describe(answer: &ModelResponse) -> String {
    let message = serde_json::to_string_pretty(&message(answer)).expect("JSON");
    let rest = ModelResponse { message: Bytes::new(), ..answer.clone() };
    format!("{rest:#?}\n\n{message}")
}

#[test]
fn streams_become_responses() {
    for (name, text) in STREAMS {
        let answer = stream(text).expect(name);
        insta::assert_snapshot!(*name, describe(&answer));
    }
}

#[test]
fn an_unstreamed_message_is_the_same_response() {
    let answer = whole(fixture!("unstreamed.json")).expect("an answer");
    insta::assert_snapshot!("unstreamed", describe(&answer));
}

#[test]
fn a_response_is_in_the_next_request() {
    let model = Anthropic::new(&view(), "Be brief.");
    for (name, text) in STREAMS {
        let answer = stream(text).expect(name);
        let mut conversation = Conversation::default();
        conversation.push_message(model.user_message("Go on."));
        conversation.push_message(answer.message.clone());
        let results = answer.calls.iter().map(|call| {
            let encoded = model.tool_result(&call.id, "found", ToolOutcome::Succeeded);
            EncodedResult::new(call, ToolOutcome::Succeeded, 5, encoded)
        });
        conversation.push_results(results.collect());
        let request = body(model.request(&conversation, ToolChoice::Auto));
        assert_eq!(request["messages"][1], message(&answer), "{name}");
        let requested_ids = answer.calls.iter().map(|call| json!(call.id)).collect::<Vec<_>>();
        let blocks = request["messages"][2]["content"].as_array();
        let result_ids = blocks.into_iter().flatten().map(|block| block["tool_use_id"].clone());
        assert_eq!(result_ids.collect::<Vec<_>>(), requested_ids, "{name}");
    }
}

#[test]
fn pings_change_nothing() {
    let pinged = stream(fixture!("ping_everywhere.sse"));
    assert_eq!(pinged, stream(fixture!("thinking.sse")));
}

#[test]
fn an_error_event_ends_the_response() {
    let problem = ProviderError {
        remedy: Remedy::Retry,
        message: "the model's endpoint aborted its answer: Overloaded".to_owned(),
    };
    let broken = stream(fixture!("error.sse"));
    assert_eq!(broken, Err(ResponseError::Provider(problem)));
}

#[test]
fn the_text_so_far_can_be_watched() {
    let text = fixture!("thinking.sse");
    let mut reader = Anthropic::new(&view(), "").reader(BodyFormat::EventStream);
    let end = text.find("content_block_stop").expect("an end");
    reader.read(&text.as_bytes()[..end]).expect("a start");
    assert_eq!((reader.text(), reader.is_complete()), ("", false));
    reader.read(&text.as_bytes()[end..]).expect("the rest");
    assert_eq!((reader.text(), reader.is_complete()), ("Reading.", true));
}

#[test]
fn stop_reasons_are_mapped() {
    let cases = [
        ("end_turn", StopReason::Finished),
        ("tool_use", StopReason::Finished),
        ("stop_sequence", StopReason::Finished),
        ("max_tokens", StopReason::Length),
        ("model_context_window_exceeded", StopReason::Length),
        ("refusal", StopReason::Refused("No.".to_owned())),
        ("pause_turn", StopReason::Other("pause_turn".to_owned())),
        ("a\nnew\u{7}one", StopReason::Other("a new one".to_owned())),
    ];
    for (reason, expected) in cases {
        let model_message = json!({"type": "content_block_start", "content_block": {"type": "text", "text": "No."}});
        assert_eq!(answer_of(&[model_message], reason).stop, expected);
    }
}

#[test]
fn a_refusal_always_has_a_reason() {
    let refused = |why: &str| StopReason::Refused(why.to_owned());
    assert_eq!(answer_of(&[], "refusal").stop, refused("without a reason"));
    let details = json!({"stop_details": {"explanation": "Not that."}});
    let explained = json!({"type": "message_delta", "delta": details});
    assert_eq!(answer_of(&[explained], "refusal").stop, refused("Not that."));
}

#[test]
fn costs_only_grow() {
    let usage = |usage: Value| json!({"type": "message_delta", "delta": {}, "usage": usage});
    let start = json!({"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 1}}});
    let late = usage(json!({"input_tokens": 0, "cache_read_input_tokens": 9, "output_tokens": 5}));
    let odd = usage(json!({"input_tokens": "many", "cache_creation_input_tokens": null, "output_tokens": -1}));
    let expected = Usage { input: 12, cached: 9, output: 5 };
    assert_eq!(answer_of(&[start, late, odd], "end_turn").usage, Some(expected));
    assert_eq!(answer_of(&[], "end_turn").usage, None);
    let most = usage(json!({"input_tokens": u64::MAX, "cache_read_input_tokens": u64::MAX}));
    let sum = answer_of(&[most], "end_turn").usage.map(|usage| usage.input);
    assert_eq!(sum, Some(u64::MAX));
}

#[test]
fn texts_around_other_blocks_are_separate_paragraphs() {
    let block = |block: Value| json!({"type": "content_block_start", "content_block": block});
    let model_message = |text: &str| block(json!({"type": "text", "text": text}));
    let call = block(json!({"type": "tool_use", "id": "a", "name": "list", "input": {}}));
    let answer =
        answer_of(&[model_message("It "), model_message("rains."), call, model_message("It stops.")], "tool_use");
    assert_eq!(answer.text, "It rains.\n\nIt stops.");
}

proptest! {
    /// The response does not depend on how the stream is split.
    #[test]
    fn splits_do_not_matter(which in 0..STREAMS.len(), size in 1_usize..200, ends in "\n|\r\n|\r") {
        let (_, text) = STREAMS[which];
        let text = text.replace('\n', &ends);
        prop_assert_eq!(read(BodyFormat::EventStream, &text, size), stream(STREAMS[which].1));
    }

    /// However the text and the arguments are cut into deltas, they come together again.
    #[test]
    fn deltas_are_joined(text in "[a\u{fc}\u{1f980}\" \\\\]{0,12}", value in "[b\u{fc}\"\\\\ ]{0,12}", size in 1_usize..5) {
        let arguments = json!({"value": value});
        let parts = |text: &str| -> Vec<String> {
            let characters: Vec<char> = text.chars().collect();
            characters.chunks(size).map(|chunk| chunk.iter().collect()).collect()
        };
        let mut blocks = vec![json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})];
        for part in parts(&text) {
            let delta = json!({"type": "text_delta", "text": part});
            blocks.push(json!({"type": "content_block_delta", "index": 0, "delta": delta}));
        }
        let start = json!({"type": "tool_use", "id": "a", "name": "list", "input": {}});
        blocks.push(json!({"type": "content_block_start", "index": 1, "content_block": start}));
        for part in parts(&arguments.to_string()) {
            let delta = json!({"type": "input_json_delta", "partial_json": part});
            blocks.push(json!({"type": "content_block_delta", "index": 1, "delta": delta}));
        }
        let answer = answer_of(&blocks, "tool_use");
        prop_assert_eq!(&answer.text, &text);
        let sent = message(&answer);
        let last = sent["content"].as_array().and_then(|blocks| blocks.last()).expect("a block");
        prop_assert_eq!(&last["input"], &arguments);
        let object = arguments.as_object().expect("an object").clone();
        prop_assert_eq!(answer.calls, vec![call("a", "list", CallArguments::Object(object))]);
    }
}
