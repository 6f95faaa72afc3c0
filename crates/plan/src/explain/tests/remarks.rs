//! Each remark occurs where it applies, and nowhere else.

use serde_json::{Value, json};
use sympozium_api::RunPlan;

use crate::explain::{ArgumentCheck, explain};

/// A plan without remarks.
fn base() -> Value {
    let amounts = json!({"cpuRequest": "1", "cpuLimit": "1", "memoryRequest": "1Gi", "memoryLimit": "1Gi"});
    let part = |name: &str, role: &str| {
        json!({
            "name": name, "role": {"kind": role}, "image": format!("example.com/i@sha256:{}", "a".repeat(64)),
            "start": {"kind": "image"}, "mounts": [], "amounts": amounts,
        })
    };
    json!({
        "format": "sympozium.ai/run-plan/v1",
        "run": {
            "namespace": "team", "name": "r", "uid": "00000000-0000-0000-0000-000000000000",
            "agentKind": "Agent", "agent": "a", "agentId": "default", "sessionKey": "s",
        },
        "resolved": [],
        "task": {"useContext": false, "mode": "task"},
        "model": {"provider": "scripted", "model": "m", "wire": "openAi"},
        "workload": {"kind": "job"},
        "isolation": {"floor": ["network"], "seccomp": {"type": "RuntimeDefault"}},
        "parts": [part("agent", "agent"), part("ipc-bridge", "bridge")],
        "volumes": [{"name": "workspace", "source": {"kind": "scratch", "medium": "disk", "size": "1Gi"}}],
        "tools": [],
        "approval": {"required": 1, "runScope": false, "runAuthor": true},
        "subagents": {"levels": 0, "concurrent": 1, "children": 1},
        "limits": {
            "iterations": 1, "modelRequests": 1, "modelRequestsPerMinute": 1, "modelRequestBytes": 1,
            "modelAnswerBytes": 1, "toolCalls": 1, "concurrentToolCalls": 1, "resultBytes": 1, "transcriptBytes": 1,
        },
        "deadlines": {
            "runSeconds": 1, "approvalSeconds": 1, "waitingSeconds": 1, "startSeconds": 300, "connectSeconds": 1, "graceSeconds": 1,
            "ceilingSeconds": 1,
        },
        "placement": {},
        "cleanup": "delete",
    })
}

pub fn plan(change: impl FnOnce(&mut Value)) -> RunPlan {
    let mut plan = base();
    change(&mut plan);
    serde_json::from_value(plan).expect("a plan")
}

fn remarks(change: impl FnOnce(&mut Value)) -> Vec<&'static str> {
    let remarks = explain(&plan(change)).remarks;
    remarks.iter().map(|remark| remark.id).collect()
}

pub fn add(list: &mut Value, item: Value) {
    list.as_array_mut().expect("a list").push(item);
}

pub fn skill(start: &str) -> Value {
    let mut part = base()["parts"][0].clone();
    part["name"] = json!("skill-a");
    part["role"] = json!({"kind": "skill", "pack": "a"});
    part["start"] = json!({"kind": start, "executor": "ghcr.io/org/executor:1"});
    part
}

fn workspace(read_only: bool) -> Value {
    json!({"volume": "workspace", "path": "/workspace", "readOnly": read_only})
}

pub fn tool(gate: &str, acts: Value, parameters: Value) -> Value {
    json!({
        "name": "t", "gate": gate, "acts": acts, "description": "", "parameters": parameters,
        "limits": {"timeoutSeconds": 1, "argumentBytes": 1, "outputBytes": 1, "concurrent": 1, "perMinute": 1},
    })
}

#[test]
fn nothing_is_remarked_about_a_plan_that_holds_nothing() {
    assert_eq!(remarks(|_| {}), [] as [&str; 0]);
}

#[test]
fn what_is_in_the_run_is_remarked() {
    assert_eq!(remarks(|plan| add(&mut plan["parts"], skill("injected"))), ["shared-pod"]);
    assert_eq!(remarks(|plan| add(&mut plan["parts"], skill("image"))), ["not-attested", "shared-pod"]);
    assert_eq!(remarks(|plan| plan["parts"][0]["image"] = json!("example.com/i:1")), ["image-tags"]);
    let access = |enabled: bool| {
        let mut part = skill("injected");
        part["hostAccess"] = json!({"enabled": enabled, "privileged": true});
        remarks(|plan| add(&mut plan["parts"], part))
    };
    assert_eq!(access(true), ["node-access", "shared-pod"]);
    assert_eq!(access(false), ["shared-pod"]);
    let mut part = skill("injected");
    part["hostAccess"] = json!({"enabled": true, "hostNetwork": true, "hostPID": true});
    assert_eq!(
        remarks(|plan| add(&mut plan["parts"], part.clone())),
        ["node-access", "node-network", "node-processes", "shared-pod"]
    );
    // The whole pod gets what one part requests.
    let explanation = explain(&plan(|plan| add(&mut plan["parts"], part)));
    assert!(explanation.network.parts.iter().all(|part| part.node_network));
    assert_eq!(explanation.network.pod.egress, ["whatever the node reaches"]);
    let cannot = explanation.summary.cannot.join("; ");
    assert!(!cannot.contains("reach"), "{cannot}");
    assert_eq!(remarks(|plan| plan["isolation"]["floor"] = json!([])), ["network-unenforced"]);
    let texts = json!([{"source": {"kind": "configMap", "configMap": "c"}, "directory": "/skills/c"}]);
    assert_eq!(remarks(|plan| plan["skills"] = texts), ["texts-by-reference"]);
    let claim = json!({"name": "v", "source": {"kind": "declared", "volume": {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}}});
    assert_eq!(remarks(|plan| add(&mut plan["volumes"], claim)), ["storage"]);
}

