//! The tools of a run: what packs declare, and the decision about each.

use std::collections::BTreeMap;

use serde_json::Value;
use sympozium_api::Feature;
use sympozium_api::agent_run::ToolPolicy;
use sympozium_api::builtin_tool::{
    BUILTIN_TOOLS, BuiltinTool, EXECUTE_COMMAND, FETCH_URL, LOAD_SKILL, SEND_CHANNEL_MESSAGE, ToolActor,
};
use sympozium_api::names::ToolPattern;
use sympozium_api::run_plan::Gate;
use sympozium_api::skill_pack::{InputMode, Sidecar, Tool as Declaration};
use sympozium_api::text::quote;

use super::unused_fields::policy_subject;
use super::violation::{Findings, ViolationDetail, violation};
use super::{RuleContext, Subject, tool_rules};
use crate::policy::allowed::Allowed;
use crate::policy::packs::PackId;
use crate::policy::tools::Tool;

pub use sympozium_api::run_plan::SANDBOX as SANDBOX_PACK;

/// A tool of a run, and the decision about its calls.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ToolDecision {
    /// The pack whose sidecar runs it; `None` for the agent's own tools.
    pub pack: Option<String>,
    /// The name of the tool.
    pub name: String,
    /// The decision about its calls.
    pub action: Gate,
}

/// Decides about every tool of the run.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) -> Vec<ToolDecision> {
    check_unique_names(case, findings);
    let by_policy = policy_decisions(case);
    if let Some(run_policy) = &case.run.spec.tool_policy {
        check_listed_tools(case, run_policy, &by_policy, findings);
    }
    warn_about_unknown_patterns(case, &by_policy, findings);
    tool_rules::warn_about_other_packs(case, &by_policy, findings);
    let decided: Vec<ToolDecision> = by_policy
        .into_iter()
        .map(|tool| {
            let by_run = case.run.spec.tool_policy.as_ref();
            let is_left =
                by_run.is_none_or(|policy| run_policy_allows(case, policy, &tool)) && is_for_skill(case, &tool);
            if is_left { tool } else { ToolDecision { action: Gate::Deny, ..tool } }
        })
        .collect();
    warn_about_useless_packs(case, &decided, findings);
    warn_about_missing_approvers(case, &decided, findings);
    decided
}

/// The decision of the policy about each tool, before the run's own `toolPolicy`.
fn policy_decisions(case: &RuleContext<'_, '_>) -> Vec<ToolDecision> {
    let policy = case.policy;
    let native = BUILTIN_TOOLS.iter().filter(|tool| is_native(tool)).map(|tool| {
        let open = match tool.name {
            FETCH_URL => policy.egress.allows_any(),
            SEND_CHANNEL_MESSAGE => policy.event_bus,
            _ => is_feature_enabled(case, tool.feature),
        };
        decision(case, None, tool.name, Tool::BuiltIn(tool.name), open)
    });
    // An attached skill is meant to be read, so the policy's default for tools without a rule does not apply to this
    // one.
    let load_skill = has_skill_texts(case).then(|| ToolDecision {
        pack: None,
        name: LOAD_SKILL.to_owned(),
        action: policy.gates.explicit_action(LOAD_SKILL).unwrap_or(Gate::Allow),
    });
    let sandbox = super::sandbox::has_sandbox_container(case);
    let packs = case.packs.iter().filter_map(|pack| Some((pack.id(case), pack.sidecar()?)));
    let commands = packs.clone().map(|(pack, _)| pack).chain(sandbox.then(|| sandbox_id(case)));
    let runs_commands = is_feature_enabled(case, Some(Feature::CodeExecution));
    let commands =
        commands.map(|pack| decision(case, Some(pack.name), EXECUTE_COMMAND, Tool::Command { pack }, runs_commands));
    let declared = packs.flat_map(|(pack, sidecar)| {
        sidecar.tools.iter().map(move |tool| {
            let name = tool.name.as_str();
            decision(case, Some(pack.name), name, Tool::Declared { pack, name }, runs_commands)
        })
    });
    native.chain(commands).chain(declared).chain(load_skill).collect()
}

