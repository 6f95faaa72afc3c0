//! What people read, what stays in the message, and calls that are written as text.

use super::*;
use crate::model::echo_fields;

/// Text, message content, and calls of a content that arrives in two deltas.
fn of(content: &str) -> (String, Value, Vec<(String, CallArguments)>) {
    let mut middle = content.len() / 2;
    while !content.is_char_boundary(middle) {
        middle += 1;
    }
    let (first, second) = content.split_at(middle);
    let body = deltas(&[json!({"content": first}), json!({"content": second})], "stop");
    let answer = answer(&body);
    let content = message(&answer)["content"].clone();
    let calls = answer.calls.into_iter().map(|call| (call.name, call.arguments));
    (answer.text, content, calls.collect())
}

#[test]
fn thinking_is_not_in_the_text() {
    for (content, expected) in [
        ("Hello", "Hello"),
        ("  Hello\n", "  Hello\n"),
        // A tag within a line is only mentioned.
        ("a</think>b", "a</think>b"),
        ("Close it with `</think>`, then:\nb", "Close it with `</think>`, then:\nb"),
        ("a</think>b\n</think>\nc", "c"),
        ("</think>b", "b"),
        ("a</think>\nb", "b"),
        ("a</think>\r\nb", "b"),
        ("a\n</think>b", "b"),
        ("a</think>", ""),
        ("a</think><think>\nb", "a</think><think>\nb"),
        ("a <think>\n</think>\nb", "a <think>\n</think>\nb"),
        ("a\n</think>\n\nb <think>", "b <think>"),
        ("<think>a</think>b", "b"),
        ("\n<think>\na\n</think>\n\nb\n", "b\n"),
        ("<think></think>", ""),
        ("<think>a", ""),
        ("<think>a</thin", ""),
        ("<thin", "<thin"),
        ("<", "<"),
        ("<b>bold</b>", "<b>bold</b>"),
        ("b<think>a</think>", "b<think>a</think>"),
        ("<think>ä</think>ö<think>", "ö<think>"),
        ("", ""),
    ] {
        let (text, encoded_results, calls) = of(content);
        assert_eq!(text, expected, "{content}");
        assert_eq!(encoded_results, content, "{content}");
        assert_eq!(calls, []);
    }
}

/// What was cut may go on in the next answer, between two words or within one.
#[test]
fn white_space_at_the_ends_of_a_truncated_response_stays() {
    let parts = ["One, ", "two,", "\n three.\n"];
    let texts = parts.map(|text| answer(&deltas(&[json!({"content": text})], "length")).text);
    assert_eq!(texts, parts);
}

#[test]
fn thinking_is_hidden_while_it_streams() {
    let mut reader = model().reader(BodyFormat::EventStream);
    let mut visible = Vec::new();
    for text in ["<thi", "nk>ä", "ö</thi", "nk>", " ", "H", "i", "!"] {
        let event = chunks(&[delta(&json!({"content": text}))]);
        reader.read(event.as_bytes()).expect("it reads");
        visible.push(reader.text().to_owned());
    }
    assert_eq!(visible, ["", "", "", "", "", "H", "Hi", "Hi!"]);
}

#[test]
fn reasoning_alone_is_no_text() {
    let body = deltas(
        &[
            json!({"reasoning_content": "I ", "reasoning": "I "}),
            json!({"reasoning_content": "see.", "reasoning": "see.", "mood": "calm"}),
            json!({"mood": "glad", "odd name": 1, "file_id": "x", "image_url": "http://x"}),
        ],
        "stop",
    );
    let answer = answer(&body);
    assert_eq!(answer.text, "");
    let expected = json!({
        "role": "assistant",
        "content": "",
        "reasoning_content": "I see.",
        "reasoning": "I see.",
        "mood": "glad",
    });
    assert_eq!(message(&answer), expected);
}

/// DeepSeek wants the field back, also where the model did not think.
#[test]
fn empty_reasoning_is_kept_with_a_call() {
    let call = json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "list_packs", "arguments": "{}"}}]});
    let body = deltas(&[json!({"content": null, "reasoning_content": ""}), call], "tool_calls");
    assert_eq!(message(&answer(&body))["reasoning_content"], "");
}

