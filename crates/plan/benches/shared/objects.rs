//! A run with four skills, as in a cluster: two packs read the Kubernetes API, one has a Secret, one has only texts.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sympozium_api::names::SkillPackName;
use sympozium_api::{Agent, AgentRun, SkillPack, SympoziumPolicy};
use sympozium_plan::admit::{
    Agents, Candidates, Facts, Input, NO_RUNTIME_CLASSES, PackCandidates, PackObject, Settings,
};

/// The objects that a decision needs.
pub struct Objects {
    run: AgentRun,
    agent: Agent,
    packs: Vec<SkillPack>,
    policy: SympoziumPolicy,
    floor: SympoziumPolicy,
}

impl Objects {
    /// Calls `look` with the input, as a caller that has the objects.
    pub fn with_input<T>(&self, look: impl FnOnce(&Input<'_>) -> T) -> T {
        let packs: BTreeMap<SkillPackName, PackCandidates<'_>> = self
            .packs
            .iter()
            .map(|pack| {
                let name = SkillPackName::new(pack.metadata.name.clone().unwrap_or_default());
                let system = Some(PackObject { pack, author: None });
                (name, PackCandidates { own: None, system })
            })
            .collect();
        let settings = Settings::default();
        look(&Input {
            run: &self.run,
            namespace: "default",
            agents: Agents { agent: Some(&self.agent), instance: None, author: None },
            packs: &packs,
            policies: Candidates { own: Some(&self.policy), system: None },
            floor: Some(&self.floor.spec),
            models: Candidates::default(),
            author: None,
            runtime_classes: &NO_RUNTIME_CLASSES,
            facts: Facts::default(),
            settings: &settings,
        })
    }
}

/// Each object as JSON: run, agent, policy, floor, then the packs.
pub fn texts() -> Vec<Vec<u8>> {
    let object = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "sympozium.ai/v1alpha1",
            "kind": kind,
            "metadata": {
                "name": name, "namespace": "sympozium-system",
                "uid": "5d7f2c1e-8a7b-4d0c-9e2e-0f1a2b3c4d5e",
                "labels": { "sympozium.ai/builtin": "true" },
            },
            "spec": spec,
        })
    };
    let objects = [
        object("AgentRun", "check-cluster", run()),
        object("Agent", "operator", agent()),
        object("SympoziumPolicy", "default", policy()),
        object("SympoziumPolicy", "floor", json!({ "rbacPolicy": { "clusterRBACNamespaces": ["default"] } })),
        object("SkillPack", "k8s-ops", operations()),
        object("SkillPack", "sre-observability", observability()),
        object("SkillPack", "github-gitops", git()),
        object(
            "SkillPack",
            "code-review",
            json!({ "category": "development", "skills": skills(&["review-guidelines", "security-patterns"]) }),
        ),
    ];
    objects.iter().map(|it| it.to_string().into_bytes()).collect()
}

/// Reads the objects.
pub fn read(texts: &[Vec<u8>]) -> Objects {
    let [run, agent, policy, floor, packs @ ..] = texts else {
        panic!("there are four objects and the packs");
    };
    Objects {
        run: parsed(run),
        agent: parsed(agent),
        policy: parsed(policy),
        floor: parsed(floor),
        packs: packs.iter().map(|pack| parsed(pack)).collect(),
    }
}

fn parsed<T: DeserializeOwned>(text: &[u8]) -> T {
    serde_json::from_slice(text).expect("it is such an object")
}

fn run() -> Value {
    json!({
        "agentRef": "operator",
        "sessionKey": "morning",
        "task": "Look at the cluster and say what needs attention.",
        "model": { "provider": "openai", "model": "gpt-4o-mini", "authSecretRef": "operator-key" },
        "env": { "LANG": "C.UTF-8" },
        "timeout": "30m",
    })
}

