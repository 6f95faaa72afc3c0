//! A whole pod of a run, as it is rendered, with the real bridge and a real skill in it.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sympozium_api::run_plan::{Gate, paths};
use sympozium_ipc::door::ToolAnswer;
use sympozium_ipc::receipt::{Actor, CallDecision, Event, Outcome, OutputSize, verify};
use sympozium_ipc::run_api::{AgentEnd, BridgePhase, RUN_CREDENTIAL as RUN_TOKEN};
use sympozium_plan::render::{CreationStep, SecretPurpose, key};
use sympozium_testkit::cluster::{Tier, eventually};

use super::agent::Agent;
use super::harness::{Given, Harness, Who};
use crate::pods::{self, PATIENCE};
use crate::render::manifests::{send, unmanaged};

/// A skill with our executor, and one that only waits for the end of the run.
const RUN: &str = r#"
apiVersion: sympozium.ai/v1alpha1
kind: AgentRun
metadata: {name: bridged}
spec:
  agentRef: helper
  task: Look around.
  skills: [{skillPackRef: shell}, {skillPackRef: watcher}]
---
apiVersion: sympozium.ai/v1alpha1
kind: Agent
metadata: {name: helper}
spec:
  agents: {default: {model: m}}
  authRefs: [{provider: openai, secret: provider-key}]
---
apiVersion: sympozium.ai/v1alpha1
kind: SkillPack
metadata: {name: shell}
spec:
  skills: [{name: use, content: Use it.}]
  sidecar: {image: SKILL, mountWorkspace: true}
---
apiVersion: sympozium.ai/v1alpha1
kind: SkillPack
metadata: {name: watcher}
spec:
  skills: [{name: watch, content: Watch.}]
  sidecar:
    image: SKILL
    command: [/bin/sh, -c, "until [ -f /ipc/done ]; do sleep 0.1; done; echo it is done"]
"#;

/// What the plan's restrictions are called where there is no Landlock.
const WITHOUT_LANDLOCK: &str = "landlock 0, missing {Paths, TcpPorts, Scopes}";

impl Harness {
    /// Starts the run, with this in the agent's container.
    fn start(&self, agent: &str) -> Result<String> {
        self.realise(|agents| agents["command"] = json!(["/bin/sh", "-c", agent]))
    }

    /// Does what a controller does: creates in order, and fills what is empty. Gives the name of the pod.
    pub(super) fn realise(&self, change: impl FnOnce(&mut Value)) -> Result<String> {
        self.namespace.create(&json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "provider-key" },
            "stringData": { "OPENAI_API_KEY": "sk-test" },
        }))?;
        self.namespace.create(&json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": TOKEN_SECRET },
            "stringData": { key::TOKEN: self.credential(RUN_TOKEN)? },
        }))?;
        for stage in [CreationStep::Inputs, CreationStep::Grants] {
            let objects = self.rendered.objects_of_step(stage).map(|it| it.to_value().map(unmanaged));
            let objects: Vec<Value> = objects.collect::<Result<_, _>>()?;
            send(self.namespace.kubectl(), &["create"], &objects)?;
        }
        self.fill()?;
        let mut jobs = self.rendered.objects_of_step(CreationStep::Workload);
        let mut job = unmanaged(jobs.next().context("no workload")?.to_value()?);
        ensure!(job["kind"] == "Job", "{job}");
        let template = &mut job["spec"]["template"];
        self.set_runtime_class(template);
        let spec = &mut template["spec"];
        ensure!(spec["containers"][0]["name"] == "agent", "{spec}");
        change(&mut spec["containers"][0]);
        own_token(spec)?;
        self.namespace.create(&job)?;
        let selector = format!("--selector=sympozium.ai/run-uid={}", self.plan.run.uid);
        eventually("the pod of the run", PATIENCE, || {
            let pods = self.namespace.kubectl().json(&["get", "pods", &selector])?;
            let name = pods["items"][0]["metadata"]["name"].as_str();
            Ok(name.map(str::to_owned))
        })
    }

    /// Fills the Secret of the bridge.
    fn fill(&self) -> Result<()> {
        for skeleton in &self.rendered.pending_secrets {
            ensure!(
                matches!(&skeleton.purpose, SecretPurpose::Input { part } if part.0 == "ipc-bridge"),
                "{skeleton:?}"
            );
            let mut data = serde_json::Map::new();
            for name in &skeleton.keys {
                let value = match name.strip_prefix(key::CREDENTIAL) {
                    Some(credential) => self.credential(credential)?,
                    None => self.authority.clone(),
                };
                data.insert(name.clone(), json!(value));
            }
            let patch = json!({ "stringData": data }).to_string();
            let words = ["patch", "secret", &skeleton.secret, "--type=merge", "-p", &patch];
            self.namespace.kubectl().run(&words)?;
        }
        Ok(())
    }

    /// Waits until all of the pod has ended well. Gives the bridge's log.
    pub(super) fn ended_well(&self, pod: &str) -> Result<String> {
        let ended = self.namespace.wait_for_pod(pod, "Succeeded", PATIENCE);
        let log = self.log(pod, "ipc-bridge")?;
        let ended = ended.with_context(|| {
            let gateway = self.gateway_log().unwrap_or_default();
            format!("the bridge said: {log}\nthe gateway said: {gateway}")
        })?;
        for list in ["initContainerStatuses", "containerStatuses"] {
            let statuses = ended["status"][list].as_array().context("statuses")?;
            for status in statuses {
                assert!(pods::ended_well(status), "{status}");
            }
        }
        Ok(log)
    }

    /// How the run ended, and all that happened, as the gateway has it. The chain holds up to the reported head.
    pub(super) fn reported(&self) -> Result<(AgentEnd, Vec<Event>)> {
        let report = eventually("the report of the end", PATIENCE, || {
            let report: Value = serde_json::from_str(&self.recorded("report.json")?)?;
            ensure!(report["phase"] == json!(BridgePhase::Ended), "{report}");
            Ok(Some(report))
        })?;
        let head = serde_json::from_value(report["head"].clone())?;
        let lines = self.recorded("receipts.jsonl")?;
        let verified = verify(lines.lines(), &self.rendered.digest, Some(&head))?;
        let events = verified.receipts.into_iter().map(|it| it.event);
        let ending = serde_json::from_value(report["ending"].clone())?;
        Ok((ending, events.collect()))
    }
}

