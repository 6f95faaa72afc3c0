//! Faults of the platform, told on the run in plain words.

use anyhow::Result;
use serde_json::{Value, json};
use sympozium_testkit::cluster::Exclusivity;

use super::harness::{Harness, PATIENCE, commands, condition, condition_of, hold, scripted, shell_pack};

const SKILLS: &str = "  skills: [{skillPackRef: tools}]";

/// Starts a run with a skill, in a namespace of its own.
fn start(
    label: &str,
    prepare: impl FnOnce(&Harness) -> Result<()>,
    pack: &str,
    run_more: &str,
) -> Result<Option<Harness>> {
    let Some(harness) = Harness::new(label, Exclusivity::shared())? else {
        return Ok(None);
    };
    prepare(&harness)?;
    // With a skill that does not answer they take longer than it takes to find that out.
    let manifests = scripted("case", &commands(&["echo hello"; 4]), SKILLS, run_more);
    harness.create(&(manifests + pack))?;
    Ok(Some(harness))
}

/// Waits until the run has not started for this reason, and gives the message. Beside other tests the node may be full before.
fn not_started(harness: &Harness, reason: &str) -> Result<String> {
    let run = harness.wait("case", &format!("not to start: {reason}"), |run| {
        condition(run, "Started") == "False" && condition_of(run, "Started")["reason"] == reason
    })?;
    let message = &condition_of(&run, "Started")["message"];
    Ok(message.as_str().unwrap_or_default().to_owned())
}

/// Ends a run that cannot start; nothing stays.
fn give_up(harness: &Harness) -> Result<()> {
    let patch = r#"{"spec":{"cancel":true}}"#;
    harness.kubectl().run(&["patch", "agentrun", "case", "--type=merge", "-p", patch])?;
    let run = harness.ended("case")?;
    assert_eq!(run["status"]["phase"], "Cancelled", "{run}");
    assert_eq!(harness.left_of(&run)?, Vec::<String>::new());
    Ok(())
}

fn answered(harness: &Harness) -> Result<()> {
    let run = harness.ended("case")?;
    assert_eq!((&run["status"]["phase"], &run["status"]["result"]), (&json!("Succeeded"), &json!("Done.")), "{run}");
    Ok(())
}

#[test]
fn an_image_that_cannot_be_pulled() -> Result<()> {
    let pack = shell_pack("tools").replace("docker.io/library/busybox:1.37", "sympozium.test/nowhere:1");
    let Some(harness) = start("pull", |_| Ok(()), &pack, "")? else {
        return Ok(());
    };
    let message = not_started(&harness, "ImagePull")?;
    assert!(message.contains("sympozium.test/nowhere:1") && message.contains("skill-tools"), "{message}");
    give_up(&harness)
}

#[test]
fn a_quota_that_is_used_up() -> Result<()> {
    let quota = |harness: &Harness| {
        let quota = "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: nothing}\nspec: {hard: {pods: \"0\"}}\n";
        harness.create(quota)?;
        // It counts once the controller manager has looked at it.
        let is_known = |it: &Value| it["status"]["hard"]["pods"] == "0";
        harness.kubectl().until("resourcequota", "nothing", PATIENCE, is_known).map(drop)
    };
    let Some(harness) = start("quota", quota, &shell_pack("tools"), "")? else {
        return Ok(());
    };
    let message = not_started(&harness, "Quota")?;
    assert!(message.contains("nothing"), "{message}");
    // When there is room again, the run goes on by itself.
    harness.kubectl().run(&["delete", "resourcequota", "nothing"])?;
    answered(&harness)
}

#[test]
fn a_limit_range_that_does_not_fit() -> Result<()> {
    let range = |harness: &Harness| {
        let range = "apiVersion: v1\nkind: LimitRange\nmetadata: {name: tiny}\nspec: {limits: [{type: Container, max: {memory: 1Mi}}]}\n";
        harness.create(range).map(drop)
    };
    let Some(harness) = start("range", range, &shell_pack("tools"), "")? else {
        return Ok(());
    };
    // It will not fit later either.
    let (error, _) = failed(&harness)?;
    assert!(error.contains("LimitRange") && error.contains("memory"), "{error}");
    Ok(())
}

