//! Calls, in every form of deltas that servers send.

use super::*;
use crate::model::{MAX_ARGUMENTS, MAX_CALLS, MAX_NAME};

fn call_delta(fields: &[Value]) -> Value {
    json!({ "tool_calls": fields })
}

fn function(name: &str, arguments: impl Into<Value>) -> Value {
    json!({ "name": name, "arguments": arguments.into() })
}

/// Ids, names and arguments of the calls of these deltas.
fn calls(call_deltas: &[Value]) -> Vec<(String, String, CallArguments)> {
    let answer = answer(&deltas(call_deltas, "tool_calls"));
    let tuple = |call: &Call| (call.id.clone(), call.name.clone(), call.arguments.clone());
    answer.calls.iter().map(tuple).collect()
}

fn call(id: &str, name: &str, arguments: Value) -> (String, String, CallArguments) {
    (id.to_owned(), name.to_owned(), object(arguments))
}

#[test]
fn deltas_find_their_call() {
    let a = || call("a", "read_file", json!({"path": "x"}));
    let b = || call("b", "list_packs", json!({}));
    let (begin, middle, last) = ("{\"pa", "th\":\"", "x\"}");
    for (what, call_deltas, expected) in [
        (
            "by index, mixed",
            vec![
                call_delta(&[json!({"index": 0, "id": "a", "function": function("read_file", "")})]),
                call_delta(&[json!({"index": 1, "id": "b", "function": function("list_packs", "")})]),
                call_delta(&[
                    json!({"index": 0, "function": {"arguments": begin}}),
                    json!({"index": 1, "function": {"arguments": "{}"}}),
                ]),
                call_delta(&[json!({"index": 0, "function": {"arguments": middle}})]),
                call_delta(&[json!({"index": 0, "function": {"arguments": last}})]),
            ],
            vec![a(), b()],
        ),
        (
            "id and name in every piece",
            [begin, middle, last]
                .map(|arguments| {
                    call_delta(&[json!({"index": 0, "id": "a", "function": function("read_file", arguments)})])
                })
                .to_vec(),
            vec![a()],
        ),
        (
            "no index: a new id is a new call, none is the last",
            vec![
                call_delta(&[json!({"id": "a", "function": function("read_file", begin)})]),
                call_delta(&[json!({"function": {"arguments": middle}})]),
                call_delta(&[json!({"id": "", "function": {"name": "", "arguments": last}})]),
                call_delta(&[json!({"id": "b", "function": function("list_packs", "{}")})]),
            ],
            vec![a(), b()],
        ),
        (
            "no index: ids tell them apart, whenever they come",
            vec![
                call_delta(&[
                    json!({"id": "a", "function": function("read_file", begin)}),
                    json!({"id": "b", "function": function("list_packs", "{")}),
                ]),
                call_delta(&[json!({"id": "a", "function": {"arguments": "th\":\"x\"}"}})]),
                call_delta(&[json!({"id": "b", "function": {"arguments": "}"}})]),
            ],
            vec![a(), b()],
        ),
        (
            "neither index nor id",
            vec![call_delta(&[
                json!({"function": function("read_file", "{\"path\":\"x\"}")}),
                json!({"function": function("read_file", "{\"path\":\"y\"}")}),
                json!({"function": function("list_packs", "")}),
            ])],
            vec![
                call("call00000", "read_file", json!({"path": "x"})),
                call("call00001", "read_file", json!({"path": "y"})),
                call("call00002", "list_packs", json!({})),
            ],
        ),
        (
            "every index is 0",
            vec![
                call_delta(&[json!({"index": 0, "id": "a", "function": function("read_file", "{\"path\":\"x\"}")})]),
                call_delta(&[json!({"index": 0, "id": "b", "function": function("list_packs", "{}")})]),
            ],
            vec![a(), b()],
        ),
        (
            "every index is 0, without ids",
            vec![
                call_delta(&[json!({"index": 0, "function": function("list_packs", "{}")})]),
                call_delta(&[json!({"index": 0, "function": function("list_packs", "{}")})]),
            ],
            vec![call("call00000", "list_packs", json!({})), call("call00001", "list_packs", json!({}))],
        ),
        (
            "an object instead of a text",
            vec![call_delta(&[
                json!({"index": 0, "id": "a", "function": function("read_file", json!({"path": "x"}))}),
            ])],
            vec![a()],
        ),
        (
            "the whole call again",
            vec![
                call_delta(&[json!({"index": 0, "id": "a", "function": function("read_file", "{\"path\":\"x\"}")})]);
                3
            ],
            vec![a()],
        ),
        (
            "a name in pieces",
            vec![
                call_delta(&[json!({"index": 0, "id": "a", "function": {"name": "read_"}})]),
                call_delta(&[json!({"index": 0, "function": function("file", "{\"path\":\"x\"}")})]),
            ],
            vec![a()],
        ),
        (
            "the id late",
            vec![
                call_delta(&[json!({"index": 0, "function": function("read_file", "{\"path\":")})]),
                call_delta(&[json!({"index": 0, "id": "a", "function": {"arguments": "\"x\"}"}})]),
            ],
            vec![a()],
        ),
        (
            "one id for two",
            vec![call_delta(&[
                json!({"index": 0, "id": "a", "function": function("read_file", "{\"path\":\"x\"}")}),
                json!({"index": 1, "id": "a", "function": function("list_packs", "{}")}),
            ])],
            vec![a(), call("call00000", "list_packs", json!({}))],
        ),
        (
            "nothing in it",
            vec![json!({"tool_calls": [{}, null, 7, {"index": 3}]}), json!({"tool_calls": null})],
            vec![],
        ),
    ] {
        assert_eq!(calls(&call_deltas), expected, "{what}");
    }
}

