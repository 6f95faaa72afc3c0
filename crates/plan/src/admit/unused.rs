//! Fields that are accepted and that no code acts on yet. One that restricts would be a promise that nobody keeps: it
//! denies. The others are named in a warning.

use sympozium_api::{AgentRunSpec, AgentSpec};

use super::Case;
use super::finding::{Findings, told};
use super::policies::agent_subject;

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
    InRun(fn(&AgentRunSpec) -> bool),
    InAgent(fn(&AgentSpec) -> bool),
    InPolicy(fn(&crate::policy::EffectivePolicy) -> bool),
}

use Effect::{Missing, Restricting};
use IsUsed::{InAgent, InPolicy, InRun};

/// The table. Whoever makes a field work takes its row out.
pub const UNUSED_FIELDS: &[UnusedField] = &[
    row(
        "spec.canaryMode",
        Missing,
        InRun(|run| run.canary_mode == Some(true)),
    ),
    row(
        "spec.dryRun",
        Restricting,
        InRun(|run| run.dry_run == Some(true)),
    ),
    row(
        "spec.channels",
        Missing,
        InAgent(|agent| !agent.channels.is_empty()),
    ),
    row(
        "spec.mcpServers",
        Missing,
        InAgent(|agent| !agent.mcp_servers.is_empty()),
    ),
    row(
        "spec.memory",
        Missing,
        InAgent(|agent| agent.memory.as_ref().is_some_and(|it| it.enabled)),
    ),
    row(
        "spec.observability",
        Missing,
        InAgent(|agent| agent.observability.as_ref().is_some_and(|it| it.enabled)),
    ),
    row(
        "spec.webEndpoint",
        Missing,
        InAgent(|agent| agent.web_endpoint.as_ref().is_some_and(|it| it.enabled)),
    ),
    row(
        "spec.networkPolicy.allowDNS",
        Restricting,
        InPolicy(|policy| !policy.name_lookup),
    ),
];

const fn row(field: &'static str, effect: Effect, is_used: IsUsed) -> UnusedField {
    UnusedField {
        field,
        effect,
        is_used,
    }
}

/// Says which of them are used.
pub fn check(case: &Case<'_, '_>, findings: &mut Findings) {
    for unused in UNUSED_FIELDS {
        let (used, subject) = match unused.is_used {
            InRun(is_used) => (is_used(&case.run.spec), case.subject.clone()),
            InAgent(is_used) => (is_used(case.agent), agent_subject(case.input)),
            InPolicy(is_used) => (is_used(case.policy), case.subject.clone()),
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
