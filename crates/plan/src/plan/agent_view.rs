//! What the agent reads of its plan: its task, the tools it is offered, the skills it can read. No address, no Secret's name,
//! no gate: what it may do is decided elsewhere.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sympozium_api::RunPlan;
use sympozium_api::open::OpenObject;
use sympozium_api::run_plan::{
    Acts, Format, Gate, Role, RunLimits, SkillPlan, TaskPlan, ToolPlan, WireFormat, place,
};

use crate::policy::tools::EXECUTE_COMMAND;

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
}

/// The agent's view of a plan. A tool whose gate is `deny` is not in it.
pub fn agent_view(plan: &RunPlan) -> AgentView {
    AgentView {
        format: plan.format,
        run: plan.run.name.as_str().to_owned(),
        agent: plan.run.agent.as_str().to_owned(),
        task: plan.task.clone(),
        wire: plan.model.wire,
        model: plan.model.model.clone(),
        thinking: plan.model.thinking.clone(),
        tools: offered(&plan.tools),
        skills: plan.skills.clone(),
        roots: roots(plan),
        limits: plan.limits.clone(),
        run_seconds: plan.deadlines.run_seconds,
    }
}

/// All that the agent mounts, but for what is ours and its shared memory.
fn roots(plan: &RunPlan) -> Vec<Root> {
    let agent = plan.parts.iter().find(|part| part.role == Role::Agent);
    let mounts = agent.map_or(&[][..], |part| &part.mounts);
    let ours = [place::INPUT, place::DOOR, place::SHM];
    mounts
        .iter()
        .filter(|mount| !ours.contains(&mount.path.as_str()))
        .map(|mount| Root {
            path: mount.path.as_str().to_owned(),
            writable: !mount.read_only,
        })
        .collect()
}

fn offered(tools: &[ToolPlan]) -> Vec<OfferedTool> {
    let open = |tool: &&ToolPlan| tool.gate != Gate::Deny;
    let targets: Vec<&str> = tools
        .iter()
        .filter(open)
        .filter(|tool| tool.name == EXECUTE_COMMAND)
        .filter_map(|tool| tool.pack.as_deref())
        .collect();
    let mut offered: Vec<OfferedTool> = Vec::new();
    for tool in tools.iter().filter(open) {
        // One for all packs: the target says which.
        if offered.iter().any(|it| it.name == tool.name) {
            continue;
        }
        let mut parameters = tool.parameters.clone();
        if tool.name == EXECUTE_COMMAND {
            name_targets(&mut parameters, &targets);
        }
        offered.push(OfferedTool {
            name: tool.name.clone(),
            description: tool.description.clone(),
            parameters,
            native: tool.acts == Acts::Agent,
        });
    }
    offered
}

/// Lists the packs that a command can be for. A stored plan may have anything where a schema should be; that stays as it is.
fn name_targets(parameters: &mut OpenObject, targets: &[&str]) {
    let properties = parameters.0.get_mut("properties");
    let target = properties
        .and_then(Value::as_object_mut)
        .map(|it| it.entry("target").or_insert_with(|| json!({})));
    if let Some(target) = target.and_then(Value::as_object_mut) {
        target.insert("enum".to_owned(), json!(targets));
    }
}
