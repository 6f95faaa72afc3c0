//! The RBAC rules of the gateway's ServiceAccount: exactly what [`crate::cluster`] uses. The manifests are generated
//! from them.

use k8s_openapi::api::rbac::v1::PolicyRule;
use sympozium_api::labels::GROUP;

/// The rules of its ClusterRole.
pub fn rules() -> Vec<PolicyRule> {
    vec![
        // The plans of runs. A plan is a ConfigMap whose name follows from the run.
        rule("", &["configmaps"], &["get"]),
        // `get` before the first report of a run, after another gateway has accepted one, and if the watch has not
        // delivered a run.
        rule(GROUP, &["agentruns"], &["get", "list", "watch"]),
        // `status.report`; a ValidatingAdmissionPolicy restricts it to that field.
        rule(GROUP, &["agentruns/status"], &["patch"]),
        rule(GROUP, &["runrecords"], &["create", "get"]),
        rule(GROUP, &["toolapprovals"], &["create", "get", "list", "watch"]),
        // To authenticate the tokens of pods.
        rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
    ]
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(words(resources)),
        verbs: words(verbs),
        ..PolicyRule::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Secrets are mounted, pods and RBAC objects belong to the controller, and no existing object is changed or
    /// deleted.
    #[test]
    fn nothing_is_removed_and_no_secret_is_read() {
        for rule in rules() {
            let resources = rule.resources.unwrap_or_default();
            for resource in &resources {
                assert!(!["*", "secrets", "pods"].contains(&resource.as_str()), "{resource}");
            }
            for verb in &rule.verbs {
                assert!(!["*", "delete", "deletecollection", "update"].contains(&verb.as_str()));
                assert!(verb != "patch" || resources == ["agentruns/status"]);
            }
        }
    }
}