/// A Secret with a token of the run that the gateway knows without asking an API server, as it does on one machine.
const TOKEN_SECRET: &str = "run-token";

/// Puts that in the place of the token that the kubelet would write.
fn own_token(spec: &mut Value) -> Result<()> {
    let volumes = spec["volumes"].as_array_mut().context("volumes")?;
    let sources = volumes.iter_mut().filter_map(|it| it.pointer_mut("/projected/sources")?.as_array_mut());
    let mut tokens = 0;
    for source in sources.flatten() {
        if !source["serviceAccountToken"].is_null() {
            tokens += 1;
            let item = json!({ "key": key::TOKEN, "path": key::TOKEN, "mode": 0o440 });
            *source = json!({ "secret": { "name": TOKEN_SECRET, "items": [item] } });
        }
    }
    assert_eq!(tokens, 1, "{spec}");
    Ok(())
}

/// Nobody comes to the door. The bridge starts, reports, tells the skills and ends, and so does the pod.
fn no_agent_connects(tier: Tier, manifests: &str) -> Result<Option<(String, String)>> {
    let given = Given { tier, agent: Who::Played, manifests, connect_seconds: 3 };
    let Some(harness) = Harness::new(&given)? else {
        return Ok(None);
    };
    let pod = harness.start(&format!("ls -d {}", paths::DOOR))?;
    let log = harness.ended_well(&pod)?;
    let watchers = harness.plan.parts.iter().map(|it| it.name.0.as_str());
    for watcher in watchers.filter(|it| *it == "skill-watcher") {
        assert_eq!(harness.first_log(&pod, watcher)?, "it is done\n");
    }
    let (ending, events) = harness.reported()?;
    assert_eq!(ending, AgentEnd::NeverCame);
    let [Event::Started { run, by }, ended] = &events[..] else {
        anyhow::bail!("{events:?}");
    };
    assert_eq!(run, harness.plan.run.uid.as_str());
    let outcome = Outcome::Failed { why: "the agent never came".to_owned() };
    let expected = Event::Ended { outcome, result: None };
    assert_eq!(*ended, expected);
    Ok(Some((by.clone(), log)))
}

