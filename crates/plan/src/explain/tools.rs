//! Tools: what the model can ask for, what becomes of it, and who acts.

use serde::Serialize;
use serde_json::{Value, json};
use sympozium_api::run_plan::{Acts, Gate, RunPlan, ToolPlan};

/// One tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolAbout {
    /// Its name.
    pub tool: String,
    /// The pack whose sidecar acts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pack: Option<String>,
    /// What becomes of a call.
    pub gate: Gate,
    /// Who acts.
    pub by: ActsBy,
    /// The part in which the command runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The program, with what always comes first.
    pub program: Vec<String>,
    /// What holds the arguments.
    pub arguments: Arguments,
    /// The digest of what holds them: the schema, and how they are handed over.
    pub arguments_digest: String,
    /// What it does, as the model is told.
    pub description: String,
}

impl ToolAbout {
    /// `tool` or `pack/tool`, as policies write it.
    pub fn full_name(&self) -> String {
        full_name(self.pack.as_deref(), &self.tool)
    }
}

/// `tool` or `pack/tool`, as policies write it.
pub fn full_name(pack: Option<&str>, tool: &str) -> String {
    match pack {
        Some(pack) => format!("{pack}/{tool}"),
        None => tool.to_owned(),
    }
}

/// Who acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ActsBy {
    /// The agent itself, with a permit.
    Agent,
    /// The bridge.
    Bridge,
    /// A shell in a skill's container.
    Shell,
    /// A program in a skill's container.
    Program,
}

/// What holds the arguments of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Arguments {
    /// A schema: what does not fit never reaches who acts.
    Schema,
    /// Nothing: they are a command line or a program of their own.
    FreeText,
}

/// What digests in an explanation are of.
const DIGEST_DOMAIN: &str = "sympozium.ai/explanation/v1";

/// Programs that run what they are told, so that a schema of texts holds nothing.
const INTERPRETERS: &[&str] = &[
    "ash", "awk", "bash", "bun", "busybox", "chroot", "dash", "deno", "ed", "emacs", "env", "eval", "expect", "find",
    "fish", "gawk", "gdb", "git", "go", "java", "jshell", "ksh", "lua", "make", "mawk", "nice", "node", "nohup", "npx",
    "nsenter", "parallel", "perl", "php", "pwsh", "python", "ruby", "rsync", "script", "sed", "setsid", "sh", "socat",
    "sqlite", "ssh", "stdbuf", "strace", "su", "sudo", "tar", "tclsh", "time", "timeout", "unshare", "vi", "vim",
    "watch", "xargs", "zsh",
];

pub fn all(plan: &RunPlan) -> Vec<ToolAbout> {
    plan.tools.iter().map(about).collect()
}

fn about(tool: &ToolPlan) -> ToolAbout {
    let (by, part, program) = match &tool.acts {
        Acts::Agent => (ActsBy::Agent, None, &[][..]),
        Acts::Bridge => (ActsBy::Bridge, None, &[][..]),
        Acts::Shell { part } => (ActsBy::Shell, Some(part), &[][..]),
        Acts::Program { part, exec, .. } => (ActsBy::Program, Some(part), exec.as_slice()),
    };
    let arguments = match by {
        ActsBy::Shell => Arguments::FreeText,
        ActsBy::Program if takes_arguments(tool) && is_interpreter(program) => Arguments::FreeText,
        _ => Arguments::Schema,
    };
    ToolAbout {
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

/// Of the schema, and for a program of how arguments become words of a command line or its input.
fn arguments_digest(tool: &ToolPlan) -> String {
    let handing = match &tool.acts {
        Acts::Program { input_mode, positional_args, .. } => {
            json!({"inputMode": input_mode, "positionalArgs": positional_args})
        }
        Acts::Agent | Acts::Bridge | Acts::Shell { .. } => json!({}),
    };
    digest_of(&json!({"parameters": tool.parameters, "handing": handing}))
}

/// The digest of a piece of a plan. What came in as JSON has one.
pub fn digest_of(value: &Value) -> String {
    let digest = sympozium_api::digest::digest(DIGEST_DOMAIN, value);
    digest.map_or_else(|error| error.to_string(), |it| it.to_string())
}

/// Whether the model decides about any argument.
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

/// Whether any word of a program is one that runs what it is told: `timeout 5 sh -c` is one too.
fn is_interpreter(program: &[String]) -> bool {
    program.iter().any(|word| {
        let name = word.rsplit('/').next().unwrap_or(word);
        // With a version behind it, it is the same: `python3.13`.
        let plain = name.trim_end_matches(|it: char| it.is_ascii_digit() || it == '.' || it == '-');
        INTERPRETERS.contains(&name) || INTERPRETERS.contains(&plain)
    })
}
