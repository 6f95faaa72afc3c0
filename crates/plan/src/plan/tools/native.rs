//! Tools that need no pack: their parameters and descriptions for the model.

use serde_json::{Value, json};
use sympozium_api::limits;
use sympozium_api::names::{LabelName, SkillPackName};
use sympozium_api::open::OpenObject;
use sympozium_api::run_plan::{ToolHandler, paths};

use crate::plan::limits::{
    COMMAND_SECONDS, DEFAULT_COMMAND_SECONDS, DEFAULT_PAGE_CHARACTERS, MAX_CHAT_ID_CHARS, MAX_CRON_CHARS, MAX_EDITS,
    MAX_HEADER_CHARS, MAX_HEADERS, MAX_MESSAGE_CHARS, MAX_PATH_BYTES, MAX_TASK_CHARS, MAX_TIMEOUT_CHARS,
    PAGE_CHARACTERS,
};
use crate::policy::tools::{
    EDIT_FILE, FETCH_URL, LIST_DIRECTORY, LOAD_SKILL, READ_FILE, SCHEDULE_TASK, SEND_CHANNEL_MESSAGE, SPAWN_SUBAGENTS,
    WRITE_FILE,
};

/// Characters of a skill's name, written as `skill` or `pack/skill`.
const MAX_SKILL_NAME_CHARS: usize = 320;

/// A built-in tool.
pub struct NativeTool {
    pub acts: ToolHandler,
    pub description: &'static str,
    pub parameters: OpenObject,
}

/// The description of `execute_command`.
pub const COMMAND_DESCRIPTION: &str = "Run a shell command in the isolated sidecar of a skill and return its output. \
The command has the programs of that sidecar's image and none of this process's files but /workspace.";

/// The parameters of `execute_command`.
pub fn command_parameters() -> OpenObject {
    schema(
        json!({
            "command": { "type": "string", "minLength": 1, "description": "The shell command." },
            "workdir": { "type": "string", "maxLength": MAX_PATH_BYTES, "description": "The directory to run it in; /workspace by default." },
            "timeout": { "type": "integer", "minimum": 1, "maximum": COMMAND_SECONDS, "description": format!("Seconds after which it is ended; {DEFAULT_COMMAND_SECONDS} by default.") },
            "target": { "type": "string", "maxLength": SkillPackName::MOST, "description": "The skill pack whose sidecar runs it." },
        }),
        &["command"],
    )
}

/// The built-in tool of this name, if an agent can have it.
pub fn find_native(name: &str) -> Option<NativeTool> {
    let (acts, description, parameters) = match name {
        READ_FILE => (
            ToolHandler::Agent,
            "Read a text file below /workspace, /skills or /tmp, whole or from a line on.",
            schema(
                json!({
                    "path": path("The file."),
                    "offset": { "type": "integer", "minimum": 1, "description": "The first line to read, counted from 1." },
                    "limit": { "type": "integer", "minimum": 1, "description": "How many lines to read." },
                }),
                &["path"],
            ),
        ),
        WRITE_FILE => (
            ToolHandler::Agent,
            "Create or overwrite a file below /workspace or /tmp. Directories on the way are made.",
            schema(
                json!({
                    "path": path("The file."),
                    "content": { "type": "string", "description": "What it is to hold." },
                }),
                &["path", "content"],
            ),
        ),
        EDIT_FILE => (
            ToolHandler::Agent,
            "Replace exact pieces of text in a file below /workspace or /tmp: all of them, or the file stays as it is.",
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
            ),
        ),
        LIST_DIRECTORY => (
            ToolHandler::Agent,
            "List a directory below /workspace, /skills or /tmp: type, size and name of each entry.",
            schema(json!({ "path": path("The directory.") }), &["path"]),
        ),
        LOAD_SKILL => (
            ToolHandler::Agent,
            "Read the instructions of one of your skills, and the list of its files.",
            schema(
                json!({ "name": { "type": "string", "maxLength": MAX_SKILL_NAME_CHARS, "description": "The skill, as `skill` or `pack/skill`." } }),
                &["name"],
            ),
        ),
        FETCH_URL => (
            ToolHandler::Bridge,
            "Fetch a web page or an API endpoint. HTML is returned as readable text.",
            schema(
                json!({
                    "url": { "type": "string", "maxLength": limits::URL, "pattern": "^https?://", "description": "The address." },
                    "maxChars": { "type": "integer", "minimum": 1, "maximum": PAGE_CHARACTERS, "description": format!("Most characters to return; {DEFAULT_PAGE_CHARACTERS} by default.") },
                    "headers": { "type": "object", "maxProperties": MAX_HEADERS, "additionalProperties": { "type": "string", "maxLength": MAX_HEADER_CHARS }, "description": "Headers of the request." },
                }),
                &["url"],
            ),
        ),
        SEND_CHANNEL_MESSAGE => (
            ToolHandler::Bridge,
            "Send a message through a connected channel.",
            schema(
                json!({
                    "channel": { "type": "string", "enum": ["whatsapp", "telegram", "discord", "slack"], "description": "The channel." },
                    "text": { "type": "string", "minLength": 1, "maxLength": MAX_MESSAGE_CHARS, "description": "The message." },
                    "chatId": { "type": "string", "maxLength": MAX_CHAT_ID_CHARS, "description": "The chat; where the task came from by default." },
                    "threadId": { "type": "string", "maxLength": MAX_CHAT_ID_CHARS, "description": "The thread in it." },
                }),
                &["channel", "text"],
            ),
        ),
        SCHEDULE_TASK => (
            ToolHandler::Bridge,
            "Create, update, suspend, resume or delete a recurring task of this agent.",
            schema(
                json!({
                    "name": { "type": "string", "maxLength": LabelName::MOST, "pattern": LabelName::PATTERN, "description": "The schedule's name." },
                    "action": { "type": "string", "enum": ["create", "update", "suspend", "resume", "delete"], "description": "What to do with it." },
                    "schedule": { "type": "string", "maxLength": MAX_CRON_CHARS, "description": "When, as a cron line of five fields." },
                    "task": { "type": "string", "maxLength": MAX_TASK_CHARS, "description": "What to do each time." },
                }),
                &["name", "action"],
            ),
        ),
        SPAWN_SUBAGENTS => (
            ToolHandler::Bridge,
            "Start runs of this agent for parts of the task, and wait for their answers.",
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
            ),
        ),
        _ => return None,
    };
    Some(NativeTool { acts, description, parameters })
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