/// The run's own sandbox, which is treated as a pack of the system namespace.
fn sandbox_id<'c>(case: &RuleContext<'c, '_>) -> PackId<'c> {
    PackId { namespace: &case.input.settings.system_namespace, name: SANDBOX_PACK, is_system: true }
}

/// The namespace of the pack that the tool belongs to.
pub(super) fn pack_namespace<'c>(case: &'c RuleContext<'_, '_>, tool: &ToolDecision) -> Option<&'c str> {
    let name = tool.pack.as_deref()?;
    let pack = case.packs.iter().find(|pack| pack.name == name);
    Some(pack.map_or(sandbox_id(case).namespace, |pack| pack.namespace.as_str()))
}

fn decision(case: &RuleContext<'_, '_>, pack: Option<&str>, name: &str, tool: Tool<'_>, open: bool) -> ToolDecision {
    ToolDecision {
        pack: pack.map(str::to_owned),
        name: name.to_owned(),
        action: if open { case.policy.gates.action(tool) } else { Gate::Deny },
    }
}

/// Whether the agent has a tool without any pack or skill text.
fn is_native(tool: &BuiltinTool) -> bool {
    tool.name != LOAD_SKILL && tool.offer.as_ref().is_some_and(|offer| offer.actor != ToolActor::Sidecar)
}

fn is_feature_enabled(case: &RuleContext<'_, '_>, feature: Option<Feature>) -> bool {
    feature.is_none_or(|feature| !case.policy.disabled_features.contains(&feature))
}

/// Whether the run's own `toolPolicy` allows a tool.
fn run_policy_allows(case: &RuleContext<'_, '_>, policy: &ToolPolicy, tool: &ToolDecision) -> bool {
    let named = |patterns: &[ToolPattern]| patterns.iter().any(|pattern| matches_pattern(case, pattern.as_str(), tool));
    let is_allowed = tool.name == LOAD_SKILL || policy.allow.as_deref().is_none_or(named);
    is_allowed && !named(&policy.deny)
}

/// Whether the agent has skill texts to read.
fn has_skill_texts(case: &RuleContext<'_, '_>) -> bool {
    let mut skills = case.run.spec.skills.iter();
    let mut packs = case.packs.iter();
    skills.any(|skill| skill.config_map_ref.is_some())
        || packs.any(|pack| pack.starts_sidecar && !pack.spec.skills.is_empty())
}

/// Whether a tool of a pack is for one of its skills: where every skill lists its tools, the others are denied.
fn is_for_skill(case: &RuleContext<'_, '_>, tool: &ToolDecision) -> bool {
    let mut packs = case.packs.iter();
    let pack = packs.find(|pack| tool.pack.as_deref() == Some(pack.name.as_str()));
    let skills = pack.map_or(&[][..], |pack| &pack.spec.skills);
    skills.is_empty()
        || skills.iter().any(|skill| {
            let patterns = skill.allowed_tools.as_ref();
            patterns.is_none_or(|patterns| patterns.iter().any(|pattern| matches_pattern(case, pattern.as_str(), tool)))
        })
}

/// Whether a pattern matches a tool: `tool`, `pack/tool`, `pack/*`, `namespace/pack/tool`, `namespace/pack/*` or `*`.
pub(super) fn matches_pattern(case: &RuleContext<'_, '_>, pattern: &str, tool: &ToolDecision) -> bool {
    let Some((packs, name)) = pattern.rsplit_once('/') else {
        return pattern == "*" || pattern == tool.name;
    };
    let is_of_pack = match packs.split_once('/') {
        Some((namespace, pack)) => tool.pack.as_deref() == Some(pack) && pack_namespace(case, tool) == Some(namespace),
        None => tool.pack.as_deref() == Some(packs),
    };
    is_of_pack && (name == "*" || name == tool.name)
}

