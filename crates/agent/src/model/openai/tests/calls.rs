//! Calls, in all the pieces in which servers send them.

use super::*;
use crate::model::{MAX_ARGUMENTS, MAX_CALLS, MAX_NAME};

fn piece(fields: &[Value]) -> Value {
    json!({ "tool_calls": fields })
}

fn function(name: &str, arguments: impl Into<Value>) -> Value {
    json!({ "name": name, "arguments": arguments.into() })
}

/// Ids, names and arguments of what comes of these pieces.
fn calls(pieces: &[Value]) -> Vec<(String, String, Arguments)> {
    let answer = answer(&deltas(pieces, "tool_calls"));
    let tuple = |call: &Call| (call.id.clone(), call.name.clone(), call.arguments.clone());
    answer.calls.iter().map(tuple).collect()
}

fn call(id: &str, name: &str, arguments: Value) -> (String, String, Arguments) {
    (id.to_owned(), name.to_owned(), object(arguments))
}

#[test]
fn pieces_find_their_call() {
    let a = || call("a", "read_file", json!({"path": "x"}));
    let b = || call("b", "list_packs", json!({}));
    let (begin, middle, last) = ("{\"pa", "th\":\"", "x\"}");
    for (what, pieces, expected) in [
        (
            "by index, mixed",
            vec![
                piece(&[json!({"index": 0, "id": "a", "function": function("read_file", "")})]),
                piece(&[json!({"index": 1, "id": "b", "function": function("list_packs", "")})]),
                piece(&[
                    json!({"index": 0, "function": {"arguments": begin}}),
                    json!({"index": 1, "function": {"arguments": "{}"}}),
                ]),
                piece(&[json!({"index": 0, "function": {"arguments": middle}})]),
                piece(&[json!({"index": 0, "function": {"arguments": last}})]),
            ],
            vec![a(), b()],
        ),
        (
            "id and name in every piece",
            [begin, middle, last]
                .map(|it| piece(&[json!({"index": 0, "id": "a", "function": function("read_file", it)})]))
                .to_vec(),
            vec![a()],
        ),
        (
            "no index: a new id is a new call, none is the last",
            vec![
                piece(&[json!({"id": "a", "function": function("read_file", begin)})]),
                piece(&[json!({"function": {"arguments": middle}})]),
                piece(&[json!({"id": "", "function": {"name": "", "arguments": last}})]),
                piece(&[json!({"id": "b", "function": function("list_packs", "{}")})]),
            ],
            vec![a(), b()],
        ),
        (
            "no index: ids tell them apart, whenever they come",
            vec![
                piece(&[
                    json!({"id": "a", "function": function("read_file", begin)}),
                    json!({"id": "b", "function": function("list_packs", "{")}),
                ]),
                piece(&[json!({"id": "a", "function": {"arguments": "th\":\"x\"}"}})]),
                piece(&[json!({"id": "b", "function": {"arguments": "}"}})]),
            ],
            vec![a(), b()],
        ),
        (
            "neither index nor id",
            vec![piece(&[
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
                piece(&[json!({"index": 0, "id": "a", "function": function("read_file", "{\"path\":\"x\"}")})]),
                piece(&[json!({"index": 0, "id": "b", "function": function("list_packs", "{}")})]),
            ],
            vec![a(), b()],
        ),
        (
            "every index is 0, without ids",
            vec![
                piece(&[json!({"index": 0, "function": function("list_packs", "{}")})]),
                piece(&[json!({"index": 0, "function": function("list_packs", "{}")})]),
            ],
            vec![call("call00000", "list_packs", json!({})), call("call00001", "list_packs", json!({}))],
        ),
        (
            "an object instead of a text",
            vec![piece(&[json!({"index": 0, "id": "a", "function": function("read_file", json!({"path": "x"}))})])],
            vec![a()],
        ),
        (
            "the whole call again",
            vec![piece(&[json!({"index": 0, "id": "a", "function": function("read_file", "{\"path\":\"x\"}")})]); 3],
            vec![a()],
        ),
        (
            "a name in pieces",
            vec![
                piece(&[json!({"index": 0, "id": "a", "function": {"name": "read_"}})]),
                piece(&[json!({"index": 0, "function": function("file", "{\"path\":\"x\"}")})]),
            ],
            vec![a()],
        ),
        (
            "the id late",
            vec![
                piece(&[json!({"index": 0, "function": function("read_file", "{\"path\":")})]),
                piece(&[json!({"index": 0, "id": "a", "function": {"arguments": "\"x\"}"}})]),
            ],
            vec![a()],
        ),
        (
            "one id for two",
            vec![piece(&[
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
        assert_eq!(calls(&pieces), expected, "{what}");
    }
}

#[test]
fn another_choice_is_not_read() {
    let other = json!({"choices": [
        {"index": 1, "delta": {"content": "other"}, "finish_reason": "length"},
        {"index": 0, "delta": {"content": "mine"}},
    ]});
    let answer = answer(&chunks(&[other, end("stop")]));
    assert_eq!((answer.text.as_str(), answer.stop), ("mine", Stop::Finished));
}

#[test]
fn unknown_fields_of_calls_come_back() {
    let sign = |text: &str| json!({"google": {"thought_signature": text}});
    let body = deltas(
        &[
            piece(&[
                json!({"id": "a", "function": {"name": "list_packs", "arguments": "{}", "strict": true}, "extra_content": sign("one")}),
            ]),
            // Only what is to be kept, for the last call.
            piece(&[json!({"extra_content": {"google": {"more": [1]}}, "nothing": null, "url": "x"})]),
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
        &[piece(&[
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
fn calls_that_are_too_many_are_counted() {
    let by_index =
        |index: usize| json!({"index": index, "id": format!("i{index}"), "function": function("list_packs", "{}")});
    let without = |index: usize| json!({"id": format!("i{index}"), "function": function("list_packs", "{}")});
    let nameless = |_: usize| json!({"function": function("list_packs", "{}")});
    let zero = |index: usize| json!({"index": 0, "id": format!("i{index}"), "function": function("list_packs", "{}")});
    type Form<'f> = &'f dyn Fn(usize) -> Value;
    let forms: [(usize, Form<'_>); 4] = [(10_000, &by_index), (500, &without), (500, &nameless), (500, &zero)];
    for (count, form) in forms {
        let mut pieces: Vec<Value> = (0..count).map(|index| piece(&[form(index)])).collect();
        // More of one that is left out is not one more.
        let mut more = form(count - 1);
        more["function"] = json!({"arguments": " "});
        pieces.push(piece(&[more]));
        let answer = answer(&deltas(&pieces, "tool_calls"));
        assert_eq!(answer.calls.len(), MAX_CALLS);
        assert_eq!(answer.calls_left_out, count - MAX_CALLS);
        let written = message(&answer)["tool_calls"].as_array().map(Vec::len);
        assert_eq!(written, Some(MAX_CALLS));
    }
}

/// What follows on a call that is left out is left out, whichever index it has.
#[test]
fn pieces_of_a_call_that_is_left_out_spoil_no_other() {
    let begin = |id: usize| {
        piece(&[json!({"index": 0, "id": format!("i{id}"), "function": function("read_file", "{\"path\":")})])
    };
    let rest = piece(&[json!({"index": 0, "function": {"arguments": "\"x\"}"}})]);
    let pieces: Vec<Value> = (0..MAX_CALLS + 2).flat_map(|id| [begin(id), rest.clone()]).collect();
    let answer = answer(&deltas(&pieces, "tool_calls"));
    assert_eq!(answer.calls_left_out, 2);
    let expected: Vec<Call> = (0..MAX_CALLS)
        .map(|id| Call { id: format!("i{id}"), name: "read_file".to_owned(), arguments: object(json!({"path": "x"})) })
        .collect();
    assert_eq!(answer.calls, expected);
}

#[test]
fn arguments_that_are_too_long_are_not_kept() {
    let text = "x".repeat(MAX_ARGUMENTS / 4);
    let mut pieces = vec![piece(&[json!({"index": 0, "id": "a", "function": function("read_file", "{\"path\":\"")})])];
    // All of them would be more than an answer may have.
    pieces.extend((0..36).map(|_| piece(&[json!({"index": 0, "function": {"arguments": text}})])));
    let answer = answer(&deltas(&pieces, "tool_calls"));
    let why = "the arguments have more than 1048576 bytes; make them shorter, or do it in several steps";
    let expected =
        Call { id: "a".to_owned(), name: "read_file".to_owned(), arguments: Arguments::Unreadable(why.to_owned()) };
    assert_eq!(answer.calls, [expected]);
    let written = &message(&answer)["tool_calls"][0]["function"]["arguments"];
    assert_eq!(written, "{}");
}

#[test]
fn an_answer_that_is_cut_off_says_so_of_its_last_call_only() {
    let pieces = |last: &str| {
        [piece(&[
            json!({"index": 0, "id": "a", "function": function("read_file", "{\"path\"")}),
            json!({"index": 1, "id": "b", "function": function("read_file", last)}),
        ])]
    };
    let cut = "the answer was cut off by its length limit before the arguments were complete; make it shorter";
    let broken =
        "the arguments are not JSON: EOF while parsing an object at line 1 column 7; write them as one JSON object";
    let unreadable = |why: &str| Arguments::Unreadable(why.to_owned());
    for (last, reason, expected) in [
        ("{\"path\":\"x", "length", unreadable(cut)),
        ("", "length", unreadable(cut)),
        ("{\"path\":\"x\"}", "length", object(json!({"path": "x"}))),
        ("", "stop", object(json!({}))),
    ] {
        let answer = answer(&deltas(&pieces(last), reason));
        let found: Vec<Arguments> = answer.calls.into_iter().map(|it| it.arguments).collect();
        assert_eq!(found, [unreadable(broken), expected], "{last} {reason}");
    }
}

#[test]
fn ids_that_are_made_are_made_once_in_a_conversation() {
    let model = model();
    let body = deltas(&[piece(&[json!({"function": function("list_packs", "{}")})])], "stop");
    let ids: Vec<String> = (0..3)
        .map(|_| {
            let mut reader = model.reader(Shape::Stream);
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
        &[piece(&[
            json!({"id": "a", "function": function("files.read", "{}")}),
            json!({"id": "b", "function": function("files.write", "{}")}),
        ])],
        "stop",
    );
    let mut reader = model.reader(Shape::Stream);
    reader.read(body.as_bytes()).expect("it reads");
    let message = message(&reader.finish().expect("an answer"));
    let name = |index: usize| message["tool_calls"][index]["function"]["name"].clone();
    assert_eq!([name(0), name(1)], ["files.read", "files_write"]);
}
