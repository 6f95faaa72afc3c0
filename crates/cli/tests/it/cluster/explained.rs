//! `explain` of runs of a cluster, and of files with the objects of a cluster.

use serde_json::json;

use super::Harness;
use crate::{stderr, stdout};

#[test]
fn a_stored_plan_is_explained_and_a_replaced_one_is_rejected() {
    let Some(harness) = Harness::new("stored") else {
        return;
    };
    let simulated = harness.planned();
    // The explanation is the same as for the files that the run was created from.
    let stored = harness.sympozium(&["explain", "nightly", "--cluster"]);
    assert_eq!(stored.status.code(), Some(0), "{}", crate::format_output(&stored));
    let files = harness.sympozium(&["explain", "files.yaml", "-n", harness.namespace.name()]);
    let plain = |text: &str| {
        // The digest depends on the UID.
        let lines = harness.redact(text, &simulated);
        let lines = lines.lines().filter(|it| !it.contains("sha256:"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(plain(stdout(&stored)), plain(stdout(&files)));

    let name = simulated.object("plan");
    let mut map = harness.kubectl.json(&["get", "configmap", &name]).unwrap();
    harness.kubectl.run(&["delete", "configmap", &name]).unwrap();
    let gone = harness.sympozium(&["explain", "nightly", "--cluster"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(stderr(&gone).contains("the stored plan of run `nightly` was deleted"), "{}", stderr(&gone));
    map["metadata"] = json!({"name": name});
    let text = map["data"]["plan.json"].as_str().unwrap().replace("gpt-4o", "gpt-5");
    map["data"]["plan.json"] = json!(text);
    harness.namespace.create(&map).unwrap();
    let replaced = harness.sympozium(&["explain", "nightly", "--cluster"]);
    assert_eq!(replaced.status.code(), Some(1));
    assert!(stderr(&replaced).contains("does not match the run's plan digest"), "{}", stderr(&replaced));
    let audit = harness.sympozium(&["audit", "verify", "nightly", "--cluster"]);
    assert!(stdout(&audit).contains("the stored plan does not match the run's plan digest"), "{}", stdout(&audit));
}

#[test]
fn files_are_admitted_with_the_objects_of_the_cluster() {
    let Some(harness) = Harness::new("judged") else {
        return;
    };
    let run = r"
apiVersion: sympozium.ai/v1alpha1
kind: AgentRun
metadata: {name: later}
spec: {agentRef: reader, task: Read., model: {provider: openai, model: gpt-4o, authSecretRef: key}}
";
    std::fs::write(harness.path("run.yaml"), run).unwrap();
    let missing_agent = harness.sympozium(&["explain", "run.yaml", "--cluster"]);
    assert_eq!(missing_agent.status.code(), Some(1), "{}", crate::format_output(&missing_agent));
    assert!(stderr(&missing_agent).contains("reader"), "{}", stderr(&missing_agent));
    let policy = json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "SympoziumPolicy", "metadata": {"name": "closed"},
        "spec": {"toolGating": {"defaultAction": "allow", "rules": [{"tool": "fetch_url", "action": "deny"}]}},
    });
    let agent = json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "Agent", "metadata": {"name": "reader"},
        "spec": {"agents": {"default": {"model": "unused"}}, "policyRef": "closed"},
    });
    harness.namespace.create(&policy).unwrap();
    harness.namespace.create(&agent).unwrap();
    let explained = harness.sympozium(&["explain", "run.yaml", "--cluster"]);
    assert_eq!(explained.status.code(), Some(0), "{}", crate::format_output(&explained));
    let text = stdout(&explained);
    assert!(text.contains("later") && text.contains("reader"), "{text}");
    let tools = harness.sympozium(&["explain", "run.yaml", "--cluster", "-o", "json"]);
    let tools: serde_json::Value = serde_json::from_slice(&tools.stdout).unwrap();
    let gate = |name: &str| {
        let mut all = tools["runs"][0]["tools"].as_array().unwrap().iter();
        all.find(|it| it["tool"] == name).unwrap()["gate"].clone()
    };
    assert_eq!((gate("read_file"), gate("fetch_url")), (json!("allow"), json!("deny")), "{tools}");
    // A policy that the cluster does not have is missing, even if a default installation has it.
    let missing = agent["spec"].clone();
    let mut other = agent;
    other["metadata"]["name"] = json!("other");
    other["spec"] = missing;
    other["spec"]["policyRef"] = json!("restrictive");
    harness.namespace.create(&other).unwrap();
    std::fs::write(harness.path("other.yaml"), run.replace("reader", "other")).unwrap();
    let missing = harness.sympozium(&["explain", "other.yaml", "--cluster"]);
    assert_eq!(missing.status.code(), Some(1), "{}", crate::format_output(&missing));
    assert!(stderr(&missing).contains("restrictive"), "{}", stderr(&missing));
}
