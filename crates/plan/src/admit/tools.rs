//! The tools of a run: what packs declare, and the decision about each.

use std::collections::BTreeMap;

use serde_json::Value;
use sympozium_api::Feature;
use sympozium_api::agent_run::ToolPolicy;
use sympozium_api::names::ToolPattern;
use sympozium_api::skill_pack::{InputMode, Sidecar, Tool as Declaration};

use super::finding::{Findings, Told, told};
use super::unused::policy_subject;
use super::{Case, Subject, tool_rules};
use crate::policy::allowed::Allowed;
use crate::policy::packs::PackId;
use crate::policy::tools::{
    Action, BUILT_IN, EDIT_FILE, EXECUTE_COMMAND, FETCH_URL, LIST_DIRECTORY, LOAD_SKILL, READ_FILE, SCHEDULE_TASK,
    SEND_CHANNEL_MESSAGE, SPAWN_SUBAGENTS, Tool, WRITE_FILE,
};

pub use sympozium_api::run_plan::SANDBOX as SANDBOX_PACK;

/// Tools that the agent has without any pack.
const NATIVE: &[&str] = &[
    READ_FILE,
    WRITE_FILE,
    EDIT_FILE,
    LIST_DIRECTORY,
    FETCH_URL,
    SEND_CHANNEL_MESSAGE,
    SCHEDULE_TASK,
    SPAWN_SUBAGENTS,
];

/// A tool of a run, and the decision about its calls.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ToolDecision {
    /// The pack whose sidecar runs it; `None` for the agent's own tools.
    pub pack: Option<String>,
    /// The name of the tool.
    pub name: String,
    /// The decision about its calls.
    pub action: Action,
}

/// Decides about every tool of the run.
pub fn check(case: &Case<'_, '_>, findings: &mut Findings) -> Vec<ToolDecision> {
    unique_across_packs(case, findings);
    let by_policy = decisions(case);
    if let Some(run_policy) = &case.run.spec.tool_policy {
        asked_but_denied(case, run_policy, &by_policy, findings);
    }
    unknown_patterns(case, &by_policy, findings);
    tool_rules::warn_about_other_packs(case, &by_policy, findings);
    let decided: Vec<ToolDecision> = by_policy
        .into_iter()
        .map(|tool| {
            let by_run = case.run.spec.tool_policy.as_ref();
            let is_left = by_run.is_none_or(|it| permits(case, it, &tool)) && is_for_a_skill(case, &tool);
            match is_left {
                true => tool,
                false => ToolDecision { action: Action::Deny, ..tool },
            }
        })
        .collect();
    warn_about_useless_packs(case, &decided, findings);
    warn_about_nobody_to_ask(case, &decided, findings);
    decided
}

/// The decision of the policy about each tool, before the run's own `toolPolicy`.
fn decisions(case: &Case<'_, '_>) -> Vec<ToolDecision> {
    let policy = case.policy;
    let native = NATIVE.iter().map(|name| {
        let open = match *name {
            FETCH_URL => policy.reach.is_anything_at_all(),
            SEND_CHANNEL_MESSAGE => policy.event_bus,
            _ => is_open(case, feature(name)),
        };
        decision(case, None, name, Tool::BuiltIn(name), open)
    });
    // An attached skill is meant to be read, so the policy's default for tools without a rule does not apply to this
    // one.
    let load_skill = has_texts(case).then(|| ToolDecision {
        pack: None,
        name: LOAD_SKILL.to_owned(),
        action: policy.gates.written(LOAD_SKILL).unwrap_or(Action::Allow),
    });
    let sandbox = super::sandbox::has_container(case);
    let packs = case.packs.iter().filter_map(|pack| Some((pack.id(case), pack.sidecar()?)));
    let commands = packs.clone().map(|(pack, _)| pack).chain(sandbox.then(|| sandbox_id(case)));
    let runs_commands = is_open(case, Some(Feature::CodeExecution));
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
fn sandbox_id<'c>(case: &Case<'c, '_>) -> PackId<'c> {
    PackId { namespace: &case.input.settings.system_namespace, name: SANDBOX_PACK, is_of_system: true }
}

/// The namespace of the pack that the tool belongs to.
pub(super) fn namespace_of<'c>(case: &'c Case<'_, '_>, tool: &ToolDecision) -> Option<&'c str> {
    let name = tool.pack.as_deref()?;
    let pack = case.packs.iter().find(|pack| pack.name == name);
    Some(pack.map_or(sandbox_id(case).namespace, |it| it.namespace.as_str()))
}

fn decision(case: &Case<'_, '_>, pack: Option<&str>, name: &str, tool: Tool<'_>, open: bool) -> ToolDecision {
    ToolDecision {
        pack: pack.map(str::to_owned),
        name: name.to_owned(),
        action: if open { case.policy.gates.action(tool) } else { Action::Deny },
    }
}

fn feature(name: &str) -> Option<Feature> {
    let found = BUILT_IN.iter().find(|(built_in, _)| *built_in == name);
    found.and_then(|(_, feature)| *feature)
}