#[test]
fn other_choices_are_ignored() {
    let other = json!({"choices": [
        {"index": 1, "delta": {"content": "other"}, "finish_reason": "length"},
        {"index": 0, "delta": {"content": "mine"}},
    ]});
    let answer = answer(&chunks(&[other, end("stop")]));
    assert_eq!((answer.text.as_str(), answer.stop), ("mine", StopReason::Finished));
}

#[test]
fn unknown_fields_of_calls_come_back() {
    let sign = |text: &str| json!({"google": {"thought_signature": text}});
    let body = deltas(
        &[
            call_delta(&[
                json!({"id": "a", "function": {"name": "list_packs", "arguments": "{}", "strict": true}, "extra_content": sign("one")}),
            ]),
            // Only what is to be kept, for the last call.
            call_delta(&[json!({"extra_content": {"google": {"more": [1]}}, "nothing": null, "url": "x"})]),
        ],
        "stop",
    );
    let expected = json!({
        "role": "assistant",
        "content": null,
        "tool_calls": [{
            "id": "a",
            "type": "function",
            "function": {"name": "list_packs", "arguments": "{}", "strict": true},
            "extra_content": {"google": {"thought_signature": "one", "more": [1]}},
        }],
    });
    assert_eq!(message(&answer(&body)), expected);
}

#[test]
fn names_and_ids_are_bounded_and_a_name_can_stand_in_a_request() {
    let long = "ö".repeat(MAX_NAME);
    let body = deltas(
        &[call_delta(&[
            json!({"index": 0, "id": long, "function": function(&long, "{}")}),
            json!({"index": 1, "id": "b", "function": function("../etc passwd", "{}")}),
            json!({"index": 2, "id": "c", "function": {"arguments": "{}"}}),
        ])],
        "stop",
    );
    let answer = answer(&body);
    let cut = "ö".repeat(MAX_NAME / 2);
    let expected = [call(&cut, &cut, json!({})), call("b", "../etc passwd", json!({})), call("c", "", json!({}))];
    let tuple = |call: Call| (call.id, call.name, call.arguments);
    let sent: Vec<Value> =
        (0..3).map(|index| message(&answer)["tool_calls"][index]["function"]["name"].clone()).collect();
    let found: Vec<_> = answer.calls.into_iter().map(tuple).collect();
    assert_eq!(found, expected);
    let acceptable = json!(["_".repeat(64), "___etc_passwd", "unnamed"]);
    assert_eq!(json!(sent), acceptable);
}

