//! Formats lines of a transcript. The agent wrote them, from text of a model and of tools: any JSON may be in them, and
//! all of it is escaped before it reaches a terminal.

use std::fmt::Write as _;

use serde_json::Value;
use sympozium_api::text::{Chars, printable, truncate};

use super::duration;
use super::table::indent_lines;

/// Lines of a result that are printed.
const MAX_RESULT_LINES: usize = 20;
/// Characters of a result that are printed.
const MAX_RESULT: Chars = Chars(2000);
/// Characters of the arguments of a call that are printed.
const MAX_ARGUMENT: Chars = Chars(1000);
/// Calls of one answer that are printed.
const MAX_CALLS: usize = 64;

/// Formats a line; every line of the text but the first is indented.
pub fn format_line(line: &Value) -> String {
    let text = |name: &str| line.get(name).and_then(Value::as_str).unwrap_or_default();
    match text("kind") {
        "task" => {
            let instructions = text("system").chars().count();
            let heading = match instructions {
                0 => "task:\n".to_owned(),
                _ => format!("task (after {instructions} characters of instructions):\n"),
            };
            heading + &indent(text("task"))
        }
        "answer" => format_answer(line),
        "result" => {
            let failed = if line["failed"] == true { " failed" } else { "" };
            let tool = printable(truncate(text("tool"), MAX_ARGUMENT));
            let heading = format!("{tool}{failed}{}:\n", format_took(line));
            heading + &format_result(text("text"))
        }
        "note" => format!("note: {}\n", printable(text("text"))),
        "end" => match line.get("answer").and_then(Value::as_str) {
            Some(answer) => format!("answer:\n{}", indent(answer)),
            None => format!("no answer:\n{}", indent(text("error"))),
        },
        _ => format!("{}\n", printable(truncate(line.to_string(), MAX_RESULT))),
    }
}

/// Formats an answer of the model, in the format of either provider.
fn format_answer(line: &Value) -> String {
    let mut about = Vec::new();
    if let Some(round) = line["round"].as_u64() {
        about.push(format!("round {round}"));
    }
    if let Some(milliseconds) = line["durationMs"].as_u64() {
        about.push(duration::format_duration(milliseconds));
    }
    if let (Some(input), Some(output)) = (line["inputTokens"].as_u64(), line["outputTokens"].as_u64()) {
        about.push(format!("{input} input tokens, {output} output tokens"));
    }
    if let Some(stop) = line["stop"].as_str() {
        about.push(format!("stop reason: {}", printable(truncate(stop, MAX_ARGUMENT))));
    }
    let mut formatted = match about.is_empty() {
        true => "model:\n".to_owned(),
        false => format!("model ({}):\n", about.join(", ")),
    };
    let message = &line["message"];
    let mut content = message_text(&message["content"]);
    if content.is_empty() {
        content = line["text"].as_str().unwrap_or_default().to_owned();
    }
    if !content.trim().is_empty() {
        formatted.push_str(&indent(&content));
    }
    let all = tool_calls(message);
    for (tool, arguments) in all.iter().take(MAX_CALLS) {
        let tool = truncate(tool, MAX_ARGUMENT);
        let arguments = truncate(arguments, MAX_ARGUMENT);
        // Writing to a String cannot fail.
        let _ = writeln!(formatted, "  calls {} {}", printable(tool), printable(arguments));
    }
    if all.len() > MAX_CALLS {
        let _ = writeln!(formatted, "  and {} more calls", all.len() - MAX_CALLS);
    }
    formatted
}

/// The text of a message: a string, or the text parts of a list.
fn message_text(content: &Value) -> String {
    if let Some(text) = content.as_str() {
        return text.to_owned();
    }
    let parts = content.as_array().map(Vec::as_slice).unwrap_or_default();
    let texts = parts.iter().filter_map(|part| part["text"].as_str());
    texts.collect::<Vec<_>>().join("\n")
}

/// The tools that a message calls, with their arguments.
fn tool_calls(message: &Value) -> Vec<(String, String)> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let parts = list(&message["content"]).into_iter().filter_map(|part| {
        let tool = part["name"].as_str()?.to_owned();
        (part["type"] == "tool_use").then(|| (tool, part["input"].to_string()))
    });
    let functions = list(&message["tool_calls"]).into_iter().filter_map(|call| {
        let function = &call["function"];
        let arguments = match &function["arguments"] {
            Value::String(arguments) => arguments.clone(),
            other => other.to_string(),
        };
        Some((function["name"].as_str()?.to_owned(), arguments))
    });
    parts.chain(functions).collect()
}

fn format_took(line: &Value) -> String {
    match line["durationMs"].as_u64() {
        Some(milliseconds) => format!(" ({})", duration::format_duration(milliseconds)),
        None => String::new(),
    }
}

fn indent(text: &str) -> String {
    indent_lines("  ", text)
}

