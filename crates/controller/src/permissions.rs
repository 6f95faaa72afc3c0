//! Permissions of the controller's ServiceAccount: exactly what the code uses, and why.
//!
//! Manifests are generated from this list, and tests compare it with the API server's audit log. A new request in the
//! code needs a rule here; a rule that no code needs has to be removed.
//!
//! The controller cannot list Secrets: it knows those of runs by name. `escalate` and `bind` are needed because the
//! permissions of a run need not be among the controller's own: admission decides what may be granted, and never grants
//! these two verbs.

use k8s_openapi::api::rbac::v1::PolicyRule;
use sympozium_api::installation::{CONTROLLER, GATEWAY};
use sympozium_api::labels;

use crate::certificates;
use crate::cluster_info::{ROOT_CA_CONFIG_MAP, SANDBOX_CRD};

const RBAC: &str = "rbac.authorization.k8s.io";

/// Cluster-wide rules: runs are in any namespace.
pub fn rules() -> Vec<PolicyRule> {
    vec![
        // Kinds that are watched and whose status is written.
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
                // Only their conditions: see `admission_status`.
                "models/status",
                "sympoziumschedules/status",
            ],
            &["patch"],
        ),
        // To set `blockOwnerDeletion` on owned objects.
        rule(labels::GROUP, &["agentruns/finalizers", "skillpacks/finalizers"], &["update"]),
        // Objects of runs.
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
        // Grants of runs.
        rule(RBAC, &["roles", "clusterroles"], &["get", "list", "create", "delete", "escalate", "bind"]),
        rule(RBAC, &["rolebindings", "clusterrolebindings"], &["get", "list", "create", "delete"]),
        // Verification that grants are revoked.
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
        // Cluster info.
        rule("", &["nodes"], &["list", "watch"]),
        // The handler of a RuntimeClass determines the kernel.
        rule("node.k8s.io", &["runtimeclasses"], &["list", "watch"]),
        named_rule("apiextensions.k8s.io", &["customresourcedefinitions"], &["list", "watch"], &[SANDBOX_CRD]),
        // Why a pod of a Job was rejected is only in an Event of the core group.
        rule("", &["events"], &["list", "watch"]),
        // Events for people.
        rule("events.k8s.io", &["events"], &["create", "patch"]),
    ]
}

pub fn system_namespace_rules() -> Vec<PolicyRule> {
    vec![
        // Leader election. A rule for `create` cannot have resource names.
        rule("coordination.k8s.io", &["leases"], &["create"]),
        named_rule("coordination.k8s.io", &["leases"], &["get", "list", "watch", "update"], &[CONTROLLER]),
        // The authority, the gateway's certificate and the keys. `create` and `get` are in the cluster-wide rules.
        named_rule("", &["secrets"], &["list", "watch", "update"], &certificates::SECRET_NAMES),
        named_rule("", &["services"], &["list", "watch"], &[GATEWAY]),
        named_rule("", &["configmaps"], &["list", "watch"], &[ROOT_CA_CONFIG_MAP]),
    ]
}

/// Rules in the namespace `default`, which has the API server's Service and endpoints.
pub fn default_namespace_rules() -> Vec<PolicyRule> {
    vec![
        named_rule("", &["services"], &["list", "watch"], &[crate::cluster_info::API_SERVER_SERVICE.1]),
        named_rule(
            "discovery.k8s.io",
            &["endpointslices"],
            &["list", "watch"],
            &[crate::cluster_info::API_SERVER_SERVICE.1],
        ),
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

fn named_rule(group: &str, resources: &[&str], verbs: &[&str], names: &[&str]) -> PolicyRule {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    PolicyRule { resource_names: Some(names), ..rule(group, resources, verbs) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_wholesale_and_secrets_cannot_be_listed() {
        let all = [rules(), system_namespace_rules(), default_namespace_rules()].concat();
        for rule in &all {
            let resources = rule.resources.iter().flatten();
            let groups = rule.api_groups.iter().flatten();
            let words = resources.chain(groups).chain(&rule.verbs);
            assert!(words.into_iter().all(|word| !word.contains('*')), "{rule:?}");
            let has = |verb: &str| rule.verbs.iter().any(|listed| listed == verb);
            let about = |resource: &str| rule.resources.iter().flatten().any(|listed| listed == resource);
            let unnamed = rule.resource_names.is_none();
            assert!(!(unnamed && about("secrets") && (has("list") || has("watch"))), "{rule:?}");
            assert!(!has("impersonate") && !has("deletecollection"), "{rule:?}");
        }
    }
}
