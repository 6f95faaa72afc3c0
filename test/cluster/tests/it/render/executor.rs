//! A rendered pod whose skill brings no executor: ours is put into its image, and answers the bridge through the volume that
//! both mount. On both kernels, and made by a Job and by agent-sandbox.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sympozium_testkit::cluster::{Image, Tier};

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

/// Waits in the bridge's container until something is there, for a minute.
const AWAIT: &str = "await() { n=0; until [ -e $1 ] || [ $n -gt 600 ]; do sleep 0.1; n=$((n+1)); done; }";

/// What a command of the skill says.
fn execute(tier: Tier, more: &str, line: &str) -> Result<Option<Value>> {
    let run = Start { tier, manifests: &RUN.replace("MORE", more), executor: Some(Image::of_ours("skill-sidecar")) };
    let Some(scene) = start(&run)? else {
        return Ok(None);
    };
    let request = json!({ "id": "1", "command": line, "timeout": 60, "target": "shell" });
    let ask = format!(
        "{AWAIT}; await /ipc/shell/tools; cd /ipc/shell/tools; printf '%s' '{request}' > .part; \
         mv .part exec-request-1.json; await exec-result-1.json; cat exec-result-1.json"
    );
    let said = scene.exec("ipc-bridge", &ask)?;
    the_door_opens(&scene)?;
    serde_json::from_str(&said).map(Some).with_context(|| format!("the skill said {said}"))
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
    let Some(result) = execute(Tier::Node, "cleanup: delete", LOOK)? else {
        return Ok(());
    };
    assert_eq!(result["stdout"], "1000\nheld\nkept\n", "{result}");
    assert_eq!(result["_meta"]["isolation"]["profile"], "container", "{result}");
    Ok(())
}

#[test]
fn an_injected_executor_answers_the_bridge_in_a_gvisor_sandbox() -> Result<()> {
    let sandbox = "agentSandbox: {enabled: true, runtimeClass: gvisor}";
    let Some(result) = execute(Tier::AgentSandbox, sandbox, LOOK)? else {
        return Ok(());
    };
    assert_eq!(result["stdout"], "1000\nheld\nkept\n", "{result}");
    let isolation = &result["_meta"]["isolation"];
    assert_eq!(isolation["profile"], "gvisor", "{result}");
    assert_eq!(isolation["guarantees"]["kernel"], "enforced", "{result}");
    Ok(())
}
