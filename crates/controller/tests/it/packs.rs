//! Packs and their ConfigMaps.

use serde_json::{Value, json};
use sympozium_testkit::cluster::{Exclusivity, Security};

use crate::harness::Harness;

fn pack(name: &str, content: &str) -> Value {
    json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "SkillPack", "metadata": {"name": name},
        "spec": {"skills": [{"name": "say", "description": "Says it", "content": content}]},
    })
}

fn condition(object: &Value, about: &str) -> (String, String) {
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|it| it["type"] == about).cloned().unwrap_or_default();
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

#[test]
fn a_pack_has_a_config_map_which_follows_it_and_goes_with_it() {
    let Some(harness) = Harness::new("packs", Exclusivity::shared()) else {
        return;
    };
    let team = harness.cluster.namespace("team", Security::Restricted).expect("a namespace");
    let kubectl = team.kubectl();
    team.create(&pack("echo", "Once.")).expect("a pack");
    let program = harness.start_leader();
    let found = harness.wait_for(kubectl, &["skillpack", "echo"], |it| it["status"]["phase"] == "Ready");
    assert_eq!(found["status"]["configMapName"], "echo");
    assert_eq!(found["status"]["skillCount"], 1);
    assert_eq!(condition(&found, "Admitted").0, "True");
    assert_eq!(condition(&found, "Published"), ("True".to_owned(), "UpToDate".to_owned()));
    let text = |content: &str| json!({"say.md": format!("# say\n\n> Says it\n\n{content}")});
    let map = kubectl.json(&["get", "configmap", "echo"]).expect("a ConfigMap");
    assert_eq!(map["data"], text("Once."));

    let changed = r#"{"spec":{"skills":[{"name":"say","description":"Says it","content":"Twice."}]}}"#;
    kubectl.run(&["patch", "skillpack", "echo", "--type=merge", "-p", changed]).expect("a change");
    harness.wait_for(kubectl, &["configmap", "echo"], |it| it["data"] == text("Twice."));

    kubectl.run(&["delete", "skillpack", "echo"]).expect("it goes");
    let gone = crate::harness::wait_until_true(|| {
        let found = kubectl.attempt(&["get", "configmap", "echo"]);
        found.is_ok_and(|found| !found.success)
    });
    assert!(gone, "{}", program.log());
}

#[test]
fn a_config_map_of_somebody_else_is_left_as_it_is() {
    let Some(harness) = Harness::new("foreign", Exclusivity::shared()) else {
        return;
    };
    let team = harness.cluster.namespace("team", Security::Restricted).expect("a namespace");
    let kubectl = team.kubectl();
    let theirs =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "echo"}, "data": {"theirs": "yes"}});
    let made = team.create(&theirs).expect("a ConfigMap");
    team.create(&pack("echo", "Once.")).expect("a pack");
    let program = harness.start_leader();
    let found = harness.wait_for(kubectl, &["skillpack", "echo"], |it| it["status"]["phase"] == "Error");
    assert_eq!(condition(&found, "Published"), ("False".to_owned(), "Foreign".to_owned()));
    assert_eq!(found["status"]["configMapName"], Value::Null);
    let map = kubectl.json(&["get", "configmap", "echo"]).expect("a ConfigMap");
    assert_eq!(map["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);

    // Its author takes it away, and touches the pack.
    kubectl.run(&["delete", "configmap", "echo"]).expect("it goes");
    kubectl.run(&["label", "skillpack", "echo", "touched=yes"]).expect("a change");
    harness.wait_for(kubectl, &["skillpack", "echo"], |it| it["status"]["phase"] == "Ready");
    drop(program);
}

#[test]
fn what_is_wrong_with_a_pack_stands_in_its_status() {
    let Some(harness) = Harness::new("denied", Exclusivity::shared()) else {
        return;
    };
    let team = harness.cluster.namespace("team", Security::Restricted).expect("a namespace");
    let mut denied = pack("greedy", "All.");
    denied["spec"]["sidecar"] = json!({"image": "example/greedy:1",
        "env": [{"name": "LD_PRELOAD", "value": "x"}, {"name": "PATH", "value": "y"}]});
    team.create(&denied).expect("a pack");
    let program = harness.start_leader();
    let found = harness.wait_for(team.kubectl(), &["skillpack", "greedy"], |it| it["status"]["phase"] == "Error");
    assert_eq!(condition(&found, "Admitted"), ("False".to_owned(), "Denied".to_owned()));
    let all = found["status"]["conditions"].to_string();
    assert!(all.contains("LD_PRELOAD") && all.contains("PATH"), "{all}");
    assert_eq!(found["status"]["observedGeneration"], found["metadata"]["generation"]);
    drop(program);
}
