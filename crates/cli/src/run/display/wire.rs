//! Lines of the transcript, as far as they are shown: what the model says, and which calls it makes.
//!
//! The message of an answer is in the format of its provider: calls are `tool_calls` beside the content (OpenAI), or blocks
//! of it (Anthropic). All of it is the agent's word: it is shown, and nothing is decided by it.

use serde_json::Value;
use sympozium_api::digest::digest;
use sympozium_api::names::Digest;
use sympozium_bridge::calls::ARGUMENTS_DOMAIN;

/// Characters of a call's arguments that are shown. The rest is in the transcript.
const MAX_ARGUMENTS: usize = 300;
/// Calls of one answer that are looked at.
const MAX_CALLS: usize = 128;
/// Arguments that say more than others, shown first and without their names.
const TELLING: [&str; 5] = ["command", "path", "url", "query", "name"];

/// What a line says.
#[derive(Debug, PartialEq)]
pub enum Told {
    /// The model said something.
    Answer {
        /// In words.
        text: Option<String>,
        /// The calls that it makes.
        calls: Vec<Call>,
    },
    /// What came of a call.
    Result {
        /// The model's name for the call.
        id: String,
        /// Whether it did not do what was asked.
        failed: bool,
        /// What the model is told.
        text: String,
    },
    /// Something else for people.
    Note(String),
    /// Nothing that is shown.
    Nothing,
}

/// A call that a model makes.
#[derive(Debug, PartialEq)]
pub struct Call {
    /// The model's name for it.
    pub id: String,
    /// The tool.
    pub tool: String,
    /// The hash of its arguments, as receipts have it. None where they are no JSON.
    pub arguments: Option<Digest>,
    /// The arguments for a person to read.
    pub shown: String,
}

/// Reads a line.
pub fn told(line: &Value) -> Told {
    let text = |name: &str| line[name].as_str().map(str::to_owned);
    match line["kind"].as_str() {
        Some("answer") => {
            Told::Answer { text: text("text").filter(|it| !it.trim().is_empty()), calls: calls(&line["message"]) }
        }
        Some("result") => Told::Result {
            id: text("id").unwrap_or_default(),
            failed: line["failed"] == true,
            text: text("text").unwrap_or_default(),
        },
        Some("note") => text("text").map_or(Told::Nothing, Told::Note),
        _ => Told::Nothing,
    }
}

fn calls(message: &Value) -> Vec<Call> {
    let of_openai = message["tool_calls"].as_array().into_iter().flatten();
    let of_openai = of_openai.map(|it| {
        let arguments = it["function"]["arguments"].as_str().unwrap_or_default();
        // Some servers leave the arguments out where there are none.
        let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
        let read = serde_json::from_str(arguments).map_err(|_| arguments);
        call(&it["id"], &it["function"]["name"], read)
    });
    let blocks = message["content"].as_array().into_iter().flatten();
    let of_anthropic = blocks.filter(|it| it["type"] == "tool_use");
    let of_anthropic = of_anthropic.map(|it| call(&it["id"], &it["name"], Ok(it["input"].clone())));
    of_openai.chain(of_anthropic).take(MAX_CALLS).collect()
}

fn call(id: &Value, tool: &Value, arguments: Result<Value, &str>) -> Call {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Call {
        id: text(id),
        tool: text(tool),
        shown: match &arguments {
            Ok(arguments) => shown(arguments),
            Err(unreadable) => shortened(unreadable),
        },
        arguments: arguments.ok().and_then(|it| digest(ARGUMENTS_DOMAIN, &it).ok()),
    }
}

/// Arguments in a line: what says most without its name, then the rest by name.
fn shown(arguments: &Value) -> String {
    let Value::Object(all) = arguments else {
        return shortened(&arguments.to_string());
    };
    let mut pieces: Vec<String> = Vec::new();
    let telling = TELLING.iter().find_map(|name| Some((*name, all.get(*name)?.as_str()?)));
    if let Some((_, value)) = telling {
        pieces.push(value.to_owned());
    }
    // Words that belong behind a command.
    let words = telling.filter(|(name, _)| *name == "command");
    let words = words.and_then(|_| all.get("args")?.as_array());
    for word in words.into_iter().flatten() {
        pieces.push(value_shown(word));
    }
    for (name, value) in all {
        let is_shown = telling.is_some_and(|(it, _)| it == name) || (words.is_some() && name == "args");
        if !is_shown {
            pieces.push(format!("{name}={}", value_shown(value)));
        }
    }
    shortened(&pieces.join(" "))
}

fn value_shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A text of one line that is not too long.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_ARGUMENTS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
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
        let expected = Told::Answer {
            text: Some("I look.".to_owned()),
            calls: vec![Call {
                id: "a".to_owned(),
                tool: "execute_command".to_owned(),
                arguments: digest(ARGUMENTS_DOMAIN, &arguments).ok(),
                shown: "kubectl get pods target=k8s-ops timeout=5".to_owned(),
            }],
        };
        assert_eq!(told(&openai), expected);
        assert_eq!(told(&anthropic), expected);
    }

    #[test]
    fn what_is_not_as_it_should_be_is_shown_as_it_is() {
        let call = json!({"kind": "answer", "message": {"tool_calls": [
            {"id": "a", "function": {"name": "read_file", "arguments": "{\"path\":"}}, 7, {},
        ]}});
        let Told::Answer { text: None, calls } = told(&call) else {
            panic!("no answer");
        };
        let seen: Vec<_> =
            calls.iter().map(|it| (it.tool.as_str(), it.shown.as_str(), it.arguments.is_some())).collect();
        assert_eq!(seen, [("read_file", "{\"path\":", false), ("", "", true), ("", "", true)]);
        for line in [json!(null), json!([1]), json!({"kind": "task"}), json!({"kind": 7})] {
            assert_eq!(told(&line), Told::Nothing);
        }
    }

    #[test]
    fn long_arguments_are_cut() {
        let long = json!({ "content": "ä".repeat(1000), "path": "/workspace/a" });
        let text = shown(&long);
        assert!(text.starts_with("/workspace/a content=ää"), "{text}");
        assert_eq!(text.chars().count(), MAX_ARGUMENTS + 1);
    }
}
