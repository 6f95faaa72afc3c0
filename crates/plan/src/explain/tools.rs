//! Tools: what the model can call, the decision about calls, and what executes them.

use serde::Serialize;
use serde_json::{Value, json};
use sympozium_api::run_plan::{Gate, RunPlan, ToolHandler, ToolPlan};

/// One tool of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolInfo {
    /// The name of the tool.
    pub tool: String,
    /// The pack whose sidecar executes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pack: Option<String>,
    /// The gate of its calls.
    pub gate: Gate,
    /// What executes it.
    pub by: ToolHandlerKind,
    /// The part in which the command runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The program, with its fixed first arguments.
    pub program: Vec<String>,
    /// Whether a schema bounds the arguments.
    pub arguments: ArgumentCheck,
    /// The digest of the schema, and of how arguments are passed.
    pub arguments_digest: String,
    /// The description for the model.
    pub description: String,
}

impl ToolInfo {
    /// `tool` or `pack/tool`, as in policies.
    pub fn full_name(&self) -> String {
        full_name(self.pack.as_deref(), &self.tool)
    }
}

/// `tool` or `pack/tool`, as in policies.
pub fn full_name(pack: Option<&str>, tool: &str) -> String {
    match pack {
        Some(pack) => format!("{pack}/{tool}"),
        None => tool.to_owned(),
    }
}

/// What executes a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ToolHandlerKind {
    /// The agent itself, with a permit.
    Agent,
    /// The bridge.
    Bridge,
    /// A shell in a skill's container.
    Shell,
    /// A program in a skill's container.
    Program,
}

/// Whether a schema bounds the arguments of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ArgumentCheck {
    /// Arguments that do not match the schema are refused before the tool is executed.
    Schema,
    /// The arguments are a command line or code, which a schema does not bound.
    FreeText,
}

/// The domain of digests in an explanation.
const DIGEST_DOMAIN: &str = "sympozium.ai/explanation/v1";

/// Programs that execute their arguments, so that a schema of strings bounds nothing.
const INTERPRETERS: &[&str] = &[
    "ash", "awk", "bash", "bun", "busybox", "chroot", "dash", "deno", "ed", "emacs", "env", "eval", "expect", "find",
    "fish", "gawk", "gdb", "git", "go", "java", "jshell", "ksh", "lua", "make", "mawk", "nice", "node", "nohup", "npx",
    "nsenter", "parallel", "perl", "php", "pwsh", "python", "ruby", "rsync", "script", "sed", "setsid", "sh", "socat",
    "sqlite", "ssh", "stdbuf", "strace", "su", "sudo", "tar", "tclsh", "time", "timeout", "unshare", "vi", "vim",
    "watch", "xargs", "zsh",
];

pub fn all(plan: &RunPlan) -> Vec<ToolInfo> {
    plan.tools.iter().map(tool_info).collect()
}

fn tool_info(tool: &ToolPlan) -> ToolInfo {
    let (by, part, program) = match &tool.acts {
        ToolHandler::Agent => (ToolHandlerKind::Agent, None, &[][..]),
        ToolHandler::Bridge => (ToolHandlerKind::Bridge, None, &[][..]),
        ToolHandler::Shell { part } => (ToolHandlerKind::Shell, Some(part), &[][..]),
        ToolHandler::Program { part, exec, .. } => (ToolHandlerKind::Program, Some(part), exec.as_slice()),
    };
    let arguments = match by {
        ToolHandlerKind::Shell => ArgumentCheck::FreeText,
        ToolHandlerKind::Program if takes_arguments(tool) && runs_interpreter(program) => ArgumentCheck::FreeText,
        _ => ArgumentCheck::Schema,
    };
    ToolInfo {
        tool: tool.name.clone(),
        pack: tool.pack.clone(),
        gate: tool.gate,
        by,
        part: part.map(ToString::to_string),
        program: program.to_vec(),
        arguments,
        arguments_digest: arguments_digest(tool),
        description: tool.description.clone(),
    }
}

/// Covers the schema, and for a program how arguments become its command line or its input.
fn arguments_digest(tool: &ToolPlan) -> String {
    let handing = match &tool.acts {
        ToolHandler::Program { input_mode, positional_args, .. } => {
            json!({"inputMode": input_mode, "positionalArgs": positional_args})
        }
        ToolHandler::Agent | ToolHandler::Bridge | ToolHandler::Shell { .. } => json!({}),
    };
    digest_value(&json!({"parameters": tool.parameters, "handing": handing}))
}

/// The digest of a value of a plan. Values that came from JSON always have one.
pub fn digest_value(value: &Value) -> String {
    let digest = sympozium_api::digest::digest(DIGEST_DOMAIN, value);
    digest.map_or_else(|error| error.to_string(), |digest| digest.to_string())
}

/// Whether the model chooses any argument.
fn takes_arguments(tool: &ToolPlan) -> bool {
    let schema = &tool.parameters.0;
    let is_empty = |field: &str| match schema.get(field) {
        None => true,
        Some(value) => value.as_object().is_some_and(serde_json::Map::is_empty),
    };
    let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
    let has_none = is_closed && is_empty("properties") && is_empty("patternProperties");
    !has_none || schema.contains_key("$ref")
}

/// Whether any word of a program is an interpreter: `timeout 5 sh -c` counts too.
fn runs_interpreter(program: &[String]) -> bool {
    program.iter().any(|word| {
        let name = word.rsplit('/').next().unwrap_or(word);
        // A version at the end does not matter: `python3.13`.
        let plain =
            name.trim_end_matches(|character: char| character.is_ascii_digit() || character == '.' || character == '-');
        INTERPRETERS.contains(&name) || INTERPRETERS.contains(&plain)
    })
}
