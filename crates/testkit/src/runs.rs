//! Runs made from a number, with their agent, packs and policies: as varied as manifests can be, and most of them admitted.

use serde_json::{Value, json};

/// The namespace of what is made.
pub const NAMESPACE: &str = "team";

/// Names that are hard on whoever makes other names of them: twins after cutting or after replacing dots, and the longest.
fn hostile_names() -> Vec<String> {
    let long = "a".repeat(252);
    [
        "k8s-ops",
        "a.b",
        "a-b",
        "a-b-x1",
        "a.b-x1",
        "x1",
        "0",
        "a-x0",
        "skill-a",
        "tmp",
        "agent",
        "ipc-bridge",
        "workspace",
        "door",
    ]
    .into_iter()
    .map(str::to_owned)
    .chain([
        long.clone() + "b",
        long + "c",
        format!("{}.{}", "d".repeat(120), "e".repeat(120)),
        format!("{}-{}", "d".repeat(120), "e".repeat(120)),
    ])
    .collect()
}

/// The objects of a run: the `AgentRun` first, then its agent, packs, policy and floor.
pub fn generated(seed: u64) -> Vec<Value> {
    let mut dice = Dice(seed);
    let mut names = hostile_names();
    let mut packs = Vec::new();
    for _ in 0..dice.below(5) {
        let name = names.swap_remove(dice.below(names.len()));
        packs.push((name.clone(), pack(&mut dice, &name)));
    }
    let run_name = names.swap_remove(dice.below(names.len()));
    let agent_kind = dice.of(&["Agent", "SympoziumInstance"]);
    let mut objects = vec![
        run(&mut dice, &run_name, seed, &packs),
        object(
            agent_kind,
            "the.agent",
            json!({
                "agents": { "default": { "model": "gpt-4o-mini", "subagents": { "maxDepth": dice.below(4) } } },
                "policyRef": "p",
            }),
        ),
    ];
    objects.extend(
        packs
            .iter()
            .map(|(name, spec)| object("SkillPack", name, spec.clone())),
    );
    objects.push(object("SympoziumPolicy", "p", policy(&mut dice, &packs)));
    let mut floor = object(
        "SympoziumPolicy",
        "floor",
        json!({ "rbacPolicy": { "clusterRBACNamespaces": [NAMESPACE] } }),
    );
    floor["metadata"]["namespace"] = json!("sympozium-system");
    objects.push(floor);
    objects
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "sympozium.ai/v1alpha1",
        "kind": kind,
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": spec,
    })
}

fn run(dice: &mut Dice, name: &str, seed: u64, packs: &[(String, Value)]) -> Value {
    let mut skills: Vec<Value> = packs
        .iter()
        .map(|(name, _)| json!({ "skillPackRef": name, "params": { "region": "here" } }))
        .collect();
    if dice.one_in(5) {
        skills.push(json!({ "configMapRef": "notes" }));
    }
    let provider = dice.of(&["openai", "anthropic", "groq"]);
    let mut spec = json!({
        "agentRef": "the.agent",
        "task": "Look around.",
        "skills": skills,
        "model": { "provider": provider, "model": "m", "authSecretRef": "provider-key" },
        "timeout": dice.of(&["30s", "10m", "1h"]),
        "env": { "MODE": "test" },
    });
    if dice.one_in(3) {
        spec["sandbox"] = json!({ "enabled": true });
        if dice.one_in(2) {
            spec["sandbox"]["image"] = json!("docker.io/library/debian:12");
        }
    } else if dice.one_in(4) {
        spec["agentSandbox"] = json!({ "enabled": true, "runtimeClass": "gvisor" });
    }
    if dice.one_in(3) {
        let hook = |name: &str| json!({ "name": name, "image": "docker.io/library/busybox:1", "command": ["true"] });
        spec["lifecycle"] = json!({ "preRun": [hook("first"), hook("second")] });
        if dice.one_in(2) {
            spec["lifecycle"]["postRun"] = json!([hook("first")]);
        }
        if dice.one_in(2) {
            spec["lifecycle"]["rbac"] = json!([reading(dice)]);
        }
    }
    if dice.one_in(3) {
        spec["volumes"] = json!([{ "name": "tmp", "emptyDir": {} }, { "name": "cache", "persistentVolumeClaim": { "claimName": "cache" } }]);
        spec["volumeMounts"] = json!([{ "name": "tmp", "mountPath": "/data" }, { "name": "cache", "mountPath": "/cache", "readOnly": true }]);
    }
    if dice.one_in(4) {
        spec["toolPolicy"] = json!({ "deny": [dice.of(&["fetch_url", "write_file", "execute_command", "edit_file"])] });
    }
    let mut run = object("AgentRun", name, spec);
    let tail = seed & 0xffff_ffff_ffff;
    run["metadata"]["uid"] = json!(format!("{:08x}-0000-4000-8000-{tail:012x}", seed >> 48));
    run
}