/// A reasoning block in many deltas is charged for its text only.
#[test]
fn reasoning_deltas_are_joined_and_charged_once() {
    let details = |text: &str| json!({"reasoning_details": [{"type": "reasoning.text", "text": text, "index": 0, "format": "f"}]});
    let event = chunks(&[delta(&details("ab"))]);
    let mut reader = model().reader(BodyFormat::EventStream);
    // With the overhead of each delta this would exceed the limit.
    let many = event.repeat(500);
    for _ in 0..100 {
        reader.read(many.as_bytes()).expect("it fits");
    }
    let other = json!({"reasoning_details": [{"type": "reasoning.text", "text": "c", "index": 1, "format": "f"}]});
    let rest = chunks(&[delta(&other), end("stop")]);
    reader.read(rest.as_bytes()).expect("it fits");
    let answer = reader.finish().expect("an answer");
    let block = |text: &str, index: u8| json!({"type": "reasoning.text", "text": text, "index": index, "format": "f"});
    let expected = json!([block(&"ab".repeat(50_000), 0), block("c", 1)]);
    assert_eq!(message(&answer)["reasoning_details"], expected);
}

/// Blocks that are not known to be one are two.
#[test]
fn blocks_of_reasoning_stay_apart() {
    let text = |text: &str| json!({"type": "reasoning.text", "text": text});
    let signed = json!({"type": "reasoning.text", "text": "a", "signature": "s", "index": 0});
    let after = json!({"type": "reasoning.text", "text": "b", "index": 0});
    let secret = json!({"type": "reasoning.encrypted", "data": "c", "index": 0});
    let all = json!([text("a"), text("b"), signed, after, secret, secret, 7]);
    let body = deltas(&[json!({"reasoning_details": all})], "stop");
    assert_eq!(message(&answer(&body))["reasoning_details"], all);
}

#[test]
fn fields_that_are_nested_too_deep_are_not_sent_back() {
    let deep = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    let body = deltas(&[json!({"content": "Hi", "shallow": deep(32), "deep": deep(33)})], "stop");
    let message = message(&answer(&body));
    assert_eq!(message["shallow"], deep(32));
    assert_eq!(message.get("deep"), None);
    assert!(echo_fields::tests::bridge_accepts(&message));
}

#[test]
fn fields_are_bounded_in_number() {
    let many: serde_json::Map<String, Value> = (0..100).map(|index| (format!("f{index:03}"), json!(index))).collect();
    let body = deltas(&[json!(many), json!({"content": "Hi"})], "stop");
    let message = message(&answer(&body));
    assert_eq!(message.as_object().map(serde_json::Map::len), Some(34));
}

