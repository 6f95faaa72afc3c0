//! The agent-sandbox tier: a claim is served from a warm pool.

use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sympozium_testkit::cluster::{Cluster, Namespace, Security, Tier, eventually};

use crate::pods::{self, PATIENCE};

fn extension(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "extensions.agents.x-k8s.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn running_pods(namespace: &Namespace) -> Result<Vec<String>> {
    let pods = namespace.kubectl().json(&["get", "pods"])?;
    let items = pods["items"].as_array().context("a list of pods has items")?;
    let running = items.iter().filter(|pod| {
        let conditions = pod["status"]["conditions"].as_array();
        conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
    });
    Ok(running.filter_map(|pod| pod["metadata"]["uid"].as_str().map(str::to_owned)).collect())
}

#[test]
fn a_claim_is_served_from_a_warm_pool() -> Result<()> {
    let Some(cluster) = Cluster::shared(Tier::AgentSandbox)? else {
        return Ok(());
    };
    let Some(image) = pods::image(cluster)? else {
        return Ok(());
    };
    let namespace = cluster.namespace("claim", Security::Restricted)?;
    let mut spec = pods::spec(&[pods::container("main", &image, "sleep 600")]);
    spec["restartPolicy"] = json!("Always");
    spec["runtimeClassName"] = json!("gvisor");
    namespace.create(&extension("SandboxTemplate", "shell", json!({"podTemplate": {"spec": spec}})))?;
    namespace.create(&extension(
        "SandboxWarmPool",
        "warm",
        json!({"replicas": 2, "sandboxTemplateRef": {"name": "shell"}}),
    ))?;
    let warm =
        eventually("two warm pods", PATIENCE, || Ok(Some(running_pods(&namespace)?).filter(|all| all.len() == 2)))?;

    let start = Instant::now();
    namespace.create(&extension("SandboxClaim", "run", json!({"sandboxTemplateRef": {"name": "shell"}})))?;
    let claim = eventually("the claim to be ready", PATIENCE, || {
        let claim = namespace.kubectl().json(&["get", "sandboxclaim", "run"])?;
        let ready = claim["status"]["conditions"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"));
        Ok(ready.then_some(claim))
    })?;
    eprintln!("claim ready after {:?}", start.elapsed());

    // Which pod it got: the one of its Sandbox must be one that was warm before the claim existed.
    let sandbox = claim["status"]["sandbox"]["name"].as_str().or(claim["status"]["sandbox"]["Name"].as_str());
    let sandbox = sandbox.with_context(|| format!("the claim names no sandbox: {}", claim["status"]))?;
    let object = namespace.kubectl().json(&["get", "sandbox", sandbox])?;
    let annotated = object["metadata"]["annotations"]["agents.x-k8s.io/pod-name"].as_str();
    let pod = namespace.kubectl().json(&["get", "pod", annotated.unwrap_or(sandbox)])?;
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    assert!(warm.iter().any(|one| one == uid), "pod {uid} is none of the warm {warm:?}");
    Ok(())
}
