//! Runs that have everything that a run can have of a cluster: for tests and measurements of the control plane.

use serde_json::{Value, json};
use sympozium_api::labels::{API_VERSION, FLOOR_POLICY, SYSTEM_NAMESPACE};

/// The agent of the runs here.
pub const AGENT: &str = "tried";

/// The agent and packs of the runs here, for a namespace, and a floor that lets it have rights in the cluster.
pub fn around(namespace: &str) -> Vec<Value> {
    let object = |kind: &str, name: &str, namespace: &str, spec: Value| {
        json!({
            "apiVersion": API_VERSION, "kind": kind,
            "metadata": { "name": name, "namespace": namespace }, "spec": spec,
        })
    };
    let skill = |name: &str| {
        let content = format!("# {name}\nUse it.");
        json!({ "name": name, "description": "For tests.", "content": content })
    };
    let floor = json!({ "rbacPolicy": { "clusterRBACNamespaces": [namespace] } });
    let powers = json!({
        "skills": [skill("powers")],
        "sidecar": {
            "image": "example.com/powers:1",
            "mountWorkspace": true,
            "rbac": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"] }],
            "clusterRBAC": [{ "apiGroups": [""], "resources": ["nodes"], "verbs": ["list"] }],
        },
    });
    let reach = json!({
        "skills": [skill("reach"), skill("more")],
        "sidecar": {
            "image": "example.com/reach:1",
            "mountWorkspace": true,
            "egress": [{ "host": "api.example.com" }],
        },
    });
    let agent = json!({
        "skills": [{ "skillPackRef": "powers" }, { "skillPackRef": "reach" }],
        "agents": { "default": { "model": "gpt-4o-mini" } },
    });
    vec![
        object("SympoziumPolicy", FLOOR_POLICY, SYSTEM_NAMESPACE, floor),
        object("SkillPack", "powers", namespace, powers),
        object("SkillPack", "reach", namespace, reach),
        object("Agent", AGENT, namespace, agent),
    ]
}

/// A run with two packs, with rights in namespace and cluster, texts, and a way out.
pub fn plain(name: &str) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "AgentRun",
        "metadata": { "name": name },
        "spec": {
            "agentRef": AGENT,
            "task": "Look around.",
            "model": { "provider": "openai", "model": "gpt-4o-mini", "authSecretRef": "provider-key" },
        },
    })
}

/// The same with hooks afterwards that have rights of their own, and so a workspace that outlives the pod.
pub fn everything(name: &str) -> Value {
    let mut run = plain(name);
    run["spec"]["lifecycle"] = json!({
        "postRun": [{ "name": "notify", "image": "example.com/notify:1", "command": ["/notify"] }],
        "rbac": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"] }],
    });
    run
}

/// The same as [`plain`] with a hook beforehand, and a pod that stays for inspection.
pub fn with_retained_pod(name: &str) -> Value {
    let mut run = plain(name);
    run["spec"]["lifecycle"] = json!({
        "preRun": [{ "name": "fetch", "image": "example.com/fetch:1", "command": ["/fetch"] }],
    });
    run["spec"]["cleanup"] = json!("keep");
    run
}
