//! Requests. What is the same in every one is encoded once, the conversation is encoded already: a request only puts them
//! together and marks up to where the provider is to cache.

use bytes::Bytes;
use serde_json::{Value, json};
use sympozium_api::run_plan::{AgentView, OfferedTool};

use super::super::pieces::Pieces;
use super::super::{Choice, Outcome};
use super::thinking::Thinking;
use crate::conversation::{Conversation, Entry};

/// Tokens that the model may write, apart from what it thinks.
const MAX_TOKENS: u64 = 8192;

/// How a message of the user begins, as [`user`] writes it.
const USER: &str = r#"{"role":"user","content":["#;
/// How a message ends.
const END: &str = "]}";
/// Up to here the provider is to cache. It goes in before the `}` of a block.
const MARK: &str = r#","cache_control":{"type":"ephemeral"}"#;
/// Stands for a text without a visible character, which the API refuses.
const BLANK: &str = "(empty)";
/// The same for a result. A result that is an error must have content, too.
const NO_OUTPUT: &str = "(no output)";

/// A message of the user.
pub fn user(text: &str) -> Bytes {
    let block = json!({"type": "text", "text": visible(text, BLANK)});
    Bytes::from(format!("{USER}{block}{END}"))
}

/// The result of a call, as a block.
pub fn result(id: &str, text: &str, outcome: Outcome) -> Bytes {
    let content = visible(text, NO_OUTPUT);
    let mut block = json!({"type": "tool_result", "tool_use_id": id, "content": content});
    if outcome == Outcome::Failed {
        block["is_error"] = Value::Bool(true);
    }
    Bytes::from(block.to_string())
}

fn visible<'t>(text: &'t str, otherwise: &'t str) -> &'t str {
    if text.trim().is_empty() { otherwise } else { text }
}

/// What is the same in every request.
#[derive(Debug)]
pub struct Head {
    /// Up to the first message.
    encoded: Bytes,
    /// Whether a tool is offered. Without any, the API takes no choice among them.
    has_tools: bool,
}

impl Head {
    /// Of a view.
    pub fn new(view: &AgentView, system: &str) -> Self {
        let thinking = Thinking::of(view.thinking.as_deref(), &view.model);
        let mut head = format!(
            r#"{{"model":{},"max_tokens":{},"stream":true"#,
            json!(view.model),
            MAX_TOKENS + thinking.tokens(),
        );
        head.push_str(&thinking.fields());
        if !view.tools.is_empty() {
            let tools: Vec<String> = view.tools.iter().map(|it| tool(it).to_string()).collect();
            head.push_str(&format!(r#","tools":[{}]"#, marked(&tools.join(","))));
        }
        if !system.trim().is_empty() {
            let text = json!({"type": "text", "text": system}).to_string();
            head.push_str(&format!(r#","system":[{}]"#, marked(&text)));
        }
        head.push_str(r#","messages":["#);
        Self { encoded: Bytes::from(head), has_tools: !view.tools.is_empty() }
    }

    /// A request with everything that was said.
    pub fn request(&self, conversation: &Conversation, choice: Choice) -> Vec<Bytes> {
        let entries = conversation.entries();
        let marks = marks(entries);
        let mut pieces = Pieces::default();
        pieces.push(&self.encoded);
        let mut before = Before::Nothing;
        for (position, entry) in entries.iter().enumerate().filter(|(_, it)| !is_empty(it)) {
            let mark = marks.contains(&Some(position));
            before = write(entry, before, mark, &mut pieces);
        }
        if before == Before::User {
            pieces.text(END);
        }
        pieces.text("]");
        // The tools stay in the request: calls of them are in the conversation. With thinking, `none` is allowed as `auto`
        // is; only choices that force a call are not.
        //
        // Without the tools, the API refuses a conversation with calls: `Bare` is no more than `NoTools` here.
        if choice != Choice::Free && self.has_tools {
            pieces.text(r#","tool_choice":{"type":"none"}"#);
        }
        pieces.text("}");
        pieces.finish()
    }
}

/// A tool as the API has it. Every keyword of its schema is passed on; the API insists on the type.
fn tool(offered: &OfferedTool) -> Value {
    let mut schema = json!(offered.parameters);
    if schema.get("type").is_none() {
        schema["type"] = json!("object");
    }
    json!({"name": offered.name, "description": offered.description, "input_schema": schema})
}

/// Marks the last object of a list of them.
fn marked(objects: &str) -> String {
    match objects.strip_suffix('}') {
        Some(open) => format!("{open}{MARK}}}"),
        None => objects.to_owned(),
    }
}

/// What adds nothing to a request: a message of the model in which nothing is left.
fn is_empty(entry: &Entry) -> bool {
    match entry {
        Entry::Message(message) => message.is_empty(),
        Entry::Results(results) => results.is_empty(),
    }
}

/// Whether an entry is the user's, and so has a last block that can be marked: what the model thought cannot.
fn is_users(entry: &Entry) -> bool {
    match entry {
        Entry::Message(message) => message.starts_with(USER.as_bytes()) && message.ends_with(END.as_bytes()),
        Entry::Results(results) => !results.is_empty(),
    }
}

/// Which entries are marked: where this request ends, and where the last one ended, so that what it has written to the cache
/// is found. With the tools and the system text these are four marks: no more are allowed.
fn marks(entries: &[Entry]) -> [Option<usize>; 2] {
    let is_models = |entry: &Entry| !is_users(entry) && !is_empty(entry);
    let answer = entries.iter().rposition(is_models).unwrap_or(0);
    [entries[..answer].iter().rposition(is_users), entries.iter().rposition(is_users)]
}

/// What stands before an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// A message of the user, which is not closed yet.
    User,
    /// A message of the model.
    Model,
}

/// Writes an entry. What the user says in a row is one message: the API would take it for one, and servers that imitate it
/// refuse to see two.
fn write(entry: &Entry, before: Before, mark: bool, pieces: &mut Pieces) -> Before {
    if !is_users(entry) {
        pieces.text(match before {
            Before::Nothing => "",
            Before::User => "]},",
            Before::Model => ",",
        });
        if let Entry::Message(message) = entry {
            pieces.push(message);
        }
        return Before::Model;
    }
    pieces.text(match before {
        Before::Nothing | Before::User => "",
        Before::Model => ",",
    });
    pieces.text(if before == Before::User { "," } else { USER });
    match entry {
        Entry::Message(message) => {
            let block = message.slice(USER.len()..message.len() - END.len());
            write_block(&block, mark, pieces);
        }
        Entry::Results(results) => {
            for (position, kept) in results.iter().enumerate() {
                if position > 0 {
                    pieces.text(",");
                }
                write_block(&kept.encoded, mark && position + 1 == results.len(), pieces);
            }
        }
    }
    Before::User
}

/// Writes a block that is encoded already, with a mark before its end.
fn write_block(block: &Bytes, mark: bool, pieces: &mut Pieces) {
    match block.strip_suffix(b"}") {
        Some(open) if mark => {
            pieces.push(&block.slice(..open.len()));
            pieces.text(MARK);
            pieces.text("}");
        }
        _ => pieces.push(block),
    }
}

#[cfg(test)]
mod tests;
