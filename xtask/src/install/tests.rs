//! The manifests as a whole, as they are written: `cargo xtask check` holds that the code says the same.

use std::collections::BTreeSet;
use std::fs;

use super::*;
use crate::process::workspace_root;

fn documents() -> Vec<Value> {
    let entries = fs::read_dir(workspace_root().join(DIRECTORY)).unwrap();
    let texts = entries.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    let mut all: Vec<Value> = Vec::new();
    for text in texts {
        all.extend(serde_saphyr::from_multiple::<Value>(&text).unwrap());
    }
    all.sort_by_key(name);
    all
}

fn of_kind(kind: &str) -> Vec<Value> {
    let mut documents = documents();
    documents.retain(|document| document["kind"] == kind);
    documents
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

#[test]
fn every_object_is_there_once_and_says_whose_it_is() {
    let documents = documents();
    let mut seen = BTreeSet::new();
    for object in &documents {
        let namespace = object["metadata"]["namespace"].to_string();
        let key = (object["kind"].to_string(), namespace, name(object));
        assert!(seen.insert(key), "{object}");
        assert_eq!(object["metadata"]["labels"][PART_OF], PRODUCT, "{}", name(object));
    }
    assert_eq!(documents.len(), seen.len());
}

/// Every subject of a binding is a ServiceAccount of ours, and the role exists.
#[test]
fn bindings_lead_from_our_accounts_to_our_roles() {
    let names = |kind| of_kind(kind).iter().map(name).collect::<BTreeSet<_>>();
    let accounts = names("ServiceAccount");
    let (cluster_roles, roles) = (names("ClusterRole"), names("Role"));
    let mut bound = 0;
    for binding in [of_kind("ClusterRoleBinding"), of_kind("RoleBinding")].concat() {
        let role = binding["roleRef"]["name"].as_str().unwrap();
        let there = match binding["roleRef"]["kind"].as_str() {
            Some("ClusterRole") => &cluster_roles,
            _ => &roles,
        };
        assert!(there.contains(role), "{role}");
        for subject in binding["subjects"].as_array().unwrap() {
            assert!(accounts.contains(subject["name"].as_str().unwrap()));
            assert_eq!(subject["namespace"], SYSTEM_NAMESPACE);
            bound += 1;
        }
    }
    assert_eq!(bound, 4);
}

/// People get nothing by way of the usual roles but a look.
#[test]
fn only_reading_is_added_to_the_usual_roles() {
    let roles = of_kind("ClusterRole");
    let aggregated: Vec<_> = roles
        .iter()
        .filter(|role| {
            let labels = role["metadata"]["labels"].as_object().unwrap();
            labels.keys().any(|key| key.contains("aggregate-to"))
        })
        .collect();
    let names: Vec<_> = aggregated.iter().map(|role| name(role)).collect();
    assert_eq!(names, ["sympozium-viewer"]);
    for rule in aggregated[0]["rules"].as_array().unwrap() {
        assert_eq!(rule["verbs"], json!(["get", "list", "watch"]));
    }
}

#[test]
fn both_programs_run_with_nothing_that_they_do_not_need() {
    let deployments = of_kind("Deployment");
    let names: Vec<_> = deployments.iter().map(name).collect();
    assert_eq!(names, ["sympozium-controller", "sympozium-gateway"]);
    for deployment in &deployments {
        let pod = &deployment["spec"]["template"]["spec"];
        assert!(
            deployment["spec"]["selector"]["matchLabels"]
                .as_object()
                .unwrap()
                .iter()
                .all(|(key, value)| &deployment["spec"]["template"]["metadata"]["labels"][key] == value)
        );
        assert_eq!(pod["enableServiceLinks"], false);
        let container = &pod["containers"][0];
        assert_eq!(
            container["securityContext"],
            json!({
                "allowPrivilegeEscalation": false,
                "capabilities": { "drop": ["ALL"] },
                "readOnlyRootFilesystem": true,
            })
        );
        let image = container["image"].as_str().unwrap();
        assert!(image.ends_with(env!("CARGO_PKG_VERSION")), "{image}");
    }
}

/// Every policy has a binding, fails closed, and is asked about kinds of ours or about objects that have a run's form.
#[test]
fn admission_policies_fail_closed_and_are_asked_about_nothing_else() {
    let policies = of_kind("ValidatingAdmissionPolicy");
    let bound: BTreeSet<_> = of_kind("ValidatingAdmissionPolicyBinding")
        .iter()
        .map(|binding| binding["spec"]["policyName"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(bound, policies.iter().map(name).collect());
    for policy in &policies {
        assert_eq!(policy["spec"]["failurePolicy"], "Fail");
        let rules = policy["spec"]["matchConstraints"]["resourceRules"].as_array().unwrap();
        let ours = rules.iter().all(|rule| rule["apiGroups"] == json!(["sympozium.ai"]));
        let conditions: Vec<_> = policy["spec"]["matchConditions"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|policy| policy["name"].as_str().unwrap())
            .collect();
        if !ours {
            assert_eq!(conditions, ["of-a-run", "not-in-the-system", "not-a-master", "not-the-cluster"]);
        }
        for rule in rules {
            assert!(!rule["operations"].to_string().contains("DELETE"), "{}", name(policy));
        }
    }
}