fn agent() -> Value {
    json!({
        "agents": { "default": { "model": "gpt-4o-mini", "subagents": { "maxDepth": 2 } } },
        "policyRef": "default",
        "skills": [
            { "skillPackRef": "k8s-ops" },
            { "skillPackRef": "sre-observability" },
            { "skillPackRef": "github-gitops", "params": { "repo": "example/repo", "default_branch": "main" } },
            { "skillPackRef": "code-review" },
        ],
    })
}

fn policy() -> Value {
    json!({
        "sandboxPolicy": { "maxCPU": "4", "maxMemory": "8Gi" },
        "subagentPolicy": { "maxDepth": 3, "maxConcurrent": 5 },
        "toolGating": { "rules": [{ "tool": "execute_command", "action": "ask" }] },
        "networkPolicy": { "denyAll": true, "allowedEgress": [{ "host": "api.github.com" }, { "host": "*.githubusercontent.com" }] },
        "imagePolicy": { "allowedRegistries": ["ghcr.io/sympozium-ai/", "docker.io/library/"] },
        "lifecyclePolicy": { "deniedResources": ["secrets"] },
    })
}

fn operations() -> Value {
    let rules = json!([
        rule("", &["pods", "pods/log", "services", "configmaps", "events", "endpoints", "persistentvolumeclaims"]),
        rule("apps", &["deployments", "statefulsets", "replicasets", "daemonsets"]),
        rule("batch", &["jobs", "cronjobs"]),
        rule("networking.k8s.io", &["networkpolicies", "ingresses"]),
        { "apiGroups": ["apps"], "resources": ["deployments/scale", "statefulsets/scale"], "verbs": ["get", "update", "patch"] },
    ]);
    let cluster = json!([
        rule("", &["nodes", "namespaces", "persistentvolumes", "pods", "services", "events"]),
        rule("storage.k8s.io", &["storageclasses", "volumeattachments"]),
    ]);
    let mut pack = with_sidecar("k8s-ops", &["cluster-overview", "pod-troubleshoot", "resource-management"]);
    pack["sidecar"]["rbac"] = rules;
    pack["sidecar"]["clusterRBAC"] = cluster;
    pack
}

fn observability() -> Value {
    let mut pack = with_sidecar("sre-observability", &["observability-triage", "prometheus-query"]);
    pack["sidecar"]["rbac"] =
        json!([rule("", &["pods", "pods/log", "events", "services"]), rule("apps", &["deployments", "daemonsets"]),]);
    pack
}

fn git() -> Value {
    let mut pack = with_sidecar("github-gitops", &["gitops"]);
    pack["sidecar"]["env"] = json!([
        { "name": "GH_NO_UPDATE_NOTIFIER", "value": "1" },
        { "name": "GIT_AUTHOR_NAME", "value": "Sympozium Agent" },
    ]);
    pack["sidecar"]["secretRef"] = json!("github-gitops-token");
    pack["sidecar"]["secretMountPath"] = json!("/secrets/github-token");
    pack["sidecar"]["egress"] = json!([{ "host": "api.github.com" }]);
    pack["sidecar"]["tools"] = json!([{
        "name": "open_issue", "description": "Opens an issue.", "exec": ["gh", "issue", "create"],
        "positionalArgs": ["title"],
        "parameters": { "type": "object", "properties": { "title": { "type": "string" } }, "required": ["title"] },
    }]);
    pack
}

fn with_sidecar(name: &str, names: &[&str]) -> Value {
    json!({
        "category": "sre", "source": "builtin", "version": "0.1.0", "skills": skills(names),
        "sidecar": {
            "image": format!("ghcr.io/sympozium-ai/sympozium/skill-{name}:0.1.0"),
            "mountWorkspace": true,
            "resources": { "cpu": "100m", "memory": "128Mi" },
        },
    })
}

/// Short texts: long ones would make reading look expensive.
fn skills(names: &[&str]) -> Value {
    let text = "# Steps\n\n1. Look.\n2. Think.\n3. Say what you saw.\n";
    let skill = |name: &&str| json!({ "name": name, "description": "What it is for.", "requires": { "bins": ["kubectl"] }, "content": text });
    names.iter().map(skill).collect()
}

fn rule(group: &str, resources: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch"] })
}