#[test]
fn files_that_parts_share_are_remarked_when_a_part_may_write() {
    let shared = |agent: bool, skills: bool| {
        remarks(|plan| {
            plan["parts"][0]["mounts"] = json!([workspace(agent)]);
            let mut part = skill("injected");
            part["mounts"] = json!([workspace(skills)]);
            add(&mut plan["parts"], part);
        })
    };
    assert_eq!(shared(true, true), ["shared-pod"]);
    assert_eq!(shared(true, false), ["shared-pod", "shared-workspace"]);
}

#[test]
fn who_holds_rights_is_remarked() {
    let of_secret = ["creating-runs", "namespace"];
    let key = json!([{"variable": "KEY", "secret": "s"}]);
    assert_eq!(remarks(|plan| plan["model"]["keys"] = key), of_secret);
    let identity = json!([{"name": "skill-0", "pack": "a", "tokenSeconds": 600}]);
    assert_eq!(remarks(|plan| plan["identities"] = identity), ["creating-runs", "namespace", "api-server-reachable"]);
}

#[test]
fn where_data_can_go_is_remarked() {
    let endpoint = json!({"encrypted": true, "host": "h", "port": 443, "path": "/"});
    assert_eq!(remarks(|plan| plan["model"]["endpoint"] = endpoint), ["model-reads"]);
    let reach = |public: bool| {
        let credential = json!([{"name": "web", "part": "ipc-bridge", "reach": {"public": public}}]);
        remarks(|plan| plan["credentials"] = credential)
    };
    assert_eq!(reach(true), ["any-public-host"]);
    assert_eq!(reach(false), [] as [&str; 0]);
}

#[test]
fn files_that_parts_share_by_a_claim_or_a_directory_are_remarked() {
    let sharing = |source: Value| {
        remarks(|plan| {
            for name in ["skill-a", "skill-b"] {
                let mut part = skill("injected");
                part["name"] = json!(name);
                let volume = format!("{name}-volume");
                part["mounts"] = json!([{"volume": volume, "path": "/data", "readOnly": false}]);
                add(&mut plan["parts"], part);
                let declared = json!({"kind": "declared", "volume": source.clone()});
                add(&mut plan["volumes"], json!({"name": volume, "source": declared}));
            }
        })
    };
    let claim = json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}});
    assert_eq!(sharing(claim), ["shared-pod", "shared-volume", "storage"]);
    let directory = json!({"name": "v", "hostPath": {"path": "/data"}});
    assert_eq!(sharing(directory), ["node-access", "shared-pod", "shared-volume"]);
    let scratch = json!({"name": "v", "ephemeral": {}});
    assert_eq!(sharing(scratch), ["shared-pod"]);
}

#[test]
fn what_gates_do_not_hold_is_remarked() {
    let with = |gate: &str, acts: Value, mounts: Value| {
        remarks(|plan| {
            plan["parts"][0]["mounts"] = mounts;
            add(&mut plan["tools"], tool(gate, acts, json!({})));
        })
    };
    let agent = || json!({"by": "agent"});
    let shell = || json!({"by": "shell", "part": "agent"});
    assert_eq!(with("allow", agent(), json!([])), ["native-file-tools"]);
    assert_eq!(with("deny", agent(), json!([])), [] as [&str; 0]);
    assert_eq!(with("allow", shell(), json!([])), ["free-text"]);
    assert_eq!(with("deny", shell(), json!([])), [] as [&str; 0]);
    let bridge = json!({"by": "bridge"});
    assert_eq!(with("ask", bridge.clone(), json!([])), [] as [&str; 0]);
    assert_eq!(with("ask", bridge, json!([workspace(true)])), ["approval-files"]);
}

#[test]
fn a_program_that_runs_its_arguments_takes_free_text() {
    let with = |exec: Value, parameters: Value| {
        let acts = json!({"by": "program", "part": "agent", "exec": exec, "inputMode": "args"});
        let tool = tool("allow", acts, parameters);
        explain(&plan(|plan| add(&mut plan["tools"], tool))).tools[0].arguments
    };
    let text = || json!({"type": "object", "properties": {"x": {"type": "string"}}});
    let nothing = || json!({"type": "object", "properties": {}, "additionalProperties": false});
    for (exec, parameters, expected) in [
        (json!(["kubectl", "get"]), text(), ArgumentCheck::Schema),
        (json!(["/bin/sh", "-c"]), text(), ArgumentCheck::FreeText),
        (json!(["timeout", "5", "bash", "-c"]), text(), ArgumentCheck::FreeText),
        (json!(["/usr/bin/python3", "-c"]), text(), ArgumentCheck::FreeText),
        (json!(["sh", "/skills/a/b.sh"]), nothing(), ArgumentCheck::Schema),
        (json!(["python3.13"]), text(), ArgumentCheck::FreeText),
        // Properties that are not named are accepted.
        (json!(["sh"]), json!({"properties": {}}), ArgumentCheck::FreeText),
        (
            json!(["sh"]),
            json!({"additionalProperties": false, "patternProperties": {".*": {}}}),
            ArgumentCheck::FreeText,
        ),
        // Nothing bounds the arguments.
        (json!(["sh"]), json!({}), ArgumentCheck::FreeText),
    ] {
        assert_eq!(with(exec.clone(), parameters), expected, "{exec}");
    }
}
