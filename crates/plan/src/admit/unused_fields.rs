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
    row("spec.canaryMode", Missing, "nothing watches canary runs", Run(|it| it.canary_mode == Some(true))),
    row(
        "spec.task.mode",
        Missing,
        "no sidecar leads the agent; a task of this form is told to it in words",
        Run(|it| matches!(it.task, Some(Task::Structured(_)))),
    ),
    row(
        "spec.sandbox.resources.claims",
        Missing,
        NO_DEVICES,
        Run(|it| has_claims(it.sandbox.as_ref().and_then(|it| it.resources.as_ref()))),
    ),
    row(
        "spec.agentSandbox.resources.claims",
        Missing,
        NO_DEVICES,
        Run(|it| has_claims(it.agent_sandbox.as_ref().and_then(|it| it.resources.as_ref()))),
    ),
    row(
        "spec.sandbox.securityContext.capabilities",
        Satisfied,
        "every container has all capabilities taken away",
        Run(|it| it.sandbox.is_some()),
    ),
    row(
        "spec.agents.default.sandbox.securityContext.capabilities",
        Satisfied,
        "every container has all capabilities taken away",
        Agent(|it| it.agents.default.sandbox.is_some()),
    ),
    row(
        "spec.agents.default.sandbox.resources.claims",
        Missing,
        NO_DEVICES,
        Agent(|it| {
            let sandbox = it.agents.default.sandbox.as_ref();
            has_claims(sandbox.and_then(|it| it.resources.as_ref()))
        }),
    ),
    row(
        "spec.agents.default.agentSandbox.warmPool",
        Missing,
        "nothing makes warm pools",
        Agent(|it| {
            let sandbox = it.agents.default.agent_sandbox.as_ref();
            sandbox.is_some_and(|it| it.warm_pool.is_some())
        }),
    ),
    row("spec.channels", Missing, "nothing connects to chats", Agent(|it| !it.channels.is_empty())),
    row("spec.mcpServers", Missing, "nothing calls MCP servers", Agent(|it| !it.mcp_servers.is_empty())),
    row(
        "spec.memory",
        Missing,
        "nothing is remembered from run to run",
        Agent(|it| {
            let memory = it.memory.as_ref();
            memory.is_some_and(|it| it.enabled || it.system_prompt.is_some())
        }),
    ),
    row(
        "spec.observability",
        Missing,
        "no traces are sent",
        Agent(|it| it.observability.as_ref().is_some_and(|it| it.enabled)),
    ),
    row(
        "spec.webEndpoint",
        Missing,
        "nothing serves agents over HTTP",
        Agent(|it| it.web_endpoint.as_ref().is_some_and(|it| it.enabled)),
    ),
    row("spec.displayName", Information, FOR_PEOPLE, Agent(|it| it.display_name.is_some())),
    row("spec.category", Information, FOR_PEOPLE, Pack(|it| it.category.is_some())),
    row("spec.source", Information, FOR_PEOPLE, Pack(|it| it.source.is_some())),
    row("spec.version", Information, FOR_PEOPLE, Pack(|it| it.version.is_some())),
    row(
        "spec.skills[].requires.tools",
        Information,
        "it says what a skill is written for; what a run has is decided by packs and policy",
        Pack(|it| it.skills.iter().any(|it| it.requires.is_some())),
    ),
    row(
        "spec.networkPolicy.allowDNS",
        Satisfied,
        "runs have no DNS; the gateway looks up the hosts that they reach",
        Policy(|it| it.network_policy.is_some()),
    ),
    row(
        "spec.networkPolicy.allowEventBus",
        Satisfied,
        "nothing serves an event bus, so no run can use one",
        Policy(|it| it.network_policy.is_some()),
    ),
    row("spec", Missing, "nothing starts scheduled runs", Schedule(|_| true)),
    row("spec.source", Missing, NO_MODELS, Model(|_| true)),
    row("spec.storage", Missing, NO_MODELS, Model(|it| it.storage != ModelStorage::default())),
    row("spec.resources", Missing, NO_MODELS, Model(|it| it.resources != ModelResources::default())),
    row("spec.nodeSelector", Missing, NO_MODELS, Model(|it| !it.node_selector.is_empty())),
    row("spec.tolerations", Missing, NO_MODELS, Model(|it| !it.tolerations.is_empty())),
    row("spec.placement", Missing, NO_MODELS, Model(|it| it.placement.is_some())),
    row("spec.inference.image", Missing, NO_MODELS, Model(|it| it.inference.image.is_some())),
    row("spec.inference.imagePullPolicy", Missing, NO_MODELS, Model(|it| it.inference.image_pull_policy.is_some())),
    row(
        "spec.inference.contextSize",
        Missing,
        NO_MODELS,
        Model(|it| it.inference.context_size != Inference::default().context_size),
    ),
    row("spec.inference.args", Missing, NO_MODELS, Model(|it| !it.inference.args.is_empty())),
    row("spec.inference.env", Missing, NO_MODELS, Model(|it| !it.inference.env.is_empty())),
    row(
        "spec.inference.huggingFaceTokenSecret",
        Missing,
        NO_MODELS,
        Model(|it| it.inference.hugging_face_token_secret.is_some()),
    ),
];

