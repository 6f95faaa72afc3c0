//! What the gateway's ServiceAccount may do in a cluster: exactly what [`crate::cluster`] does. Manifests are made from it.

use k8s_openapi::api::rbac::v1::PolicyRule;
use sympozium_api::labels::GROUP;

/// The rules of its ClusterRole.
pub fn rules() -> Vec<PolicyRule> {
    vec![
        // The plans of runs. A plan is stored as a ConfigMap, whose name follows from the run.
        rule("", &["configmaps"], &["get"]),
        // `get` before a run's first report, after another gateway has taken one, and where the watch has not brought a run.
        rule(GROUP, &["agentruns"], &["get", "list", "watch"]),
        // `status.report`; a ValidatingAdmissionPolicy holds it to that field.
        rule(GROUP, &["agentruns/status"], &["patch"]),
        rule(GROUP, &["runrecords"], &["create", "get"]),
        rule(GROUP, &["toolapprovals"], &["create", "get", "list", "watch"]),
        // Whose the token of a pod is.
        rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
    ]
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let words = |words: &[&str]| words.iter().map(|it| (*it).to_owned()).collect();
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

    /// Secrets are mounted, pods and rights are the controller's, and nothing that is there is changed or removed.
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
