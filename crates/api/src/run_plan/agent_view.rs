//! The agent's view of its plan: its task, the tools it is offered, the skills it can read. It has no address, no name
//! of a Secret and no gate: the bridge decides what the agent may do.

use serde::{Deserialize, Serialize};

use super::{Format, RunLimits, SkillPlan, TaskPlan, WireFormat, paths};
use crate::open::OpenObject;

/// The agent's view of its plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentView {
    /// The format of the plan.
    pub format: Format,
    /// The run's name.
    pub run: String,
    /// The agent's name.
    pub agent: String,
    /// The task of the agent.
    pub task: TaskPlan,
    /// The wire format of the model.
    pub wire: WireFormat,
    /// The provider's name for the model.
    pub model: String,
    /// The model's thinking level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// The tools that the model is offered.
    pub tools: Vec<OfferedTool>,
    /// The skill texts that the agent can read.
    pub skills: Vec<SkillPlan>,
    /// The directories of the agent: the workspace, its scratch space, skills, and what its author mounted for it.
    pub roots: Vec<Root>,
    /// Limits of the run.
    pub limits: RunLimits,
    /// Seconds that the agent may work.
    pub run_seconds: u64,
    /// Where workspace and scratch space are, on a machine where they cannot be at the paths that they have in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub places: Option<AgentPaths>,
}

/// Where the agent's own directories are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentPaths {
    /// In place of [`place::WORKSPACE`](super::place::WORKSPACE).
    pub workspace: String,
    /// In place of [`place::TMP`](super::place::TMP).
    pub scratch: String,
}

/// A directory that the agent's file tools may access.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Root {
    /// The path of the directory.
    pub path: String,
    /// Whether the agent may write to it. The mount enforces that too.
    pub writable: bool,
}

/// A tool as the model sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OfferedTool {
    /// The name of the tool.
    pub name: String,
    /// The description for the model.
    pub description: String,
    /// The parameters, as a JSON Schema.
    pub parameters: OpenObject,
    /// Whether the agent executes it itself, with a permit.
    pub native: bool,
    /// The pack whose sidecar executes it, where there is one, and where it is always the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack: Option<String>,
}

impl AgentView {
    /// The name of the file, below [`place::INPUT`](super::place::INPUT).
    pub const FILE: &str = "agent.json";

    /// The path of the workspace.
    pub fn workspace(&self) -> &str {
        let moved = self.places.as_ref();
        moved.map_or(paths::WORKSPACE, |moved| moved.workspace.as_str())
    }

    /// The path of the scratch space.
    pub fn scratch(&self) -> &str {
        let moved = self.places.as_ref();
        moved.map_or(paths::TMP, |moved| moved.scratch.as_str())
    }
}
