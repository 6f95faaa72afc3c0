//! What is rendered, on a real Kubernetes: the API server accepts all of it where `restricted` is enforced, and a pod of it
//! starts and shows each container what the plan says, and nothing else.

mod executor;
pub mod manifests;
mod pod;
mod start;

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sympozium_plan::plan::PlanSettings;
use sympozium_plan::render::{Object, RenderSettings, Rendered, SandboxVersion};
use sympozium_testkit::cluster::{Cluster, Kubectl, Security, Tier};
use sympozium_testkit::runs::keeping_rules;

use crate::kinds;
use manifests::{create_runs, documents, move_to, realise, send};

/// Where the golden runs are.
const FIXTURES: &str = "crates/plan/src/render/tests/fixtures";
/// Runs that are made up, from this number on.
const SEEDS: std::ops::Range<u64> = 40..76;

/// Every golden run, the run of the custom sidecar guide, and some that are made up.
fn manifests() -> Result<Vec<Vec<Value>>> {
    let mut manifests = Vec::new();
    for path in kinds::files(FIXTURES, ".yaml")? {
        manifests.push(documents(&fs::read_to_string(path)?)?);
    }
    let mut guide = Vec::new();
    for path in kinds::files("config/samples/seeds", "-echo.yaml")? {
        guide.extend(documents(&fs::read_to_string(path)?)?);
    }
    for path in kinds::files("config/samples/seeds", "-echo-demo.yaml")? {
        guide.extend(documents(&fs::read_to_string(path)?)?);
    }
    guide.push(json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "Agent", "metadata": { "name": "my-agent" },
        "spec": { "agents": { "default": { "model": "gpt-4o-mini" } }, "skills": [{ "skillPackRef": "echo-demo" }] },
    }));
    manifests.push(guide);
    // Without violations: some of those the API server's schema refuses before anything is rendered.
    manifests.extend(SEEDS.map(keeping_rules));
    Ok(manifests)
}

/// Dry run on the server goes through everything but storing, with unknown fields refused.
const DRY_RUN: [&str; 2] = ["create", "--dry-run=server"];

#[test]
fn a_real_api_server_accepts_everything_that_is_rendered() -> Result<()> {
    let Some(cluster) = kinds::with_kinds()? else {
        return Ok(());
    };
    let (runs, on_node) = accepted(cluster, "render", manifests()?)?;
    ensure!(runs >= 25, "only {runs} runs were admitted");
    ensure!(on_node > 0, "no run that is made up sees the node");
    Ok(())
}

/// Every sample with a run, with the packs and policies that we ship.
#[test]
fn a_real_api_server_accepts_every_sample() -> Result<()> {
    let Some(cluster) = kinds::with_kinds()? else {
        return Ok(());
    };
    let manifests = samples()?;
    let all = manifests.len();
    ensure!(all >= 10, "only {all} samples have a run");
    let (runs, _) = accepted(cluster, "render-samples", manifests)?;
    assert_eq!(runs, all);
    Ok(())
}

/// The run of a guide that claims a sandbox from a warm pool is denied before anything is rendered.
#[test]
fn a_claim_on_a_warm_pool_is_denied() -> Result<()> {
    let mut objects = shipped()?;
    for path in kinds::files("config/samples/seeds", "-my-secure-run.yaml")? {
        objects.extend(documents(&fs::read_to_string(path)?)?);
    }
    objects.push(json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "SympoziumInstance", "metadata": { "name": "my-agent" },
        "spec": { "agents": { "default": { "model": "claude-sonnet-4-20250514" } } },
    }));
    move_to(&mut objects, "team");
    for object in objects.iter_mut().filter(|it| it["kind"] == "AgentRun") {
        object["metadata"]["uid"] = json!("00000000-0000-4000-8000-000000000000");
    }
    let rendered = realise(&objects, &PlanSettings::default(), &RenderSettings::default())?;
    ensure!(rendered.is_none(), "a claim on a warm pool is admitted");
    for object in objects.iter_mut().filter(|it| it["kind"] == "AgentRun") {
        let sandbox = object.pointer_mut("/spec/agentSandbox");
        let sandbox = sandbox.and_then(Value::as_object_mut);
        sandbox.and_then(|it| it.remove("warmPoolRef")).context("no warm pool")?;
    }
    let rendered = realise(
        &objects,
        &PlanSettings::default(),
        &RenderSettings { sandbox_version: Some(SandboxVersion::V1Alpha1), ..RenderSettings::default() },
    )?;
    ensure!(rendered.is_some(), "it is not denied for its warm pool");
    Ok(())
}

