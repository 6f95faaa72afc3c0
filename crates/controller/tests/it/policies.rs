//! Policies and the agents that are held to them.

use serde_json::{Value, json};
use sympozium_testkit::cluster::{Exclusivity, Security};

use crate::harness::Harness;

fn agent(kind: &str, name: &str, policy: &str) -> Value {
    json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": kind, "metadata": {"name": name},
        "spec": {"agents": {"default": {"model": "m"}}, "policyRef": policy},
    })
}

fn policy(name: &str, network: &Value) -> Value {
    json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "SympoziumPolicy", "metadata": {"name": name},
        "spec": {"networkPolicy": network},
    })
}

#[test]
fn a_policy_counts_the_agents_that_are_held_to_it() {
    let Some(harness) = Harness::new("policies", Exclusivity::shared()) else {
        return;
    };
    let team = harness.cluster.namespace("team", Security::Restricted).expect("a namespace");
    let kubectl = team.kubectl();
    let strict = policy("strict", &json!({"denyAll": true, "allowDNS": true}));
    let open = policy("open", &json!({"denyAll": false}));
    for policy in [strict, open] {
        team.create(&policy).expect("a policy");
    }
    team.create(&agent("Agent", "alice", "strict")).expect("an agent");
    team.create(&agent("SympoziumInstance", "bob", "strict")).expect("an agent");
    let _program = harness.start_leader();
    let counts = |name: &str, bound: i64| {
        harness.wait_for(kubectl, &["sympoziumpolicy", name], |it| it["status"]["boundInstances"] == bound)
    };
    let strict = counts("strict", 2);
    let open = counts("open", 0);
    // What is unwise about a policy stands in its status.
    let conditions = strict["status"]["conditions"].to_string();
    assert!(conditions.contains("dns-by-gateway"), "{conditions}");
    let conditions = open["status"]["conditions"].to_string();
    assert!(!conditions.contains("dns-by-gateway"), "{conditions}");

    let patch = r#"{"spec":{"policyRef":"open"}}"#;
    kubectl.run(&["patch", "agent", "alice", "--type=merge", "-p", patch]).expect("a change");
    counts("strict", 1);
    counts("open", 1);
    kubectl.run(&["delete", "sympoziuminstance", "bob"]).expect("it goes");
    counts("strict", 0);
}
