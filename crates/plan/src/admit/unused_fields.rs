//! Fields that are accepted and have no effect, each with the reason. No field is accepted and ignored: it has an
//! effect, or it is in this table, and its use gives a warning. A field that restricts would be a promise that is not
//! enforced: it denies.
//!
//! `crates/plan/src/fields` checks every leaf of every schema against this table.

use sympozium_api::agent_run::Task;
use sympozium_api::model::{Inference, ModelResources, ModelStorage};
use sympozium_api::quantity::Resources;
use sympozium_api::{AgentRunSpec, AgentSpec, ModelSpec, SkillPackSpec, SympoziumPolicySpec, SympoziumScheduleSpec};

use super::policies::agent_subject;
use super::violation::{Findings, violation};
use super::{RuleContext, Subject};
use sympozium_api::labels::FLOOR_POLICY;

/// A field without an effect.
pub struct UnusedField {
    /// The path of the field; it includes everything below it.
    pub field: &'static str,
    /// The result of its use.
    pub effect: Effect,
    /// Why it has no effect.
    pub reason: &'static str,
    is_used: IsUsed,
}

/// What it means that a field has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Something is not done: a warning.
    Missing,
    /// Something is not prevented: a violation.
    Restricting,
    /// Every value is satisfied anyway: nothing to report.
    Satisfied,
    /// Information for people: nothing to report.
    Information,
}

#[derive(Clone, Copy)]
enum IsUsed {
    Run(fn(&AgentRunSpec) -> bool),
    Agent(fn(&AgentSpec) -> bool),
    Pack(fn(&SkillPackSpec) -> bool),
    Policy(fn(&SympoziumPolicySpec) -> bool),
    Schedule(fn(&SympoziumScheduleSpec) -> bool),
    Model(fn(&ModelSpec) -> bool),
}

use Effect::{Information, Missing, Satisfied};
use IsUsed::{Agent, Model, Pack, Policy, Run, Schedule};

const NO_DEVICES: &str = "claims of the pod on devices are not made";
const FOR_PEOPLE: &str = "it is shown to people who look for an object";
const NO_MODELS: &str = "nothing serves models; `modelRef` reads name, namespace, server type and port";

