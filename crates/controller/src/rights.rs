//! What the controller's ServiceAccount may do: exactly what the code does, and why.
//!
//! Manifests are made from this, and tests hold it against the API server's audit log. A call that is new in the code needs
//! a line here; a line here that no code needs is to go.
//!
//! It cannot list Secrets: those of runs it knows by name. `escalate` and `bind` are there because the rights that a run
//! gets need not be among the controller's own: what may be granted is decided by admission, which never grants them.

use k8s_openapi::api::rbac::v1::PolicyRule;
use sympozium_api::installation::{CONTROLLER, GATEWAY};
use sympozium_api::labels;

use crate::certificates;
use crate::surroundings::{ROOT_CERTIFICATES, SANDBOXES};

const RBAC: &str = "rbac.authorization.k8s.io";

/// In the whole cluster: runs are in any namespace.
pub fn rules() -> Vec<PolicyRule> {
    vec![
        // What is watched and given a status.
        rule(labels::GROUP, &["agentruns"], &["get", "list", "watch", "patch", "delete"]),
        rule(labels::GROUP, &["agents", "sympoziuminstances", "skillpacks"], &["list", "watch"]),
        rule(labels::GROUP, &["sympoziumpolicies", "models", "sympoziumschedules"], &["list", "watch"]),
        rule(
            labels::GROUP,
            &[
                "agentruns/status",
                "agents/status",
                "sympoziuminstances/status",
                "skillpacks/status",
                "sympoziumpolicies/status",
                // Their conditions only: see `unserved`.
                "models/status",
                "sympoziumschedules/status",
            ],
            &["patch"],
        ),
        // To own what blocks the deletion of its owner.
        rule(labels::GROUP, &["agentruns/finalizers", "skillpacks/finalizers"], &["update"]),
        // What a run is made of.
        rule("batch", &["jobs"], &["get", "list", "watch", "create", "patch", "delete"]),
        rule("agents.x-k8s.io", &["sandboxes"], &["get", "create", "delete"]),
        rule("", &["pods"], &["get", "list", "watch", "delete"]),
        rule("", &["pods/log"], &["get"]),
        rule("", &["configmaps"], &["get", "create", "update", "delete"]),
        rule("", &["secrets"], &["get", "create", "patch", "delete"]),
        rule("", &["serviceaccounts"], &["get", "list", "create", "delete"]),
        rule("", &["serviceaccounts/token"], &["create"]),
        rule("", &["persistentvolumeclaims"], &["get", "create", "delete"]),
        rule("networking.k8s.io", &["networkpolicies"], &["get", "list", "create", "delete"]),
        // What it may do.
        rule(RBAC, &["roles", "clusterroles"], &["get", "list", "create", "delete", "escalate", "bind"]),
        rule(RBAC, &["rolebindings", "clusterrolebindings"], &["get", "list", "create", "delete"]),
        // That it may no longer.
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
        // What is around runs.
        rule("", &["nodes"], &["list", "watch"]),
        // Which kernel a RuntimeClass gives follows from its handler.
        rule("node.k8s.io", &["runtimeclasses"], &["list", "watch"]),
        named("apiextensions.k8s.io", &["customresourcedefinitions"], &["list", "watch"], &[SANDBOXES]),
        // Why a Job could not have its pod is said in an Event of the older kind, and nowhere else.
        rule("", &["events"], &["list", "watch"]),
        // What people are told.
        rule("events.k8s.io", &["events"], &["create", "patch"]),
    ]
}

/// In the system namespace.
pub fn system_rules() -> Vec<PolicyRule> {
    vec![
        // One of several works. What is created has no name yet, as far as rights know.
        rule("coordination.k8s.io", &["leases"], &["create"]),
        named("coordination.k8s.io", &["leases"], &["get", "list", "watch", "update"], &[CONTROLLER]),
        // The authority, the gateway's certificate and the keys. To create and to get are among the cluster's rules.
        named("", &["secrets"], &["list", "watch", "update"], &certificates::NAMES),
        named("", &["services"], &["list", "watch"], &[GATEWAY]),
        named("", &["configmaps"], &["list", "watch"], &[ROOT_CERTIFICATES]),
    ]
}

/// In the namespace `default`, where the API server says where it is.
pub fn default_rules() -> Vec<PolicyRule> {
    vec![
        named("", &["services"], &["list", "watch"], &[crate::surroundings::API_SERVER.1]),
        named("discovery.k8s.io", &["endpointslices"], &["list", "watch"], &[crate::surroundings::API_SERVER.1]),
    ]
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let all = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(all(resources)),
        verbs: all(verbs),
        ..PolicyRule::default()
    }
}

fn named(group: &str, resources: &[&str], verbs: &[&str], names: &[&str]) -> PolicyRule {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    PolicyRule { resource_names: Some(names), ..rule(group, resources, verbs) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_wholesale_and_secrets_cannot_be_listed() {
        let all = [rules(), system_rules(), default_rules()].concat();
        for rule in &all {
            let resources = rule.resources.iter().flatten();
            let groups = rule.api_groups.iter().flatten();
            let words = resources.chain(groups).chain(&rule.verbs);
            assert!(words.into_iter().all(|word| !word.contains('*')), "{rule:?}");
            let has = |verb: &str| rule.verbs.iter().any(|it| it == verb);
            let about = |resource: &str| rule.resources.iter().flatten().any(|it| it == resource);
            let unnamed = rule.resource_names.is_none();
            assert!(!(unnamed && about("secrets") && (has("list") || has("watch"))), "{rule:?}");
            assert!(!has("impersonate") && !has("deletecollection"), "{rule:?}");
        }
    }
}
