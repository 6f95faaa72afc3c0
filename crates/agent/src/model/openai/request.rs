//! Builds requests.

use bytes::Bytes;
use serde_json::{Map, Value, json};
use sympozium_api::run_plan::{AgentView, OfferedTool};

use crate::conversation::{Conversation, Entry};
use crate::model::ToolChoice;
use crate::model::chunks::Chunks;

const EFFORTS: &[&str] = &["minimal", "low", "medium", "high"];

/// Start of a message as [`user_message`] writes it.
const USER_MESSAGE_START: &str = r#"{"role":"user","content":""#;
const USER_MESSAGE_END: &str = r#""}"#;

pub fn user_message(text: &str) -> Bytes {
    let quoted = Value::from(text).to_string();
    // `USER_MESSAGE_START` ends with the first quote.
    let quoted = quoted.strip_prefix('"').unwrap_or_default();
    format!("{USER_MESSAGE_START}{quoted}}}").into()
}

/// What surrounds the conversation in every request, encoded once.
#[derive(Debug)]
pub struct RequestTemplate {
    /// Up to the messages.
    head: Bytes,
    /// Whether the head ends with the system message.
    has_system: bool,
    /// The ends of requests by [`ToolChoice`].
    auto: Bytes,
    no_tools: Bytes,
    omit_tools: Bytes,
}

impl RequestTemplate {
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
            auto: tail(view, ToolChoice::Auto),
            no_tools: tail(view, ToolChoice::NoTools),
            omit_tools: tail(view, ToolChoice::OmitTools),
        }
    }

    pub fn request(&self, conversation: &Conversation, choice: ToolChoice) -> Vec<Bytes> {
        let mut chunks = Chunks::default();
        chunks.push(&self.head);
        let mut previous = if self.has_system { Previous::Other } else { Previous::Nothing };
        for entry in conversation.entries() {
            match entry {
                Entry::Message(message) => previous = write(message, previous, &mut chunks),
                // Each result is a separate message.
                Entry::Results(results) => {
                    for result in results {
                        previous = write(&result.encoded, previous, &mut chunks);
                    }
                }
            }
        }
        if previous == Previous::User {
            chunks.push_str(USER_MESSAGE_END);
        }
        chunks.push(match choice {
            ToolChoice::Auto => &self.auto,
            ToolChoice::NoTools => &self.no_tools,
            ToolChoice::OmitTools => &self.omit_tools,
        });
        chunks.finish()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Previous {
    Nothing,
    /// A message of the user that is not closed yet.
    User,
    Other,
}

/// Merges consecutive messages of the user: chat templates of some models (Mistral's, Gemma's) require alternating
/// roles.
fn write(message: &Bytes, previous: Previous, chunks: &mut Chunks) -> Previous {
    if message.is_empty() {
        return previous;
    }
    let is_from_user =
        message.starts_with(USER_MESSAGE_START.as_bytes()) && message.ends_with(USER_MESSAGE_END.as_bytes());
    match previous {
        Previous::User if is_from_user => {
            chunks.push_str(r"\n\n");
            chunks.push(&message.slice(USER_MESSAGE_START.len()..message.len() - USER_MESSAGE_END.len()));
            return Previous::User;
        }
        Previous::User => {
            chunks.push_str(USER_MESSAGE_END);
            chunks.push_str(",");
        }
        Previous::Other => chunks.push_str(","),
        Previous::Nothing => {}
    }
    if is_from_user {
        chunks.push(&message.slice(..message.len() - USER_MESSAGE_END.len()));
        Previous::User
    } else {
        chunks.push(message);
        Previous::Other
    }
}

/// What follows the messages. With [`ToolChoice::NoTools`] the tools stay listed: the conversation has calls of them,
/// and they are in the prefix that the provider has cached.
///
/// `stream_options` for usage is the bridge's to add: it knows the provider, and Mistral answers 422 to it.
fn tail(view: &AgentView, choice: ToolChoice) -> Bytes {
    let mut fields = Map::new();
    if !view.tools.is_empty() && choice != ToolChoice::OmitTools {
        let tools: Vec<Value> = view.tools.iter().map(tool).collect();
        fields.insert("tools".to_owned(), tools.into());
        if choice == ToolChoice::NoTools {
            fields.insert("tool_choice".to_owned(), "none".into());
        }
    }
    if let Some(effort) = view.thinking.as_deref().and_then(effort) {
        fields.insert("reasoning_effort".to_owned(), effort.into());
    }
    fields.insert("stream".to_owned(), true.into());
    let fields = Value::Object(fields).to_string();
    // Continues the object that the head opened.
    let rest = fields.strip_prefix('{').unwrap_or_default();
    format!("],{rest}").into()
}

fn tool(tool: &OfferedTool) -> Value {
    let parameters = if tool.parameters.0.is_empty() {
        // Templates of small models expect both.
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

/// `None` for levels that this format does not have.
fn effort(thinking: &str) -> Option<&'static str> {
    let thinking = thinking.trim();
    EFFORTS.iter().find(|effort| effort.eq_ignore_ascii_case(thinking)).copied()
}