/// The table. A change that implements a field removes its row.
pub const UNUSED_FIELDS: &[UnusedField] = &[
    row("spec.canaryMode", Missing, "nothing watches canary runs", Run(|run| run.canary_mode == Some(true))),
    row(
        "spec.task.mode",
        Missing,
        "no sidecar leads the agent; a task of this form is passed to it as text",
        Run(|run| matches!(run.task, Some(Task::Structured(_)))),
    ),
    row(
        "spec.sandbox.resources.claims",
        Missing,
        NO_DEVICES,
        Run(|run| has_claims(run.sandbox.as_ref().and_then(|sandbox| sandbox.resources.as_ref()))),
    ),
    row(
        "spec.agentSandbox.resources.claims",
        Missing,
        NO_DEVICES,
        Run(|run| has_claims(run.agent_sandbox.as_ref().and_then(|agent_sandbox| agent_sandbox.resources.as_ref()))),
    ),
    row(
        "spec.sandbox.securityContext.capabilities",
        Satisfied,
        "every container has all capabilities taken away",
        Run(|run| run.sandbox.is_some()),
    ),
    row(
        "spec.agents.default.sandbox.securityContext.capabilities",
        Satisfied,
        "every container has all capabilities taken away",
        Agent(|agent| agent.agents.default.sandbox.is_some()),
    ),
    row(
        "spec.agents.default.sandbox.resources.claims",
        Missing,
        NO_DEVICES,
        Agent(|agent| {
            let sandbox = agent.agents.default.sandbox.as_ref();
            has_claims(sandbox.and_then(|sandbox| sandbox.resources.as_ref()))
        }),
    ),
    row(
        "spec.agents.default.agentSandbox.warmPool",
        Missing,
        "nothing makes warm pools",
        Agent(|agent| {
            let sandbox = agent.agents.default.agent_sandbox.as_ref();
            sandbox.is_some_and(|sandbox| sandbox.warm_pool.is_some())
        }),
    ),
    row("spec.channels", Missing, "nothing connects to chats", Agent(|agent| !agent.channels.is_empty())),
    row("spec.mcpServers", Missing, "nothing calls MCP servers", Agent(|agent| !agent.mcp_servers.is_empty())),
    row(
        "spec.memory",
        Missing,
        "nothing is remembered from run to run",
        Agent(|agent| {
            let memory = agent.memory.as_ref();
            memory.is_some_and(|memory| memory.enabled || memory.system_prompt.is_some())
        }),
    ),
    row(
        "spec.observability",
        Missing,
        "no traces are sent",
        Agent(|agent| agent.observability.as_ref().is_some_and(|observability| observability.enabled)),
    ),
    row(
        "spec.webEndpoint",
        Missing,
        "nothing serves agents over HTTP",
        Agent(|agent| agent.web_endpoint.as_ref().is_some_and(|web_endpoint| web_endpoint.enabled)),
    ),
    row("spec.displayName", Information, FOR_PEOPLE, Agent(|agent| agent.display_name.is_some())),
    row("spec.category", Information, FOR_PEOPLE, Pack(|pack| pack.category.is_some())),
    row("spec.source", Information, FOR_PEOPLE, Pack(|pack| pack.source.is_some())),
    row("spec.version", Information, FOR_PEOPLE, Pack(|pack| pack.version.is_some())),
    row(
        "spec.skills[].requires.tools",
        Information,
        "it says what a skill is written for; what a run has is decided by packs and policy",
        Pack(|pack| pack.skills.iter().any(|skill| skill.requires.is_some())),
    ),
    row(
        "spec.networkPolicy.allowDNS",
        Satisfied,
        "runs have no DNS; the gateway looks up the hosts that they reach",
        Policy(|policy| policy.network_policy.is_some()),
    ),
    row(
        "spec.networkPolicy.allowEventBus",
        Satisfied,
        "nothing serves an event bus, so no run can use one",
        Policy(|policy| policy.network_policy.is_some()),
    ),
    row("spec", Missing, "nothing starts scheduled runs", Schedule(|_| true)),
    row("spec.source", Missing, NO_MODELS, Model(|_| true)),
    row("spec.storage", Missing, NO_MODELS, Model(|model| model.storage != ModelStorage::default())),
    row("spec.resources", Missing, NO_MODELS, Model(|model| model.resources != ModelResources::default())),
    row("spec.nodeSelector", Missing, NO_MODELS, Model(|model| !model.node_selector.is_empty())),
    row("spec.tolerations", Missing, NO_MODELS, Model(|model| !model.tolerations.is_empty())),
    row("spec.placement", Missing, NO_MODELS, Model(|model| model.placement.is_some())),
    row("spec.inference.image", Missing, NO_MODELS, Model(|model| model.inference.image.is_some())),
    row(
        "spec.inference.imagePullPolicy",
        Missing,
        NO_MODELS,
        Model(|model| model.inference.image_pull_policy.is_some()),
    ),
    row(
        "spec.inference.contextSize",
        Missing,
        NO_MODELS,
        Model(|model| model.inference.context_size != Inference::default().context_size),
    ),
    row("spec.inference.args", Missing, NO_MODELS, Model(|model| !model.inference.args.is_empty())),
    row("spec.inference.env", Missing, NO_MODELS, Model(|model| !model.inference.env.is_empty())),
    row(
        "spec.inference.huggingFaceTokenSecret",
        Missing,
        NO_MODELS,
        Model(|model| model.inference.hugging_face_token_secret.is_some()),
    ),
];

const fn row(field: &'static str, effect: Effect, reason: &'static str, is_used: IsUsed) -> UnusedField {
    UnusedField { field, effect, reason, is_used }
}

fn has_claims(resources: Option<&Resources>) -> bool {
    resources.is_some_and(|resources| !resources.claims.is_empty())
}

