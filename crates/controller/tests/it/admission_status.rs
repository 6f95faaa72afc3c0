//! Schedules and models, which this release does not serve.

use serde_json::{Value, json};
use sympozium_testkit::cluster::{Exclusivity, Security};

use crate::harness::Harness;

fn admitted(object: &Value) -> Value {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.and_then(|all| all.iter().find(|it| it["type"] == "Admitted"));
    found.cloned().unwrap_or_default()
}

#[test]
fn what_is_not_served_says_so_in_its_status() {
    let Some(harness) = Harness::new("unserved", Exclusivity::shared()) else {
        return;
    };
    let team = harness.cluster.namespace("team", Security::Restricted).expect("a namespace");
    let kubectl = team.kubectl();
    let schedule = json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "SympoziumSchedule", "metadata": {"name": "nightly"},
        "spec": {"agentRef": "alice", "schedule": "0 3 * * *", "task": "Look around."},
    });
    let model = json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "Model", "metadata": {"name": "small"},
        "spec": {"source": {"modelID": "small"}, "placement": {"mode": "manual"}},
    });
    team.create(&schedule).expect("a schedule");
    team.create(&model).expect("a model");
    // Where it answers is said by its server: a condition beside it changes nothing about it.
    let endpoint = "http://small.team.svc:8080/v1";
    let status = json!({"status": {"phase": "Ready", "endpoint": endpoint}}).to_string();
    kubectl.run(&["patch", "model", "small", "--subresource=status", "--type=merge", "-p", &status]).expect("a status");

    let _program = harness.start_leader();
    for kind in ["sympoziumschedule/nightly", "model/small"] {
        let found = harness.wait_for(kubectl, &[kind], |it| admitted(it)["status"] == "True");
        let condition = admitted(&found);
        assert_eq!(condition["reason"], "Warnings", "{condition}");
        let message = condition["message"].as_str().unwrap_or_default();
        assert!(message.contains("[field-unused]"), "{message}");
        assert_eq!(found["status"]["observedGeneration"], found["metadata"]["generation"]);
    }
    let found = harness.wait_for(kubectl, &["model", "small"], |_| true);
    let message = admitted(&found)["message"].to_string();
    assert!(message.contains("spec.placement"), "{message}");
    assert_eq!(found["status"]["endpoint"], endpoint);
    assert_eq!(found["status"]["phase"], "Ready");

    // It follows the object.
    let patch = r#"{"spec":{"placement":null}}"#;
    kubectl.run(&["patch", "model", "small", "--type=merge", "-p", patch]).expect("a change");
    let found = harness.wait_for(kubectl, &["model", "small"], |model| {
        model["status"]["observedGeneration"] == model["metadata"]["generation"]
    });
    let message = admitted(&found)["message"].to_string();
    assert!(!message.contains("spec.placement"), "{message}");
    assert_eq!(found["status"]["endpoint"], endpoint);
}