/// The beginning of a result.
fn format_result(text: &str) -> String {
    let all = text.trim_end().split('\n').count();
    let first: Vec<&str> = text.trim_end().split('\n').take(MAX_RESULT_LINES).collect();
    let first = first.join("\n");
    let part = truncate(&first, MAX_RESULT);
    let mut lines = indent_lines("  | ", &part);
    match all.saturating_sub(MAX_RESULT_LINES) {
        0 if part == first => {}
        0 => lines.push_str("  … and more\n"),
        more => {
            let _ = writeln!(lines, "  … and {more} more lines");
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, Strategy, any};
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_of_both_providers_are_formatted() {
        let anthropic = json!({"kind": "answer", "round": 1, "durationMs": 2300, "inputTokens": 120, "outputTokens": 40,
        "message": {"role": "assistant", "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "execute_command", "input": {"command": "ls"}},
        ]}});
        assert_eq!(
            format_line(&anthropic),
            "model (round 1, 2.3s, 120 input tokens, 40 output tokens):\n  I look.\n  calls execute_command {\"command\":\"ls\"}\n"
        );
        let openai = json!({"kind": "answer", "round": 2, "message": {"content": null, "tool_calls": [
            {"id": "c", "function": {"name": "read_file", "arguments": "{\"path\":\"a\"}"}},
        ]}});
        assert_eq!(format_line(&openai), "model (round 2):\n  calls read_file {\"path\":\"a\"}\n");
        let cut = json!({"kind": "answer", "text": "too long", "stop": "length"});
        assert_eq!(format_line(&cut), "model (stop reason: length):\n  too long\n");
    }

    #[test]
    fn long_results_are_truncated() {
        let long: Vec<String> = (0..25).map(|number| number.to_string()).collect();
        let line = json!({"kind": "result", "tool": "t", "failed": true, "durationMs": 12, "text": long.join("\n")});
        let text = format_line(&line);
        assert!(text.starts_with("t failed (12ms):\n  | 0\n  | 1\n"), "{text}");
        assert!(text.ends_with("  | 19\n  … and 5 more lines\n"), "{text}");
        let wide = json!({"kind": "result", "tool": "t", "text": "é".repeat(3000)});
        let expected = format!("t:\n  | {}…\n  … and more\n", "é".repeat(1999));
        assert_eq!(format_line(&wide), expected);
    }

    #[test]
    fn every_text_of_a_line_is_escaped() {
        let hostile = "\u{1b}]0;x\u{7}\r\u{9b}2J\u{202e}";
        for line in [
            json!({"kind": "task", "system": hostile, "task": hostile}),
            json!({"kind": "answer", "text": hostile, "stop": hostile}),
            json!({"kind": "answer", "message": {"content": [{"type": "tool_use", "name": hostile, "input": {hostile: hostile}}]}}),
            json!({"kind": "answer", "message": {"tool_calls": [{"function": {"name": hostile, "arguments": hostile}}]}}),
            json!({"kind": "result", "tool": hostile, "text": hostile}),
            json!({"kind": "note", "text": hostile}),
            json!({"kind": "end", "answer": hostile}),
            json!({"kind": "end", "error": hostile}),
            json!({"kind": hostile}),
            json!(hostile),
            json!([1, {"kind": "note"}]),
            json!(null),
        ] {
            let text = format_line(&line);
            let is_fine = |it: char| it == '\n' || sympozium_api::text::is_visible(it);
            assert!(text.chars().all(is_fine), "{text:?}");
            assert!(text.ends_with('\n') && !text.trim().is_empty(), "{line}");
        }
    }

    /// Arbitrary JSON, with the keys that the parser looks for.
    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = proptest::prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            "[ -~\\n\\r\\t\u{1b}\u{9b}\u{202e}é]{0,40}".prop_map(Value::from),
            proptest::sample::select(vec!["task", "answer", "result", "note", "end", "tool_use"]).prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 6, |inner| {
            let names = vec![
                "kind",
                "system",
                "task",
                "round",
                "message",
                "text",
                "stop",
                "inputTokens",
                "outputTokens",
                "durationMs",
                "tool",
                "failed",
                "answer",
                "error",
                "content",
                "type",
                "name",
                "input",
                "tool_calls",
                "function",
                "arguments",
            ];
            proptest::prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::btree_map(proptest::sample::select(names), inner, 0..8)
                    .prop_map(|all| all.into_iter().map(|(name, it)| (name.to_owned(), it)).collect()),
            ]
        })
    }

    proptest::proptest! {
        #[test]
        fn any_line_becomes_printable_lines(line in any_json()) {
            let text = format_line(&line);
            let is_fine = |it: char| it == '\n' || sympozium_api::text::is_visible(it);
            proptest::prop_assert!(text.chars().all(is_fine), "{:?}", text);
            proptest::prop_assert!(text.ends_with('\n'));
        }
    }
}
