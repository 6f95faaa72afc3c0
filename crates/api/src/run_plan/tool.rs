//! The tool table of a run, which the bridge consults for every call.

use std::cmp::Ordering;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::part::PartName;
use crate::open::OpenObject;
use crate::schema;
use crate::skill_pack::InputMode;

/// One tool of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolPlan {
    /// The name. `execute_command` occurs once for each pack that runs commands, distinguished by `pack`.
    pub name: String,
    /// The pack whose sidecar executes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack: Option<String>,
    /// The gate of its calls.
    pub gate: Gate,
    /// What executes it, and how.
    pub acts: ToolHandler,
    /// The description for the model.
    pub description: String,
    /// The parameters, as a JSON Schema. Arguments that do not match are refused before anything is executed.
    pub parameters: OpenObject,
    /// Limits of its calls.
    pub limits: ToolLimits,
}

/// The gate of a tool: the decision about its calls. The stricter of two is the lesser.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub enum Gate {
    /// Calls are executed.
    #[default]
    Allow,
    /// Calls need approval first.
    Ask,
    /// Calls are refused, and the model is not offered the tool.
    Deny,
}

impl Gate {
    /// The word in manifests and in plans.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

impl Ord for Gate {
    fn cmp(&self, other: &Self) -> Ordering {
        // The variants are declared with the strictest last.
        (*other as u8).cmp(&(*self as u8))
    }
}

impl PartialOrd for Gate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What executes a tool, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "by")]
pub enum ToolHandler {
    /// The agent itself, with a permit of the bridge.
    Agent,
    /// The bridge.
    Bridge,
    /// A shell in a part.
    #[serde(rename_all = "camelCase")]
    Shell {
        /// The part with the shell.
        part: PartName,
    },
    /// A program in a part, without a shell.
    #[serde(rename_all = "camelCase")]
    Program {
        /// The part with the program.
        part: PartName,
        /// The program, with its fixed first arguments.
        exec: Vec<String>,
        /// How it gets the other arguments.
        input_mode: InputMode,
        /// Arguments that are passed as words, in this order, after `--`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        positional_args: Vec<String>,
    },
}

/// Limits of a tool's calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolLimits {
    /// Maximum seconds of one call.
    pub timeout_seconds: u32,
    /// Maximum size of the arguments.
    pub argument_bytes: u32,
    /// Maximum size of the answer, of each stream where there are two.
    pub output_bytes: u32,
    /// Maximum number of concurrent calls.
    pub concurrent: u32,
    /// Maximum number of calls per minute.
    pub per_minute: u32,
}