/// The packs and policies that are part of every installation.
fn shipped() -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for directory in ["config/policies", "config/skillpacks"] {
        for path in kinds::files(directory, ".yaml")? {
            objects.extend(documents(&fs::read_to_string(path)?)?);
        }
    }
    Ok(objects)
}

fn samples() -> Result<Vec<Vec<Value>>> {
    let mut manifests = Vec::new();
    for path in kinds::files("config/samples", ".yaml")? {
        let sample = documents(&fs::read_to_string(&path)?)?;
        if sample.iter().all(|it| it["kind"] != "AgentRun") {
            continue;
        }
        let mut objects = shipped()?;
        // The agent of the run that is alone in its file.
        for path in kinds::files("config/samples", "/agent.yaml")? {
            objects.extend(documents(&fs::read_to_string(path)?)?);
        }
        objects.extend(sample);
        manifests.push(objects);
    }
    Ok(manifests)
}

/// How many of the runs are admitted, and how many of their pods see the node. All that is rendered of them must be accepted where `restricted` is enforced, but for
/// pods that see the node, which must be refused there.
fn accepted(cluster: &Cluster, name: &str, mut manifests: Vec<Vec<Value>>) -> Result<(usize, usize)> {
    let namespace = cluster.namespace(name, Security::Restricted)?;
    for (number, objects) in manifests.iter_mut().enumerate() {
        move_to(objects, namespace.name());
        // Policies of samples name the namespace that samples are for.
        for list in ["modelPolicy/allowedNamespaces", "rbacPolicy/clusterRBACNamespaces"] {
            for object in objects.iter_mut() {
                let names = object.pointer_mut(&format!("/spec/{list}"));
                let names = names.and_then(Value::as_array_mut).into_iter().flatten();
                for name in names.filter(|it| *it == "default") {
                    *name = json!(namespace.name());
                }
            }
        }
        // Made-up runs take their names from one list, and a namespace has each once.
        for object in objects.iter_mut().filter(|it| it["kind"] == "AgentRun") {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let name = format!("{number}-{name}");
            object["metadata"]["name"] = json!(name[..name.len().min(253)]);
        }
    }
    create_runs(namespace.kubectl(), &mut manifests)?;

    let settings = RenderSettings::default();
    let (mut objects, mut accounts, mut pods) = (Vec::new(), Vec::new(), Vec::new());
    let mut runs = 0;
    for one_run in &manifests {
        let Some((_, rendered)) = realise(one_run, &PlanSettings::default(), &settings)? else {
            continue;
        };
        runs += 1;
        for item in &rendered.objects {
            let value = item.object.to_value()?;
            match &item.object {
                // Not a kind of this tier; its pod is looked at like all others.
                Object::Sandbox(_) => {}
                Object::ServiceAccount(_) => accounts.push(value),
                _ => objects.push(value),
            }
        }
        pods.extend(bare_pods(&rendered)?);
    }
    send(namespace.kubectl(), &DRY_RUN, &objects)?;
    // A pod is refused when its account or its RuntimeClass is not there.
    send(namespace.kubectl(), &["create"], &accounts)?;
    runtime_class(&cluster.kubectl())?;
    // A Job whose pods break the rules of its namespace is only warned about, so its pod is tried itself.
    let (on_node, pods): (Vec<Value>, Vec<Value>) = pods.into_iter().partition(sees_node);
    let accepted = send(namespace.kubectl(), &DRY_RUN, &pods)?;
    assert_eq!(accepted.len(), pods.len());
    let seen = on_node.len();
    for pod in on_node {
        let refused = send(namespace.kubectl(), &DRY_RUN, &[pod]);
        let refused = refused.err().map(|it| it.to_string()).unwrap_or_default();
        ensure!(refused.contains("violates PodSecurity \"restricted:"), "{refused}");
    }
    Ok((runs, seen))
}

