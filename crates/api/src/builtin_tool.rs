//! The built-in tools: the only table of them, with their names, who acts, and what the model reads of them.

use serde_json::{Value, json};

use crate::feature::Feature;
use crate::limits;
use crate::names::{LabelName, SkillPackName};
use crate::open::OpenObject;
use crate::run_plan::paths;

/// A tool whose name no pack may declare.
pub struct BuiltinTool {
    /// The name, as the model calls it.
    pub name: &'static str,
    /// The feature that it belongs to.
    pub feature: Option<Feature>,
    /// What an agent is offered; `None` for a reserved name that nothing serves.
    pub offer: Option<ToolOffer>,
}

/// A built-in tool, as an agent is offered it.
pub struct ToolOffer {
    /// Who acts when it is called.
    pub actor: ToolActor,
    /// The description for the model.
    pub description: &'static str,
    /// Builds the JSON Schema of the arguments.
    pub parameters: fn() -> OpenObject,
}

/// Who acts when a built-in tool is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolActor {
    /// The agent itself, with a permit of the bridge.
    Agent,
    /// The bridge.
    Bridge,
    /// The sidecar of a pack: there is one tool for each.
    Sidecar,
}

/// Runs a command in a sidecar.
pub const EXECUTE_COMMAND: &str = "execute_command";
/// Fetches a page from the network.
pub const FETCH_URL: &str = "fetch_url";
/// Sends a message over the event bus.
pub const SEND_CHANNEL_MESSAGE: &str = "send_channel_message";

/// Reads a file.
pub const READ_FILE: &str = "read_file";
/// Writes a file.
pub const WRITE_FILE: &str = "write_file";
/// Edits a file.
pub const EDIT_FILE: &str = "edit_file";
/// Lists a directory.
pub const LIST_DIRECTORY: &str = "list_directory";
/// Manages recurring tasks.
pub const SCHEDULE_TASK: &str = "schedule_task";
/// Starts runs below this one.
pub const SPAWN_SUBAGENTS: &str = "spawn_subagents";
/// Reads the text of a skill.
pub const LOAD_SKILL: &str = "load_skill";

/// Maximum seconds of a command, as in the protocol of sidecars.
pub const COMMAND_SECONDS: u32 = 120;
/// Bytes of a path, as in Linux.
pub const MAX_PATH_BYTES: usize = 4096;
/// Seconds of a command that sets no timeout.
pub const DEFAULT_COMMAND_SECONDS: u32 = 30;
/// Edits of one file in one call.
pub const MAX_EDITS: usize = 256;
/// Maximum number of characters of a page that a call may request.
pub const PAGE_CHARACTERS: u32 = 100_000;
/// Characters of a page when a call does not set the number.
pub const DEFAULT_PAGE_CHARACTERS: u32 = 50_000;
/// Headers of one request.
pub const MAX_HEADERS: usize = 32;
/// Characters of one header: what servers usually accept.
pub const MAX_HEADER_CHARS: usize = 8192;
/// Characters of a message.
pub const MAX_MESSAGE_CHARS: usize = 16_384;
/// Characters of a channel's name for a chat or a thread.
pub const MAX_CHAT_ID_CHARS: usize = 256;
/// Characters of a cron expression.
pub const MAX_CRON_CHARS: usize = 128;
/// Characters of a task for a subagent.
pub const MAX_TASK_CHARS: usize = 32_768;
/// Characters of a duration such as `5m`.
pub const MAX_TIMEOUT_CHARS: usize = 32;

/// Characters of a skill's name, written as `skill` or `pack/skill`.
const MAX_SKILL_NAME_CHARS: usize = 320;

const COMMAND_DESCRIPTION: &str = "Run a shell command in the isolated sidecar of a skill and return its output. \
The command has the programs of that sidecar's image and none of this process's files but /workspace.";

