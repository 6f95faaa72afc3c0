//! The hosts that packs and the agent reach.

use sympozium_api::skill_pack::Sidecar;

use super::finding::{Findings, told};
use super::tools::ToolDecision;
use super::{Case, Subject};
use crate::policy::reach::destination;
use crate::policy::tools::{Action, FETCH_URL};

/// Checks every host that a pack declares.
pub fn check(case: &Case<'_, '_>, findings: &mut Findings) {
    for pack in &case.packs {
        let Some(sidecar) = pack.sidecar() else {
            continue;
        };
        let subject = pack.subject();
        for (index, egress) in sidecar.egress.iter().enumerate() {
            let field = format!("spec.sidecar.egress[{index}]");
            let Ok(destination) = destination(egress) else {
                continue;
            };
            if !case.policy.reach.covers(&destination) {
                findings.deny(
                    &subject,
                    told(
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
pub fn check_form(subject: &Subject, sidecar: &Sidecar, findings: &mut Findings) {
    for (index, egress) in sidecar.egress.iter().enumerate() {
        if let Err(error) = destination(egress) {
            let field = format!("spec.sidecar.egress[{index}].host");
            let remedy = "write a host name, an address, or `*.` and a domain";
            findings.deny(subject, told(field, "egress-invalid", error, remedy));
        }
    }
}

/// Warns where pages that the agent reads could make it send out what a skill knows.
pub fn warn_about_fetching(case: &Case<'_, '_>, tools: &[ToolDecision], findings: &mut Findings) {
    let fetches = tools.iter().any(|tool| tool.name == FETCH_URL && tool.action == Action::Allow);
    if !fetches || !case.policy.reach.public {
        return;
    }
    for pack in &case.packs {
        let Some(sidecar) = pack.sidecar() else {
            continue;
        };
        let has_secret = sidecar.secret_ref.is_some()
            || sidecar.env.iter().any(|it| it.value_from.as_ref().is_some_and(|from| from.secret_key_ref.is_some()))
            || sidecar.volumes.iter().any(|it| it.source.contains_key("secret"));
        let has_grants = !sidecar.rbac.is_empty() || !sidecar.cluster_rbac.is_empty();
        if has_secret || has_grants {
            let what = if has_secret { "a Secret" } else { "access to the Kubernetes API" };
            findings.warn(
                &case.subject,
                told(
                    format!("spec.skills[{}].skillPackRef", pack.index),
                    "fetch-unrestricted",
                    format!(
                        "`fetch_url` reaches every public host while pack `{}` has {what}: what the agent reads there can make it send out what the skill knows",
                        crate::text::shown(pack.name.as_str())
                    ),
                    "deny `fetch_url` in `toolPolicy` or the policy, or list hosts in `networkPolicy.allowedEgress` with `denyAll`",
                ),
            );
        }
    }
}
