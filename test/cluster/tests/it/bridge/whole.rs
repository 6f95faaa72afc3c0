//! A whole run as it ships: the agent, the bridge, a skill and the gateway from our images, with a model that is written down.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sympozium_api::run_plan::paths;
use sympozium_ipc::receipt::Event;
use sympozium_ipc::run_api::AgentEnd;
use sympozium_testkit::cluster::{Tier, eventually};

use super::harness::{Given, Harness, Who};
use crate::pods::{MOST_RESTARTS, PATIENCE};

const RUN: &str = r#"
apiVersion: sympozium.ai/v1alpha1
kind: AgentRun
metadata: {name: whole}
spec:
  agentRef: helper
  task: Keep something, and look whether it is there.
  model: {provider: scripted, model: turns}
  skills: [{skillPackRef: shell}]
---
apiVersion: sympozium.ai/v1alpha1
kind: Agent
metadata: {name: helper}
spec:
  agents: {default: {model: m}}
---
apiVersion: sympozium.ai/v1alpha1
kind: SkillPack
metadata: {name: shell}
spec:
  skills: [{name: use, content: Use it.}]
  sidecar: {image: SKILL, mountWorkspace: true}
"#;

/// The model acts through a skill, reads what that left, tries what it may not, and answers. A turn whose condition does not
/// hold is an error of the model, and then the run fails.
const TURNS: &str = r#"
turns:
  - when:
      user: { contains: Keep something }
      offers: [execute_command, read_file, list_directory, load_skill]
    say: I keep it.
    call:
      - tool: execute_command
        arguments: { command: "id -u; echo kept > file; pwd", timeout: 120 }
  - when:
      toolResult: { of: call_1_1, matches: "1000\n/workspace" }
    call:
      - tool: read_file
        arguments: { path: file }
      - tool: load_skill
        arguments: { name: shell/use }
      - tool: read_file
        arguments: { path: /opt/sympozium/LICENSE }
  - when:
      toolResult: { of: call_2_1, contains: kept }
    call:
      - tool: read_file
        arguments: { path: /run/sympozium/agent.json }
  - when:
      toolResult: { of: call_3_1, contains: "Error: " }
    call:
      - tool: read_file
        arguments: { path: /proc/self/environ }
  - when:
      toolResult: { of: call_4_1, contains: "Error: " }
    say: It is kept.
    then: end
"#;

fn works_and_answers(tier: Tier) -> Result<()> {
    let given = Given { tier, agent: Who::Real, manifests: RUN, connect_seconds: 300 };
    let Some(harness) = Harness::new(&given)? else {
        return Ok(());
    };
    harness.namespace.create(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "turns" }, "data": { "turns.yaml": TURNS },
    }))?;
    // As it is rendered: the image's own entrypoint.
    let pod = harness.realise(|_| ())?;
    let ended = harness.ended_well(&pod);
    ended.with_context(|| format!("the agent said: {:?}", harness.log(&pod, "agent")))?;

    let (ending, events) = harness.reported()?;
    let text = "It is kept.".to_owned();
    assert_eq!(ending, AgentEnd::Answered { text });
    let called: Vec<String> = events.iter().filter_map(called).collect();
    let expected = [
        "execute_command shell Allowed",
        "read_file - Allowed",
        "load_skill - Allowed",
        "read_file - Allowed",
        "read_file - Allowed",
        "read_file - Allowed",
    ];
    assert_eq!(called, expected);
    let acted = events.iter().filter(|it| matches!(it, Event::Acted { .. }));
    assert_eq!(acted.count(), expected.len(), "{events:?}");

    let kubectl = harness.namespace.kubectl();
    let selector = format!("--selector=sympozium.ai/run-uid={}", harness.plan.run.uid);
    eventually("the Job to be complete", PATIENCE, || {
        let jobs = kubectl.json(&["get", "jobs", &selector])?;
        Ok((jobs["items"][0]["status"]["succeeded"] == 1).then_some(()))
    })?;
    let pod = kubectl.json(&["get", "pod", &pod])?;
    assert_eq!(restarted(&pod, "containerStatuses", 0), BTreeMap::new());
    // The kubelet may start a skill again that ends with the run; an agent that stayed on would have it do so again and again.
    assert_eq!(restarted(&pod, "initContainerStatuses", MOST_RESTARTS), BTreeMap::new());
    has_nothing(&pod)
}

fn called(event: &Event) -> Option<String> {
    let Event::Called { tool, pack, decided, .. } = event else {
        return None;
    };
    let pack = pack.as_deref().unwrap_or("-");
    Some(format!("{tool} {pack} {decided:?}"))
}

/// The containers in a list of the pod's status that were started again more often than that.
fn restarted(pod: &Value, list: &str, most: u64) -> BTreeMap<String, u64> {
    let statuses = pod["status"][list].as_array();
    let counts = statuses.into_iter().flatten().map(|status| {
        let name = status["name"].as_str().unwrap_or_default();
        let count = status["restartCount"].as_u64().unwrap_or(u64::MAX);
        (name.to_owned(), count)
    });
    counts.filter(|(_, count)| *count > most).collect()
}

/// That the agent's container has no credential, no identity and nothing to write but its own directories.
fn has_nothing(pod: &Value) -> Result<()> {
    let containers = pod["spec"]["containers"].as_array().context("containers")?;
    let agent = containers.iter().find(|it| it["name"] == "agent");
    let agent = agent.context("no agent")?;
    let security = &agent["securityContext"];
    let expected = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] },
        "readOnlyRootFilesystem": true,
    });
    for (name, value) in expected.as_object().context("an object")? {
        assert_eq!(&security[name], value, "{security}");
    }
    let user = &pod["spec"]["securityContext"];
    let either = |name: &str| security.get(name).or_else(|| user.get(name)).cloned();
    assert_eq!(either("runAsNonRoot"), Some(json!(true)));
    assert_eq!(either("runAsUser"), Some(json!(1000)));

    let mounts = agent["volumeMounts"].as_array().context("mounts")?;
    let volumes = pod["spec"]["volumes"].as_array().context("volumes")?;
    for mount in mounts {
        let path = mount["mountPath"].as_str().context("a path")?;
        assert!(!path.starts_with("/var/run/secrets"), "{mount}");
        let volume = volumes.iter().find(|it| it["name"] == mount["name"]);
        let text = volume.context("a volume")?.to_string();
        for word in ["secret", "serviceAccountToken"] {
            assert!(!text.contains(word), "{path} is of {text}");
        }
        let own = ["/workspace", "/tmp", "/dev/shm", paths::DOOR];
        assert!(mount["readOnly"] == true || own.contains(&path), "{mount}");
    }
    assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
    let variables = agent["env"].as_array().into_iter().flatten();
    for variable in variables {
        assert!(variable["valueFrom"].is_null(), "{variable}");
    }
    assert!(agent["envFrom"].is_null(), "{agent}");
    Ok(())
}

#[test]
fn an_agent_works_and_answers() -> Result<()> {
    works_and_answers(Tier::Node)
}

#[test]
fn an_agent_works_and_answers_on_gvisor() -> Result<()> {
    works_and_answers(Tier::Gvisor)
}