#[test]
fn excess_calls_are_counted() {
    let by_index =
        |index: usize| json!({"index": index, "id": format!("i{index}"), "function": function("list_packs", "{}")});
    let without = |index: usize| json!({"id": format!("i{index}"), "function": function("list_packs", "{}")});
    let nameless = |_: usize| json!({"function": function("list_packs", "{}")});
    let zero = |index: usize| json!({"index": 0, "id": format!("i{index}"), "function": function("list_packs", "{}")});
    type IdFormat<'f> = &'f dyn Fn(usize) -> Value;
    let forms: [(usize, IdFormat<'_>); 4] = [(10_000, &by_index), (500, &without), (500, &nameless), (500, &zero)];
    for (count, form) in forms {
        let mut call_deltas: Vec<Value> = (0..count).map(|index| call_delta(&[form(index)])).collect();
        // More of one that is left out is not one more.
        let mut more = form(count - 1);
        more["function"] = json!({"arguments": " "});
        call_deltas.push(call_delta(&[more]));
        let answer = answer(&deltas(&call_deltas, "tool_calls"));
        assert_eq!(answer.calls.len(), MAX_CALLS);
        assert_eq!(answer.dropped_calls, count - MAX_CALLS);
        let written = message(&answer)["tool_calls"].as_array().map(Vec::len);
        assert_eq!(written, Some(MAX_CALLS));
    }
}

/// What follows on a call that is left out is left out, whichever index it has.
#[test]
fn deltas_of_a_dropped_call_affect_no_other() {
    let begin = |id: usize| {
        call_delta(&[json!({"index": 0, "id": format!("i{id}"), "function": function("read_file", "{\"path\":")})])
    };
    let rest = call_delta(&[json!({"index": 0, "function": {"arguments": "\"x\"}"}})]);
    let call_deltas: Vec<Value> = (0..MAX_CALLS + 2).flat_map(|id| [begin(id), rest.clone()]).collect();
    let answer = answer(&deltas(&call_deltas, "tool_calls"));
    assert_eq!(answer.dropped_calls, 2);
    let expected: Vec<Call> = (0..MAX_CALLS)
        .map(|id| Call { id: format!("i{id}"), name: "read_file".to_owned(), arguments: object(json!({"path": "x"})) })
        .collect();
    assert_eq!(answer.calls, expected);
}

#[test]
fn arguments_that_are_too_long_are_not_kept() {
    let text = "x".repeat(MAX_ARGUMENTS / 4);
    let mut call_deltas =
        vec![call_delta(&[json!({"index": 0, "id": "a", "function": function("read_file", "{\"path\":\"")})])];
    // All of them would be more than an answer may have.
    call_deltas.extend((0..36).map(|_| call_delta(&[json!({"index": 0, "function": {"arguments": text}})])));
    let answer = answer(&deltas(&call_deltas, "tool_calls"));
    let why = "the arguments have more than 1048576 bytes; make them shorter, or do it in several steps";
    let expected =
        Call { id: "a".to_owned(), name: "read_file".to_owned(), arguments: CallArguments::Invalid(why.to_owned()) };
    assert_eq!(answer.calls, [expected]);
    let written = &message(&answer)["tool_calls"][0]["function"]["arguments"];
    assert_eq!(written, "{}");
}

#[test]
fn truncation_is_reported_for_the_last_call_only() {
    let call_deltas = |last: &str| {
        [call_delta(&[
            json!({"index": 0, "id": "a", "function": function("read_file", "{\"path\"")}),
            json!({"index": 1, "id": "b", "function": function("read_file", last)}),
        ])]
    };
    let cut = "the answer was cut off by its length limit before the arguments were complete; make it shorter";
    let broken =
        "the arguments are not JSON: EOF while parsing an object at line 1 column 7; write them as one JSON object";
    let invalid = |why: &str| CallArguments::Invalid(why.to_owned());
    for (last, reason, expected) in [
        ("{\"path\":\"x", "length", invalid(cut)),
        ("", "length", invalid(cut)),
        ("{\"path\":\"x\"}", "length", object(json!({"path": "x"}))),
        ("", "stop", object(json!({}))),
    ] {
        let answer = answer(&deltas(&call_deltas(last), reason));
        let found: Vec<CallArguments> = answer.calls.into_iter().map(|call| call.arguments).collect();
        assert_eq!(found, [invalid(broken), expected], "{last} {reason}");
    }
}

#[test]
fn generated_ids_are_unique_in_a_conversation() {
    let model = model();
    let body = deltas(&[call_delta(&[json!({"function": function("list_packs", "{}")})])], "stop");
    let ids: Vec<String> = (0..3)
        .map(|_| {
            let mut reader = model.reader(BodyFormat::EventStream);
            reader.read(body.as_bytes()).expect("it reads");
            let answer = reader.finish().expect("an answer");
            answer.calls[0].id.clone()
        })
        .collect();
    assert_eq!(ids, ["call00000", "call00001", "call00002"]);
}

/// Names that a provider took when they were offered, it takes in a call.
#[test]
fn an_offered_name_is_sent_as_it_is() {
    let mut view = view();
    view.tools[0].name = "files.read".to_owned();
    let model = OpenAi::new(&view, "");
    let body = deltas(
        &[call_delta(&[
            json!({"id": "a", "function": function("files.read", "{}")}),
            json!({"id": "b", "function": function("files.write", "{}")}),
        ])],
        "stop",
    );
    let mut reader = model.reader(BodyFormat::EventStream);
    reader.read(body.as_bytes()).expect("it reads");
    let message = message(&reader.finish().expect("an answer"));
    let name = |index: usize| message["tool_calls"][index]["function"]["name"].clone();
    assert_eq!([name(0), name(1)], ["files.read", "files_write"]);
}
