//! Fuzz target: bytes from a provider.

use std::collections::HashSet;

use serde_json::Value;

use super::super::call_ids::{CallIds, IdFormat};
use super::super::unstreamed::UnstreamedReader;
use super::super::{CallArguments, MAX_ARGUMENTS, MAX_CALLS, MAX_NAME, ModelResponse, ResponseError, ResponseReader};
use super::response_builder::from_message;
use super::stream::EventStreamReader;

/// Any bytes, as a stream and at once: what comes of them is bounded, and can be sent back. In pieces they mean the same.
pub fn agent_anthropic(data: &[u8]) {
    let stream = || Box::new(EventStreamReader::new(CallIds::new(IdFormat::Plain)));
    let streamed = read(stream(), data, data.len());
    let in_chunks = read(stream(), data, 7);
    assert_eq!(streamed, in_chunks, "pieces change an answer");
    let reader = UnstreamedReader::new(|message| from_message(message, &CallIds::new(IdFormat::Plain)));
    let at_once = read(Box::new(reader), data, data.len());
    for answer in [streamed, at_once].into_iter().flatten() {
        check(&answer);
    }
}

fn read(mut reader: Box<dyn ResponseReader>, data: &[u8], size: usize) -> Result<ModelResponse, ResponseError> {
    for chunk in data.chunks(size.max(1)) {
        reader.read(chunk)?;
    }
    reader.finish()
}

fn check(answer: &ModelResponse) {
    assert!(answer.calls.len() <= MAX_CALLS);
    let ids: HashSet<&str> = answer.calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!(ids.len(), answer.calls.len(), "two calls have one id");
    for call in &answer.calls {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        assert!(call.id.bytes().all(is_plain) && !call.id.is_empty(), "{:?}", call.id);
        assert!(call.id.len() <= MAX_NAME && call.name.len() <= MAX_NAME);
    }
    if answer.message.is_empty() {
        assert!(answer.calls.is_empty(), "a call is not in the message");
        return;
    }
    let message: Value = match serde_json::from_slice(&answer.message) {
        Ok(message) => message,
        Err(error) => panic!("the message is not JSON: {error}"),
    };
    let Some(content) = message["content"].as_array() else {
        panic!("the message has no blocks");
    };
    assert!(!content.is_empty(), "the message says nothing");
    let blank = |block: &&Value| {
        let text = block["text"].as_str().unwrap_or_default();
        block["type"] == "text" && text.trim().is_empty()
    };
    assert_eq!(content.iter().find(blank), None, "a text is blank");
    let marked = content.iter().find(|block| block.get("cache_control").is_some());
    assert_eq!(marked, None, "a mark is not ours");
    let thinking_blocks = content.iter().filter(|block| block["type"] == "thinking");
    for thinking in thinking_blocks {
        assert_ne!(thinking["signature"], "", "a thought is not signed");
    }
    let last = content.last().map(|block| &block["type"]);
    let ends_with_thinking = last.is_some_and(|kind| kind == "thinking" || kind == "redacted_thinking");
    assert!(!ends_with_thinking, "the message ends with a thought");
    let sent: Vec<&Value> = content.iter().filter(|block| block["type"] == "tool_use").collect();
    assert_eq!(sent.len(), answer.calls.len(), "calls and message differ");
    for (call, block) in answer.calls.iter().zip(sent) {
        assert_eq!(block["id"], call.id.as_str());
        let expected = match &call.arguments {
            CallArguments::Object(object) => Value::Object(object.clone()),
            CallArguments::Invalid(_) => Value::Object(serde_json::Map::new()),
        };
        assert_eq!(block["input"], expected);
        assert!(block["input"].to_string().len() <= MAX_ARGUMENTS);
    }
}
