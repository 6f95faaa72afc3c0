//! What is sent.

use bytes::Bytes;
use serde_json::{Map, Value, json};
use sympozium_api::run_plan::{AgentView, OfferedTool};

use crate::conversation::{Conversation, Entry};
use crate::model::Choice;
use crate::model::pieces::Pieces;

/// How long a model can be asked to think.
const EFFORTS: &[&str] = &["minimal", "low", "medium", "high"];

/// How a message of the user begins, as [`user`] writes it.
const USER: &str = r#"{"role":"user","content":""#;
/// How it ends.
const END: &str = r#""}"#;

/// A message of the user.
pub fn user(text: &str) -> Bytes {
    let quoted = Value::from(text).to_string();
    // The first quote is the one with which `USER` ends.
    let quoted = quoted.strip_prefix('"').unwrap_or_default();
    format!("{USER}{quoted}}}").into()
}

/// What is around the conversation in every request, encoded once.
#[derive(Debug)]
pub struct Frame {
    /// Up to where messages follow.
    head: Bytes,
    /// Whether a message follows another.
    has_system: bool,
    /// What follows on them where the model may call tools.
    free: Bytes,
    /// And where it may not.
    no_tools: Bytes,
    /// And where it is to know of none.
    bare: Bytes,
}

impl Frame {
    /// Of a view.
    pub fn new(view: &AgentView, system: &str) -> Self {
        let has_system = !system.is_empty();
        let model = Value::from(view.model.as_str());
        let mut head = format!("{{\"model\":{model},\"messages\":[");
        if has_system {
            head.push_str(&json!({ "role": "system", "content": system }).to_string());
        }
        Self {
            head: head.into(),
            has_system,
            free: tail(view, Choice::Free),
            no_tools: tail(view, Choice::NoTools),
            bare: tail(view, Choice::Bare),
        }
    }

    /// The whole request.
    pub fn request(&self, conversation: &Conversation, choice: Choice) -> Vec<Bytes> {
        let mut pieces = Pieces::default();
        pieces.push(&self.head);
        let mut before = match self.has_system {
            true => Before::Other,
            false => Before::Nothing,
        };
        for entry in conversation.entries() {
            match entry {
                Entry::Message(message) => before = write(message, before, &mut pieces),
                // Each result is a message of its own.
                Entry::Results(results) => {
                    for result in results {
                        before = write(&result.encoded, before, &mut pieces);
                    }
                }
            }
        }
        if before == Before::User {
            pieces.text(END);
        }
        pieces.push(match choice {
            Choice::Free => &self.free,
            Choice::NoTools => &self.no_tools,
            Choice::Bare => &self.bare,
        });
        pieces.finish()
    }
}

/// What stands before a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// A message of the user, which is not closed yet.
    User,
    /// Any other.
    Other,
}

/// Writes a message. What the user says in a row is one message: templates of some models (Mistral's, Gemma's) take no
/// conversation in which roles do not alternate.
fn write(message: &Bytes, before: Before, pieces: &mut Pieces) -> Before {
    if message.is_empty() {
        return before;
    }
    let is_users = message.starts_with(USER.as_bytes()) && message.ends_with(END.as_bytes());
    match before {
        Before::User if is_users => {
            pieces.text(r"\n\n");
            pieces.push(&message.slice(USER.len()..message.len() - END.len()));
            return Before::User;
        }
        Before::User => {
            pieces.text(END);
            pieces.text(",");
        }
        Before::Other => pieces.text(","),
        Before::Nothing => {}
    }
    if is_users {
        pieces.push(&message.slice(..message.len() - END.len()));
        Before::User
    } else {
        pieces.push(message);
        Before::Other
    }
}

/// What follows on the messages. Where they may not be called, tools stay listed at first: the conversation has calls
/// of them, and what the provider has cached of it begins with them.
///
/// What a stream cost is not asked for here (`stream_options`): the bridge asks where a provider must be asked, because it
/// knows the provider, and Mistral answers 422 to the question.
fn tail(view: &AgentView, choice: Choice) -> Bytes {
    let mut fields = Map::new();
    if !view.tools.is_empty() && choice != Choice::Bare {
        let tools: Vec<Value> = view.tools.iter().map(tool).collect();
        fields.insert("tools".to_owned(), tools.into());
        if choice == Choice::NoTools {
            fields.insert("tool_choice".to_owned(), "none".into());
        }
    }
    if let Some(effort) = view.thinking.as_deref().and_then(effort) {
        fields.insert("reasoning_effort".to_owned(), effort.into());
    }
    fields.insert("stream".to_owned(), true.into());
    let fields = Value::Object(fields).to_string();
    // Without its first brace, it goes on with what the head began.
    let rest = fields.strip_prefix('{').unwrap_or_default();
    format!("],{rest}").into()
}

fn tool(tool: &OfferedTool) -> Value {
    let parameters = if tool.parameters.0.is_empty() {
        // Templates of small models look for both.
        json!({ "type": "object", "properties": {} })
    } else {
        json!(tool.parameters)
    };
    json!({
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": parameters,
        }
    })
}

/// How long to think, in the format's words. Anything else is for other formats, or for none.
fn effort(thinking: &str) -> Option<&'static str> {
    let thinking = thinking.trim();
    EFFORTS.iter().find(|it| it.eq_ignore_ascii_case(thinking)).copied()
}
