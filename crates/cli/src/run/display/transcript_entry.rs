//! Parses lines of the transcript, as far as the display needs them: the text and the calls of the model.
//!
//! The message of an answer is in the format of its provider: calls are `tool_calls` beside the content (OpenAI), or
//! blocks of it (Anthropic). The agent writes all of it, so it is untrusted: it is printed, and nothing is decided by
//! it.

use serde_json::Value;
use sympozium_api::digest::digest;
use sympozium_api::names::Digest;
use sympozium_api::text::{Chars, truncate};
use sympozium_bridge::calls::ARGUMENTS_DOMAIN;

/// Maximum length of a text on one line, such as the arguments of a call. The transcript has the rest.
pub const MAX_LINE: Chars = Chars(300);
/// Calls of one answer that are examined.
const MAX_CALLS: usize = 128;
/// Arguments that are printed first, and without their names.
const LEADING_ARGUMENTS: [&str; 5] = ["command", "path", "url", "query", "name"];

/// A parsed line.
#[derive(Debug, PartialEq)]
pub enum TranscriptEntry {
    /// An answer of the model.
    Answer { text: Option<String>, calls: Vec<Call> },
    /// The result of a call.
    Result {
        /// The model's ID of the call.
        id: String,
        failed: bool,
        /// The text that the model was given.
        text: String,
    },
    /// A note for the user.
    Note(String),
    /// A line that is not printed.
    Other,
}

/// A call of the model.
#[derive(Debug, PartialEq)]
pub struct Call {
    /// The model's ID of the call.
    pub id: String,
    pub tool: String,
    /// The hash of its arguments, as in receipts. `None` if they are not JSON.
    pub arguments: Option<Digest>,
    /// The arguments as text.
    pub arguments_text: String,
}

pub fn parse_entry(line: &Value) -> TranscriptEntry {
    let text = |name: &str| line[name].as_str().map(str::to_owned);
    match line["kind"].as_str() {
        Some("answer") => TranscriptEntry::Answer {
            text: text("text").filter(|it| !it.trim().is_empty()),
            calls: parse_calls(&line["message"]),
        },
        Some("result") => TranscriptEntry::Result {
            id: text("id").unwrap_or_default(),
            failed: line["failed"] == true,
            text: text("text").unwrap_or_default(),
        },
        Some("note") => text("text").map_or(TranscriptEntry::Other, TranscriptEntry::Note),
        _ => TranscriptEntry::Other,
    }
}

fn parse_calls(message: &Value) -> Vec<Call> {
    let of_openai = message["tool_calls"].as_array().into_iter().flatten();
    let of_openai = of_openai.map(|it| {
        let arguments = it["function"]["arguments"].as_str().unwrap_or_default();
        // Some servers leave empty arguments out.
        let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
        let read = serde_json::from_str(arguments).map_err(|_| arguments);
        parse_call(&it["id"], &it["function"]["name"], read)
    });
    let blocks = message["content"].as_array().into_iter().flatten();
    let of_anthropic = blocks.filter(|it| it["type"] == "tool_use");
    let of_anthropic = of_anthropic.map(|it| parse_call(&it["id"], &it["name"], Ok(it["input"].clone())));
    of_openai.chain(of_anthropic).take(MAX_CALLS).collect()
}

fn parse_call(id: &Value, tool: &Value, arguments: Result<Value, &str>) -> Call {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Call {
        id: text(id),
        tool: text(tool),
        arguments_text: match &arguments {
            Ok(arguments) => format_arguments(arguments),
            Err(unreadable) => truncate(*unreadable, MAX_LINE).into_owned(),
        },
        arguments: arguments.ok().and_then(|it| digest(ARGUMENTS_DOMAIN, &it).ok()),
    }
}

/// Formats arguments on one line: the most telling one without its name, then the others by name.
fn format_arguments(arguments: &Value) -> String {
    let Value::Object(all) = arguments else {
        return truncate(arguments.to_string(), MAX_LINE).into_owned();
    };
    let mut pieces: Vec<String> = Vec::new();
    let telling = LEADING_ARGUMENTS.iter().find_map(|name| Some((*name, all.get(*name)?.as_str()?)));
    if let Some((_, value)) = telling {
        pieces.push(value.to_owned());
    }
    // The words of a command line follow its command.
    let words = telling.filter(|(name, _)| *name == "command");
    let words = words.and_then(|_| all.get("args")?.as_array());
    for word in words.into_iter().flatten() {
        pieces.push(format_value(word));
    }
    for (name, value) in all {
        let is_shown = telling.is_some_and(|(it, _)| it == name) || (words.is_some() && name == "args");
        if !is_shown {
            pieces.push(format!("{name}={}", format_value(value)));
        }
    }
    truncate(pieces.join(" "), MAX_LINE).into_owned()
}

fn format_value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_are_read_from_both_formats() {
        let arguments = json!({"command": "kubectl", "args": ["get", "pods"], "target": "k8s-ops", "timeout": 5});
        let openai = json!({
            "kind": "answer", "text": "I look.",
            "message": {"role": "assistant", "content": "I look.", "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "execute_command", "arguments": arguments.to_string()}},
            ]},
        });
        let anthropic = json!({
            "kind": "answer", "text": "I look.",
            "message": {"role": "assistant", "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "a", "name": "execute_command", "input": arguments},
            ]},
        });
        let expected = TranscriptEntry::Answer {
            text: Some("I look.".to_owned()),
            calls: vec![Call {
                id: "a".to_owned(),
                tool: "execute_command".to_owned(),
                arguments: digest(ARGUMENTS_DOMAIN, &arguments).ok(),
                arguments_text: "kubectl get pods target=k8s-ops timeout=5".to_owned(),
            }],
        };
        assert_eq!(parse_entry(&openai), expected);
        assert_eq!(parse_entry(&anthropic), expected);
    }

    #[test]
    fn what_is_not_as_it_should_be_is_shown_as_it_is() {
        let call = json!({"kind": "answer", "message": {"tool_calls": [
            {"id": "a", "function": {"name": "read_file", "arguments": "{\"path\":"}}, 7, {},
        ]}});
        let TranscriptEntry::Answer { text: None, calls } = parse_entry(&call) else {
            panic!("no answer");
        };
        let seen: Vec<_> =
            calls.iter().map(|it| (it.tool.as_str(), it.arguments_text.as_str(), it.arguments.is_some())).collect();
        assert_eq!(seen, [("read_file", "{\"path\":", false), ("", "", true), ("", "", true)]);
        for line in [json!(null), json!([1]), json!({"kind": "task"}), json!({"kind": 7})] {
            assert_eq!(parse_entry(&line), TranscriptEntry::Other);
        }
    }

    #[test]
    fn long_arguments_are_cut() {
        let long = json!({ "content": "ä".repeat(1000), "path": "/workspace/a" });
        let text = format_arguments(&long);
        assert!(text.starts_with("/workspace/a content=ää"), "{text}");
        assert_eq!(text.chars().count(), MAX_LINE.0);
    }
}