fn pack(dice: &mut Dice, name: &str) -> Value {
    let mut skill = json!({ "name": "main", "description": "Does things.", "content": format!("# {name}\nDo things.\n") });
    if dice.one_in(3) {
        skill["files"] = json!([
            { "path": "scripts/do.sh", "content": "#!/bin/sh\necho done\n", "executable": true },
            { "path": "assets/mark.bin", "contentBase64": "AAEC" },
        ]);
    }
    if dice.one_in(5) {
        skill["allowedTools"] = json!(["execute_command"]);
    }
    let mut spec = json!({ "skills": [skill] });
    if dice.one_in(5) {
        return spec;
    }
    let mut sidecar =
        json!({ "image": "ghcr.io/example/skill:1", "mountWorkspace": dice.one_in(2) });
    if dice.one_in(3) {
        sidecar["executor"] = json!("injected");
    }
    if dice.one_in(2) {
        sidecar["rbac"] = json!([reading(dice)]);
    }
    if dice.one_in(3) {
        sidecar["clusterRBAC"] =
            json!([{ "apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"] }]);
    }
    if dice.one_in(2) {
        sidecar["egress"] = json!([{ "host": dice.of(&["api.github.com", "*.example.com"]) }, { "host": "example.org", "port": 5432 }]);
    }
    if dice.one_in(2) {
        sidecar["secretRef"] = json!(format!("secret-{}", dice.below(3)));
        if dice.one_in(2) {
            sidecar["secretMountPath"] = json!("/etc/keys");
        }
    }
    if dice.one_in(3) {
        sidecar["env"] = json!([
            { "name": "SKILL_REGION", "value": "default" },
            { "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "token", "key": "token" } } },
        ]);
    }
    if dice.one_in(3) {
        sidecar["resources"] = json!({ "cpu": "200m", "memory": "64Mi" });
    }
    if dice.one_in(3) {
        sidecar["volumes"] =
            json!([{ "name": "tmp", "emptyDir": {} }, { "name": "unused", "emptyDir": {} }]);
        sidecar["volumeMounts"] = json!([{ "name": "tmp", "mountPath": "/data" }]);
    }
    if dice.one_in(3) {
        let tool = format!("tool_{}", name.replace(['-', '.'], "_"))
            .chars()
            .take(60)
            .collect::<String>();
        sidecar["tools"] = json!([{
            "name": format!("{tool}_{}", name.len() % 10), "description": "Acts.", "exec": ["act"], "positionalArgs": ["what"],
            "parameters": { "type": "object", "properties": { "what": { "type": "string" } }, "required": ["what"] },
        }]);
    }
    spec["sidecar"] = sidecar;
    spec
}

fn policy(dice: &mut Dice, packs: &[(String, Value)]) -> Value {
    let mut spec = json!({});
    if dice.one_in(2) {
        let mut rules = vec![
            json!({ "tool": "execute_command", "action": dice.of(&["ask", "deny", "allow"]) }),
        ];
        if let Some((name, _)) = packs.first().filter(|_| dice.one_in(2)) {
            rules.push(json!({ "tool": format!("{name}/*"), "action": "ask" }));
        }
        spec["toolGating"] = json!({ "defaultAction": dice.of(&["allow", "ask"]), "rules": rules });
    }
    if dice.one_in(3) {
        spec["featureGates"] = json!({ dice.of(&["file-access", "sub-agents"]): false });
    }
    if dice.one_in(2) {
        spec["networkPolicy"] = json!({ "denyAll": dice.one_in(2), "allowedEgress": [
            { "host": "api.github.com" }, { "host": "*.example.com" }, { "host": "example.org", "port": 5432 },
            { "host": "db.team.svc", "port": 5432 },
        ] });
    }
    if dice.one_in(3) {
        spec["approvalPolicy"] =
            json!({ "approvers": [{ "kind": "Group", "name": "sre" }], "expiresAfterSeconds": 60 });
    }
    if dice.one_in(3) {
        spec["sandboxPolicy"] = json!({ "seccompProfile": { "type": "RuntimeDefault" } });
    }
    spec
}

fn reading(dice: &mut Dice) -> Value {
    let resources = ["pods", "services", "events", "configmaps", "pods/log"];
    json!({ "apiGroups": [""], "resources": [dice.of(&resources)], "verbs": ["get", "list"] })
}

/// Numbers that follow from a seed: SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, number: usize) -> usize {
        (self.next() % number as u64) as usize
    }

    fn one_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }

    fn of<'t>(&mut self, choices: &[&'t str]) -> &'t str {
        choices[self.below(choices.len())]
    }
}
