//! Who may do what at the Kubernetes API.

use serde::Serialize;
use sympozium_api::rbac::RbacRule;
use sympozium_api::run_plan::{Identity, RunPlan};

use crate::rbac::{Implication, Rule, Scope, implications};

/// One ServiceAccount of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityAbout {
    /// Whose it is: a pack's, or the hooks'.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pack: Option<String>,
    /// Its name in the cluster.
    pub service_account: String,
    /// Its namespace.
    pub namespace: String,
    /// The parts that have its token.
    pub used_by: Vec<String>,
    /// How long a token is good for if nobody revokes or renews it.
    pub token_seconds: u64,
    /// What it may do.
    pub grants: Vec<Grant>,
}

/// One rule, and what follows from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// Where it holds.
    pub scope: Scope,
    /// The rule.
    pub rule: RbacRule,
    /// The rule in words.
    pub words: String,
    /// What follows from it beyond its words.
    pub implies: Vec<Implication>,
}

pub fn all(plan: &RunPlan) -> Vec<IdentityAbout> {
    plan.identities.iter().map(|it| about(plan, it)).collect()
}

fn about(plan: &RunPlan, identity: &Identity) -> IdentityAbout {
    let of = |scope, rules: &[RbacRule]| -> Vec<Grant> { rules.iter().map(|rule| grant(scope, rule)).collect() };
    let mut grants = of(Scope::Cluster, &identity.cluster_rules);
    grants.extend(of(Scope::Namespace, &identity.namespace_rules));
    let holders = plan.parts.iter();
    let holders = holders.filter(|part| part.identity.as_ref() == Some(&identity.name));
    IdentityAbout {
        pack: identity.pack.clone(),
        service_account: service_account(plan, identity),
        namespace: plan.run.namespace.to_string(),
        used_by: holders.map(|part| part.name.to_string()).collect(),
        token_seconds: identity.token_seconds,
        grants,
    }
}

fn grant(scope: Scope, rule: &RbacRule) -> Grant {
    Grant { scope, rule: rule.clone(), words: words(rule), implies: implications(&Rule::from(rule), scope) }
}

/// `get, list pods, services; of apps: …`: verbs first, as people say it, whole.
fn words(rule: &RbacRule) -> String {
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

/// What an identity is called in the cluster.
pub fn service_account(plan: &RunPlan, identity: &Identity) -> String {
    let word = identity.name.0.replace('-', "");
    crate::render::names::object_name(&plan.run, &word)
}
