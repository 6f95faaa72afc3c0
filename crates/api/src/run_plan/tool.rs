//! The tools of a run: what the bridge looks up before anything happens.

use serde::{Deserialize, Serialize};

use super::part::PartName;
use crate::open::OpenObject;
use crate::skill_pack::InputMode;

/// One tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolPlan {
    /// Its name. `execute_command` is there once for each pack that runs commands, told apart by `pack`.
    pub name: String,
    /// The pack whose sidecar acts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack: Option<String>,
    /// What becomes of a call.
    pub gate: Gate,
    /// Who acts, and how.
    pub acts: Acts,
    /// What it does, for the model.
    pub description: String,
    /// What it takes, as a JSON Schema. Arguments that do not fit never reach who acts.
    pub parameters: OpenObject,
    /// How much of it there may be.
    pub limits: ToolLimits,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Gate {
    /// It happens.
    Allow,
    /// A person is asked first.
    Ask,
    /// It does not happen, and the model does not hear of the tool.
    Deny,
}

impl Gate {
    /// Whether it lets through nothing that the other does not.
    pub const fn is_at_least_as_strict_as(self, other: Self) -> bool {
        self.strictness() >= other.strictness()
    }

    const fn strictness(self) -> u8 {
        match self {
            Self::Allow => 0,
            Self::Ask => 1,
            Self::Deny => 2,
        }
    }
}

/// Who acts, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "by")]
pub enum Acts {
    /// The agent itself, with a permit of the bridge.
    Agent,
    /// The bridge.
    Bridge,
    /// A shell in a part.
    #[serde(rename_all = "camelCase")]
    Shell {
        /// The part.
        part: PartName,
    },
    /// A program in a part, without a shell.
    #[serde(rename_all = "camelCase")]
    Program {
        /// The part.
        part: PartName,
        /// The program, with what always comes first.
        exec: Vec<String>,
        /// How it gets the other arguments.
        input_mode: InputMode,
        /// Arguments that are passed as words, in this order, after `--`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        positional_args: Vec<String>,
    },
}

/// How much of a tool there may be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolLimits {
    /// Most seconds that one call takes.
    pub timeout_seconds: u32,
    /// Most bytes of the arguments.
    pub argument_bytes: u32,
    /// Most bytes of the answer, of each stream where there are two.
    pub output_bytes: u32,
    /// Most calls at a time.
    pub concurrent: u32,
    /// Most calls in a minute.
    pub per_minute: u32,
}
