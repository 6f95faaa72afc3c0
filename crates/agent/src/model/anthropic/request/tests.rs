//! From a view and a conversation to a request.

use serde_json::json;
use sympozium_api::run_plan::AgentView;

use super::super::tests::{body, call, view};
use super::*;
use crate::conversation::Kept;
use crate::model::{Answer, Arguments};

fn head(change: impl FnOnce(&mut AgentView)) -> Head {
    let mut view = view();
    change(&mut view);
    Head::new(&view, "Be brief.")
}

fn kept(id: &str, text: &str, outcome: Outcome) -> Kept {
    let call = call(id, "read_file", Arguments::Object(serde_json::Map::new()));
    Kept::new(&call, outcome, text.len(), result(id, text, outcome))
}

/// A message of the model, as its reader makes it.
fn said(text: &str) -> Bytes {
    let whole = json!({"content": [{"type": "text", "text": text}]});
    let answer: Answer = super::super::tests::whole(&whole.to_string()).expect("an answer");
    answer.message
}

#[test]
fn a_request_has_the_whole_schema_and_four_marks() {
    let mut conversation = Conversation::default();
    conversation.say(user("Look at it."));
    conversation.say(said("I look."));
    conversation.answer(vec![kept("a", "one", Outcome::Done), kept("b", "two", Outcome::Failed)]);
    conversation.say(said("I look again."));
    conversation.answer(vec![kept("c", "", Outcome::Failed), kept("d", "three", Outcome::Done)]);
    conversation.say(user("And now say it."));
    let request = body(head(|_| {}).request(&conversation, Choice::Free));
    insta::assert_json_snapshot!("request", request);
    assert_eq!(request.to_string().matches("cache_control").count(), 4);
}

#[test]
fn without_tools_system_and_conversation_nothing_is_said_about_them() {
    let mut view = view();
    view.tools.clear();
    let head = Head::new(&view, " \n");
    let expected = json!({"model": "a-model", "max_tokens": 8192, "stream": true, "messages": []});
    assert_eq!(body(head.request(&Conversation::default(), Choice::NoTools)), expected);
}

#[test]
fn a_model_that_is_to_answer_still_sees_its_tools() {
    let head = head(|view| view.thinking = Some("low".to_owned()));
    let request = body(head.request(&Conversation::default(), Choice::NoTools));
    assert_eq!(request["tool_choice"], json!({"type": "none"}));
    assert_eq!(request["thinking"], json!({"type": "enabled", "budget_tokens": 1024}));
    assert_eq!(request["tools"].as_array().map(Vec::len), Some(2));
    // The API takes no conversation with calls without the tools.
    let bare = body(head.request(&Conversation::default(), Choice::Bare));
    assert_eq!(bare, request);
    let free = body(head.request(&Conversation::default(), Choice::Free));
    assert_eq!(free.get("tool_choice"), None);
}

#[test]
fn what_the_model_thinks_comes_on_top_of_its_answer() {
    let head = head(|view| {
        view.thinking = Some("medium".to_owned());
        view.model = "claude-opus-4-8".to_owned();
    });
    let request = body(head.request(&Conversation::default(), Choice::Free));
    assert_eq!(request["max_tokens"], json!(8192 + 4096));
    assert_eq!(request["thinking"], json!({"type": "adaptive"}));
    assert_eq!(request["output_config"], json!({"effort": "medium"}));
}

#[test]
fn a_text_that_the_api_refuses_is_replaced() {
    let parsed = |bytes: Bytes| serde_json::from_slice::<Value>(&bytes).expect("it is JSON");
    for blank in ["", " ", "\n\t\u{a0}"] {
        let expected = json!({"role": "user", "content": [{"type": "text", "text": "(empty)"}]});
        assert_eq!(parsed(user(blank)), expected);
        let expected = json!({"type": "tool_result", "tool_use_id": "a", "content": "(no output)", "is_error": true});
        assert_eq!(parsed(result("a", blank, Outcome::Failed)), expected);
    }
    let hostile = "\"}]}\\ \u{0}\u{2028} </s> 🦀";
    assert_eq!(parsed(user(hostile))["content"][0]["text"], hostile);
    assert_eq!(parsed(result("a", hostile, Outcome::Done))["content"], hostile);
}

/// A message that looks like one of the user to whoever does not read to its end, and one that ends like a block.
#[test]
fn marks_go_where_a_block_ends_whatever_it_says() {
    let mut conversation = Conversation::default();
    for text in ["}]}", "{\"role\":\"user\",\"content\":[", "\"}"] {
        conversation.say(user(text));
        conversation.say(said(text));
        conversation.answer(vec![kept("a", text, Outcome::Done)]);
    }
    let request = body(head(|_| {}).request(&conversation, Choice::Free));
    let messages = request["messages"].as_array().expect("messages");
    let marked: Vec<usize> =
        (0..messages.len()).filter(|at| messages[*at].to_string().contains("cache_control")).collect();
    assert_eq!((messages.len(), marked), (7, vec![4, 6]));
}

#[test]
fn entries_that_say_nothing_are_left_out() {
    let mut conversation = Conversation::default();
    conversation.say(Bytes::new());
    conversation.say(user("Hello"));
    conversation.answer(Vec::new());
    conversation.say(Bytes::new());
    let request = body(head(|_| {}).request(&conversation, Choice::Free));
    let mark = json!({"type": "ephemeral"});
    let block = json!({"type": "text", "text": "Hello", "cache_control": mark});
    assert_eq!(request["messages"], json!([{"role": "user", "content": [block]}]));
}

#[test]
fn what_the_user_says_in_a_row_is_one_message() {
    let mut conversation = Conversation::default();
    conversation.answer(vec![kept("a", "one", Outcome::Done), kept("b", "two", Outcome::Done)]);
    conversation.say(user("three"));
    conversation.say(Bytes::new());
    conversation.say(user("four"));
    let request = body(head(|_| {}).request(&conversation, Choice::Free));
    let expected = json!([{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "a", "content": "one"},
        {"type": "tool_result", "tool_use_id": "b", "content": "two"},
        {"type": "text", "text": "three"},
        {"type": "text", "text": "four", "cache_control": {"type": "ephemeral"}},
    ]}]);
    assert_eq!(request["messages"], expected);
}

#[test]
fn what_is_long_is_not_copied() {
    let text = "x".repeat(100 << 10);
    let message = user(&text);
    let mut conversation = Conversation::default();
    conversation.say(message.clone());
    let pieces = head(|_| {}).request(&conversation, Choice::Free);
    let range = message.as_ptr_range();
    assert!(pieces.iter().any(|piece| range.contains(&piece.as_ptr())));
}
