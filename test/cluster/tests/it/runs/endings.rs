//! How runs end, and what stays.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use sympozium_testkit::cluster::{Exclusivity, eventually};
use sympozium_testkit::growing;

use super::harness::{Harness, PATIENCE, commands, condition, container_id, holds, is_over, scripted, shell_pack};
use super::rights::let_go;

/// Finished runs of one agent that are kept.
const HISTORY: usize = 50;
/// Half of the time for which the controller of these tests waits for what a run names.
const HALF_OF_PATIENCE: Duration = Duration::from_secs(30);
/// How often a test begins again on a machine that was too slow for it.
const ATTEMPTS: usize = 5;

/// A run with a skill whose command waits. When this returns, it does.
fn held(harness: &Harness, name: &str, more: &str) -> Result<Value> {
    let skills = "  skills: [{skillPackRef: tools}]";
    let mut all = holds();
    all[0].insert_str(0, "touch /workspace/waits; ");
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let manifests = scripted(name, &commands(&all), skills, more) + &shell_pack("tools");
    harness.create(&manifests)?;
    let pod = harness.pod_with(name, "agent")?;
    eventually("the command to wait", PATIENCE, || {
        let look = ["test", "-e", "/workspace/waits"];
        let waits = harness.exec(&pod, "skill-tools", &look)?.success;
        Ok(waits.then_some(()))
    })?;
    Ok(pod)
}

#[test]
fn a_pod_that_is_kept_has_no_rights_and_goes_with_its_run() -> Result<()> {
    let Some(harness) = Harness::new("keep", Exclusivity::shared())? else {
        return Ok(());
    };
    let pod = held(&harness, "kept", "  cleanup: keep")?;
    let_go(&harness, &pod, "skill-tools")?;
    let run = harness.ended("kept")?;
    assert_eq!(run["status"]["phase"], "Succeeded", "{run}");
    let mut left = harness.left_of(&run)?;
    left.retain(|it| !it.starts_with("\"Pod\"") && !it.starts_with("\"Job\""));
    assert_eq!(left, Vec::<String>::new());
    let name = pod["metadata"]["name"].as_str().context("a name")?;
    let kept = harness.kubectl().json(&["get", "pod", name])?;
    assert_eq!(kept["metadata"]["uid"], run["status"]["podUID"]);
    harness.kubectl().run(&["delete", "agentrun", "kept"])?;
    eventually("the pod to go with its run", PATIENCE, || {
        let there = harness.kubectl().attempt(&["get", "pod", name])?;
        Ok((!there.success).then_some(()))
    })
}

#[test]
fn a_run_is_cancelled_in_the_middle() -> Result<()> {
    let Some(harness) = Harness::new("cancel", Exclusivity::shared())? else {
        return Ok(());
    };
    held(&harness, "stopped", "")?;
    let patch = r#"{"spec":{"cancel":true}}"#;
    harness.kubectl().run(&["patch", "agentrun", "stopped", "--type=merge", "-p", patch])?;
    let run = harness.ended("stopped")?;
    assert_eq!(run["status"]["phase"], "Cancelled", "{run}");
    assert_eq!(harness.left_of(&run)?, Vec::<String>::new());
    Ok(())
}

#[test]
fn a_run_that_is_deleted_in_the_middle_leaves_nothing() -> Result<()> {
    let Some(harness) = Harness::new("delete", Exclusivity::shared())? else {
        return Ok(());
    };
    held(&harness, "removed", "")?;
    let run = harness.run("removed")?;
    harness.kubectl().run(&["delete", "agentrun", "removed", "--timeout=180s"])?;
    eventually("everything of the run to be gone", PATIENCE, || {
        let uid = run["metadata"]["uid"].as_str().unwrap_or_default();
        let plans = format!("--selector=sympozium.ai/run-uid={uid}");
        let plans = harness.kubectl().json(&["get", "configmaps,runrecords", &plans])?;
        let none = plans["items"].as_array().is_some_and(Vec::is_empty);
        Ok((none && harness.left_of(&run)?.is_empty()).then_some(()))
    })
}

