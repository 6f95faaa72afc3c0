//! A view and a conversation become a request; a stream becomes an answer; the answer is in the next request.

use super::*;
use crate::conversation::EncodedResult;

fn request(model: &OpenAi, conversation: &Conversation, choice: ToolChoice) -> Value {
    let body = model.request(conversation, choice).concat();
    serde_json::from_slice(&body).expect("a request is JSON")
}

/// An answer, to look at.
fn describe(answer: &Result<ModelResponse, ResponseError>) -> Value {
    let answer = match answer {
        Ok(answer) => answer,
        Err(broken) => return json!({ "broken": format!("{broken:?}") }),
    };
    let call = |call: &Call| {
        let arguments = match &call.arguments {
            CallArguments::Object(fields) => json!(fields),
            CallArguments::Invalid(why) => json!({ "unreadable": why }),
        };
        json!({ "id": call.id, "name": call.name, "arguments": arguments })
    };
    json!({
        "text": answer.text,
        "calls": answer.calls.iter().map(call).collect::<Vec<_>>(),
        "leftOut": answer.dropped_calls,
        "stop": format!("{:?}", answer.stop),
        "usage": answer.usage.map(|usage| [usage.input, usage.cached, usage.output]),
        "message": message(answer),
    })
}

#[test]
fn a_conversation_becomes_a_request() {
    let model = model();
    let mut conversation = Conversation::default();
    conversation.push_message(model.user_message("What is in \"notes\"?\n"));
    let answer = super::answer(include_str!("../fixtures/openai.sse"));
    conversation.push_message(answer.message.clone());
    let outcomes = [ToolOutcome::Succeeded, ToolOutcome::Failed];
    let results = answer.calls.iter().zip(outcomes);
    let encoded_results = results.map(|(call, outcome)| {
        let text = format!("result of {}", call.name);
        EncodedResult::new(call, outcome, text.len(), model.tool_result(&call.id, &text, outcome))
    });
    conversation.push_results(encoded_results.collect());
    insta::assert_json_snapshot!("request", request(&model, &conversation, ToolChoice::Auto));
    let body = request(&model, &conversation, ToolChoice::NoTools);
    assert_eq!(body["tool_choice"], "none");
    assert_eq!(body["tools"].as_array().map(Vec::len), Some(2));
    let bare = request(&model, &conversation, ToolChoice::OmitTools);
    assert_eq!((bare.get("tools"), bare.get("tool_choice")), (None, None));
    assert_eq!(bare["messages"], body["messages"]);
}

/// Chat templates of some models require alternating roles.
#[test]
fn consecutive_user_messages_are_merged() {
    let model = model();
    let user = |content: &str| json!({"role": "user", "content": content});
    let system = json!({"role": "system", "content": "You help."});
    let spoken = answer(&deltas(&[json!({"content": "Hm"})], "stop"));
    let called = answer(include_str!("../fixtures/ollama.sse"));
    let results = called.calls.iter().map(|call| {
        let encoded = model.tool_result(&call.id, "ok", ToolOutcome::Succeeded);
        EncodedResult::new(call, ToolOutcome::Succeeded, 2, encoded)
    });
    let large = "ö\\\"\n".repeat(8 << 10);
    let mut conversation = Conversation::default();
    conversation.push_message(model.user_message("\"a\"\\"));
    conversation.push_message(Bytes::new());
    conversation.push_message(model.user_message(""));
    conversation.push_message(model.user_message(&large));
    conversation.push_message(spoken.message.clone());
    conversation.push_message(model.user_message("b\n"));
    conversation.push_message(called.message.clone());
    conversation.push_results(results.collect());
    conversation.push_message(model.user_message("c"));
    conversation.push_message(model.user_message("\"}"));
    let mut expected =
        vec![system, user(&format!("\"a\"\\\n\n\n\n{large}")), message(&spoken), user("b\n"), message(&called)];
    for call in &called.calls {
        expected.push(json!({"role": "tool", "tool_call_id": call.id, "content": "ok"}));
    }
    expected.push(user("c\n\n\"}"));
    let body = request(&model, &conversation, ToolChoice::Auto);
    assert_eq!(body["messages"], json!(expected));
}

#[test]
fn absent_parts_are_left_out_of_the_request() {
    let mut view = view();
    view.tools.clear();
    view.thinking = Some("off".to_owned());
    for (system, messages) in [
        ("", json!([{"role": "user", "content": "Hi"}])),
        ("Be kind.", json!([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}])),
    ] {
        let model = OpenAi::new(&view, system);
        let mut conversation = Conversation::default();
        conversation.push_message(model.user_message("Hi"));
        for choice in [ToolChoice::Auto, ToolChoice::NoTools, ToolChoice::OmitTools] {
            let expected = json!({"model": "some-model", "messages": messages, "stream": true});
            assert_eq!(request(&model, &conversation, choice), expected);
        }
    }
}

#[test]
fn thinking_is_requested_as_reasoning_effort() {
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
        let body = request(&model, &Conversation::default(), ToolChoice::Auto);
        assert_eq!(body["reasoning_effort"], expected, "{thinking:?}");
    }
}

#[test]
fn streams_of_vendors_become_responses() {
    for (name, stream) in STREAMS {
        insta::assert_json_snapshot!(*name, describe(&read(BodyFormat::EventStream, stream)));
    }
}

#[test]
fn an_unstreamed_completion_becomes_a_response() {
    let body = include_str!("../fixtures/unstreamed.json");
    insta::assert_json_snapshot!("unstreamed", describe(&read(BodyFormat::Json, body)));
}

/// The message of every answer stands in the next request as it is, with its results, and nothing is encoded twice.
#[test]
fn a_response_is_in_the_next_request() {
    for (name, stream) in STREAMS {
        let Ok(answer) = read(BodyFormat::EventStream, stream) else {
            continue;
        };
        let model = model();
        let mut conversation = Conversation::default();
        conversation.push_message(model.user_message("Go on"));
        conversation.push_message(answer.message.clone());
        let encoded_results = answer.calls.iter().map(|call| {
            let encoded = model.tool_result(&call.id, "ok", ToolOutcome::Succeeded);
            EncodedResult::new(call, ToolOutcome::Succeeded, 2, encoded)
        });
        conversation.push_results(encoded_results.collect());
        let body = request(&model, &conversation, ToolChoice::Auto);
        assert_eq!(body["messages"][2], message(&answer), "{name}");
        let results: Vec<Value> =
            answer.calls.iter().map(|call| json!({"role": "tool", "tool_call_id": call.id, "content": "ok"})).collect();
        let messages = body["messages"].as_array().expect("a list");
        assert_eq!(messages[3..], results, "{name}");
    }
}