#[test]
fn a_bridge_without_an_agent_reports_it_and_ends() -> Result<()> {
    let Some((by, log)) = no_agent_connects(Tier::Node, RUN)? else {
        return Ok(());
    };
    ensure!(by.ends_with(", missing {})"), "{by}");
    ensure!(log.contains(r#""message":"locked down","landlock":"#), "{log}");
    Ok(())
}

/// There is no `/ipc` then, and no executor to stop.
#[test]
fn a_bridge_without_skills_ends_as_well() -> Result<()> {
    let skills = "\n  skills: [{skillPackRef: shell}, {skillPackRef: watcher}]";
    let alone = RUN.replace(skills, "");
    ensure!(alone != RUN, "the run has its skills elsewhere");
    no_agent_connects(Tier::Node, &alone).map(drop)
}

#[test]
fn a_bridge_on_gvisor_says_what_its_kernel_does_not_have() -> Result<()> {
    let Some((by, log)) = no_agent_connects(Tier::Gvisor, RUN)? else {
        return Ok(());
    };
    ensure!(by.ends_with(&format!("({WITHOUT_LANDLOCK})")), "{by}");
    ensure!(log.contains("locked down, without what this kernel does not have"), "{log}");
    Ok(())
}

/// What a command of the skill says, and what it is in a pod of a run.
const LINE: &str = "id -u; pwd; echo kept > /workspace/file; cat /workspace/file";
const SAID: &str = "1000\n/workspace\nkept\n";
/// The agent's container ends when it is told to and the connection by which the test speaks has ended. By itself:
/// until it does, the kubelet starts skills again that have ended.
const UNTIL_TOLD: &str = "until [ -e /tmp/over ]; do sleep 0.1; done; \
                          while grep -qs 'relay-[s]ocket' /proc/[0-9]*/cmdline; do sleep 0.1; done";

/// An agent has a skill run a command, and says what came of it. `profile` is what the skill's executor reports.
fn an_agent_comes(tier: Tier, profile: &str) -> Result<()> {
    let given = Given { tier, agent: Who::Played, manifests: RUN, connect_seconds: 300 };
    let Some(harness) = Harness::new(&given)? else {
        return Ok(());
    };
    let pod = harness.start(UNTIL_TOLD)?;
    (harness.namespace).wait_for_pod(&pod, "Running", PATIENCE)?;
    let kubectl = harness.namespace.kubectl();
    let agent = Agent::connect(kubectl, &pod)?;
    let answer = agent.execute("shell", LINE)?;
    let expected = ToolAnswer::Command {
        exit_code: 0,
        stdout: SAID.to_owned(),
        stderr: String::new(),
        timed_out: false,
        truncated: false,
    };
    assert_eq!(answer, expected);
    let inside = |container: &str, script: &str| {
        let words = ["exec", &pod, "-c", container, "--", "/bin/sh", "-c", script];
        kubectl.run(&words)
    };
    // The provider's key is in this process, and no other of the same user can look.
    let look = "cat /proc/1/environ 2>/dev/null || echo closed; ls /run/door";
    assert_eq!(inside("ipc-bridge", look)?, "closed\n");
    inside("agent", "touch /tmp/over")?;
    agent.finish("It is kept.")?;

    harness.ended_well(&pod)?;
    let (ending, events) = harness.reported()?;
    let text = "It is kept.".to_owned();
    assert_eq!(ending, AgentEnd::Answered { text });
    let [Event::Started { .. }, called, acted, ended] = &events[..] else {
        anyhow::bail!("{events:?}");
    };
    let Event::Called { call, arguments, .. } = called else {
        anyhow::bail!("{called:?}");
    };
    let expected = Event::Called {
        call: *call,
        tool: "execute_command".to_owned(),
        pack: Some("shell".to_owned()),
        arguments: arguments.clone(),
        gate: Some(Gate::Allow),
        decided: CallDecision::Allowed,
        reason: None,
    };
    assert_eq!(*called, expected);
    let Event::Acted { action, duration_ms, isolation, .. } = acted else {
        anyhow::bail!("{acted:?}");
    };
    let expected = Event::Acted {
        call: *call,
        by: Actor::Skill,
        action: action.clone(),
        outcome: Outcome::Exited { code: 0 },
        output: OutputSize { bytes: SAID.len() as u64, truncated: false },
        duration_ms: *duration_ms,
        isolation: isolation.clone(),
    };
    assert_eq!(*acted, expected);
    let seen = isolation.as_ref().map(|it| it.profile.as_str());
    assert_eq!(seen, Some(profile), "{isolation:?}");
    ensure!(matches!(ended, Event::Ended { outcome: Outcome::Done, result: Some(_) }), "{ended:?}");
    Ok(())
}

#[test]
fn an_agent_has_a_skill_act_through_the_bridge() -> Result<()> {
    an_agent_comes(Tier::Node, "container")
}

#[test]
fn an_agent_has_a_skill_act_through_the_bridge_on_gvisor() -> Result<()> {
    an_agent_comes(Tier::Gvisor, "gvisor")
}
