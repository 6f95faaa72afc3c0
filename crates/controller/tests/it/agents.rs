//! Agents, by both names.

use serde_json::{Value, json};
use sympozium_testkit::cluster::{Exclusivity, Security};

use crate::harness::Harness;

fn agent(kind: &str, name: &str) -> Value {
    json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": kind, "metadata": {"name": name},
        "spec": {"agents": {"default": {"model": "m"}}, "skills": [{"skillPackRef": "echo"}]},
    })
}

#[test]
fn an_agent_waits_for_its_packs_counts_its_runs_and_has_one_name() {
    let Some(harness) = Harness::new("agents", Exclusivity::shared()) else {
        return;
    };
    let team = harness.cluster.namespace("team", Security::Restricted).expect("a namespace");
    let kubectl = team.kubectl();
    team.create(&agent("Agent", "alice")).expect("an agent");
    team.create(&agent("SympoziumInstance", "bob")).expect("an agent");
    let program = harness.start_leader();
    for object in ["agent/alice", "sympoziuminstance/bob"] {
        let found = harness.wait_for(kubectl, &[object], |it| it["status"]["phase"] == "Pending");
        let conditions = found["status"]["conditions"].to_string();
        assert!(conditions.contains("wait for SkillPack `echo`"), "{conditions}");
    }
    let pack = json!({"apiVersion": "sympozium.ai/v1alpha1", "kind": "SkillPack", "metadata": {"name": "echo"},
        "spec": {"skills": [{"name": "say", "content": "x"}]}});
    team.create(&pack).expect("a pack");
    for object in ["agent/alice", "sympoziuminstance/bob"] {
        let found = harness.wait_for(kubectl, &[object], |it| it["status"]["phase"] == "Running");
        assert_eq!(found["status"]["totalAgentRuns"], 0);
        assert_eq!(found["status"]["activeAgentPods"], 0);
    }

    let run = json!({"apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun", "metadata": {"generateName": "r-"},
        "spec": {"agentRef": "alice", "task": "say it"}});
    for _ in 0..2 {
        team.create(&run).expect("a run");
    }
    harness.wait_for(kubectl, &["agent/alice"], |it| it["status"]["totalAgentRuns"] == 2);

    team.create(&agent("Agent", "bob")).expect("a namesake");
    for object in ["agent/bob", "sympoziuminstance/bob"] {
        harness.wait_for(kubectl, &[object], |it| it["status"]["phase"] == "Error");
    }
    kubectl.run(&["delete", "agent", "bob"]).expect("it goes");
    harness.wait_for(kubectl, &["sympoziuminstance/bob"], |it| it["status"]["phase"] == "Running");

    // A total outlives runs and processes.
    drop(program);
    kubectl.run(&["delete", "agentruns", "--all", "--wait=false"]).expect("they go");
    let program = harness.start_leader();
    team.create(&run).expect("a run");
    let found = harness.wait_for(kubectl, &["agent/alice"], |it| it["status"]["totalAgentRuns"] == 3);
    assert_eq!(found["status"]["observedGeneration"], found["metadata"]["generation"]);
    drop(program);
}
