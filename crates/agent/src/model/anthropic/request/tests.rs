//! From a view and a conversation to a request.

use serde_json::json;
use sympozium_api::run_plan::AgentView;

use super::super::tests::{body, call, view};
use super::*;
use crate::conversation::EncodedResult;
use crate::model::{CallArguments, ModelResponse};

fn head(change: impl FnOnce(&mut AgentView)) -> RequestHead {
    let mut view = view();
    change(&mut view);
    RequestHead::new(&view, "Be brief.")
}

fn encoded_result(id: &str, text: &str, outcome: ToolOutcome) -> EncodedResult {
    let call = call(id, "read_file", CallArguments::Object(serde_json::Map::new()));
    EncodedResult::new(&call, outcome, text.len(), tool_result(id, text, outcome))
}

/// A message of the model, as its reader makes it.
fn model_message(text: &str) -> Bytes {
    let whole = json!({"content": [{"type": "text", "text": text}]});
    let answer: ModelResponse = super::super::tests::whole(&whole.to_string()).expect("an answer");
    answer.message
}

#[test]
fn a_request_has_the_full_schema_and_four_cache_breakpoints() {
    let mut conversation = Conversation::default();
    conversation.push_message(user_message("Look at it."));
    conversation.push_message(model_message("I look."));
    conversation.push_results(vec![
        encoded_result("a", "one", ToolOutcome::Succeeded),
        encoded_result("b", "two", ToolOutcome::Failed),
    ]);
    conversation.push_message(model_message("I look again."));
    conversation.push_results(vec![
        encoded_result("c", "", ToolOutcome::Failed),
        encoded_result("d", "three", ToolOutcome::Succeeded),
    ]);
    conversation.push_message(user_message("And now say it."));
    let request = body(head(|_| {}).request(&conversation, ToolChoice::Auto));
    insta::assert_json_snapshot!("request", request);
    assert_eq!(request.to_string().matches("cache_control").count(), 4);
}

#[test]
fn absent_parts_are_left_out_of_the_request() {
    let mut view = view();
    view.tools.clear();
    let head = RequestHead::new(&view, " \n");
    let expected = json!({"model": "a-model", "max_tokens": 8192, "stream": true, "messages": []});
    assert_eq!(body(head.request(&Conversation::default(), ToolChoice::NoTools)), expected);
}

#[test]
fn tools_stay_in_a_request_that_forbids_calls() {
    let head = head(|view| view.thinking = Some("low".to_owned()));
    let request = body(head.request(&Conversation::default(), ToolChoice::NoTools));
    assert_eq!(request["tool_choice"], json!({"type": "none"}));
    assert_eq!(request["thinking"], json!({"type": "enabled", "budget_tokens": 1024}));
    assert_eq!(request["tools"].as_array().map(Vec::len), Some(2));
    // The API takes no conversation with calls without the tools.
    let bare = body(head.request(&Conversation::default(), ToolChoice::OmitTools));
    assert_eq!(bare, request);
    let free = body(head.request(&Conversation::default(), ToolChoice::Auto));
    assert_eq!(free.get("tool_choice"), None);
}

#[test]
fn the_thinking_budget_is_added_to_max_tokens() {
    let head = head(|view| {
        view.thinking = Some("medium".to_owned());
        view.model = "claude-opus-4-8".to_owned();
    });
    let request = body(head.request(&Conversation::default(), ToolChoice::Auto));
    assert_eq!(request["max_tokens"], json!(8192 + 4096));
    assert_eq!(request["thinking"], json!({"type": "adaptive"}));
    assert_eq!(request["output_config"], json!({"effort": "medium"}));
}

#[test]
fn a_text_that_the_api_refuses_is_replaced() {
    let parsed = |bytes: Bytes| serde_json::from_slice::<Value>(&bytes).expect("it is JSON");
    for blank in ["", " ", "\n\t\u{a0}"] {
        let expected = json!({"role": "user", "content": [{"type": "text", "text": "(empty)"}]});
        assert_eq!(parsed(user_message(blank)), expected);
        let expected = json!({"type": "tool_result", "tool_use_id": "a", "content": "(no output)", "is_error": true});
        assert_eq!(parsed(tool_result("a", blank, ToolOutcome::Failed)), expected);
    }
    let hostile = "\"}]}\\ \u{0}\u{2028} </s> 🦀";
    assert_eq!(parsed(user_message(hostile))["content"][0]["text"], hostile);
    assert_eq!(parsed(tool_result("a", hostile, ToolOutcome::Succeeded))["content"], hostile);
}

/// One message starts like a user message, and one ends like a block.
#[test]
fn breakpoints_are_placed_at_block_ends_whatever_the_text() {
    let mut conversation = Conversation::default();
    for text in ["}]}", "{\"role\":\"user\",\"content\":[", "\"}"] {
        conversation.push_message(user_message(text));
        conversation.push_message(model_message(text));
        conversation.push_results(vec![encoded_result("a", text, ToolOutcome::Succeeded)]);
    }
    let request = body(head(|_| {}).request(&conversation, ToolChoice::Auto));
    let messages = request["messages"].as_array().expect("messages");
    let marked: Vec<usize> =
        (0..messages.len()).filter(|at| messages[*at].to_string().contains("cache_control")).collect();
    assert_eq!((messages.len(), marked), (7, vec![4, 6]));
}

#[test]
fn empty_entries_are_left_out() {
    let mut conversation = Conversation::default();
    conversation.push_message(Bytes::new());
    conversation.push_message(user_message("Hello"));
    conversation.push_results(Vec::new());
    conversation.push_message(Bytes::new());
    let request = body(head(|_| {}).request(&conversation, ToolChoice::Auto));
    let is_breakpoint = json!({"type": "ephemeral"});
    let block = json!({"type": "text", "text": "Hello", "cache_control": is_breakpoint});
    assert_eq!(request["messages"], json!([{"role": "user", "content": [block]}]));
}

#[test]
fn consecutive_user_messages_are_merged() {
    let mut conversation = Conversation::default();
    conversation.push_results(vec![
        encoded_result("a", "one", ToolOutcome::Succeeded),
        encoded_result("b", "two", ToolOutcome::Succeeded),
    ]);
    conversation.push_message(user_message("three"));
    conversation.push_message(Bytes::new());
    conversation.push_message(user_message("four"));
    let request = body(head(|_| {}).request(&conversation, ToolChoice::Auto));
    let expected = json!([{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "a", "content": "one"},
        {"type": "tool_result", "tool_use_id": "b", "content": "two"},
        {"type": "text", "text": "three"},
        {"type": "text", "text": "four", "cache_control": {"type": "ephemeral"}},
    ]}]);
    assert_eq!(request["messages"], expected);
}

#[test]
fn large_messages_are_not_copied() {
    let text = "x".repeat(100 << 10);
    let message = user_message(&text);
    let mut conversation = Conversation::default();
    conversation.push_message(message.clone());
    let chunks = head(|_| {}).request(&conversation, ToolChoice::Auto);
    let range = message.as_ptr_range();
    assert!(chunks.iter().any(|chunk| range.contains(&chunk.as_ptr())));
}