/// An agent that no longer moves cannot keep its run: the bridge's end is the run's, and the pod is deleted.
#[test]
fn an_agent_that_lingers_is_ended_with_its_run() -> Result<()> {
    let Some(first) = Harness::new("linger", Exclusivity::shared())? else {
        return Ok(());
    };
    for limit in growing(Duration::from_secs(40)) {
        let harness = first.beside("linger")?;
        let frozen = freeze(&harness, limit);
        // Its time begins with the agent.
        let run = harness.kubectl().until("agentrun", "frozen", limit + PATIENCE, is_over);
        match frozen {
            Ok(()) => {}
            // The machine was too slow for this limit: the time was up before the agent was stopped.
            Err(_) if run.is_ok() => continue,
            Err(error) => return Err(error),
        }
        let run = run?;
        let error = run["status"]["error"].as_str().unwrap_or_default();
        assert_eq!(run["status"]["phase"], "Failed", "{run}");
        assert!(error.starts_with("the run's time is up"), "{error}");
        assert_eq!(harness.left_of(&run)?, Vec::<String>::new());
        return Ok(());
    }
    bail!("the agent could not be stopped before the time of its run was up")
}

/// Starts a run with this limit, and stops its agent while a command waits.
fn freeze(harness: &Harness, limit: Duration) -> Result<()> {
    let pod = held(harness, "frozen", &format!("  timeout: {}s", limit.as_secs()))?;
    let id = container_id(&pod, "agent")?;
    let frozen = harness.cluster.on_node(&["ctr", "task", "kill", "--signal", "SIGSTOP", &id])?;
    let frozen = frozen.context("a node of ours")?;
    ensure!(frozen.success, "{}", frozen.stderr);
    Ok(())
}

#[test]
fn of_finished_runs_of_an_agent_the_newest_are_kept() -> Result<()> {
    let Some(harness) = Harness::new("history", Exclusivity::shared())? else {
        return Ok(());
    };
    let agent = "apiVersion: sympozium.ai/v1alpha1\nkind: Agent\nmetadata: {name: busy}\nspec: {agents: {default: {model: m}}}\n";
    harness.create(agent)?;
    // Denied ones are the cheapest: a task is missing.
    let count = HISTORY + 5;
    let runs: Vec<Value> = (0..count)
        .map(|number| {
            json!({
                "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun",
                "metadata": {"name": format!("run-{number:03}"), "namespace": harness.namespace.name()},
                "spec": {"agentRef": "busy", "model": {"provider": "scripted", "model": "m"}},
            })
        })
        .collect();
    crate::render::manifests::send(harness.kubectl(), &["create"], &runs)?;
    eventually("the oldest runs to go", PATIENCE, || {
        let left = harness.kubectl().json(&["get", "agentruns"])?;
        let left = left["items"].as_array().map_or(0, Vec::len);
        Ok((left == HISTORY).then_some(()))
    })
}

#[test]
fn a_run_waits_for_what_it_needs() -> Result<()> {
    let Some(first) = Harness::new("waits", Exclusivity::shared())? else {
        return Ok(());
    };
    let manifests = scripted("early", "      - {say: Done., then: end}", "", "");
    let (script, rest) = manifests.split_once("\n---\n").context("two parts")?;
    let (agent, run) = rest.split_once("\n---\n").context("three parts")?;
    for _ in 0..ATTEMPTS {
        let harness = first.beside("waits")?;
        let begin = Instant::now();
        harness.create(run)?;
        let waits = |run: &Value| condition(run, "Admitted") == "Unknown";
        let waiting = harness.wait("early", "it to wait", |run| waits(run) || is_over(run))?;
        if waits(&waiting) {
            assert_eq!(waiting["status"]["phase"], "Pending");
            assert_eq!(harness.left_of(&waiting)?, Vec::<String>::new());
        }
        harness.create(script)?;
        harness.create(agent)?;
        let was_slow = begin.elapsed() > HALF_OF_PATIENCE;
        let run = harness.ended("early")?;
        // Waiting has an end, which a slow machine may miss.
        if run["status"]["phase"] == "Failed" && was_slow {
            continue;
        }
        assert_eq!(
            (&run["status"]["phase"], &run["status"]["result"]),
            (&json!("Succeeded"), &json!("Done.")),
            "{run}"
        );
        return Ok(());
    }
    bail!("what the run needs was never there in time")
}