fn is_open(case: &Case<'_, '_>, feature: Option<Feature>) -> bool {
    feature.is_none_or(|feature| !case.policy.closed.contains(&feature))
}

/// Whether the run's own `toolPolicy` allows a tool.
fn permits(case: &Case<'_, '_>, policy: &ToolPolicy, tool: &ToolDecision) -> bool {
    let named = |patterns: &[ToolPattern]| patterns.iter().any(|pattern| is_about(case, pattern.as_str(), tool));
    let is_allowed = tool.name == LOAD_SKILL || policy.allow.as_deref().is_none_or(named);
    is_allowed && !named(&policy.deny)
}

/// Whether the agent has skill texts to read.
fn has_texts(case: &Case<'_, '_>) -> bool {
    let mut skills = case.run.spec.skills.iter();
    let mut packs = case.packs.iter();
    skills.any(|skill| skill.config_map_ref.is_some()) || packs.any(|pack| pack.starts && !pack.spec.skills.is_empty())
}

/// Whether a tool of a pack is for one of its skills: where every skill lists its tools, the others are denied.
fn is_for_a_skill(case: &Case<'_, '_>, tool: &ToolDecision) -> bool {
    let mut packs = case.packs.iter();
    let pack = packs.find(|pack| tool.pack.as_deref() == Some(pack.name.as_str()));
    let skills = pack.map_or(&[][..], |pack| &pack.spec.skills);
    skills.is_empty()
        || skills.iter().any(|skill| {
            let patterns = skill.allowed_tools.as_ref();
            patterns.is_none_or(|it| it.iter().any(|it| is_about(case, it.as_str(), tool)))
        })
}

/// Whether a pattern matches a tool: `tool`, `pack/tool`, `pack/*`, `namespace/pack/tool`, `namespace/pack/*` or `*`.
pub(super) fn is_about(case: &Case<'_, '_>, pattern: &str, tool: &ToolDecision) -> bool {
    let Some((packs, name)) = pattern.rsplit_once('/') else {
        return pattern == "*" || pattern == tool.name;
    };
    let is_of_pack = match packs.split_once('/') {
        Some((namespace, pack)) => tool.pack.as_deref() == Some(pack) && namespace_of(case, tool) == Some(namespace),
        None => tool.pack.as_deref() == Some(packs),
    };
    is_of_pack && (name == "*" || name == tool.name)
}

/// Denies tools that the run lists by name and the policy denies: the run would not be what its author asked for.
fn asked_but_denied(case: &Case<'_, '_>, run_policy: &ToolPolicy, tools: &[ToolDecision], findings: &mut Findings) {
    for (index, pattern) in run_policy.allow.iter().flatten().enumerate() {
        let pattern = pattern.as_str();
        let mut named = tools.iter().filter(|tool| is_about(case, pattern, tool)).peekable();
        if pattern == "*" || named.peek().is_none() {
            continue;
        }
        if named.all(|tool| tool.action == Action::Deny) {
            findings.deny(
                &case.subject,
                told(
                    format!("spec.toolPolicy.allow[{index}]"),
                    "tool-denied",
                    format!("the policy denies `{}`", crate::text::shown(pattern)),
                    "remove it, or allow it in `toolGating` and open its feature in `featureGates`",
                ),
            );
        }
    }
}