impl UnusedField {
    /// The kinds that have the field.
    pub const fn kinds(&self) -> &'static [&'static str] {
        match self.is_used {
            Run(_) => &["AgentRun"],
            Agent(_) => &["Agent", "SympoziumInstance"],
            Pack(_) => &["SkillPack"],
            Policy(_) => &["SympoziumPolicy"],
            Schedule(_) => &["SympoziumSchedule"],
            Model(_) => &["Model"],
        }
    }

    /// Reports the use of the field.
    fn add_finding(&self, subject: &Subject, findings: &mut Findings) {
        let Self { field, effect, reason, .. } = self;
        match effect {
            Missing => findings.warn(
                subject,
                violation(
                    *field,
                    "field-unused",
                    format!("nothing acts on `{field}` yet: {reason}"),
                    "do not rely on it",
                ),
            ),
            Effect::Restricting => findings.deny(
                subject,
                violation(*field, "field-unenforced", format!("nothing enforces `{field}` yet: {reason}"), "remove it"),
            ),
            Satisfied | Information => {}
        }
    }
}

/// Reports the unused fields of a run and its agent. Packs are checked by [`check_pack`].
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    // The run as it was written: what it inherits from the agent is reported for the agent.
    let written = &case.input.run.spec;
    add_findings(&case.subject, findings, |check| matches!(check, Run(is_used) if is_used(written)));
    check_agent(&agent_subject(case.input), case.agent, findings);
}

/// Reports the unused fields of an agent.
pub fn check_agent(subject: &Subject, spec: &AgentSpec, findings: &mut Findings) {
    add_findings(subject, findings, |check| matches!(check, Agent(is_used) if is_used(spec)));
}

/// Reports the unused fields of a pack.
pub fn check_pack(subject: &Subject, spec: &SkillPackSpec, findings: &mut Findings) {
    add_findings(subject, findings, |check| matches!(check, Pack(is_used) if is_used(spec)));
}

/// Reports the unused fields of a policy.
pub fn check_policy(subject: &Subject, spec: &SympoziumPolicySpec, findings: &mut Findings) {
    add_findings(subject, findings, |check| matches!(check, Policy(is_used) if is_used(spec)));
}

/// Reports the unused fields of a schedule.
pub fn check_schedule(subject: &Subject, spec: &SympoziumScheduleSpec, findings: &mut Findings) {
    add_findings(subject, findings, |check| matches!(check, Schedule(is_used) if is_used(spec)));
}

/// Reports the unused fields of a model.
pub fn check_model(subject: &Subject, spec: &ModelSpec, findings: &mut Findings) {
    add_findings(subject, findings, |check| matches!(check, Model(is_used) if is_used(spec)));
}

fn add_findings(subject: &Subject, findings: &mut Findings, is_used: impl Fn(&IsUsed) -> bool) {
    for unused in UNUSED_FIELDS.iter().filter(|unused_field| is_used(&unused_field.is_used)) {
        unused.add_finding(subject, findings);
    }
}

/// The policy that applies: the named one, or else the floor.
pub(super) fn policy_subject(case: &RuleContext<'_, '_>) -> Subject {
    let kind = "SympoziumPolicy";
    match &case.agent.policy_ref {
        Some(name) => Subject::new(kind, None, name.as_str()),
        None => Subject::new(kind, Some(&case.input.settings.system_namespace), FLOOR_POLICY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No unused field restricts at present, so the row is made up.
    #[test]
    fn a_field_that_restricts_and_is_not_enforced_denies() {
        let rules_of = |effect| {
            let mut findings = Findings::default();
            let subject = Subject::new("AgentRun", None, "r");
            row("spec.madeUp", effect, "it is made up", Run(|_| true)).add_finding(&subject, &mut findings);
            let rules =
                |violations: &[super::super::Violation]| violations.iter().map(|violation| violation.rule).collect();
            let rules: [Vec<_>; 2] = [rules(&findings.violations), rules(&findings.warnings)];
            rules
        };
        let nothing: Vec<&str> = Vec::new();
        assert_eq!(rules_of(Effect::Restricting), [vec!["field-unenforced"], nothing.clone()]);
        assert_eq!(rules_of(Missing), [nothing.clone(), vec!["field-unused"]]);
        assert_eq!(rules_of(Satisfied), [nothing.clone(), nothing.clone()]);
        assert_eq!(rules_of(Information), [nothing.clone(), nothing]);
    }
}
