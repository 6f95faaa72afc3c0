//! What runs leave behind that no longer exist.

use serde_json::{Value, json};
use sympozium_testkit::cluster::{Exclusivity, Kubectl, Security};

use crate::harness::{Harness, wait_until_true};

const RBAC: &str = "rbac.authorization.k8s.io";

/// In our form: name, labels, digest.
fn metadata(name: &str, uid: &str) -> Value {
    json!({
        "name": format!("{name}-{}-s1", uid.replace('-', "")),
        "labels": {"sympozium.ai/managed-by": "sympozium", "sympozium.ai/run-uid": uid},
        "annotations": {"sympozium.ai/plan-digest": format!("sha256:{}", "0".repeat(64))},
    })
}

fn role(metadata: &Value) -> Value {
    json!({"apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": metadata, "rules": []})
}

fn binding(metadata: &Value, role: &Value) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": metadata["name"], "namespace": "default"}],
    })
}

fn is_there(kubectl: &Kubectl, kind: &str, name: &Value) -> bool {
    let name = name.as_str().expect("a name");
    kubectl.attempt(&["get", kind, name]).expect("an answer").success
}

/// A UID that no run has.
fn stray_uid(team: &Value) -> String {
    let uid = team["metadata"]["uid"].as_str().expect("a UID");
    uid.to_owned()
}

#[test]
fn orphans_and_what_came_late_go_and_forgeries_and_what_a_run_still_has_stay() {
    // The controller of another test would write the status of the runs here when it suits, that of `over` among them.
    let Some(harness) = Harness::new("sweep", Exclusivity::exclusive()) else {
        return;
    };
    let admin = harness.cluster.kubectl();
    let team = harness.cluster.namespace("team", Security::Restricted).expect("a namespace");
    // The UID of something that is no run is as good as that of a run that is gone.
    let stray = admin.json(&["get", "namespace", team.name()]).expect("a namespace");
    let stray = stray_uid(&stray);
    let run = json!({"apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun", "metadata": {"name": "alive"},
        "spec": {"agentRef": "nobody", "task": "wait"}});
    let run = team.create(&run).expect("a run");
    let alive = run["metadata"]["uid"].as_str().expect("a UID");

    // A run that is over and has nothing any more: what is made for it now came too late.
    let over = json!({"apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun", "metadata": {"name": "over"},
        "spec": {"agentRef": "nobody", "task": "rest"}});
    let over = team.create(&over).expect("a run");
    let at = "2026-11-16T00:00:00Z";
    let status = json!({"status": {"phase": "Failed", "error": "x", "completedAt": at,
        "revocation": {"checkedAt": at, "remaining": []},
        "conditions": [{"type": "Revoked", "status": "True", "reason": "Revoked", "message": "", "lastTransitionTime": at}]}});
    let status = status.to_string();
    let words = ["patch", "agentrun", "over", "--subresource=status", "--type=merge", "-p", &status];
    team.kubectl().run(&words).expect("a status");
    let late = metadata("late", over["metadata"]["uid"].as_str().expect("a UID"));
    admin.create(&role(&late)).expect("a ClusterRole");
    admin.create(&binding(&late, &late["name"])).expect("a binding");

    let orphan = metadata("orphan", &stray);
    let kept = metadata("alive", alive);
    let mut renamed = metadata("x", &stray);
    renamed["name"] = json!(format!("t-admin-{}", team.name()));
    let mut undated = metadata("undated", &stray);
    undated["annotations"] = json!({});
    for metadata in [&orphan, &kept, &renamed, &undated] {
        admin.create(&role(metadata)).expect("a ClusterRole");
    }
    admin.create(&binding(&orphan, &orphan["name"])).expect("a binding");
    let elsewhere = metadata("elsewhere", &stray);
    admin.create(&binding(&elsewhere, &json!("view"))).expect("a binding");
    let mut account = metadata("account", &stray);
    account["namespace"] = json!(team.name());
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account});
    team.create(&account).expect("an account that no run owns");

    let program = harness.start_leader();
    let gone = wait_until_true(|| {
        [&orphan, &late].iter().all(|role| {
            !is_there(&admin, "clusterrole", &role["name"]) && !is_there(&admin, "clusterrolebinding", &role["name"])
        })
    });
    assert!(gone, "{}", program.log());
    program.wait_for_metric(r#"foreign_objects{kind="ClusterRole"}"#, |it| it >= 2.0);
    program.wait_for_metric(r#"foreign_objects{kind="ClusterRoleBinding"}"#, |it| it >= 1.0);
    program.wait_for_metric(r#"foreign_objects{kind="ServiceAccount"}"#, |it| it >= 1.0);
    for metadata in [&kept, &renamed, &undated] {
        assert!(is_there(&admin, "clusterrole", &metadata["name"]), "{metadata}");
    }
    assert!(is_there(&admin, "clusterrolebinding", &elsewhere["name"]));
    assert!(is_there(team.kubectl(), "serviceaccount", &account["metadata"]["name"]));
    // Events are written beside the work.
    let is_told = wait_until_true(|| {
        let events = team.kubectl().json(&["get", "events.events.k8s.io"]);
        events.is_ok_and(|it| it.to_string().contains("NotOurs"))
    });
    assert!(is_told, "{}", program.log());

    // When the run goes, what it had goes soon after.
    team.kubectl()
        .run(&["patch", "agentrun", "alive", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])
        .expect("no finalizer");
    team.kubectl().run(&["delete", "agentrun", "alive", "--wait=false"]).expect("it goes");
    let gone = wait_until_true(|| !is_there(&admin, "clusterrole", &kept["name"]));
    assert!(gone, "{}", program.log());

    for metadata in [&renamed, &undated] {
        let name = metadata["name"].as_str().expect("a name");
        let _ = admin.attempt(&["delete", "clusterrole", name]);
    }
    let name = elsewhere["name"].as_str().expect("a name");
    let _ = admin.attempt(&["delete", "clusterrolebinding", name]);
    drop(program);
}
