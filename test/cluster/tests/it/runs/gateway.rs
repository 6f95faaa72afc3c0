//! Gateways that are killed in the middle of a run.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use sympozium_api::installation::GATEWAY;
use sympozium_ipc::receipt::{Actor, Outcome};
use sympozium_testkit::cluster::{Exclusivity, eventually};

use super::harness::{Harness, PATIENCE, condition, container_id, container_status, scripted, shell_pack};
use super::rights::{HOLD, let_go};

/// Gateways of an installation.
const REPLICAS: usize = 2;

/// The pods of the gateways.
fn gateways(harness: &Harness) -> Result<Vec<Value>> {
    let selector = format!("--selector=app.kubernetes.io/name={GATEWAY}");
    let pods = harness.installation.system().json(&["get", "pods", &selector])?;
    Ok(pods["items"].as_array().cloned().unwrap_or_default())
}

/// The containers of these pods that are ready, as the runtime calls them.
fn ready(pods: &[Value]) -> Vec<String> {
    let ready = pods.iter().filter(|pod| container_status(pod, &container(pod)).is_some_and(|it| it["ready"] == true));
    ready.filter_map(|pod| container_id(pod, &container(pod)).ok()).collect()
}

/// The one container of a gateway's pod.
fn container(pod: &Value) -> String {
    let name = &pod["spec"]["containers"][0]["name"];
    name.as_str().unwrap_or_default().to_owned()
}

/// Both gateways are killed while a command runs, and the command ends while neither is there. The run goes on when they are
/// back: the command was executed once, its result is told, and the run ends as every other.
#[test]
fn gateways_that_are_killed_during_a_command_change_nothing() -> Result<()> {
    let Some(harness) = Harness::new("gateway", Exclusivity::exclusive())? else {
        return Ok(());
    };
    let once = json!({ "command": format!("echo begun >> /workspace/count; {HOLD}; echo over"), "timeout": 120 });
    let count = json!({ "command": "cat /workspace/count", "timeout": 120 });
    let turns = format!(
        "      - call: [{{tool: execute_command, arguments: {once}}}]\n      \
         - {{when: {{toolResult: {{of: call_1_1, contains: over}}}}, call: [{{tool: execute_command, arguments: {count}}}]}}\n      \
         - {{when: {{toolResult: {{of: call_2_1, matches: \"^begun\\n?$\"}}}}, say: Executed once., then: end}}"
    );
    // On a busy machine a probe may be late once. Before the run begins: its command has only two minutes.
    eventually(
        "all gateways to serve",
        PATIENCE,
        || Ok((ready(&gateways(&harness)?).len() == REPLICAS).then_some(())),
    )?;
    let skills = "  skills: [{skillPackRef: tools}]";
    harness.create(&(scripted("survives", &turns, skills, "") + &shell_pack("tools")))?;
    let pod = harness.pod_with("survives", "skill-tools")?;
    eventually("the command to begin", PATIENCE, || {
        let begun = harness.exec(&pod, "skill-tools", &["cat", "/workspace/count"])?;
        Ok((begun.stdout == "begun\n").then_some(()))
    })?;

    let before = gateways(&harness)?;
    ensure!(before.len() == REPLICAS, "{} gateways", before.len());
    let killed = before.iter().map(|it| container_id(it, &container(it))).collect::<Result<Vec<String>>>()?;
    for gateway in &before {
        harness.kill(gateway, &container(gateway))?;
    }
    let_go(&harness, &pod, "skill-tools")?;

    let run = harness.ended("survives")?;
    let status = &run["status"];
    assert_eq!(
        (&status["phase"], &status["result"], status["podUID"].as_str()),
        (&json!("Succeeded"), &json!("Executed once."), pod["metadata"]["uid"].as_str()),
        "{run}"
    );
    assert_eq!(condition(&run, "Revoked"), "True", "{run}");
    // The first and the one that counts, each once; the chain has no gap although reports were lost on the way.
    let exited = (Actor::Skill, Outcome::Exited { code: 0 });
    assert_eq!(harness.acts(&run)?, [exited.clone(), exited]);
    assert_eq!(harness.left_of(&run)?, Vec::<String>::new());
    // They were really gone, and serve again.
    eventually("both gateways to serve again", PATIENCE, || {
        let now = ready(&gateways(&harness)?);
        let others = now.iter().all(|it| !killed.contains(it));
        Ok((now.len() == REPLICAS && others).then_some(()))
    })
}
