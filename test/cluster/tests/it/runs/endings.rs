//! How runs end, and what stays.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sympozium_testkit::cluster::eventually;

use super::rights::{HOLD, let_go};
use super::world::{Company, PATIENCE, World, commands, condition, container_id, scripted, shell_pack};

/// Finished runs of one agent that are kept.
const HISTORY: usize = 50;

/// A run with a skill whose one command waits. When this returns, it does.
fn held(world: &World, name: &str, more: &str) -> Result<Value> {
    let skills = "  skills: [{skillPackRef: tools}]";
    let command = format!("touch /workspace/waits; {HOLD}");
    let manifests = scripted(name, &commands(&[&command]), skills, more) + &shell_pack("tools");
    world.create(&manifests)?;
    let pod = world.pod_with(name, "agent")?;
    eventually("the command to wait", PATIENCE, || {
        let look = ["test", "-e", "/workspace/waits"];
        let waits = world.exec(&pod, "skill-tools", &look)?.success;
        Ok(waits.then_some(()))
    })?;
    Ok(pod)
}

#[test]
fn a_pod_that_is_kept_has_no_rights_and_goes_with_its_run() -> Result<()> {
    let Some(world) = World::new("keep", Company::Others)? else {
        return Ok(());
    };
    let pod = held(&world, "kept", "  cleanup: keep")?;
    let_go(&world, &pod, "skill-tools")?;
    let run = world.ended("kept")?;
    assert_eq!(run["status"]["phase"], "Succeeded", "{run}");
    let mut left = world.left_of(&run)?;
    left.retain(|it| !it.starts_with("\"Pod\"") && !it.starts_with("\"Job\""));
    assert_eq!(left, Vec::<String>::new());
    let name = pod["metadata"]["name"].as_str().context("a name")?;
    let kept = world.kubectl().json(&["get", "pod", name])?;
    assert_eq!(kept["metadata"]["uid"], run["status"]["podUID"]);
    world.kubectl().run(&["delete", "agentrun", "kept"])?;
    eventually("the pod to go with its run", PATIENCE, || {
        let there = world.kubectl().attempt(&["get", "pod", name])?;
        Ok((!there.success).then_some(()))
    })
}

#[test]
fn a_run_is_cancelled_in_the_middle() -> Result<()> {
    let Some(world) = World::new("cancel", Company::Others)? else {
        return Ok(());
    };
    held(&world, "stopped", "")?;
    let patch = r#"{"spec":{"cancel":true}}"#;
    world.kubectl().run(&["patch", "agentrun", "stopped", "--type=merge", "-p", patch])?;
    let run = world.ended("stopped")?;
    assert_eq!(run["status"]["phase"], "Cancelled", "{run}");
    assert_eq!(world.left_of(&run)?, Vec::<String>::new());
    Ok(())
}

#[test]
fn a_run_that_is_deleted_in_the_middle_leaves_nothing() -> Result<()> {
    let Some(world) = World::new("delete", Company::Others)? else {
        return Ok(());
    };
    held(&world, "removed", "")?;
    let run = world.run("removed")?;
    world.kubectl().run(&["delete", "agentrun", "removed", "--timeout=120s"])?;
    eventually("everything of the run to be gone", PATIENCE, || {
        let uid = run["metadata"]["uid"].as_str().unwrap_or_default();
        let plans = format!("--selector=sympozium.ai/run-uid={uid}");
        let plans = world.kubectl().json(&["get", "configmaps,runrecords", &plans])?;
        let none = plans["items"].as_array().is_some_and(Vec::is_empty);
        Ok((none && world.left_of(&run)?.is_empty()).then_some(()))
    })
}

/// An agent that no longer moves cannot keep its run: the bridge's end is the run's, and the pod is deleted.
#[test]
fn an_agent_that_lingers_is_ended_with_its_run() -> Result<()> {
    let Some(world) = World::new("linger", Company::Others)? else {
        return Ok(());
    };
    // Long enough for a slow machine to get so far that the command waits; what is tried comes after it.
    let pod = held(&world, "frozen", "  timeout: 60s")?;
    let id = container_id(&pod, "agent")?;
    let frozen = world.cluster.on_node(&["ctr", "task", "kill", "--signal", "SIGSTOP", &id])?;
    let frozen = frozen.context("a node of ours")?;
    ensure!(frozen.success, "{}", frozen.stderr);
    let run = world.ended("frozen")?;
    let error = run["status"]["error"].as_str().unwrap_or_default();
    assert_eq!(run["status"]["phase"], "Failed", "{run}");
    assert!(error.starts_with("the run's time is up"), "{error}");
    assert_eq!(world.left_of(&run)?, Vec::<String>::new());
    Ok(())
}

#[test]
fn of_finished_runs_of_an_agent_the_newest_are_kept() -> Result<()> {
    let Some(world) = World::new("history", Company::Others)? else {
        return Ok(());
    };
    let agent = "apiVersion: sympozium.ai/v1alpha1\nkind: Agent\nmetadata: {name: busy}\nspec: {agents: {default: {model: m}}}\n";
    world.create(agent)?;
    // Denied ones are the cheapest: a task is missing.
    let count = HISTORY + 5;
    let runs: Vec<Value> = (0..count)
        .map(|number| {
            json!({
                "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun",
                "metadata": {"name": format!("run-{number:03}"), "namespace": world.namespace.name()},
                "spec": {"agentRef": "busy", "model": {"provider": "scripted", "model": "m"}},
            })
        })
        .collect();
    crate::render::world::send(world.kubectl(), &["create"], &runs)?;
    eventually("the oldest runs to go", PATIENCE, || {
        let left = world.kubectl().json(&["get", "agentruns"])?;
        let left = left["items"].as_array().map_or(0, Vec::len);
        Ok((left == HISTORY).then_some(()))
    })
}

#[test]
fn a_run_waits_for_what_it_needs() -> Result<()> {
    let Some(world) = World::new("waits", Company::Others)? else {
        return Ok(());
    };
    let manifests = scripted("early", "      - {say: Done., then: end}", "", "");
    let (first, rest) = manifests.split_once("\n---\n").context("two parts")?;
    let (agent, run) = rest.split_once("\n---\n").context("three parts")?;
    world.create(run)?;
    let waiting = world.wait("early", "it to wait", |run| condition(run, "Admitted") == "Unknown")?;
    assert_eq!(waiting["status"]["phase"], "Pending");
    assert_eq!(world.left_of(&waiting)?, Vec::<String>::new());
    world.create(first)?;
    world.create(agent)?;
    let run = world.ended("early")?;
    assert_eq!((&run["status"]["phase"], &run["status"]["result"]), (&json!("Succeeded"), &json!("Done.")), "{run}");
    Ok(())
}
