//! The skill sidecar in real pods: what it promises holds under a kubelet, on both kernels.
//!
//! The other side is a shell script that writes and reads plain files: it shares nothing with our code.

use anyhow::Result;
use serde_json::{Value, json};
use sympozium_testkit::cluster::{Cluster, Image, Security, Tier};

use crate::pods::{self, PATIENCE};

/// Whether the pod's annotations let events through between its containers; matters on gVisor only.
#[derive(Clone, Copy, PartialEq)]
enum Events {
    Shared,
    Lost,
}

/// Runs `line` in the sidecar of a pod and gives its result. Both containers must end well.
fn execute(tier: Tier, events: Events, line: &str) -> Result<Option<Value>> {
    let Some(cluster) = Cluster::shared(tier)? else {
        return Ok(None);
    };
    let image = Image::of_ours("skill-sidecar");
    if !cluster.import(&image)? {
        return Ok(None);
    }
    let namespace = cluster.namespace("sidecar", Security::Restricted)?;
    let request = json!({"id": "1", "command": line, "timeout": 120, "target": "demo"}).to_string();
    let ask = "until [ -d /ipc/tools ]; do sleep 0.1; done; cd /ipc/tools; printf '%s' \"$REQUEST\" > .part; \
         mv .part exec-request-1.json; until [ -e exec-result-1.json ]; do sleep 0.1; done; \
         cat exec-result-1.json; rm exec-request-1.json exec-result-1.json; rmdir .claim-1; echo done > /ipc/done";
    let mut asker = pods::container("bridge", image.name(), ask);
    asker["env"] = json!([{"name": "REQUEST", "value": request}]);
    asker["volumeMounts"] = json!([{"name": "ipc", "mountPath": "/ipc"}]);
    let mut skill = pods::container("skill-demo", image.name(), "");
    // The image's own entrypoint.
    skill["command"] = Value::Null;
    skill["env"] = json!([{"name": "SYMPOZIUM_SKILL_PACK", "value": "demo"}]);
    skill["volumeMounts"] = json!([
        {"name": "ipc", "mountPath": "/ipc"},
        {"name": "workspace", "mountPath": "/workspace"},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "data", "mountPath": "/data"},
    ]);
    let mut spec = pods::spec(&[skill, asker]);
    spec["volumes"] = json!(["ipc", "workspace", "tmp", "data"].map(|name| json!({"name": name, "emptyDir": {}})));
    if tier == Tier::Gvisor {
        spec["runtimeClassName"] = json!("gvisor");
    }
    let mut pod = pods::pod("run", spec);
    if events == Events::Shared {
        pod["metadata"]["annotations"] = json!({
            "dev.gvisor.spec.mount.ipc.type": "bind",
            "dev.gvisor.spec.mount.ipc.share": "pod",
            "dev.gvisor.spec.mount.ipc.options": "rw",
        });
    }
    namespace.create(&pod)?;
    let ended = namespace.wait_for_pod("run", "Succeeded", PATIENCE);
    let log = (namespace.kubectl()).run(&["logs", "run", "-c", "skill-demo"])?;
    ended.map_err(|error| error.context(format!("the sidecar said: {log}")))?;
    let said = (namespace.kubectl()).run(&["logs", "run", "-c", "bridge"])?;
    Ok(Some(serde_json::from_str(&said)?))
}

/// What a command sees and may do in any pod of a run.
const LOOK: &str = "id -u; pwd; grep CapEff /proc/self/status; touch /workspace/a /tmp/b /data/c && echo wrote; \
                    ls /ipc 2>/dev/null || echo hidden; touch /x 2>/dev/null || echo read-only; \
                    cat /proc/1/environ 2>/dev/null || echo unreadable";

/// `ipc` is what a command finds of the volume.
fn assert_seen(result: &Value, ipc: &str) {
    let seen = format!("1000\n/workspace\nCapEff:\t0000000000000000\nwrote\n{ipc}\nread-only\nunreadable\n");
    assert_eq!(result["stdout"], seen, "{result}");
    assert_eq!(result["exitCode"], 0, "{result}");
}

#[test]
fn a_restricted_pod_executes_and_confines() -> Result<()> {
    let Some(result) = execute(Tier::Node, Events::Lost, LOOK)? else {
        return Ok(());
    };
    assert_seen(&result, "hidden");
    let isolation = &result["_meta"]["isolation"];
    assert_eq!(isolation["profile"], "container", "{result}");
    for guarantee in ["filesystem", "processes", "syscalls"] {
        assert_eq!(isolation["guarantees"][guarantee], "enforced", "{result}");
    }
    Ok(())
}

/// Without the annotations no event crosses from one container to the other, and the sidecar finds that out.
#[test]
fn a_gvisor_pod_executes_with_and_without_events() -> Result<()> {
    for events in [Events::Shared, Events::Lost] {
        let Some(result) = execute(Tier::Gvisor, events, LOOK)? else {
            return Ok(());
        };
        // gVisor has no Landlock: there a pack's own commands see its volume, and the report says so.
        assert_seen(&result, "tools");
        assert_eq!(result["_meta"]["isolation"]["guarantees"]["filesystem"], "delegated");
        let isolation = &result["_meta"]["isolation"];
        assert_eq!(isolation["profile"], "gvisor", "{result}");
        assert_eq!(isolation["guarantees"]["kernel"], "enforced", "{result}");
    }
    Ok(())
}