/// Names that match no tool are probably misspelt.
fn unknown_patterns(case: &Case<'_, '_>, tools: &[ToolDecision], findings: &mut Findings) {
    let known = |pattern: &str| {
        pattern == "*"
            || tools.iter().any(|tool| is_about(case, pattern, tool))
            || BUILT_IN.iter().any(|(name, _)| *name == pattern)
    };
    // A policy is for many runs: rules about other packs are expected, but a plain name that matches nothing may be a
    // mistake.
    let of_policy = case.policy.gates.rules().map(|(pattern, _)| pattern);
    for pattern in of_policy.filter(|it| !it.contains('/') && !known(it)) {
        findings.warn(
            &policy_subject(case),
            told(
                "spec.toolGating.rules",
                "tool-rule-unknown",
                format!("a rule names `{}`, which is no tool of this run", crate::text::shown(pattern)),
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
        if !services.serve(pattern) {
            findings.warn(
                &case.subject,
                told(
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
        for (index, pattern) in patterns.iter().enumerate().filter(|(_, it)| !known(it.as_str())) {
            findings.warn(
                &case.subject,
                told(
                    format!("spec.toolPolicy.{list}[{index}]"),
                    "tool-unknown",
                    format!("the run has no tool `{}`", crate::text::shown(pattern.as_str())),
                    "correct the name: `tool`, `pack/tool`, `pack/*`, `namespace/pack/tool` or `namespace/pack/*`",
                ),
            );
        }
    }
}

fn warn_about_useless_packs(case: &Case<'_, '_>, tools: &[ToolDecision], findings: &mut Findings) {
    for pack in case.packs.iter().filter(|pack| pack.sidecar().is_some()) {
        let mut own = tools.iter().filter(|tool| tool.pack.as_deref() == Some(pack.name.as_str()));
        if own.all(|tool| tool.action == Action::Deny) {
            findings.warn(
                &case.subject,
                told(
                    format!("spec.skills[{}].skillPackRef", pack.index),
                    "pack-useless",
                    format!(
                        "every tool of pack `{}` is denied; its sidecar starts for nothing",
                        crate::text::shown(pack.name.as_str())
                    ),
                    "remove the skill, or allow one of its tools",
                ),
            );
        }
    }
}

fn warn_about_nobody_to_ask(case: &Case<'_, '_>, tools: &[ToolDecision], findings: &mut Findings) {
    let asks = tools.iter().any(|tool| tool.action == Action::Ask);
    if asks && case.policy.approval.approvers == Allowed::nothing() {
        findings.warn(
            &case.subject,
            told(
                "spec",
                "nobody-approves",
                "some tools need an approval, and nobody may give it",
                "name people or groups in `approvalPolicy.approvers`",
            ),
        );
    }
}

fn unique_across_packs(case: &Case<'_, '_>, findings: &mut Findings) {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for pack in &case.packs {
        let tools = pack.sidecar().map_or(&[][..], |it| &it.tools);
        for tool in tools {
            let owner = owners.entry(tool.name.as_str()).or_insert(pack.name.as_str());
            if *owner != pack.name.as_str() {
                findings.deny(
                    &case.subject,
                    told(
                        format!("spec.skills[{}].skillPackRef", pack.index),
                        "tool-twice",
                        format!(
                            "packs `{}` and `{}` both declare the tool `{}`",
                            crate::text::shown(owner),
                            crate::text::shown(pack.name.as_str()),
                            crate::text::shown(tool.name.as_str())
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
        for told in problems(&field, tool) {
            findings.deny(subject, told);
        }
        let before = &sidecar.tools[..index];
        if before.iter().any(|other| other.name == tool.name) {
            let message = format!("the tool `{}` is declared twice", crate::text::shown(tool.name.as_str()));
            findings.deny(subject, told(format!("{field}.name"), "tool-twice", message, "rename one of them"));
        }
    }
}

fn problems(field: &str, tool: &Declaration) -> Vec<Told> {
    let mut problems = Vec::new();
    let name = tool.name.as_str();
    if let Err(error) = tool.name.check() {
        let remedy = "use lower case letters, digits and `_`";
        problems.push(told(format!("{field}.name"), "tool-name", error.to_string(), remedy));
    }
    if BUILT_IN.iter().any(|(built_in, _)| *built_in == name) {
        let message = format!("`{name}` is a built-in tool");
        problems.push(told(format!("{field}.name"), "tool-built-in", message, "give the tool another name"));
    }
    if tool.exec.first().is_none_or(String::is_empty) {
        let message = "the tool runs no program";
        problems.push(told(format!("{field}.exec"), "tool-exec", message, "name the program first in `exec`"));
    }
    if tool.exec.iter().chain(&tool.subcommand).any(|word| word.contains('\0')) {
        let message = "an argument contains a NUL character";
        problems.push(told(format!("{field}.exec"), "tool-exec", message, "remove it"));
    }
    parameters(field, tool, &mut problems);
    problems
}

fn parameters(field: &str, tool: &Declaration, problems: &mut Vec<Told>) {
    let nothing = BTreeMap::new();
    let schema = tool.parameters.as_ref().map_or(&nothing, |it| &it.0);
    let at = format!("{field}.parameters");
    if schema.get("type").is_some_and(|it| it != "object") {
        let message = "the parameters of a tool are an object";
        problems.push(told(at.clone(), "tool-parameters", message, "write `type: object`"));
    }
    let properties = match schema.get("properties") {
        None => None,
        Some(Value::Object(properties)) => Some(properties),
        Some(_) => {
            let message = "`properties` is not an object";
            problems.push(told(at.clone(), "tool-parameters", message, "list each parameter by name"));
            None
        }
    };
    let required: Vec<&str> = match schema.get("required") {
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    for (index, name) in tool.positional_args.iter().enumerate() {
        let declared = properties.is_some_and(|it| it.contains_key(name)) && required.contains(&name.as_str());
        if !declared {
            problems.push(told(
                format!("{field}.positionalArgs[{index}]"),
                "tool-positional",
                format!("`{}` is not a required parameter", crate::text::shown(name)),
                "declare it in `parameters.properties` and list it in `parameters.required`",
            ));
        }
    }
    let others = properties.into_iter().flat_map(|it| it.keys()).filter(|name| !tool.positional_args.contains(name));
    if tool.input_mode == InputMode::Args {
        for name in others {
            problems.push(told(
                at.clone(),
                "tool-parameter-lost",
                format!("`{}` would not reach the program", crate::text::shown(name)),
                "list it in `positionalArgs`, or set `inputMode: stdin`",
            ));
        }
    }
}
