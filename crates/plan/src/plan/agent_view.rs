//! The part of a plan that the agent reads.

use serde_json::{Value, json};
use sympozium_api::RunPlan;
use sympozium_api::builtin_tool::EXECUTE_COMMAND;
use sympozium_api::open::OpenObject;
use sympozium_api::run_plan::{AgentView, Gate, OfferedTool, Role, Root, ToolHandler, ToolPlan, paths};

/// The agent's view of a plan. Tools whose gate is `deny` are left out.
pub fn agent_view(plan: &RunPlan) -> AgentView {
    AgentView {
        format: plan.format,
        run: plan.run.name.as_str().to_owned(),
        agent: plan.run.agent.as_str().to_owned(),
        task: plan.task.clone(),
        wire: plan.model.wire,
        model: plan.model.model.clone(),
        thinking: plan.model.thinking.clone(),
        tools: offered_tools(&plan.tools),
        skills: plan.skills.clone(),
        roots: roots(plan),
        limits: plan.limits.clone(),
        run_seconds: plan.deadlines.run_seconds,
        places: None,
    }
}

/// All mounts of the agent but those for our own use and its shared memory.
fn roots(plan: &RunPlan) -> Vec<Root> {
    let agent = plan.parts.iter().find(|part| part.role == Role::Agent);
    let mounts = agent.map_or(&[][..], |part| &part.mounts);
    let ours = [paths::INPUT, paths::DOOR, paths::SHM];
    mounts
        .iter()
        .filter(|mount| !ours.contains(&mount.path.as_str()))
        .map(|mount| Root { path: mount.path.as_str().to_owned(), writable: !mount.read_only })
        .collect()
}

fn offered_tools(tools: &[ToolPlan]) -> Vec<OfferedTool> {
    let open = |tool: &&ToolPlan| tool.gate != Gate::Deny;
    let targets: Vec<&str> = tools
        .iter()
        .filter(open)
        .filter(|tool| tool.name == EXECUTE_COMMAND)
        .filter_map(|tool| tool.pack.as_deref())
        .collect();
    let mut offered: Vec<OfferedTool> = Vec::new();
    for tool in tools.iter().filter(open) {
        // One entry for all packs: the parameter `target` chooses the pack.
        if offered.iter().any(|other| other.name == tool.name) {
            continue;
        }
        let mut parameters = tool.parameters.clone();
        if tool.name == EXECUTE_COMMAND {
            set_targets(&mut parameters, &targets);
        }
        offered.push(OfferedTool {
            name: tool.name.clone(),
            description: tool.description.clone(),
            parameters,
            native: tool.acts == ToolHandler::Agent,
            // Commands name the pack in each call.
            pack: (tool.name != EXECUTE_COMMAND).then(|| tool.pack.clone()).flatten(),
        });
    }
    offered
}

/// Lists the packs that a command can target. A stored plan may have any value in place of a schema; that stays as it
/// is.
fn set_targets(parameters: &mut OpenObject, targets: &[&str]) {
    let properties = parameters.0.get_mut("properties");
    let target = properties
        .and_then(Value::as_object_mut)
        .map(|properties| properties.entry("target").or_insert_with(|| json!({})));
    if let Some(target) = target.and_then(Value::as_object_mut) {
        target.insert("enum".to_owned(), json!(targets));
    }
}
