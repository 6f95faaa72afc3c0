//! A rendered pod whose skill brings no executor: ours is put into its image, and answers the bridge through the volume that
//! both mount. On both kernels, and made by a Job and by agent-sandbox.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use serde_json::Value;
use sympozium_ipc::message::shell_word;
use sympozium_ipc::{ExecRequest, RequestId, RequestKey, Signer};
use sympozium_testkit::cluster::{Image, Tier};
use sympozium_testkit::probe::Findings;

use super::start::{Scene, Start, start};

/// MORE is where a run says what it runs in.
const RUN: &str = r#"
apiVersion: sympozium.ai/v1alpha1
kind: AgentRun
metadata: {name: bare}
spec:
  agentRef: helper
  task: Look around.
  skills: [{skillPackRef: shell}]
  MORE
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
  sidecar: {image: IMAGE, executor: injected, mountWorkspace: true}
"#;

/// Waits in the bridge's container until something is there, for three minutes.
const AWAIT: &str = "await() { n=0; until [ -e $1 ] || [ $n -gt 1800 ]; do sleep 0.1; n=$((n+1)); done; }";

/// The key of the run, which no command of the skill may find.
const KEY: [u8; 32] = [7; 32];

/// What commands of the skill say, one after the other. A script in the bridge's container hands over the key and puts requests
/// there that this test has signed.
fn execute(tier: Tier, more: &str, lines: &[&str]) -> Result<Option<Vec<Value>>> {
    let run = Start { tier, manifests: &RUN.replace("MORE", more), executor: Some(Image::of_ours("skill-sidecar")) };
    let Some(scene) = start(&run)? else {
        return Ok(None);
    };
    let digits = "07".repeat(KEY.len());
    let hand_key = format!(
        "{AWAIT}; cd /ipc/shell; await .start; read -r line < .start; \
         nonce=${{line##*\\\"nonce\\\":\\\"}}; nonce=${{nonce%%\\\"*}}; \
         printf '%s {digits}\\n' \"$nonce\" > .part; mv .part .key"
    );
    scene.exec("ipc-bridge", &hand_key)?;
    let mut signer = Signer::new(RequestKey::from_bytes(KEY));
    let mut results = Vec::new();
    for (number, line) in (1..).zip(lines) {
        let mut request = ExecRequest::new(RequestId::from_nanoseconds(number), *line);
        request.timeout = Some(120);
        request.target = Some("shell".to_owned());
        signer.sign(&mut request, SystemTime::now() + Duration::from_secs(3600))?;
        let request = shell_word(&String::from_utf8(request.to_json()?)?);
        let ask = format!(
            "{AWAIT}; cd /ipc/shell/tools; printf '%s' {request} > .part; \
             mv .part exec-request-{number}.json; await exec-result-{number}.json; cat exec-result-{number}.json"
        );
        let said = scene.exec("ipc-bridge", &ask)?;
        results.push(serde_json::from_str(&said).with_context(|| format!("the skill said {said}"))?);
    }
    the_door_opens(&scene)?;
    Ok(Some(results))
}

/// Agent and bridge find each other at their socket. In gVisor they do only where the pod's annotations share the volume.
fn the_door_opens(scene: &Scene) -> Result<()> {
    let serve = "cluster-probe serve-socket /run/door/socket > /tmp/served 2>&1 &";
    scene.exec("ipc-bridge", serve)?;
    let said = scene.exec("agent", "cluster-probe call-socket /run/door/socket knock")?;
    assert_eq!(said, "echo knock\n");
    let written = scene.exec("agent", "touch /run/door/mine 2>/dev/null || echo held")?;
    assert_eq!(written, "held\n");
    Ok(())
}

/// What the skill's commands may do to the executor, and to what they are meant to write.
const LOOK: &str =
    "id -u; touch /opt/sympozium/bin/x 2>/dev/null || echo held; echo kept > /workspace/file; cat /workspace/file";

#[test]
fn an_injected_executor_answers_the_bridge() -> Result<()> {
    let Some(results) = execute(Tier::Node, "cleanup: delete", &[LOOK])? else {
        return Ok(());
    };
    let result = &results[0];
    assert_eq!(result["stdout"], "1000\nheld\nkept\n", "{result}");
    assert_eq!(result["_meta"]["isolation"]["profile"], "container", "{result}");
    Ok(())
}

#[test]
fn an_injected_executor_answers_the_bridge_in_a_gvisor_sandbox() -> Result<()> {
    let sandbox = "agentSandbox: {enabled: true, runtimeClass: gvisor}";
    let Some(results) = execute(Tier::AgentSandbox, sandbox, &[LOOK])? else {
        return Ok(());
    };
    let result = &results[0];
    assert_eq!(result["stdout"], "1000\nheld\nkept\n", "{result}");
    let isolation = &result["_meta"]["isolation"];
    assert_eq!(isolation["profile"], "gvisor", "{result}");
    assert_eq!(isolation["guarantees"]["kernel"], "enforced", "{result}");
    Ok(())
}

/// A command on gVisor can write to the volume, which has no Landlock. It enqueues nothing all the same, and does not get at the
/// key: not from the executor's memory, by any way there is, and not from a file.
#[test]
fn a_command_in_gvisor_can_neither_enqueue_another_nor_take_the_key() -> Result<()> {
    let forged = r#"{"id":"222","command":"echo forged >> /workspace/log"}"#;
    let enqueue = format!(
        "printf '%s' '{forged}' > /ipc/tools/.part && mv /ipc/tools/.part /ipc/tools/exec-request-222.json && \
         echo enqueued; ls -A /ipc"
    );
    // The executor is the first process of its container.
    let attempts = [
        "ptrace=1",
        "read-memory=1",
        "write-memory=1",
        "proc-mem=1",
        "proc-mem-write=1",
        "proc-environ=1",
        // Not `proc-fd`: gVisor lists the descriptors of a process that is not dumpable. None of them is the key's.
        "steal-descriptor=1",
    ];
    let attempt = format!("/bin/probe attempt {}", attempts.join(" "));
    let look = "sleep 3; cat /workspace/log 2>/dev/null || echo nothing was run";
    let sandbox = "agentSandbox: {enabled: true, runtimeClass: gvisor}";
    let lines = [enqueue.as_str(), &attempt, look];
    let Some(results) = execute(Tier::AgentSandbox, sandbox, &lines)? else {
        return Ok(());
    };
    assert_eq!(results[0]["stdout"], "enqueued\n.start\ntools\n", "{}", results[0]);
    let findings = Findings::parse(results[1]["stdout"].as_str().unwrap_or_default().as_bytes());
    for attempt in attempts {
        let finding = findings.of(attempt);
        assert!(!finding.possible, "{finding:?}");
    }
    assert_eq!(results[2]["stdout"], "nothing was run\n", "{}", results[2]);
    Ok(())
}
