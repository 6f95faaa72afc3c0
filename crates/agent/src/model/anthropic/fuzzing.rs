//! The body of the fuzz target: bytes that a provider sent.

use std::collections::HashSet;

use serde_json::Value;

use super::super::ids::{Form, Ids};
use super::super::whole::Whole;
use super::super::{Answer, Arguments, Broken, MAX_ARGUMENTS, MAX_CALLS, MAX_NAME, Reader};
use super::answer::whole;
use super::stream::Stream;

/// Any bytes, as a stream and at once: what comes of them is bounded, and can be sent back. In pieces they mean the same.
pub fn agent_anthropic(data: &[u8]) {
    let stream = || Box::new(Stream::new(Ids::new(Form::Plain)));
    let streamed = read(stream(), data, data.len());
    let in_pieces = read(stream(), data, 7);
    assert_eq!(streamed, in_pieces, "pieces change an answer");
    let reader = Whole::new(|message| whole(message, &Ids::new(Form::Plain)));
    let at_once = read(Box::new(reader), data, data.len());
    for answer in [streamed, at_once].into_iter().flatten() {
        check(&answer);
    }
}

fn read(mut reader: Box<dyn Reader>, data: &[u8], size: usize) -> Result<Answer, Broken> {
    for piece in data.chunks(size.max(1)) {
        reader.read(piece)?;
    }
    reader.finish()
}

fn check(answer: &Answer) {
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
    let thoughts = content.iter().filter(|block| block["type"] == "thinking");
    for thought in thoughts {
        assert_ne!(thought["signature"], "", "a thought is not signed");
    }
    let last = content.last().map(|block| &block["type"]);
    let ends_with_thought = last.is_some_and(|it| it == "thinking" || it == "redacted_thinking");
    assert!(!ends_with_thought, "the message ends with a thought");
    let sent: Vec<&Value> = content.iter().filter(|block| block["type"] == "tool_use").collect();
    assert_eq!(sent.len(), answer.calls.len(), "calls and message differ");
    for (call, block) in answer.calls.iter().zip(sent) {
        assert_eq!(block["id"], call.id.as_str());
        let expected = match &call.arguments {
            Arguments::Object(object) => Value::Object(object.clone()),
            Arguments::Unreadable(_) => Value::Object(serde_json::Map::new()),
        };
        assert_eq!(block["input"], expected);
        assert!(block["input"].to_string().len() <= MAX_ARGUMENTS);
    }
}
