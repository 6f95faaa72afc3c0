//! Fields that are accepted and that no code acts on yet. One that restricts would be a promise that nobody keeps: it
//! denies. The others are named in a warning.

use sympozium_api::labels::FLOOR_POLICY;
use sympozium_api::{AgentRunSpec, AgentSpec};

use super::finding::{Findings, told};
use super::policies::agent_subject;
use super::{Case, Subject};

/// One such field.
pub struct UnusedField {
    /// Where it is.
    pub field: &'static str,
    /// What using it means.
    effect: Effect,
    is_used: IsUsed,
}

/// What it means that nobody acts on a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Something is not done.
    Missing,
    /// Something is not prevented.
    Restricting,
}

#[derive(Clone, Copy)]
enum IsUsed {
    Run(fn(&AgentRunSpec) -> bool),
    Agent(fn(&AgentSpec) -> bool),
    Policy(fn(&crate::policy::EffectivePolicy) -> bool),
}

use Effect::{Missing, Restricting};
use IsUsed::{Agent, Policy, Run};

/// The table. Whoever makes a field work takes its row out.
pub const UNUSED_FIELDS: &[UnusedField] = &[
    row("spec.canaryMode", Missing, Run(|run| run.canary_mode == Some(true))),
    row("spec.dryRun", Restricting, Run(|run| run.dry_run == Some(true))),
    row("spec.channels", Missing, Agent(|agent| !agent.channels.is_empty())),
    row("spec.mcpServers", Missing, Agent(|agent| !agent.mcp_servers.is_empty())),
    row("spec.memory", Missing, Agent(|agent| agent.memory.as_ref().is_some_and(|it| it.enabled))),
    row("spec.observability", Missing, Agent(|agent| agent.observability.as_ref().is_some_and(|it| it.enabled))),
    row("spec.webEndpoint", Missing, Agent(|agent| agent.web_endpoint.as_ref().is_some_and(|it| it.enabled))),
    row("spec.networkPolicy.allowDNS", Restricting, Policy(|policy| !policy.name_lookup)),
];

const fn row(field: &'static str, effect: Effect, is_used: IsUsed) -> UnusedField {
    UnusedField { field, effect, is_used }
}

/// Says which of them are used.
pub fn check(case: &Case<'_, '_>, findings: &mut Findings) {
    for unused in UNUSED_FIELDS {
        let (used, subject) = match unused.is_used {
            Run(is_used) => (is_used(&case.run.spec), case.subject.clone()),
            Agent(is_used) => (is_used(case.agent), agent_subject(case.input)),
            Policy(is_used) => (is_used(case.policy), policy_subject(case)),
        };
        if !used {
            continue;
        }
        let UnusedField { field, effect, .. } = unused;
        match effect {
            Missing => findings.warn(
                &subject,
                told(*field, "field-unused", format!("nothing acts on `{field}` yet"), "do not rely on it"),
            ),
            Restricting => findings.deny(
                &subject,
                told(
                    *field,
                    "field-unenforced",
                    format!("nothing enforces `{field}` yet, and the run would go on as if it were not there"),
                    "remove it",
                ),
            ),
        }
    }
}

/// The policy that holds: the named one, or else the floor.
pub(super) fn policy_subject(case: &Case<'_, '_>) -> Subject {
    let kind = "SympoziumPolicy";
    match &case.agent.policy_ref {
        Some(name) => Subject::new(kind, None, name.as_str()),
        None => Subject::new(kind, Some(&case.input.settings.system_namespace), FLOOR_POLICY),
    }
}