/// Denies tools that the run lists by name and the policy denies: the run would not be what its author asked for.
fn check_listed_tools(
    case: &RuleContext<'_, '_>,
    run_policy: &ToolPolicy,
    tools: &[ToolDecision],
    findings: &mut Findings,
) {
    for (index, pattern) in run_policy.allow.iter().flatten().enumerate() {
        let pattern = pattern.as_str();
        let mut named = tools.iter().filter(|tool| matches_pattern(case, pattern, tool)).peekable();
        if pattern == "*" || named.peek().is_none() {
            continue;
        }
        if named.all(|tool| tool.action == Gate::Deny) {
            findings.deny(
                &case.subject,
                violation(
                    format!("spec.toolPolicy.allow[{index}]"),
                    "tool-denied",
                    format!("the policy denies {}", quote(pattern)),
                    "remove it, or allow it in `toolGating` and open its feature in `featureGates`",
                ),
            );
        }
    }
}

/// Names that match no tool are probably misspelt.
fn warn_about_unknown_patterns(case: &RuleContext<'_, '_>, tools: &[ToolDecision], findings: &mut Findings) {
    let known = |pattern: &str| {
        pattern == "*"
            || tools.iter().any(|tool| matches_pattern(case, pattern, tool))
            || BuiltinTool::find(pattern).is_some()
    };
    // A policy is for many runs: rules about other packs are expected, but a plain name that matches nothing may be a
    // mistake.
    let of_policy = case.policy.gates.rules().map(|(pattern, _)| pattern);
    for pattern in of_policy.filter(|pattern| !pattern.contains('/') && !known(pattern)) {
        findings.warn(
            &policy_subject(case),
            violation(
                "spec.toolGating.rules",
                "tool-rule-unknown",
                format!("a rule names {}, which is no tool of this run", quote(pattern)),
                "see that the name is right: a rule with a wrong one does nothing",
            ),
        );
    }
    let Some(run_policy) = &case.run.spec.tool_policy else {
        return;
    };
    let services = case.input.settings.services;
    for (index, pattern) in run_policy.allow.iter().flatten().enumerate() {
        let pattern = pattern.as_str();
        if !services.supports(pattern) {
            findings.warn(
                &case.subject,
                violation(
                    format!("spec.toolPolicy.allow[{index}]"),
                    "tool-unserved",
                    format!("nothing serves `{pattern}` here, so it is not offered"),
                    "do not rely on it",
                ),
            );
        }
    }
    let lists = [("allow", run_policy.allow.as_deref().unwrap_or_default()), ("deny", &run_policy.deny)];
    for (list, patterns) in lists {
        for (index, pattern) in patterns.iter().enumerate().filter(|(_, pattern)| !known(pattern.as_str())) {
            findings.warn(
                &case.subject,
                violation(
                    format!("spec.toolPolicy.{list}[{index}]"),
                    "tool-unknown",
                    format!("the run has no tool {}", quote(pattern.as_str())),
                    "correct the name: `tool`, `pack/tool`, `pack/*`, `namespace/pack/tool` or `namespace/pack/*`",
                ),
            );
        }
    }
}

fn warn_about_useless_packs(case: &RuleContext<'_, '_>, tools: &[ToolDecision], findings: &mut Findings) {
    for pack in case.packs.iter().filter(|pack| pack.sidecar().is_some()) {
        let mut own = tools.iter().filter(|tool| tool.pack.as_deref() == Some(pack.name.as_str()));
        if own.all(|tool| tool.action == Gate::Deny) {
            findings.warn(
                &case.subject,
                violation(
                    format!("spec.skills[{}].skillPackRef", pack.index),
                    "pack-useless",
                    format!(
                        "every tool of pack {} is denied; its sidecar starts for nothing",
                        quote(pack.name.as_str())
                    ),
                    "remove the skill, or allow one of its tools",
                ),
            );
        }
    }
}

fn warn_about_missing_approvers(case: &RuleContext<'_, '_>, tools: &[ToolDecision], findings: &mut Findings) {
    let asks = tools.iter().any(|tool| tool.action == Gate::Ask);
    if asks && case.policy.approval.approvers == Allowed::none() {
        findings.warn(
            &case.subject,
            violation(
                "spec",
                "nobody-approves",
                "some tools need an approval, and no user may give it",
                "name people or groups in `approvalPolicy.approvers`",
            ),
        );
    }
}

