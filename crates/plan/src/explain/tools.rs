//! Tools: what the model can ask for, what becomes of it, and who acts.

use serde::Serialize;
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
    /// What it does, as the model is told.
    pub description: String,
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

/// Programs that run what they are told, so that a schema of texts holds nothing.
const INTERPRETERS: &[&str] = &[
    "ash", "awk", "bash", "busybox", "dash", "deno", "env", "eval", "fish", "ksh", "lua", "node",
    "nsenter", "parallel", "perl", "php", "python", "python2", "python3", "ruby", "sed", "sh",
    "ssh", "sudo", "tclsh", "timeout", "xargs", "zsh",
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
        description: tool.description.clone(),
    }
}

/// Whether the model decides about any argument.
fn takes_arguments(tool: &ToolPlan) -> bool {
    let properties = tool.parameters.0.get("properties");
    let declared = properties.and_then(serde_json::Value::as_object);
    declared.is_none_or(|it| !it.is_empty())
}

/// Whether any word of a program is one that runs what it is told: `timeout 5 sh -c` is one too.
fn is_interpreter(program: &[String]) -> bool {
    program.iter().any(|word| {
        let name = word.rsplit('/').next().unwrap_or(word);
        INTERPRETERS.contains(&name)
    })
}
