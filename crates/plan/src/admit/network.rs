//! The hosts that packs and the agent reach.

use sympozium_api::builtin_tool::FETCH_URL;
use sympozium_api::run_plan::Gate;
use sympozium_api::skill_pack::Sidecar;
use sympozium_api::text::quote;

use super::tools::ToolDecision;
use super::violation::{Findings, violation};
use super::{RuleContext, Subject};
use crate::policy::egress::parse_egress;

/// Checks every host that a pack declares.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    for pack in &case.packs {
        let Some(sidecar) = pack.sidecar() else {
            continue;
        };
        let subject = pack.subject();
        for (index, egress) in sidecar.egress.iter().enumerate() {
            let field = format!("spec.sidecar.egress[{index}]");
            let Ok(destination) = parse_egress(egress) else {
                continue;
            };
            if !case.policy.egress.covers(&destination) {
                findings.deny(
                    &subject,
                    violation(
                        format!("{field}.host"),
                        "egress-not-allowed",
                        format!("the policy does not let runs reach `{destination}`"),
                        "remove it, or add it to `networkPolicy.allowedEgress`",
                    ),
                );
            }
        }
    }
}

/// Checks that the hosts of a pack are valid.
pub fn check_hosts(subject: &Subject, sidecar: &Sidecar, findings: &mut Findings) {
    for (index, egress) in sidecar.egress.iter().enumerate() {
        if let Err(error) = parse_egress(egress) {
            let field = format!("spec.sidecar.egress[{index}].host");
            let remedy = "write a host name, an address, or `*.` and a domain";
            findings.deny(subject, violation(field, "egress-invalid", error, remedy));
        }
    }
}

/// Warns where pages that the agent reads could make it send out what a skill knows.
pub fn warn_about_fetching(case: &RuleContext<'_, '_>, tools: &[ToolDecision], findings: &mut Findings) {
    let fetches = tools.iter().any(|tool| tool.name == FETCH_URL && tool.action == Gate::Allow);
    if !fetches || !case.policy.egress.public {
        return;
    }
    for pack in &case.packs {
        let Some(sidecar) = pack.sidecar() else {
            continue;
        };
        let has_secret = sidecar.secret_ref.is_some()
            || sidecar.env.iter().any(|env| env.value_from.as_ref().is_some_and(|from| from.secret_key_ref.is_some()))
            || sidecar.volumes.iter().any(|volume| volume.source.contains_key("secret"));
        let has_grants = !sidecar.rbac.is_empty() || !sidecar.cluster_rbac.is_empty();
        if has_secret || has_grants {
            let what = if has_secret { "a Secret" } else { "access to the Kubernetes API" };
            findings.warn(
                &case.subject,
                violation(
                    format!("spec.skills[{}].skillPackRef", pack.index),
                    "fetch-unrestricted",
                    format!(
                        "`fetch_url` reaches every public host while pack {} has {what}: what the agent reads there can make it send out what the skill knows",
                        quote(pack.name.as_str())
                    ),
                    "deny `fetch_url` in `toolPolicy` or the policy, or list hosts in `networkPolicy.allowedEgress` with `denyAll`",
                ),
            );
        }
    }
}
