use serde_json::{Value, json};

use super::*;

fn player(yaml: &str) -> Player {
    match Player::new(yaml.as_bytes()) {
        Ok(player) => player,
        Err(error) => panic!("{error}"),
    }
}

fn request(messages: Value) -> Vec<u8> {
    let tools = json!([{ "type": "function", "function": { "name": "read_file" } }]);
    json!({ "model": "m-1", "messages": messages, "tools": tools }).to_string().into_bytes()
}

fn user(text: &str) -> Value {
    json!([{ "role": "system", "content": "You help." }, { "role": "user", "content": text }])
}

/// The text of the answer, or the error.
fn answer_text(player: &Player, messages: Value) -> Result<String, String> {
    let played = player.play(&request(messages), false);
    let played = played.map_err(|refusal| {
        assert_eq!(refusal.code, RefusalCode::Request);
        let why = refusal.message.strip_prefix("the script of the model has no answer: ");
        why.expect("it says so").to_owned()
    })?;
    let body: Vec<u8> = played.pieces.iter().flatten().copied().collect();
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    let text = body["choices"][0]["message"]["content"].as_str();
    Ok(text.unwrap_or_default().to_owned())
}

#[test]
fn turns_are_played_in_order_and_only_where_they_fit() {
    let player = player(
        r#"
turns:
  - when: { user: { contains: "count" }, system: { matches: "^You" }, offers: [read_file], doesNotOffer: [rm] }
    call: [{ tool: read_file, arguments: { path: /workspace/a } }]
  - when: { toolResult: { of: call_2_1, contains: "two lines" } }
    say: There are two.
  - when: { request: 5 }
    say: Bye.
"#,
    );
    assert_eq!(
        answer_text(&player, user("hello")),
        Err(r#"request 1 fits no turn: turn 1 expects the last message of the user with "count" in it, and it is "hello""#.to_owned())
    );
    assert_eq!(answer_text(&player, user("count them")), Ok(String::new()));
    let result = |id: &str, text: &str| {
        json!([
            { "role": "user", "content": [{ "type": "text", "text": "count" }] },
            { "role": "assistant", "tool_calls": [] },
            { "role": "tool", "tool_call_id": id, "content": text },
        ])
    };
    assert_eq!(
        answer_text(&player, result("call_2_1", "none")),
        Err(r#"request 3 fits no turn: turn 2 expects a result of the call "call_2_1" with "two lines" in it, and there is: "none""#.to_owned())
    );
    assert_eq!(answer_text(&player, result("call_2_1", "two lines")), Ok("There are two.".to_owned()));
    assert_eq!(answer_text(&player, user("x")), Ok("Bye.".to_owned()));
    assert_eq!(answer_text(&player, user("x")), Err("request 6 comes after the last of its 3 turns".to_owned()));
}

#[test]
fn a_turn_repeats_until_the_next_fits_and_the_end_is_the_end() {
    let repeating = player(
        "turns: [{ say: again, then: repeat }, { when: { user: { matches: 'st[o]p$' } }, say: done, then: end }, { say: never }]",
    );
    for _ in 0..3 {
        assert_eq!(answer_text(&repeating, user("go on")), Ok("again".to_owned()));
    }
    assert_eq!(answer_text(&repeating, user("please stop")), Ok("done".to_owned()));
    assert_eq!(answer_text(&repeating, user("more")), Err("request 5 comes after the last of its 3 turns".to_owned()));
    let both = player(
        "turns: [{ when: { user: { contains: a } }, say: x, then: repeat }, { when: { toolResult: {} }, say: y }]",
    );
    assert_eq!(answer_text(&both, user("a")), Ok("x".to_owned()));
    assert_eq!(
        answer_text(&both, user("b")),
        Err("request 2 fits no turn: turn 2 expects a new result of a tool, and there is none; \
             turn 1, which repeats, expects the last message of the user with \"a\" in it, and it is \"b\""
            .to_owned())
    );
}

#[test]
fn an_answer_is_what_openai_sends() {
    let script = r#"
turns:
  - say: Let me look into that.
    call:
      - { tool: read_file, arguments: { path: "/workspace/a", n: 1 } }
      - { tool: read_file, arguments: '{"bad', id: my-id }
    usage: { input: 10, output: 4 }
    then: repeat
"#;
    let player = player(script);
    let played = player.play(&request(user("x")), false).expect("it fits");
    assert_eq!((played.status.as_u16(), played.content_type), (200, "application/json"));
    assert_eq!(played.pieces.len(), 1);
    let arguments = r#"{"n":1,"path":"/workspace/a"}"#;
    let calls = json!([
        { "id": "call_1_1", "type": "function", "function": { "name": "read_file", "arguments": arguments } },
        { "id": "my-id", "type": "function", "function": { "name": "read_file", "arguments": "{\"bad" } },
    ]);
    let body: Value = serde_json::from_slice(&played.pieces[0]).expect("JSON");
    assert_eq!(
        body,
        json!({
            "id": "scripted-1", "object": "chat.completion", "created": 0, "model": "m-1",
            "choices": [{
                "index": 0, "finish_reason": "tool_calls",
                "message": { "role": "assistant", "content": "Let me look into that.", "tool_calls": calls },
            }],
            "usage": { "prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14 },
        })
    );

    let played = player.play(&request(user("x")), true).expect("it fits");
    assert_eq!((played.status.as_u16(), played.content_type), (200, "text/event-stream"));
    let mut events: Vec<String> =
        played.pieces.iter().map(|piece| String::from_utf8(piece.to_vec()).expect("UTF-8")).collect();
    assert_eq!(events.pop().as_deref(), Some("data: [DONE]\n\n"));
    let events: Vec<Value> = events
        .iter()
        .map(|event| {
            let data = event.strip_prefix("data: ").and_then(|rest| rest.strip_suffix("\n\n"));
            serde_json::from_str(data.expect("one event")).expect("JSON")
        })
        .collect();
    let mut text = String::new();
    let mut arguments_of = [String::new(), String::new()];
    for event in &events {
        let delta = &event["choices"][0]["delta"];
        text.push_str(delta["content"].as_str().unwrap_or_default());
        if let Some(call) = delta["tool_calls"].get(0) {
            let index = call["index"].as_u64().expect("an index");
            let index = usize::try_from(index).expect("small");
            arguments_of[index].push_str(call["function"]["arguments"].as_str().unwrap_or_default());
        }
    }
    assert_eq!(text, "Let me look into that.");
    assert_eq!(arguments_of, [arguments.to_owned(), "{\"bad".to_owned()]);
    let count = events.len();
    assert!(count > 8, "{count} events are not several pieces");
    assert_eq!(events[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    assert_eq!(events[count - 2]["choices"][0]["finish_reason"], json!("tool_calls"));
    assert_eq!(
        events[count - 1],
        json!({
            "id": "scripted-2", "object": "chat.completion.chunk", "created": 0, "model": "m-1", "choices": [],
            "usage": { "prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14 },
        })
    );
}

#[test]
fn an_error_is_what_openai_sends() {
    let player = player("turns: [{ error: { status: 429, message: Slow down, retryAfterSeconds: 2 }, delayMs: 5 }]");
    let played = player.play(&request(user("x")), true).expect("it fits");
    assert_eq!(
        (played.status.as_u16(), played.content_type, played.retry_after_seconds, played.delay),
        (429, "application/json", Some(2), Duration::from_millis(5))
    );
    let body: Value = serde_json::from_slice(&played.pieces[0]).expect("JSON");
    assert_eq!(body["error"]["message"], json!("Slow down"));
}

#[test]
fn what_is_no_script_says_why() {
    let many = format!("turns:\n{}", "  - say: x\n".repeat(script::MAX_TURNS + 1));
    let large = "#".repeat(script::MAX_SCRIPT + 1);
    for (yaml, expected) in [
        ("turns: []", "it has 0 turns"),
        (many.as_str(), "it has 1001 turns"),
        (large.as_str(), "it has more than 1048576 bytes"),
        ("- say: x", "it is not a list of turns"),
        ("turns: [{ say: x, says: y }]", "it is not a list of turns"),
        ("turns: [{ say: x, say: y }]", "it is not a list of turns"),
        ("turns: [{ when: { user: { matches: '(' } }, say: x }]", "it is not a list of turns"),
        ("turns: [{ say: x, then: loop }]", "it is not a list of turns"),
        ("turns: [{ say: x }, {}]", "turn 2 has none of"),
        ("turns: [{ say: x, error: { status: 500, message: m } }]", "turn 1 has an `error`, and"),
        ("turns: [{ error: { status: 200, message: m } }]", "turn 1 has an `error` of status 200"),
        ("turns: [{ say: x, delayMs: 60001 }]", "turn 1 waits more than 60000 ms"),
        ("turns: [{ call: [{ tool: '' }] }]", "turn 1 calls a tool without a name"),
        ("turns: [{ call: [{ tool: a, arguments: [1] }] }]", "turn 1 has `arguments` that"),
    ] {
        let error = Player::new(yaml.as_bytes()).err().expect("it is none").to_string();
        assert!(error.starts_with(expected), "{expected}: {error}");
    }
    assert!(matches!(Player::new(b"\xff"), Err(ScriptError::Encoding)));
    assert!(Player::new(b"turns: [{ say: x, delayMs: 60000 }]").is_ok());
}
