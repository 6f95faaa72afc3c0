//! What the agent reads of its plan: its task, the tools it is offered, the skills it can read. No address, no Secret's name,
//! no gate: what it may do is decided elsewhere.

use serde::{Deserialize, Serialize};

use super::{Format, RunLimits, SkillPlan, TaskPlan, WireFormat, place};
use crate::open::OpenObject;

/// What the agent reads of its plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentView {
    /// How this is written.
    pub format: Format,
    /// The run's name.
    pub run: String,
    /// The agent's name.
    pub agent: String,
    /// What it is to do.
    pub task: TaskPlan,
    /// How the model is spoken to.
    pub wire: WireFormat,
    /// The model.
    pub model: String,
    /// How long the model thinks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// The tools that the model is offered.
    pub tools: Vec<OfferedTool>,
    /// The texts that it can read.
    pub skills: Vec<SkillPlan>,
    /// Where it has files: the workspace, its scratch space, skills, and what its author mounted for it.
    pub roots: Vec<Root>,
    /// How much the run may use.
    pub limits: RunLimits,
    /// Seconds that it may work.
    pub run_seconds: u64,
    /// Where workspace and scratch space are, on a machine where they cannot be where every pod has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub places: Option<Places>,
}

/// Where the agent's own directories are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Places {
    /// In place of [`place::WORKSPACE`](super::place::WORKSPACE).
    pub workspace: String,
    /// In place of [`place::TMP`](super::place::TMP).
    pub scratch: String,
}

/// A directory in which the agent has files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Root {
    /// Where it is.
    pub path: String,
    /// Whether the agent may write to it. The mount holds that too.
    pub writable: bool,
}

/// A tool as the model sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OfferedTool {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// What it takes.
    pub parameters: OpenObject,
    /// Whether the agent acts itself, with a permit.
    pub native: bool,
    /// The pack whose sidecar acts, where there is one, and where it is always the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack: Option<String>,
}

impl AgentView {
    /// The file that it is in, below [`place::INPUT`](super::place::INPUT).
    pub const FILE: &str = "agent.json";

    /// Where the workspace is.
    pub fn workspace(&self) -> &str {
        let moved = self.places.as_ref();
        moved.map_or(place::WORKSPACE, |it| it.workspace.as_str())
    }

    /// Where the scratch space is.
    pub fn scratch(&self) -> &str {
        let moved = self.places.as_ref();
        moved.map_or(place::TMP, |it| it.scratch.as_str())
    }
}
