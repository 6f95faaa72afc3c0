//! Isolation, amounts, and what runs that others started may do.

use serde_json::{Value, json};

use super::super::objects::{Objects, remove};
use super::Violation;

pub const VIOLATIONS: &[Violation] = &[
    Violation::new("sandbox-required", "a run without a sandbox", |objects| {
        objects.clear_sandboxes();
        objects.policy()["sandboxPolicy"]["required"] = json!(true);
        Some(())
    }),
    Violation::new("agent-sandbox-required", "a run without agent-sandbox", |objects| {
        objects.clear_sandboxes();
        demand_of_floor(objects, "agentSandboxPolicy", json!({ "required": true }));
        Some(())
    }),
    Violation::new("isolation-kernel", "the node's kernel", |objects| {
        objects.clear_sandboxes();
        objects.policy()["sandboxPolicy"]["minimumIsolation"] = json!(["kernel"]);
        Some(())
    }),
    Violation::new("isolation-kernel", "the node's kernel, against the floor", |objects| {
        objects.clear_sandboxes();
        demand_of_floor(objects, "minimumIsolation", json!(["kernel"]));
        Some(())
    }),
    Violation::new("isolation-executor", "a sidecar that attests nothing", |objects| {
        for sidecar in objects.sidecars() {
            sidecar["executor"] = json!("injected");
        }
        objects.sidecar()?["executor"] = json!("image");
        demand_of_floor(objects, "minimumIsolation", json!(["network"]));
        Some(())
    }),
    Violation::new("runtime-class", "a RuntimeClass that the policy does not list", |objects| {
        objects.clear_sandboxes();
        objects.run()["agentSandbox"] = json!({ "enabled": true, "runtimeClass": "kata" });
        list_runtime_classes(objects);
        Some(())
    }),
    Violation::new("runtime-class-missing", "no RuntimeClass where the policy lists some", |objects| {
        objects.clear_sandboxes();
        objects.run()["agentSandbox"] = json!({ "enabled": true });
        list_runtime_classes(objects);
        Some(())
    }),
    Violation::new("seccomp-unconfined", "all system calls", |objects| {
        filter(objects, json!({ "type": "Unconfined" }))
    }),
    Violation::new("seccomp-invalid", "a filter without a file", |objects| {
        filter(objects, json!({ "type": "Localhost" }))
    }),
    Violation::new("seccomp-localhost", "a filter of the node that no policy names", |objects| {
        let file = json!({ "type": "Localhost", "localhostProfile": "profiles/open.json" });
        filter(objects, file)
    }),
    Violation::new("seccomp-profile", "another filter than the policy's", |objects| {
        filter(objects, json!({ "type": "Localhost", "localhostProfile": "profiles/open.json" }))?;
        objects.policy()["sandboxPolicy"]["seccompProfile"] = json!({ "type": "RuntimeDefault" });
        Some(())
    }),
    Violation::new("seccomp-none-left", "a filter of the policy and another of the floor", |objects| {
        let file = |name: &str| json!({ "type": "Localhost", "localhostProfile": name });
        objects.policy()["sandboxPolicy"]["seccompProfile"] = file("profiles/one.json");
        demand_of_floor(objects, "seccompProfile", file("profiles/other.json"));
        Some(())
    }),
    Violation::new("max-cpu", "more CPU than the policy allows", |objects| {
        objects.policy()["sandboxPolicy"]["maxCPU"] = json!("10m");
        Some(())
    }),
    Violation::new("max-memory", "more memory than the floor allows", |objects| {
        demand_of_floor(objects, "maxMemory", json!("10Mi"));
        Some(())
    }),
    Violation::new("amount-zero", "a sidecar without a bound on memory", |objects| {
        objects.sidecar()?["resources"]["memory"] = json!("0");
        Some(())
    }),
    Violation::new("subagent-depth", "a run too far below the first", |objects| {
        objects.agent()["agents"]["default"]["subagents"] = json!({ "maxDepth": 1 });
        objects.run()["parent"] = json!({ "runName": "first", "sessionKey": "s", "spawnDepth": 2 });
        Some(())
    }),
    Violation::new("warm-pool-unserved", "a sandbox of a warm pool", |objects| {
        objects.clear_sandboxes();
        objects.run()["agentSandbox"] = json!({ "enabled": true, "runtimeClass": "gvisor", "warmPoolRef": "pool" });
        Some(())
    }),
    Violation::new("server-mode-unserved", "a run that waits for requests", |objects| {
        objects.run()["mode"] = json!("server");
        Some(())
    }),
];

/// Demands something in the floor's part about sandboxes, which says nothing about the node then.
fn demand_of_floor(objects: &mut Objects<'_>, field: &str, value: Value) {
    let floor = objects.floor();
    floor["sandboxPolicy"]["allowHostMounts"] = json!(true);
    floor["sandboxPolicy"][field] = value;
}

fn list_runtime_classes(objects: &mut Objects<'_>) {
    let classes = json!({ "allowedRuntimeClasses": ["other"] });
    objects.policy()["sandboxPolicy"]["agentSandboxPolicy"] = classes;
}

/// Has the run ask for a filter of system calls, where no policy names one.
fn filter(objects: &mut Objects<'_>, profile: Value) -> Option<()> {
    objects.clear_sandboxes();
    objects.run()["sandbox"] = json!({ "enabled": true, "securityContext": { "seccompProfile": profile } });
    if let Some(policy) = objects.policy().get_mut("sandboxPolicy") {
        remove(policy, &["seccompProfile"]);
    }
    Some(())
}