const fn row(field: &'static str, effect: Effect, reason: &'static str, is_used: IsUsed) -> UnusedField {
    UnusedField { field, effect, reason, is_used }
}

fn has_claims(resources: Option<&Resources>) -> bool {
    resources.is_some_and(|it| !it.claims.is_empty())
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
    add_findings(&case.subject, findings, |it| matches!(it, Run(is_used) if is_used(written)));
    check_agent(&agent_subject(case.input), case.agent, findings);
}

/// Reports the unused fields of an agent.
pub fn check_agent(subject: &Subject, spec: &AgentSpec, findings: &mut Findings) {
    add_findings(subject, findings, |it| matches!(it, Agent(is_used) if is_used(spec)));
}

/// Reports the unused fields of a pack.
pub fn check_pack(subject: &Subject, spec: &SkillPackSpec, findings: &mut Findings) {
    add_findings(subject, findings, |it| matches!(it, Pack(is_used) if is_used(spec)));
}

/// Reports the unused fields of a policy.
pub fn check_policy(subject: &Subject, spec: &SympoziumPolicySpec, findings: &mut Findings) {
    add_findings(subject, findings, |it| matches!(it, Policy(is_used) if is_used(spec)));
}

/// Reports the unused fields of a schedule.
pub fn check_schedule(subject: &Subject, spec: &SympoziumScheduleSpec, findings: &mut Findings) {
    add_findings(subject, findings, |it| matches!(it, Schedule(is_used) if is_used(spec)));
}

/// Reports the unused fields of a model.
pub fn check_model(subject: &Subject, spec: &ModelSpec, findings: &mut Findings) {
    add_findings(subject, findings, |it| matches!(it, Model(is_used) if is_used(spec)));
}

fn add_findings(subject: &Subject, findings: &mut Findings, is_used: impl Fn(&IsUsed) -> bool) {
    for unused in UNUSED_FIELDS.iter().filter(|it| is_used(&it.is_used)) {
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
        let said = |effect| {
            let mut findings = Findings::default();
            let subject = Subject::new("AgentRun", None, "r");
            row("spec.madeUp", effect, "it is made up", Run(|_| true)).add_finding(&subject, &mut findings);
            let rules = |it: &[super::super::Violation]| it.iter().map(|it| it.rule).collect();
            let rules: [Vec<_>; 2] = [rules(&findings.violations), rules(&findings.warnings)];
            rules
        };
        let nothing: Vec<&str> = Vec::new();
        assert_eq!(said(Effect::Restricting), [vec!["field-unenforced"], nothing.clone()]);
        assert_eq!(said(Missing), [nothing.clone(), vec!["field-unused"]]);
        assert_eq!(said(Satisfied), [nothing.clone(), nothing.clone()]);
        assert_eq!(said(Information), [nothing.clone(), nothing]);
    }
}
