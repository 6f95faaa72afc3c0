//! Builds requests. The constant part and the conversation are already encoded; a request concatenates them and adds
//! cache breakpoints.

use bytes::Bytes;
use serde_json::{Value, json};
use sympozium_api::run_plan::{AgentView, OfferedTool};

use super::super::chunks::Chunks;
use super::super::{ToolChoice, ToolOutcome};
use super::thinking::Thinking;
use crate::conversation::{Conversation, Entry};

/// Output tokens, apart from thinking.
const MAX_TOKENS: u64 = 8192;

/// Start of a message as [`user_message`] writes it.
const USER_MESSAGE_START: &str = r#"{"role":"user","content":["#;
const USER_MESSAGE_END: &str = "]}";
/// Cache breakpoint, inserted before the `}` of a block.
const CACHE_CONTROL: &str = r#","cache_control":{"type":"ephemeral"}"#;
/// Replaces a blank text, which the API refuses.
const EMPTY_TEXT: &str = "(empty)";
/// Replaces a blank result. A result that is an error must have content, too.
const NO_OUTPUT: &str = "(no output)";

pub fn user_message(text: &str) -> Bytes {
    let block = json!({"type": "text", "text": or_placeholder(text, EMPTY_TEXT)});
    Bytes::from(format!("{USER_MESSAGE_START}{block}{USER_MESSAGE_END}"))
}

pub fn tool_result(id: &str, text: &str, outcome: ToolOutcome) -> Bytes {
    let content = or_placeholder(text, NO_OUTPUT);
    let mut block = json!({"type": "tool_result", "tool_use_id": id, "content": content});
    if outcome == ToolOutcome::Failed {
        block["is_error"] = Value::Bool(true);
    }
    Bytes::from(block.to_string())
}

fn or_placeholder<'t>(text: &'t str, placeholder: &'t str) -> &'t str {
    if text.trim().is_empty() { placeholder } else { text }
}

#[derive(Debug)]
pub struct RequestHead {
    encoded: Bytes,
    /// Without tools, the API accepts no `tool_choice`.
    has_tools: bool,
}

impl RequestHead {
    pub fn new(view: &AgentView, system: &str) -> Self {
        let thinking = Thinking::from_level(view.thinking.as_deref(), &view.model);
        let mut head = format!(
            r#"{{"model":{},"max_tokens":{},"stream":true"#,
            json!(view.model),
            MAX_TOKENS + thinking.budget_tokens(),
        );
        head.push_str(&thinking.request_fields());
        if !view.tools.is_empty() {
            let tools: Vec<String> = view.tools.iter().map(|entry| tool(entry).to_string()).collect();
            head.push_str(&format!(r#","tools":[{}]"#, with_cache_control(&tools.join(","))));
        }
        if !system.trim().is_empty() {
            let text = json!({"type": "text", "text": system}).to_string();
            head.push_str(&format!(r#","system":[{}]"#, with_cache_control(&text)));
        }
        head.push_str(r#","messages":["#);
        Self { encoded: Bytes::from(head), has_tools: !view.tools.is_empty() }
    }

    pub fn request(&self, conversation: &Conversation, choice: ToolChoice) -> Vec<Bytes> {
        let entries = conversation.entries();
        let cache_breakpoints = cache_breakpoints(entries);
        let mut chunks = Chunks::default();
        chunks.push(&self.encoded);
        let mut previous = Previous::Nothing;
        for (position, entry) in entries.iter().enumerate().filter(|(_, entry)| !is_empty(entry)) {
            let is_breakpoint = cache_breakpoints.contains(&Some(position));
            previous = write(entry, previous, is_breakpoint, &mut chunks);
        }
        if previous == Previous::User {
            chunks.push_str(USER_MESSAGE_END);
        }
        chunks.push_str("]");
        // The tools stay in the request, because the conversation has calls of them: the API refuses it otherwise, so
        // `OmitTools` is the same as `NoTools` here. With thinking, `none` is allowed; only choices that force a call
        // are not.
        if choice != ToolChoice::Auto && self.has_tools {
            chunks.push_str(r#","tool_choice":{"type":"none"}"#);
        }
        chunks.push_str("}");
        chunks.finish()
    }
}

/// Passes on every keyword of the schema; the API requires `type`.
fn tool(offered: &OfferedTool) -> Value {
    let mut schema = json!(offered.parameters);
    if schema.get("type").is_none() {
        schema["type"] = json!("object");
    }
    json!({"name": offered.name, "description": offered.description, "input_schema": schema})
}

fn with_cache_control(objects: &str) -> String {
    match objects.strip_suffix('}') {
        Some(open) => format!("{open}{CACHE_CONTROL}}}"),
        None => objects.to_owned(),
    }
}

/// A message of the model of which nothing was left adds nothing to a request.
fn is_empty(entry: &Entry) -> bool {
    match entry {
        Entry::Message(message) => message.is_empty(),
        Entry::Results(results) => results.is_empty(),
    }
}

/// Whether an entry is the user's, so that its last block can carry a breakpoint: thinking cannot.
fn is_from_user(entry: &Entry) -> bool {
    match entry {
        Entry::Message(message) => {
            message.starts_with(USER_MESSAGE_START.as_bytes()) && message.ends_with(USER_MESSAGE_END.as_bytes())
        }
        Entry::Results(results) => !results.is_empty(),
    }
}

/// The entries that get a breakpoint: the end of this request and that of the last one, so that what it wrote to the
/// cache is found. With the tools and the system prompt these are four, the most that are allowed.
fn cache_breakpoints(entries: &[Entry]) -> [Option<usize>; 2] {
    let is_from_model = |entry: &Entry| !is_from_user(entry) && !is_empty(entry);
    let answer = entries.iter().rposition(is_from_model).unwrap_or(0);
    [entries[..answer].iter().rposition(is_from_user), entries.iter().rposition(is_from_user)]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Previous {
    Nothing,
    /// A message of the user that is not closed yet.
    User,
    Model,
}

/// Merges consecutive entries of the user into one message: the API does so itself, and imitations of it refuse two.
fn write(entry: &Entry, previous: Previous, is_breakpoint: bool, chunks: &mut Chunks) -> Previous {
    if !is_from_user(entry) {
        chunks.push_str(match previous {
            Previous::Nothing => "",
            Previous::User => "]},",
            Previous::Model => ",",
        });
        if let Entry::Message(message) = entry {
            chunks.push(message);
        }
        return Previous::Model;
    }
    chunks.push_str(match previous {
        Previous::Nothing | Previous::User => "",
        Previous::Model => ",",
    });
    chunks.push_str(if previous == Previous::User { "," } else { USER_MESSAGE_START });
    match entry {
        Entry::Message(message) => {
            let block = message.slice(USER_MESSAGE_START.len()..message.len() - USER_MESSAGE_END.len());
            write_block(&block, is_breakpoint, chunks);
        }
        Entry::Results(results) => {
            for (position, result) in results.iter().enumerate() {
                if position > 0 {
                    chunks.push_str(",");
                }
                write_block(&result.encoded, is_breakpoint && position + 1 == results.len(), chunks);
            }
        }
    }
    Previous::User
}

fn write_block(block: &Bytes, is_breakpoint: bool, chunks: &mut Chunks) {
    match block.strip_suffix(b"}") {
        Some(open) if is_breakpoint => {
            chunks.push(&block.slice(..open.len()));
            chunks.push_str(CACHE_CONTROL);
            chunks.push_str("}");
        }
        _ => chunks.push(block),
    }
}

#[cfg(test)]
mod tests;