#[test]
fn calls_at_the_end_of_a_text_are_calls() {
    let reads = |path: Value| ("read_file".to_owned(), object(json!({"path": path})));
    let lists = || ("list_packs".to_owned(), object(json!({})));
    for (content, text, encoded_results, calls) in [
        (r#"<tool_call>{"name":"read_file","arguments":{"path":"a"}}</tool_call>"#, "", "", vec![reads(json!("a"))]),
        (
            "Now.\n\n<tool_call>\n{\"name\": \"list_packs\"}\n</tool_call>\n <tool_call>{\"name\":\"read_file\",\"parameters\":{\"path\":\"b\"}}</tool_call>\n",
            "Now.",
            "Now.",
            vec![lists(), reads(json!("b"))],
        ),
        (
            "<think>x</think>\nOk <tool_call>{\"name\":\"list_packs\",\"arguments\":\"{}\"}</tool_call>",
            "Ok",
            "<think>x</think>\nOk",
            vec![lists()],
        ),
        (
            "<tool_call><function=read_file><parameter=path>\n{\"a\": 1}\n</parameter></function></tool_call>",
            "",
            "",
            vec![reads(json!("{\"a\": 1}"))],
        ),
        (
            "<tool_call><function=list_packs><parameter=a>true</parameter><parameter=b>[1]</parameter><parameter=c>\"x\"</parameter><parameter=d>two\nlines\n</parameter><parameter=e></parameter></function></tool_call>",
            "",
            "",
            vec![(
                "list_packs".to_owned(),
                object(json!({"a": true, "b": [1], "c": "\"x\"", "d": "two\nlines", "e": ""})),
            )],
        ),
        // White space around calls and thinking.
        (
            " \n<think>x</think> \n Ok.\n <tool_call>{\"name\":\"list_packs\"}</tool_call> \n\n",
            "Ok.",
            " \n<think>x</think> \n Ok.",
            vec![lists()],
        ),
        ("x\n</think>\n\nÖ <tool_call>{\"name\":\"list_packs\"}</tool_call>\n", "Ö", "x\n</think>\n\nÖ", vec![lists()]),
        // Only the last, where the one before is none.
        (
            "<tool_call>?</tool_call>\n<tool_call>{\"name\":\"list_packs\"}</tool_call>",
            "<tool_call>?</tool_call>",
            "<tool_call>?</tool_call>",
            vec![lists()],
        ),
    ] {
        let expected = (text.to_owned(), json!(encoded_results), calls);
        assert_eq!(of(content), expected, "{content}");
    }
    let (_, _, calls) = of(r#"<tool_call>{"name":"read_file","arguments":[1]}</tool_call>"#);
    let why = "the arguments must be one JSON object, and this is a list".to_owned();
    assert_eq!(calls, [("read_file".to_owned(), CallArguments::Invalid(why))]);
}

#[test]
fn texts_that_look_like_calls_stay_texts() {
    for content in [
        r#"<tool_call>{"name":"read_file","arguments":{}}</tool_call> That is how."#,
        r#"<tool_call>{"name":"rm","arguments":{}}</tool_call>"#,
        r#"<tool_call>{"name":"read_file","arguments":{}"#,
        r#"<tool_call>{"arguments":{}}</tool_call>"#,
        r#"<tool_call>[]</tool_call>"#,
        r#"{"name":"read_file","arguments":{}}</tool_call>"#,
        "<tool_call><function=rm></function></tool_call>",
        "<tool_call><function=read_file>path</function></tool_call>",
        "<tool_call><function=read_file><parameter=path>a</function></tool_call>",
        "<tool_call><function=read_file</tool_call>",
        "```\n<tool_call>{\"name\":\"read_file\",\"arguments\":{}}</tool_call>\n```",
    ] {
        let expected = (content.to_owned(), json!(content), vec![]);
        assert_eq!(of(content), expected, "{content}");
    }
    // In thinking, closed or not.
    for content in [
        r#"<think><tool_call>{"name":"list_packs"}</tool_call></think>"#,
        r#"<think><tool_call>{"name":"list_packs"}</tool_call>"#,
    ] {
        assert_eq!(of(content), (String::new(), json!(content), vec![]));
    }
}

#[test]
fn text_calls_are_ignored_beside_real_calls() {
    let text = r#"<tool_call>{"name":"list_packs"}</tool_call>"#;
    let call = json!([{"index": 0, "id": "a", "function": {"name": "read_file", "arguments": "{}"}}]);
    let answer = answer(&deltas(&[json!({"content": text, "tool_calls": call})], "stop"));
    assert_eq!(answer.text, text);
    assert_eq!(answer.calls.len(), 1);
}

#[test]
fn many_calls_in_a_text_are_counted() {
    let text = r#"<tool_call>{"name":"list_packs"}</tool_call>"#.repeat(10_000);
    let answer = answer(&deltas(&[json!({"content": text})], "stop"));
    assert_eq!((answer.calls.len(), answer.dropped_calls), (64, 9_936));
    assert_eq!(answer.text, "");
}

#[test]
fn a_refusal_is_a_stop_reason() {
    let answer = answer(include_str!("../fixtures/openai-refusal.sse"));
    let expected = StopReason::Refused("I will not do that.".to_owned());
    assert_eq!((answer.stop, answer.usage), (expected, None::<Usage>));
}

#[test]
fn a_refusal_always_has_a_bounded_reason() {
    let refused = |why: &str| StopReason::Refused(why.to_owned());
    for (refusal, reason, expected) in [
        (" \n", "stop", refused("without a reason")),
        ("", "refusal", refused("without a reason")),
        ("I\nwill not.", "refusal", refused("I will not.")),
        (&"x".repeat(1000), "stop", refused(&format!("{}…", "x".repeat(499)))),
    ] {
        let body = deltas(&[json!({"content": "", "refusal": refusal})], reason);
        assert_eq!(answer(&body).stop, expected, "{refusal}");
    }
}
