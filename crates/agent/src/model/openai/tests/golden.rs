//! A view and a conversation become a request; a stream becomes an answer; the answer is in the next request.

use super::*;
use crate::conversation::Kept;

fn request(model: &OpenAi, conversation: &Conversation, choice: Choice) -> Value {
    let body = model.request(conversation, choice).concat();
    serde_json::from_slice(&body).expect("a request is JSON")
}

/// An answer, to look at.
fn shown(answer: &Result<Answer, Broken>) -> Value {
    let answer = match answer {
        Ok(answer) => answer,
        Err(broken) => return json!({ "broken": format!("{broken:?}") }),
    };
    let call = |call: &Call| {
        let arguments = match &call.arguments {
            Arguments::Object(fields) => json!(fields),
            Arguments::Unreadable(why) => json!({ "unreadable": why }),
        };
        json!({ "id": call.id, "name": call.name, "arguments": arguments })
    };
    json!({
        "text": answer.text,
        "calls": answer.calls.iter().map(call).collect::<Vec<_>>(),
        "leftOut": answer.calls_left_out,
        "stop": format!("{:?}", answer.stop),
        "usage": answer.usage.map(|it| [it.input, it.cached, it.output]),
        "message": message(answer),
    })
}

#[test]
fn a_conversation_becomes_a_request() {
    let model = model();
    let mut conversation = Conversation::default();
    conversation.say(model.user("What is in \"notes\"?\n"));
    let answer = super::answer(include_str!("../fixtures/openai.sse"));
    conversation.say(answer.message.clone());
    let outcomes = [Outcome::Done, Outcome::Failed];
    let results = answer.calls.iter().zip(outcomes);
    let kept = results.map(|(call, outcome)| {
        let text = format!("result of {}", call.name);
        Kept::new(call, outcome, text.len(), model.result(&call.id, &text, outcome))
    });
    conversation.answer(kept.collect());
    insta::assert_json_snapshot!("request", request(&model, &conversation, Choice::Free));
    let asked = request(&model, &conversation, Choice::NoTools);
    assert_eq!(asked["tool_choice"], "none");
    assert_eq!(asked["tools"].as_array().map(Vec::len), Some(2));
    let bare = request(&model, &conversation, Choice::Bare);
    assert_eq!((bare.get("tools"), bare.get("tool_choice")), (None, None));
    assert_eq!(bare["messages"], asked["messages"]);
}

/// Templates of some models take no conversation in which somebody speaks twice in a row.
#[test]
fn what_the_user_says_in_a_row_is_one_message() {
    let model = model();
    let user = |content: &str| json!({"role": "user", "content": content});
    let system = json!({"role": "system", "content": "You help."});
    let spoken = answer(&deltas(&[json!({"content": "Hm"})], "stop"));
    let called = answer(include_str!("../fixtures/ollama.sse"));
    let results = called.calls.iter().map(|call| {
        let encoded = model.result(&call.id, "ok", Outcome::Done);
        Kept::new(call, Outcome::Done, 2, encoded)
    });
    let large = "ö\\\"\n".repeat(8 << 10);
    let mut conversation = Conversation::default();
    conversation.say(model.user("\"a\"\\"));
    conversation.say(Bytes::new());
    conversation.say(model.user(""));
    conversation.say(model.user(&large));
    conversation.say(spoken.message.clone());
    conversation.say(model.user("b\n"));
    conversation.say(called.message.clone());
    conversation.answer(results.collect());
    conversation.say(model.user("c"));
    conversation.say(model.user("\"}"));
    let mut expected =
        vec![system, user(&format!("\"a\"\\\n\n\n\n{large}")), message(&spoken), user("b\n"), message(&called)];
    for call in &called.calls {
        expected.push(json!({"role": "tool", "tool_call_id": call.id, "content": "ok"}));
    }
    expected.push(user("c\n\n\"}"));
    let asked = request(&model, &conversation, Choice::Free);
    assert_eq!(asked["messages"], json!(expected));
}

#[test]
fn what_is_not_there_is_not_said() {
    let mut view = view();
    view.tools.clear();
    view.thinking = Some("off".to_owned());
    for (system, messages) in [
        ("", json!([{"role": "user", "content": "Hi"}])),
        ("Be kind.", json!([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}])),
    ] {
        let model = OpenAi::new(&view, system);
        let mut conversation = Conversation::default();
        conversation.say(model.user("Hi"));
        for choice in [Choice::Free, Choice::NoTools, Choice::Bare] {
            let expected = json!({"model": "some-model", "messages": messages, "stream": true});
            assert_eq!(request(&model, &conversation, choice), expected);
        }
    }
}

#[test]
fn thinking_is_asked_for_in_the_words_of_the_format() {
    for (thinking, expected) in [
        (None, Value::Null),
        (Some(""), Value::Null),
        (Some("none"), Value::Null),
        (Some("off"), Value::Null),
        (Some("lots"), Value::Null),
        (Some("minimal"), json!("minimal")),
        (Some("low"), json!("low")),
        (Some("Medium"), json!("medium")),
        (Some(" high "), json!("high")),
    ] {
        let mut view = view();
        view.thinking = thinking.map(str::to_owned);
        let model = OpenAi::new(&view, "");
        let asked = request(&model, &Conversation::default(), Choice::Free);
        assert_eq!(asked["reasoning_effort"], expected, "{thinking:?}");
    }
}

#[test]
fn streams_of_vendors_become_answers() {
    for (name, stream) in STREAMS {
        insta::assert_json_snapshot!(*name, shown(&read(Shape::Stream, stream)));
    }
}

#[test]
fn a_whole_completion_becomes_an_answer() {
    let body = include_str!("../fixtures/whole.json");
    insta::assert_json_snapshot!("whole", shown(&read(Shape::Whole, body)));
}

/// The message of every answer stands in the next request as it is, with its results, and nothing is encoded twice.
#[test]
fn an_answer_is_in_the_next_request() {
    for (name, stream) in STREAMS {
        let Ok(answer) = read(Shape::Stream, stream) else {
            continue;
        };
        let model = model();
        let mut conversation = Conversation::default();
        conversation.say(model.user("Go on"));
        conversation.say(answer.message.clone());
        let kept = answer.calls.iter().map(|call| {
            let encoded = model.result(&call.id, "ok", Outcome::Done);
            Kept::new(call, Outcome::Done, 2, encoded)
        });
        conversation.answer(kept.collect());
        let asked = request(&model, &conversation, Choice::Free);
        assert_eq!(asked["messages"][2], message(&answer), "{name}");
        let results: Vec<Value> =
            answer.calls.iter().map(|call| json!({"role": "tool", "tool_call_id": call.id, "content": "ok"})).collect();
        let messages = asked["messages"].as_array().expect("a list");
        assert_eq!(messages[3..], results, "{name}");
    }
}
