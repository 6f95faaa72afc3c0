//! The policy that an agent names: that it exists, and in which namespace.

use sympozium_api::text::quote;
use sympozium_api::{AgentSpec, SympoziumPolicySpec};

use super::violation::{Findings, violation};
use super::{Input, Subject};
use crate::policy::EffectivePolicy;

/// The spec of the named policy. The run is denied when it is not found.
pub fn resolve<'a>(
    input: &Input<'a>,
    agent: Option<&AgentSpec>,
    findings: &mut Findings,
) -> Option<&'a SympoziumPolicySpec> {
    let name = agent?.policy_ref.as_ref()?;
    let subject = agent_subject(input);
    let shown = quote(name.as_str());
    let system = &input.settings.system_namespace;
    match (input.policies.own, input.policies.system) {
        (None, None) => {
            findings.deny_missing(
                &subject,
                violation(
                    "spec.policyRef",
                    "policy-missing",
                    format!("there is no policy {shown} in namespace `{}` or `{system}`", input.namespace),
                    "create it, or correct the name; without its policy an agent cannot run",
                ),
                Subject::new("SympoziumPolicy", Some(input.namespace), name.as_str()),
            );
            None
        }
        (Some(_), Some(_)) if !allows_shadowing(input) => {
            findings.deny(
                &subject,
                violation(
                    "spec.policyRef",
                    "policy-ambiguous",
                    format!("policy {shown} is in namespace `{}` and in `{system}`", input.namespace),
                    "rename the one in the agent's namespace",
                ),
            );
            None
        }
        (own, system) => own.or(system).map(|policy| &policy.spec),
    }
}

/// Only the floor can allow it: a policy that replaces another must not permit itself.
fn allows_shadowing(input: &Input<'_>) -> bool {
    input.floor.is_some_and(|floor| {
        floor.pack_policy.is_some() && EffectivePolicy::from_floor(floor, &input.settings.system_namespace).shadowing
    })
}

/// The object that names the policy.
pub fn agent_subject(input: &Input<'_>) -> Subject {
    let (kind, name) = match (input.agents.agent, input.agents.instance) {
        (None, Some(instance)) => ("SympoziumInstance", &instance.metadata.name),
        (Some(agent), _) => ("Agent", &agent.metadata.name),
        (None, None) => ("Agent", &None),
    };
    Subject::new(kind, Some(input.namespace), name.as_deref().unwrap_or_default())
}
