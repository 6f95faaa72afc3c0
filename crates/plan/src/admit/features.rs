//! Features that a policy disables.

use sympozium_api::Feature;
use sympozium_api::text::{MAX_NAME, printable, quote, truncate};

use super::RuleContext;
use super::unused_fields::policy_subject;
use super::violation::{Findings, violation};

/// Checks that the run needs no disabled feature. Tools of disabled features are denied with the other tools.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    for name in &case.policy.unknown_features {
        let name = printable(truncate(name, MAX_NAME));
        findings.deny(
            &policy_subject(case),
            violation(
                format!("spec.featureGates.{name}"),
                "feature-unknown",
                format!("the policy closes `{name}`, which is no feature, so that what it was to close is not known"),
                format!("correct it to one of {}", crate::text::quote_list(Feature::ALL.map(Feature::as_str))),
            ),
        );
    }
    let closed = &case.policy.disabled_features;
    if closed.is_empty() {
        return;
    }
    let (sandbox, _) = super::sandbox::enabled_kinds(case);
    if sandbox && closed.contains(&Feature::CodeExecution) {
        findings.deny(
            &case.subject,
            violation(
                "spec.sandbox.enabled",
                "feature-code-execution",
                "the policy closes `code-execution`, and a sandbox is for commands",
                "disable `sandbox`; `agentSandbox` isolates without commands",
            ),
        );
    }
    if case.run.spec.parent.is_some() && closed.contains(&Feature::SubAgents) {
        findings.deny(
            &case.subject,
            violation(
                "spec.parent",
                "feature-sub-agents",
                "the policy closes `sub-agents`, and another run started this one",
                "start the run by itself",
            ),
        );
    }
    for pack in &case.packs {
        for feature in pack.spec.features.iter().filter(|feature| closed.contains(feature)) {
            findings.deny(
                &case.subject,
                violation(
                    format!("spec.skills[{}].skillPackRef", pack.index),
                    "feature-of-pack",
                    format!("the policy closes `{feature}`, which pack {} brings", quote(pack.name.as_str())),
                    "remove the skill, or open the feature in `featureGates`",
                ),
            );
        }
    }
}
