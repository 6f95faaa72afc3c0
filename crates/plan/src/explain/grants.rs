//! Identities of the run at the Kubernetes API, and their permissions.

use serde::Serialize;
use sympozium_api::rbac::RbacRule;
use sympozium_api::run_plan::{Identity, RunPlan};

use crate::rbac::{Implication, Rule, Scope, implications};

/// One ServiceAccount of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityInfo {
    /// The pack that it belongs to; absent for the one of the hooks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pack: Option<String>,
    /// The name of the ServiceAccount.
    pub service_account: String,
    /// The namespace of the ServiceAccount.
    pub namespace: String,
    /// The parts that have its token.
    pub used_by: Vec<String>,
    /// Lifetime of a token if it is neither revoked nor renewed.
    pub token_seconds: u64,
    /// The permissions of the identity.
    pub grants: Vec<Grant>,
}

/// One rule, and its consequences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// Where the rule applies.
    pub scope: Scope,
    /// The RBAC rule.
    pub rule: RbacRule,
    /// The rule in words.
    pub words: String,
    /// Consequences of the rule beyond its text.
    pub implies: Vec<Implication>,
}

pub fn all(plan: &RunPlan) -> Vec<IdentityInfo> {
    plan.identities.iter().map(|identity| identity_info(plan, identity)).collect()
}

fn identity_info(plan: &RunPlan, identity: &Identity) -> IdentityInfo {
    let of =
        |scope, rules: &[RbacRule]| -> Vec<Grant> { rules.iter().map(|rule| explain_grant(scope, rule)).collect() };
    let mut grants = of(Scope::Cluster, &identity.cluster_rules);
    grants.extend(of(Scope::Namespace, &identity.namespace_rules));
    let holders = plan.parts.iter();
    let holders = holders.filter(|part| part.identity.as_ref() == Some(&identity.name));
    IdentityInfo {
        pack: identity.pack.clone(),
        service_account: service_account(plan, identity),
        namespace: plan.run.namespace.to_string(),
        used_by: holders.map(|part| part.name.to_string()).collect(),
        token_seconds: identity.token_seconds,
        grants,
    }
}

fn explain_grant(scope: Scope, rule: &RbacRule) -> Grant {
    Grant { scope, rule: rule.clone(), words: describe_rule(rule), implies: implications(&Rule::from(rule), scope) }
}

/// The whole rule, verbs first: `get, list pods, services (apps)`.
fn describe_rule(rule: &RbacRule) -> String {
    let mut words = format!("{} {}", rule.verbs.join(", "), rule.resources.join(", "));
    let groups: Vec<&str> = rule.api_groups.iter().map(String::as_str).collect();
    if groups != [""] {
        let core = |group: &str| match group {
            "" => "core".to_owned(),
            other => other.to_owned(),
        };
        let groups: Vec<String> = groups.into_iter().map(core).collect();
        words = format!("{words} ({})", groups.join(", "));
    }
    if !rule.resource_names.is_empty() {
        words = format!("{words}, only {}", rule.resource_names.join(", "));
    }
    words
}

/// The name of an identity's ServiceAccount in the cluster.
pub fn service_account(plan: &RunPlan, identity: &Identity) -> String {
    let word = identity.name.0.replace('-', "");
    crate::render::names::object_name(&plan.run, &word)
}
