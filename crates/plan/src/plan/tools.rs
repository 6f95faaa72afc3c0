//! The tool table, which the bridge consults for every call.

use std::collections::BTreeMap;

use serde_json::json;
use sympozium_api::builtin_tool::{BuiltinTool, EXECUTE_COMMAND, FETCH_URL, SPAWN_SUBAGENTS, ToolActor, ToolOffer};
use sympozium_api::open::OpenObject;
use sympozium_api::run_plan::{Gate, PartName, SubagentPlan, ToolHandler, ToolPlan};
use sympozium_api::skill_pack::Tool;

use super::limits::{COMMAND_LIMITS, NATIVE_LIMITS, OUTBOUND_LIMITS};
use super::parts::PackPart;
use crate::admit::{Admitted, SANDBOX_PACK, Services, ToolDecision};

/// Every tool that admission decided about, in its order.
pub fn table(
    admitted: &Admitted<'_>,
    packs: &[PackPart<'_>],
    subagents: &SubagentPlan,
    services: Services,
) -> Vec<ToolPlan> {
    let decided = admitted.tools.iter().filter_map(|decision| plan_tool(decision, packs));
    let mut table: Vec<ToolPlan> = decided.collect();
    // A tool that could only fail is not offered.
    let may_spawn = subagents.levels > 0 && subagents.children > 0;
    let can_only_fail = |tool: &ToolPlan| {
        tool.pack.is_none() && (!services.supports(&tool.name) || tool.name == SPAWN_SUBAGENTS && !may_spawn)
    };
    for tool in table.iter_mut().filter(|tool| can_only_fail(tool)) {
        tool.gate = Gate::Deny;
    }
    table
}

/// The entry of the table for a decision. `None` for a tool that no part can execute: then it does not exist.
fn plan_tool(decision: &ToolDecision, packs: &[PackPart<'_>]) -> Option<ToolPlan> {
    let gate = decision.action;
    let name = decision.name.as_str();
    let made = |acts, description: &str, parameters, limits| ToolPlan {
        name: name.to_owned(),
        pack: decision.pack.clone(),
        gate,
        acts,
        description: description.to_owned(),
        parameters,
        limits,
    };
    let Some(pack) = decision.pack.as_deref() else {
        let ToolOffer { actor, description, parameters } = BuiltinTool::find(name)?.offer.as_ref()?;
        let acts = match actor {
            ToolActor::Agent => ToolHandler::Agent,
            ToolActor::Bridge => ToolHandler::Bridge,
            ToolActor::Sidecar => return None,
        };
        let limits = match acts {
            ToolHandler::Bridge if name != FETCH_URL => OUTBOUND_LIMITS,
            _ => NATIVE_LIMITS,
        };
        return Some(made(acts, description, parameters(), limits));
    };
    let found = packs.iter().find(|candidate| candidate.pack == pack);
    let part = match found {
        Some(found) => found.part.clone(),
        None if pack == SANDBOX_PACK => PartName(SANDBOX_PACK.to_owned()),
        None => return None,
    };
    if name == EXECUTE_COMMAND {
        let ToolOffer { description, parameters, .. } = BuiltinTool::find(name)?.offer.as_ref()?;
        return Some(made(ToolHandler::Shell { part }, description, parameters(), COMMAND_LIMITS));
    }
    let declared = found?.sidecar.tools.iter().find(|tool| tool.name == name)?;
    let acts = ToolHandler::Program {
        part,
        exec: declared.exec.iter().chain(&declared.subcommand).cloned().collect(),
        input_mode: declared.input_mode,
        positional_args: declared.positional_args.clone(),
    };
    Some(made(acts, &declared.description, parameters(declared), COMMAND_LIMITS))
}

/// The parameters of a declared tool: its schema, which always describes an object.
fn parameters(tool: &Tool) -> OpenObject {
    let mut schema = tool
        .parameters
        .clone()
        .unwrap_or_else(|| OpenObject(BTreeMap::from([("additionalProperties".to_owned(), json!(false))])));
    let fields = [("type", json!("object")), ("properties", json!({}))];
    for (field, usual) in fields {
        schema.0.entry(field.to_owned()).or_insert(usual);
    }
    schema
}