fn check_unique_names(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for pack in &case.packs {
        let tools = pack.sidecar().map_or(&[][..], |sidecar| &sidecar.tools);
        for tool in tools {
            let owner = owners.entry(tool.name.as_str()).or_insert(pack.name.as_str());
            if *owner != pack.name.as_str() {
                findings.deny(
                    &case.subject,
                    violation(
                        format!("spec.skills[{}].skillPackRef", pack.index),
                        "tool-twice",
                        format!(
                            "packs {} and {} both declare the tool {}",
                            quote(owner),
                            quote(pack.name.as_str()),
                            quote(tool.name.as_str())
                        ),
                        "use one of the packs, or rename the tool",
                    ),
                );
            }
        }
    }
}

/// Checks the tools of one pack, independently of a run.
pub fn check_declarations(subject: &Subject, sidecar: &Sidecar, findings: &mut Findings) {
    for (index, tool) in sidecar.tools.iter().enumerate() {
        let field = format!("spec.sidecar.tools[{index}]");
        for detail in declaration_violations(&field, tool) {
            findings.deny(subject, detail);
        }
        let before = &sidecar.tools[..index];
        if before.iter().any(|other| other.name == tool.name) {
            let message = format!("the tool {} is declared twice", quote(tool.name.as_str()));
            findings.deny(subject, violation(format!("{field}.name"), "tool-twice", message, "rename one of them"));
        }
    }
}

fn declaration_violations(field: &str, tool: &Declaration) -> Vec<ViolationDetail> {
    let mut problems = Vec::new();
    let name = tool.name.as_str();
    if let Err(error) = tool.name.check() {
        let remedy = "use lower case letters, digits and `_`";
        problems.push(violation(format!("{field}.name"), "tool-name", error.to_string(), remedy));
    }
    if BuiltinTool::find(name).is_some() {
        let message = format!("`{name}` is a built-in tool");
        problems.push(violation(format!("{field}.name"), "tool-built-in", message, "give the tool another name"));
    }
    if tool.exec.first().is_none_or(String::is_empty) {
        let message = "the tool runs no program";
        problems.push(violation(format!("{field}.exec"), "tool-exec", message, "name the program first in `exec`"));
    }
    if tool.exec.iter().chain(&tool.subcommand).any(|word| word.contains('\0')) {
        let message = "an argument contains a NUL character";
        problems.push(violation(format!("{field}.exec"), "tool-exec", message, "remove it"));
    }
    check_parameters(field, tool, &mut problems);
    problems
}

fn check_parameters(field: &str, tool: &Declaration, problems: &mut Vec<ViolationDetail>) {
    let nothing = BTreeMap::new();
    let schema = tool.parameters.as_ref().map_or(&nothing, |parameters| &parameters.0);
    let at = format!("{field}.parameters");
    if schema.get("type").is_some_and(|type_| type_ != "object") {
        let message = "the parameters of a tool are an object";
        problems.push(violation(at.clone(), "tool-parameters", message, "write `type: object`"));
    }
    let properties = match schema.get("properties") {
        None => None,
        Some(Value::Object(properties)) => Some(properties),
        Some(_) => {
            let message = "`properties` is not an object";
            problems.push(violation(at.clone(), "tool-parameters", message, "list each parameter by name"));
            None
        }
    };
    let required: Vec<&str> = match schema.get("required") {
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    for (index, name) in tool.positional_args.iter().enumerate() {
        let declared =
            properties.is_some_and(|properties| properties.contains_key(name)) && required.contains(&name.as_str());
        if !declared {
            problems.push(violation(
                format!("{field}.positionalArgs[{index}]"),
                "tool-positional",
                format!("{} is not a required parameter", quote(name)),
                "declare it in `parameters.properties` and list it in `parameters.required`",
            ));
        }
    }
    let others = properties
        .into_iter()
        .flat_map(|properties| properties.keys())
        .filter(|name| !tool.positional_args.contains(name));
    if tool.input_mode == InputMode::Args {
        for name in others {
            problems.push(violation(
                at.clone(),
                "tool-parameter-lost",
                format!("{} would not reach the program", quote(name)),
                "list it in `positionalArgs`, or set `inputMode: stdin`",
            ));
        }
    }
}