/// Whether a policy gave the pod something of the node. What is made up for that has a directory in it.
fn sees_node(pod: &Value) -> bool {
    let volumes = pod["spec"]["volumes"].as_array();
    volumes.is_some_and(|all| all.iter().any(|it| !it["hostPath"].is_null()))
}

/// The check above would mean nothing if the namespace let everything through.
#[test]
fn a_pod_that_is_loosened_is_refused() -> Result<()> {
    let Some(cluster) = kinds::with_kinds()? else {
        return Ok(());
    };
    let namespace = cluster.namespace("render-loose", Security::Restricted)?;
    let path = kinds::files(FIXTURES, "/plain.yaml")?.remove(0);
    let mut manifests = [documents(&fs::read_to_string(path)?)?];
    move_to(&mut manifests[0], namespace.name());
    create_runs(namespace.kubectl(), &mut manifests)?;
    let settings = (PlanSettings::default(), RenderSettings::default());
    let rendered = realise(&manifests[0], &settings.0, &settings.1)?;
    let (_, rendered) = rendered.ok_or_else(|| anyhow::anyhow!("not admitted"))?;
    let accounts = rendered.objects.iter().filter(|it| it.object.kind() == "ServiceAccount");
    let accounts: Vec<Value> = accounts.map(|it| it.object.to_value()).collect::<Result<_, _>>()?;
    send(namespace.kubectl(), &["create"], &accounts)?;
    let mut pods = bare_pods(&rendered)?;
    send(namespace.kubectl(), &DRY_RUN, &pods)?;
    pods[0]["spec"]["initContainers"][0]["securityContext"]["allowPrivilegeEscalation"] = json!(true);
    let refused = send(namespace.kubectl(), &DRY_RUN, &pods).err().map(|it| it.to_string());
    let refused = refused.unwrap_or_default();
    ensure!(refused.contains("violates PodSecurity \"restricted:"), "{refused}");
    ensure!(refused.contains("check-network"), "{refused}");
    Ok(())
}

#[test]
fn agent_sandbox_accepts_a_sandbox() -> Result<()> {
    let Some(cluster) = Cluster::shared(Tier::AgentSandbox)? else {
        return Ok(());
    };
    let namespace = cluster.namespace("render-sandbox", Security::Restricted)?;
    let path = kinds::files(FIXTURES, "/gvisor.yaml")?.remove(0);
    let mut objects = documents(&fs::read_to_string(path)?)?;
    move_to(&mut objects, namespace.name());
    let settings = RenderSettings { sandbox_version: Some(SandboxVersion::V1Alpha1), ..RenderSettings::default() };
    let rendered = realise(&objects, &PlanSettings::default(), &settings)?;
    let (_, rendered) = rendered.ok_or_else(|| anyhow::anyhow!("not admitted"))?;
    let sandboxes = rendered.objects.iter().filter(|it| it.object.kind() == "Sandbox");
    let sandboxes: Vec<Value> = sandboxes.map(|it| it.object.to_value()).collect::<Result<_, _>>()?;
    assert_eq!(sandboxes.len(), 1);
    let accepted = send(namespace.kubectl(), &DRY_RUN, &sandboxes)?;
    assert_eq!(accepted[0]["spec"]["podTemplate"]["spec"]["runtimeClassName"], "gvisor");
    Ok(())
}

/// The pods of what makes pods, each by itself.
fn bare_pods(rendered: &Rendered) -> Result<Vec<Value>> {
    let mut pods = Vec::new();
    for item in &rendered.objects {
        let Some(template) = item.object.pod_template() else {
            continue;
        };
        let mut pod = serde_json::to_value(template)?;
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["name"] = json!(item.object.name());
        pod["metadata"]["namespace"] = json!(item.object.namespace());
        pods.push(pod);
    }
    Ok(pods)
}

fn runtime_class(kubectl: &Kubectl) -> Result<()> {
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": "gvisor" }, "handler": "runsc",
    });
    // A cluster with gVisor has one already, and another test may make it at the same time.
    let is_there = || -> Result<bool> { Ok(kubectl.attempt(&["get", "runtimeclass", "gvisor"])?.success) };
    if is_there()? {
        return Ok(());
    }
    match kubectl.create(&class) {
        Err(error) if !is_there()? => Err(error),
        _ => Ok(()),
    }
}