/// Every built-in tool.
pub const BUILTIN_TOOLS: &[BuiltinTool] = &[
    BuiltinTool {
        name: EXECUTE_COMMAND,
        feature: Some(Feature::CodeExecution),
        offer: Some(ToolOffer {
            actor: ToolActor::Sidecar,
            description: COMMAND_DESCRIPTION,
            parameters: || {
                schema(
                    json!({
                        "command": { "type": "string", "minLength": 1, "description": "The shell command." },
                        "workdir": { "type": "string", "maxLength": MAX_PATH_BYTES, "description": "The directory to run it in; /workspace by default." },
                        "timeout": { "type": "integer", "minimum": 1, "maximum": COMMAND_SECONDS, "description": format!("Seconds after which it is ended; {DEFAULT_COMMAND_SECONDS} by default.") },
                        "target": { "type": "string", "maxLength": SkillPackName::MOST, "description": "The skill pack whose sidecar runs it." },
                    }),
                    &["command"],
                )
            },
        }),
    },
    BuiltinTool {
        name: READ_FILE,
        feature: Some(Feature::FileAccess),
        offer: Some(ToolOffer {
            actor: ToolActor::Agent,
            description: "Read a text file below /workspace, /skills or /tmp, whole or from a line on.",
            parameters: || {
                schema(
                    json!({
                        "path": path("The file."),
                        "offset": { "type": "integer", "minimum": 1, "description": "The first line to read, counted from 1." },
                        "limit": { "type": "integer", "minimum": 1, "description": "How many lines to read." },
                    }),
                    &["path"],
                )
            },
        }),
    },
    BuiltinTool {
        name: WRITE_FILE,
        feature: Some(Feature::FileAccess),
        offer: Some(ToolOffer {
            actor: ToolActor::Agent,
            description: "Create or overwrite a file below /workspace or /tmp. Directories on the way are made.",
            parameters: || {
                schema(
                    json!({
                        "path": path("The file."),
                        "content": { "type": "string", "description": "What it is to hold." },
                    }),
                    &["path", "content"],
                )
            },
        }),
    },
    BuiltinTool {
        name: EDIT_FILE,
        feature: Some(Feature::FileAccess),
        offer: Some(ToolOffer {
            actor: ToolActor::Agent,
            description: "Replace exact pieces of text in a file below /workspace or /tmp: all of them, or the file stays as it is.",
            parameters: || {
                schema(
                    json!({
                        "path": path("The file, which must exist."),
                        "edits": {
                            "type": "array", "minItems": 1, "maxItems": MAX_EDITS,
                            "items": {
                                "type": "object", "additionalProperties": false,
                                "required": ["old_string", "new_string"],
                                "properties": {
                                    "old_string": { "type": "string", "minLength": 1, "description": "Text that is there exactly once." },
                                    "new_string": { "type": "string", "description": "What stands there afterwards." },
                                    "replace_all": { "type": "boolean", "description": "Replace it wherever it is." },
                                },
                            },
                        },
                    }),
                    &["path", "edits"],
                )
            },
        }),
    },
    BuiltinTool {
        name: LIST_DIRECTORY,
        feature: Some(Feature::FileAccess),
        offer: Some(ToolOffer {
            actor: ToolActor::Agent,
            description: "List a directory below /workspace, /skills or /tmp: type, size and name of each entry.",
            parameters: || schema(json!({ "path": path("The directory.") }), &["path"]),
        }),
    },
    BuiltinTool {
        name: FETCH_URL,
        feature: None,
        offer: Some(ToolOffer {
            actor: ToolActor::Bridge,
            description: "Fetch a web page or an API endpoint. HTML is returned as readable text.",
            parameters: || {
                schema(
                    json!({
                        "url": { "type": "string", "maxLength": limits::URL, "pattern": "^https?://", "description": "The address." },
                        "maxChars": { "type": "integer", "minimum": 1, "maximum": PAGE_CHARACTERS, "description": format!("Most characters to return; {DEFAULT_PAGE_CHARACTERS} by default.") },
                        "headers": { "type": "object", "maxProperties": MAX_HEADERS, "additionalProperties": { "type": "string", "maxLength": MAX_HEADER_CHARS }, "description": "Headers of the request." },
                    }),
                    &["url"],
                )
            },
        }),
    },
    BuiltinTool {
        name: SEND_CHANNEL_MESSAGE,
        feature: None,
        offer: Some(ToolOffer {
            actor: ToolActor::Bridge,
            description: "Send a message through a connected channel.",
            parameters: || {
                schema(
                    json!({
                        "channel": { "type": "string", "enum": ["whatsapp", "telegram", "discord", "slack"], "description": "The channel." },
                        "text": { "type": "string", "minLength": 1, "maxLength": MAX_MESSAGE_CHARS, "description": "The message." },
                        "chatId": { "type": "string", "maxLength": MAX_CHAT_ID_CHARS, "description": "The chat; where the task came from by default." },
                        "threadId": { "type": "string", "maxLength": MAX_CHAT_ID_CHARS, "description": "The thread in it." },
                    }),
                    &["channel", "text"],
                )
            },
        }),
    },
    BuiltinTool {
        name: SCHEDULE_TASK,
        feature: None,
        offer: Some(ToolOffer {
            actor: ToolActor::Bridge,
            description: "Create, update, suspend, resume or delete a recurring task of this agent.",
            parameters: || {
                schema(
                    json!({
                        "name": { "type": "string", "maxLength": LabelName::MOST, "pattern": LabelName::PATTERN, "description": "The schedule's name." },
                        "action": { "type": "string", "enum": ["create", "update", "suspend", "resume", "delete"], "description": "What to do with it." },
                        "schedule": { "type": "string", "maxLength": MAX_CRON_CHARS, "description": "When, as a cron line of five fields." },
                        "task": { "type": "string", "maxLength": MAX_TASK_CHARS, "description": "What to do each time." },
                    }),
                    &["name", "action"],
                )
            },
        }),
    },
    BuiltinTool {
        name: LOAD_SKILL,
        feature: None,
        offer: Some(ToolOffer {
            actor: ToolActor::Agent,
            description: "Read the instructions of one of your skills, and the list of its files.",
            parameters: || {
                schema(
                    json!({ "name": { "type": "string", "maxLength": MAX_SKILL_NAME_CHARS, "description": "The skill, as `skill` or `pack/skill`." } }),
                    &["name"],
                )
            },
        }),
    },
    reserve("delegate_to_persona", Some(Feature::SubAgents)),
    BuiltinTool {
        name: SPAWN_SUBAGENTS,
        feature: Some(Feature::SubAgents),
        offer: Some(ToolOffer {
            actor: ToolActor::Bridge,
            description: "Start runs of this agent for parts of the task, and wait for their answers.",
            parameters: || {
                schema(
                    json!({
                        "tasks": {
                            "type": "array", "minItems": 1, "maxItems": limits::DELEGATES,
                            "items": {
                                "type": "object", "additionalProperties": false, "required": ["id", "task"],
                                "properties": {
                                    "id": { "type": "string", "minLength": 1, "maxLength": LabelName::MOST, "description": "Your name for it." },
                                    "task": { "type": "string", "minLength": 1, "maxLength": MAX_TASK_CHARS, "description": "What to do." },
                                    "systemPrompt": { "type": "string", "maxLength": MAX_TASK_CHARS, "description": "What it is told before." },
                                    "timeout": { "type": "string", "maxLength": MAX_TIMEOUT_CHARS, "description": "How long it may take, such as `5m`." },
                                },
                            },
                        },
                        "strategy": { "type": "string", "enum": ["parallel", "sequential"], "description": "At a time, or one after the other." },
                        "failurePolicy": { "type": "string", "enum": ["continue", "fail-fast"], "description": "What to do when one fails." },
                    }),
                    &["tasks"],
                )
            },
        }),
    },
    reserve("memory_search", None),
    reserve("memory_store", None),
    reserve("memory_list", None),
    reserve("workflow_memory_search", None),
    reserve("workflow_memory_store", None),
    reserve("workflow_memory_list", None),
];

impl BuiltinTool {
    /// The built-in tool of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        BUILTIN_TOOLS.iter().find(|tool| tool.name == name)
    }
}

const fn reserve(name: &'static str, feature: Option<Feature>) -> BuiltinTool {
    BuiltinTool { name, feature, offer: None }
}

fn path(description: &str) -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": MAX_PATH_BYTES, "description": format!("{description} An absolute path, or one below {}.", paths::WORKSPACE) })
}

/// The schema of an object without further properties.
fn schema(properties: Value, required: &[&str]) -> OpenObject {
    let fields = [
        ("type", json!("object")),
        ("properties", properties),
        ("required", json!(required)),
        ("additionalProperties", json!(false)),
    ];
    OpenObject(fields.into_iter().map(|(field, value)| (field.to_owned(), value)).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_name_is_in_the_table_once() {
        let names: BTreeSet<&str> = BUILTIN_TOOLS.iter().map(|tool| tool.name).collect();
        assert_eq!(names.len(), BUILTIN_TOOLS.len());
    }
}
