//! `explain` of runs that a cluster has, and of files against what it has.

use serde_json::json;

use super::World;
use crate::{stderr, stdout};

#[test]
fn a_stored_plan_is_explained_and_a_replaced_one_is_not_believed() {
    let Some(world) = World::new("stored") else {
        return;
    };
    let played = world.planned();
    // The same words as for the files, which say the same here.
    let stored = world.says(&["explain", "nightly", "--cluster"]);
    assert_eq!(stored.status.code(), Some(0), "{}", crate::shown(&stored));
    let files = world.says(&["explain", "files.yaml", "-n", world.namespace.name()]);
    let plain = |text: &str| {
        // The digest is of another UID.
        let lines = world.plain(text, &played);
        let lines = lines.lines().filter(|it| !it.contains("sha256:"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(plain(stdout(&stored)), plain(stdout(&files)));

    let name = played.object("plan");
    let mut map = world.kubectl.json(&["get", "configmap", &name]).unwrap();
    world.kubectl.run(&["delete", "configmap", &name]).unwrap();
    let gone = world.says(&["explain", "nightly", "--cluster"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(stderr(&gone).contains("the stored plan of run `nightly` is gone"), "{}", stderr(&gone));
    map["metadata"] = json!({"name": name});
    let text = map["data"]["plan.json"].as_str().unwrap().replace("gpt-4o", "gpt-5");
    map["data"]["plan.json"] = json!(text);
    world.namespace.create(&map).unwrap();
    let replaced = world.says(&["explain", "nightly", "--cluster"]);
    assert_eq!(replaced.status.code(), Some(1));
    assert!(stderr(&replaced).contains("is not the run's"), "{}", stderr(&replaced));
    let audit = world.says(&["audit", "verify", "nightly", "--cluster"]);
    assert!(stdout(&audit).contains("the stored plan is not the run's"), "{}", stdout(&audit));
}

#[test]
fn a_file_is_judged_by_what_the_cluster_has() {
    let Some(world) = World::new("judged") else {
        return;
    };
    let run = r"
apiVersion: sympozium.ai/v1alpha1
kind: AgentRun
metadata: {name: later}
spec: {agentRef: reader, task: Read., model: {provider: openai, model: gpt-4o, authSecretRef: key}}
";
    std::fs::write(world.path("run.yaml"), run).unwrap();
    let nobody = world.says(&["explain", "run.yaml", "--cluster"]);
    assert_eq!(nobody.status.code(), Some(1), "{}", crate::shown(&nobody));
    assert!(stderr(&nobody).contains("reader"), "{}", stderr(&nobody));
    let policy = json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "SympoziumPolicy", "metadata": {"name": "closed"},
        "spec": {"toolGating": {"defaultAction": "allow", "rules": [{"tool": "fetch_url", "action": "deny"}]}},
    });
    let agent = json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "Agent", "metadata": {"name": "reader"},
        "spec": {"agents": {"default": {"model": "unused"}}, "policyRef": "closed"},
    });
    world.namespace.create(&policy).unwrap();
    world.namespace.create(&agent).unwrap();
    let explained = world.says(&["explain", "run.yaml", "--cluster"]);
    assert_eq!(explained.status.code(), Some(0), "{}", crate::shown(&explained));
    let text = stdout(&explained);
    assert!(text.contains("later") && text.contains("reader"), "{text}");
    let tools = world.says(&["explain", "run.yaml", "--cluster", "-o", "json"]);
    let tools: serde_json::Value = serde_json::from_slice(&tools.stdout).unwrap();
    let gate = |name: &str| {
        let mut all = tools["runs"][0]["tools"].as_array().unwrap().iter();
        all.find(|it| it["tool"] == name).unwrap()["gate"].clone()
    };
    assert_eq!((gate("read_file"), gate("fetch_url")), (json!("allow"), json!("deny")), "{tools}");
    // A policy that the agent names and the cluster does not have is missing, whatever an installation would bring.
    let missing = agent["spec"].clone();
    let mut other = agent;
    other["metadata"]["name"] = json!("other");
    other["spec"] = missing;
    other["spec"]["policyRef"] = json!("restrictive");
    world.namespace.create(&other).unwrap();
    std::fs::write(world.path("other.yaml"), run.replace("reader", "other")).unwrap();
    let missing = world.says(&["explain", "other.yaml", "--cluster"]);
    assert_eq!(missing.status.code(), Some(1), "{}", crate::shown(&missing));
    assert!(stderr(&missing).contains("restrictive"), "{}", stderr(&missing));
}