#[test]
fn no_node_that_fits() -> Result<()> {
    let Some(harness) = Harness::new("nowhere", Exclusivity::shared())? else {
        return Ok(());
    };
    let manifests = scripted("case", &commands(&["echo hello"]), SKILLS, "");
    let manifests = manifests.replace(
        "model: {provider: scripted, model: script-case}",
        "model: {provider: scripted, model: script-case, nodeSelector: {example.test/there: nowhere}}",
    );
    harness.create(&(manifests + &shell_pack("tools")))?;
    let message = not_started(&harness, "Unschedulable")?;
    assert!(message.contains("node"), "{message}");
    give_up(&harness)
}

/// The error of a run that failed.
fn failed(harness: &Harness) -> Result<(String, Value)> {
    let run = harness.ended("case")?;
    assert_eq!(run["status"]["phase"], "Failed", "{run}");
    assert_eq!(harness.left_of(&run)?, Vec::<String>::new());
    let error = run["status"]["error"].as_str().unwrap_or_default();
    Ok((error.to_owned(), run))
}

#[test]
fn a_sidecar_that_keeps_crashing() -> Result<()> {
    let pack = "\n---\napiVersion: sympozium.ai/v1alpha1\nkind: SkillPack\nmetadata: {name: tools}\nspec:\n  \
        skills: [{name: use, description: Runs commands., content: Use it.}]\n  \
        sidecar: {image: \"docker.io/library/busybox:1.37\", command: [sh, -c, \"echo no luck today >&2; exit 3\"]}\n";
    let Some(harness) = start("crash", |_| Ok(()), pack, "")? else {
        return Ok(());
    };
    let (error, run) = failed(&harness)?;
    assert!(error.contains("skill-tools"), "{run}");
    let containers = run["status"]["failedContainers"].as_array().cloned().unwrap_or_default();
    let of_skill = containers.iter().find(|it| it["name"] == "skill-tools");
    let of_skill = of_skill.unwrap_or(&Value::Null);
    assert_eq!(of_skill["exitCode"], 3, "{run}");
    let tail = of_skill["logTail"].as_str().unwrap_or_default();
    assert!(tail.contains("no luck today"), "{run}");
    Ok(())
}

#[test]
fn a_pod_that_a_user_deletes() -> Result<()> {
    let Some(harness) = Harness::new("evicted", Exclusivity::shared())? else {
        return Ok(());
    };
    harness.create(&(scripted("case", &hold(), SKILLS, "") + &shell_pack("tools")))?;
    let pod = harness.pod_with("case", "agent")?;
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": name, "namespace": harness.namespace.name()},
        "deleteOptions": {"gracePeriodSeconds": 0},
    });
    let path = format!("/api/v1/namespaces/{}/pods/{name}/eviction", harness.namespace.name());
    let evicted = harness.kubectl().feed(&["create", "--raw", &path, "-f", "-"], &eviction)?;
    assert!(evicted.success, "{}", evicted.stderr);
    let (error, _) = failed(&harness)?;
    // Disrupted, ended or deleted, by what was seen first; never the agent's fault.
    assert!(error.starts_with("the run's pod was "), "{error}");
    Ok(())
}

#[test]
fn a_skill_that_takes_too_much_memory() -> Result<()> {
    let Some(harness) = Harness::new("memory", Exclusivity::shared())? else {
        return Ok(());
    };
    let pack = "\n---\napiVersion: sympozium.ai/v1alpha1\nkind: SkillPack\nmetadata: {name: tools}\nspec:\n  \
        skills: [{name: use, description: Runs commands., content: Use it.}]\n  \
        sidecar: {image: \"docker.io/library/busybox:1.37\", executor: injected, mountWorkspace: true, resources: {cpu: 100m, memory: 64Mi}}\n";
    // Of this much `tail` keeps everything, because there is no line in it.
    let greedy = "head -c 300000000 /dev/zero | tail -n 1 | wc -c";
    let turns = commands(&[greedy, "echo still here"]);
    harness.create(&(scripted("case", &turns, SKILLS, "") + pack))?;
    let run = harness.ended("case")?;
    // Whichever process was killed, the run continues: the lost command is reported to it.
    assert_eq!(run["status"]["phase"], "Succeeded", "{run}");
    let uid = run["metadata"]["uid"].as_str().unwrap_or_default();
    let records = harness.kubectl().json(&["get", "runrecords", &format!("--selector=sympozium.ai/run-uid={uid}")])?;
    let records = records.to_string();
    assert!(!records.contains("300000000\\\\n"), "it had the memory: {records}");
    assert!(records.contains("still here"), "{records}");
    Ok(())
}
