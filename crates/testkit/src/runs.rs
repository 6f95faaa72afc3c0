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

/// What a run and its packs have that its policy must open by name.
#[derive(Default)]
struct Wanted {
    /// Directories of the node, its network, its processes.
    node: bool,
    /// A model at an address that is no provider's own.
    address: bool,
    /// Every sidecar has our executor, so that the policy can demand guarantees.
    attested: bool,
    /// A kernel of its own.
    kernel: bool,
}

/// The address of a model that is no provider's own.
const OWN_MODEL: (&str, u16) = ("llm.example.com", 8443);
/// The `Model` of a run that names one.
const SERVED_MODEL: &str = "served";

/// The objects of a run: the `AgentRun` first, then its agent, packs, policy and floor.
pub fn generated(seed: u64) -> Vec<Value> {
    let mut dice = Dice(seed);
    let mut names = hostile_names();
    let mut wanted = Wanted { attested: dice.one_in(4), ..Wanted::default() };
    let mut packs = Vec::new();
    for _ in 0..dice.below(5) {
        let name = names.swap_remove(dice.below(names.len()));
        packs.push((name.clone(), pack(&mut dice, &name, &mut wanted)));
    }
    let run_name = names.swap_remove(dice.below(names.len()));
    let agent_kind = dice.of(&["Agent", "SympoziumInstance"]);
    let mut objects = vec![
        run(&mut dice, &run_name, seed, &packs, &mut wanted),
        object(
            agent_kind,
            "the.agent",
            json!({
                "agents": { "default": { "model": "gpt-4o-mini", "subagents": { "maxDepth": dice.below(4) } } },
                "policyRef": "p",
            }),
        ),
    ];
    objects.extend(packs.iter().map(|(name, spec)| object("SkillPack", name, spec.clone())));
    let model = &objects[0]["spec"]["model"]["modelRef"];
    if model == SERVED_MODEL {
        let mut model = object("Model", SERVED_MODEL, json!({ "source": { "url": "https://example.org/m.gguf" } }));
        if dice.one_in(2) {
            model["status"] = json!({ "endpoint": "http://elsewhere.team.svc:9000/v1" });
        }
        objects.push(model);
    }
    let policy = policy(&mut dice, &packs, &wanted);
    objects.push(object("SympoziumPolicy", "p", policy));
    let mut floor =
        object("SympoziumPolicy", "floor", json!({ "rbacPolicy": { "clusterRBACNamespaces": [NAMESPACE] } }));
    if wanted.attested && dice.one_in(2) {
        floor["spec"]["sandboxPolicy"] = json!({ "minimumIsolation": ["filesystem", "network"] });
    }
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

fn run(dice: &mut Dice, name: &str, seed: u64, packs: &[(String, Value)], wanted: &mut Wanted) -> Value {
    let mut skills: Vec<Value> =
        packs.iter().map(|(name, _)| json!({ "skillPackRef": name, "params": { "region": "here" } })).collect();
    if dice.one_in(5) {
        skills.push(json!({ "configMapRef": "notes" }));
    }
    let mut spec = json!({
        "agentRef": "the.agent",
        "task": "Look around.",
        "skills": skills,
        "model": model(dice, wanted),
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
        wanted.kernel = true;
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
        spec["volumes"] = json!([{ "name": "tmp", "emptyDir": {} }, { "name": "cache", "persistentVolumeClaim": { "claimName": "cache" } },
            { "name": "notes", "projected": { "sources": [{ "configMap": { "name": "notes" } }] } }]);
        spec["volumeMounts"] = json!([{ "name": "tmp", "mountPath": "/data" }, { "name": "cache", "mountPath": "/cache", "subPath": "runs", "readOnly": true },
            { "name": "notes", "mountPath": "/notes", "readOnly": true }]);
    }
    if dice.one_in(4) {
        spec["imagePullSecrets"] = json!([{ "name": "registry" }]);
    }
    if dice.one_in(5) {
        spec["parent"] = json!({ "runName": "first", "sessionKey": "s", "spawnDepth": 1 });
    }
    if dice.one_in(4) {
        spec["toolPolicy"] = json!({ "deny": [dice.of(&["fetch_url", "write_file", "execute_command", "edit_file"])] });
    }
    let mut run = object("AgentRun", name, spec);
    let tail = seed & 0xffff_ffff_ffff;
    run["metadata"]["uid"] = json!(format!("{:08x}-0000-4000-8000-{tail:012x}", seed >> 48));
    run
}

/// A model of a provider, at an address of its own, in the cluster, or with answers that are written down.
fn model(dice: &mut Dice, wanted: &mut Wanted) -> Value {
    let provider = dice.of(&["openai", "anthropic", "groq"]);
    let mut model = json!({ "provider": provider, "model": "m", "authSecretRef": "provider-key" });
    match dice.below(8) {
        0 => {
            let (host, port) = OWN_MODEL;
            model["baseURL"] = json!(format!("https://{host}:{port}/api"));
            wanted.address = true;
        }
        1 => model["modelRef"] = json!(SERVED_MODEL),
        2 => model = json!({ "provider": "scripted", "model": "turns" }),
        _ => {}
    }
    if dice.one_in(4) {
        model["providerHeadersSecretRef"] = json!("provider-headers");
        model["providerHeaders"] = json!({ "x-team": "sre" });
    }
    if dice.one_in(4) {
        model["nodeSelector"] = json!({ "kubernetes.io/os": "linux" });
    }
    model
}

fn pack(dice: &mut Dice, name: &str, wanted: &mut Wanted) -> Value {
    let mut skill =
        json!({ "name": "main", "description": "Does things.", "content": format!("# {name}\nDo things.\n") });
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
    let mut sidecar = json!({ "image": "ghcr.io/example/skill:1", "mountWorkspace": dice.one_in(2) });
    if wanted.attested || dice.one_in(3) {
        sidecar["executor"] = json!("injected");
    }
    if dice.one_in(2) {
        sidecar["rbac"] = json!([reading(dice)]);
    }
    if dice.one_in(3) {
        sidecar["clusterRBAC"] = json!([{ "apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"] }]);
    }
    if dice.one_in(2) {
        sidecar["egress"] =
            json!([{ "host": dice.of(&["api.github.com", "*.example.com"]) }, { "host": "example.org", "port": 5432 }]);
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
    let mut volumes = Vec::new();
    let mut mounts = Vec::new();
    if dice.one_in(3) {
        volumes.push(json!({ "name": "tmp", "emptyDir": {} }));
        volumes.push(json!({ "name": "unused", "secret": { "secretName": "unused-secret" } }));
        mounts.push(json!({ "name": "tmp", "mountPath": "/data" }));
    }
    if dice.one_in(4) {
        volumes.push(json!({ "name": "keys", "secret": { "secretName": "volume-secret" } }));
        mounts.push(json!({ "name": "keys", "mountPath": "/keys", "readOnly": true }));
        volumes.push(json!({ "name": "mixed", "projected": { "sources": [
            { "configMap": { "name": "settings" } }, { "secret": { "name": "projected-secret" } },
        ] } }));
        mounts.push(json!({ "name": "mixed", "mountPath": "/mixed", "subPath": "part", "readOnly": true }));
    }
    if dice.one_in(12) {
        volumes.push(json!({ "name": "node", "hostPath": { "path": "/srv/data" } }));
        mounts.push(json!({ "name": "node", "mountPath": "/node", "readOnly": dice.one_in(2) }));
        wanted.node = true;
    }
    if !volumes.is_empty() {
        sidecar["volumes"] = json!(volumes);
        sidecar["volumeMounts"] = json!(mounts);
    }
    if dice.one_in(10) {
        sidecar["hostAccess"] = json!({
            "enabled": true, "hostNetwork": dice.one_in(2), "hostPID": dice.one_in(2),
            "privileged": dice.one_in(2), "runAsRoot": dice.one_in(2),
            "mounts": [
                { "hostPath": "/var/log", "mountPath": "/host/log" },
                { "hostPath": "/srv/out", "mountPath": "/host/out", "readOnly": false },
            ],
        });
        wanted.node = true;
    }
    if dice.one_in(3) {
        let tool = format!("tool_{}", name.replace(['-', '.'], "_")).chars().take(60).collect::<String>();
        sidecar["tools"] = json!([{
            "name": format!("{tool}_{}", name.len() % 10), "description": "Acts.", "exec": ["act"], "positionalArgs": ["what"],
            "parameters": { "type": "object", "properties": { "what": { "type": "string" } }, "required": ["what"] },
        }]);
    }
    spec["sidecar"] = sidecar;
    spec
}

fn policy(dice: &mut Dice, packs: &[(String, Value)], wanted: &Wanted) -> Value {
    let mut spec = json!({});
    if dice.one_in(2) {
        let mut rules = vec![json!({ "tool": "execute_command", "action": dice.of(&["ask", "deny", "allow"]) })];
        if let Some((name, _)) = packs.first().filter(|_| dice.one_in(2)) {
            rules.push(json!({ "tool": format!("{name}/*"), "action": "ask" }));
        }
        spec["toolGating"] = json!({ "defaultAction": dice.of(&["allow", "ask"]), "rules": rules });
    }
    if dice.one_in(3) {
        spec["featureGates"] = json!({ dice.of(&["file-access", "sub-agents"]): false });
    }
    if wanted.address || dice.one_in(2) {
        let (host, port) = OWN_MODEL;
        spec["networkPolicy"] = json!({ "denyAll": dice.one_in(2), "allowedEgress": [
            { "host": "api.github.com" }, { "host": "*.example.com" }, { "host": "example.org", "port": 5432 },
            { "host": "db.team.svc", "port": 5432 }, { "host": host, "port": port },
        ] });
    }
    if dice.one_in(3) {
        spec["approvalPolicy"] =
            json!({ "approvers": [{ "kind": "Group", "name": "sre" }], "expiresAfterSeconds": 60 });
    }
    if dice.one_in(3) {
        spec["sandboxPolicy"]["seccompProfile"] = dice.value(&[
            json!({ "type": "RuntimeDefault" }),
            json!({ "type": "Localhost", "localhostProfile": "profiles/run.json" }),
        ]);
    }
    if wanted.attested {
        spec["sandboxPolicy"]["minimumIsolation"] = json!(["network", "syscalls"]);
    } else if wanted.kernel && dice.one_in(2) {
        spec["sandboxPolicy"]["minimumIsolation"] = json!(["kernel"]);
    }
    if dice.one_in(3) {
        spec["sandboxPolicy"]["maxCPU"] = json!("4");
        spec["sandboxPolicy"]["maxMemory"] = json!("4Gi");
    }
    if dice.one_in(4) {
        spec["subagentPolicy"] = json!({ "maxDepth": 2, "maxConcurrent": 3 });
    }
    // Now and then it is not opened, or not all of it.
    if wanted.node && !dice.one_in(8) {
        spec["sandboxPolicy"]["allowHostMounts"] = json!(true);
        spec["hostAccessPolicy"] = json!({
            "hostNetwork": !dice.one_in(12), "hostPID": true, "privileged": true, "runAsRoot": true,
            "allowedHostPaths": [
                { "pathPrefix": "/srv", "readOnly": false }, { "pathPrefix": "/var/log" },
            ],
        });
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

    fn value(&mut self, choices: &[Value]) -> Value {
        choices[self.below(choices.len())].clone()
    }

    fn of<'t>(&mut self, choices: &[&'t str]) -> &'t str {
        choices[self.below(choices.len())]
    }
}
