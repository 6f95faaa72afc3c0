//! Grants at the Kubernetes API: the built-in ceiling, the policy's ceiling, the author's own permissions, the floor's
//! consent.

use sympozium_api::rbac::RbacRule;
use sympozium_api::text::quote;

use super::violation::{Findings, violation};
use super::{Permissions, RuleContext, Subject};
use crate::policy::EffectivePolicy;
use crate::policy::grants::can_be_excepted;
use crate::rbac::{
    MAX_GRANT_PERMISSIONS, Rule, Scope, check_rule_size, count_permissions, escalations, find_uncovered,
};

/// The hint for a cluster-wide permission that no exception can cover.
pub const READ_ONLY_HINT: &str = "ask for less, or use `rbac`: in the whole cluster exceptions cover reading only";

/// Checks all permissions that packs and hooks request.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    for pack in &case.packs {
        let Some(sidecar) = pack.sidecar() else {
            continue;
        };
        let subject = pack.subject();
        let author = Author { description: "the pack's author", permissions: pack.author };
        let all = [("spec.sidecar.rbac", sidecar.rbac.as_slice()), ("spec.sidecar.clusterRBAC", &sidecar.cluster_rbac)];
        if !check_size(&subject, &all, findings) {
            continue;
        }
        check_ceilings(&subject, "spec.sidecar.rbac", &sidecar.rbac, Scope::Namespace, Some(case.policy), findings);
        check_author(&subject, "spec.sidecar.rbac", &sidecar.rbac, Scope::Namespace, author, findings);
        check_ceilings(
            &subject,
            "spec.sidecar.clusterRBAC",
            &sidecar.cluster_rbac,
            Scope::Cluster,
            Some(case.policy),
            findings,
        );
        check_author(&subject, "spec.sidecar.clusterRBAC", &sidecar.cluster_rbac, Scope::Cluster, author, findings);
        let namespace = case.input.namespace.to_owned();
        if !sidecar.cluster_rbac.is_empty() && !case.policy.grants.cluster_namespaces.covers(&namespace) {
            findings.deny(
                &subject,
                violation(
                    "spec.sidecar.clusterRBAC",
                    "cluster-rbac-consent",
                    format!("grants in the whole cluster need the floor's consent for namespace {}", quote(&namespace)),
                    "use `rbac`, or list the namespace in `rbacPolicy.clusterRBACNamespaces` of the policy `floor` in the system namespace",
                ),
            );
        }
    }
    if let Some(hooks) = &case.run.spec.lifecycle {
        // The agent's hooks belong to its author: users who may start its runs need not hold the permissions of the
        // hooks.
        let is_agents = case.agent.agents.default.lifecycle.as_ref() == Some(hooks);
        let author = if is_agents {
            Author { description: "the agent's author", permissions: case.input.agents.author }
        } else {
            Author { description: "the run's author", permissions: case.input.author }
        };
        let all = [("spec.lifecycle.rbac", hooks.rbac.as_slice())];
        if !check_size(&case.subject, &all, findings) {
            return;
        }
        check_ceilings(
            &case.subject,
            "spec.lifecycle.rbac",
            &hooks.rbac,
            Scope::Namespace,
            Some(case.policy),
            findings,
        );
        check_author(&case.subject, "spec.lifecycle.rbac", &hooks.rbac, Scope::Namespace, author, findings);
    }
}

/// Whether the rules are small enough to be expanded: each of them, and all together.
pub fn check_size(subject: &Subject, lists: &[(&'static str, &[RbacRule])], findings: &mut Findings) -> bool {
    let mut total: usize = 0;
    let mut fits = true;
    for (field, rules) in lists {
        for (index, rule) in rules.iter().enumerate() {
            let rule = Rule::from(rule);
            total = total.saturating_add(count_permissions(&rule));
            if let Err(error) = check_rule_size(&rule) {
                let field = format!("{field}[{index}]");
                let detail = violation(field, "rbac-too-large", error.to_string(), "ask for less");
                findings.deny(subject, detail);
                fits = false;
            }
        }
    }
    if total > MAX_GRANT_PERMISSIONS {
        let field = lists.first().map_or("spec", |(field, _)| field);
        findings.deny(
            subject,
            violation(
                field,
                "grant-too-large",
                format!("all rules together mean {total} single rights, at most {MAX_GRANT_PERMISSIONS} are looked at"),
                "ask for less",
            ),
        );
        fits = false;
    }
    fits
}

/// The author of an object, and their permissions, if these are known.
#[derive(Debug, Clone, Copy)]
pub struct Author<'a> {
    pub description: &'static str,
    pub permissions: Option<&'a Permissions>,
}

/// Checks the ceilings. Without a policy, only that the rules are complete.
pub fn check_ceilings(
    subject: &Subject,
    field: &str,
    rules: &[RbacRule],
    scope: Scope,
    policy: Option<&EffectivePolicy>,
    findings: &mut Findings,
) {
    for (index, rule) in rules.iter().enumerate() {
        let field = format!("{field}[{index}]");
        let rule = Rule::from(rule);
        if rule.verbs.is_empty() || rule.resources.is_empty() || rule.api_groups.is_empty() {
            let message = "a rule needs `apiGroups`, `resources` and `verbs`";
            findings.deny(subject, violation(field.clone(), "rbac-incomplete", message, "fill in what is missing"));
        }
        let Some(policy) = policy else {
            continue;
        };
        for (escalation, right) in escalations(&rule) {
            if !policy.grants.excepts(&right, scope) {
                let remedy = if can_be_excepted(&right, scope) {
                    "ask for less, or list the right in `rbacPolicy.exceptions` of the policy and of the floor"
                } else {
                    READ_ONLY_HINT
                };
                let message = format!("`{right}` is refused: {}", escalation.reason());
                let detail = violation(field.clone(), "rbac-escalation", message, remedy);
                findings.deny(subject, detail);
            }
        }
        match policy.grants.find_beyond_ceiling(&rule) {
            Ok(None) => {}
            Ok(Some(right)) => findings.deny(
                subject,
                violation(
                    field,
                    "rbac-ceiling",
                    format!("`{right}` is more than the policy lets skills have"),
                    "ask for less, or add it to `rbacPolicy.ceiling`",
                ),
            ),
            Err(error) => findings.deny(subject, violation(field, "rbac-too-large", error.to_string(), "ask for less")),
        }
    }
}

/// Checks that an author grants only permissions that they hold.
pub fn check_author(
    subject: &Subject,
    field: &str,
    rules: &[RbacRule],
    scope: Scope,
    author: Author<'_>,
    findings: &mut Findings,
) {
    let Some(rights) = author.permissions.filter(|rights| !rights.may_escalate) else {
        return;
    };
    let held = match scope {
        Scope::Cluster => rights.cluster.clone(),
        Scope::Namespace => [rights.namespace.as_slice(), &rights.cluster].concat(),
    };
    for (index, rule) in rules.iter().enumerate() {
        let field = format!("{field}[{index}]");
        match find_uncovered(&held, &Rule::from(rule)) {
            Ok(None) => {}
            Ok(Some(right)) => findings.deny(
                subject,
                violation(
                    field,
                    "rbac-author",
                    format!("{} may not do `{right}`, and cannot grant it", author.description),
                    "ask for less, or have it written by a user who holds these rights or may `escalate` on `skillpacks`",
                ),
            ),
            Err(error) => findings.deny(subject, violation(field, "rbac-too-large", error.to_string(), "ask for less")),
        }
    }
}
