//! Runs made from a number, with their agent, packs and policies: as varied as manifests can be, and most of them admitted.

mod objects;
mod policies;
mod variants;
mod violations;

use serde_json::{Value, json};

use policies::{floor, policy};
pub use violations::{Violation, violations};

/// The namespace of what is made.
pub const NAMESPACE: &str = "team";
/// The namespace of some of the packs, and of the floor.
pub const SYSTEM_NAMESPACE: &str = "sympozium-system";

/// Names from which it is hard to derive others: equal after truncating or after replacing dots, and the longest.
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
    /// Its network or its processes, which everything in a pod shares.
    node_namespaces: bool,
    /// A `Model` of the cluster.
    model: bool,
    /// A model at an address that is no provider's own.
    address: bool,
    /// Every sidecar has our executor, so that the policy can demand guarantees.
    attested: bool,
    /// A kernel of its own.
    kernel: bool,
}

/// The address of a model that is no provider's own.
const OWN_MODEL: (&str, u16) = ("llm.example.com", 8443);
/// Where the status of a `Model` may say that it is.
const OTHER_SERVICE: (&str, u16) = ("elsewhere.team.svc", 9000);
/// The `Model` of a run that names one.
const SERVED_MODEL: &str = "served";

/// A pack, with the namespace that it is in.
struct Pack {
    namespace: &'static str,
    name: String,
    spec: Value,
}

impl Pack {
    /// As a policy names it that gives it something: not always so that the pack is meant.
    fn reference(&self, dice: &mut Dice) -> String {
        let is_short = match self.namespace {
            SYSTEM_NAMESPACE => dice.one_in(2),
            _ => dice.one_in(12),
        };
        if is_short { self.name.clone() } else { format!("{}/{}", self.namespace, self.name) }
    }
}

/// What the seed of a run's rarer properties differs by from that of the others, so that neither moves the other.
const RARE: u64 = 0x7261_7265;

/// The objects of a run: the `AgentRun` first, then its agent, packs, policy and floor. Most of them are admitted; now and then
/// something in them violates a rule.
pub fn generated(seed: u64) -> Vec<Value> {
    let objects = keeping_rules(seed);
    let mut dice = Dice(seed ^ RARE.rotate_left(32));
    if !dice.one_in(12) {
        return objects;
    }
    let all: Vec<&Violation> = violations().collect();
    let violation = all[dice.below(all.len())];
    violation.apply(objects.clone()).unwrap_or(objects)
}

/// The same without a violation that was put there on purpose.
pub fn keeping_rules(seed: u64) -> Vec<Value> {
    let mut objects = usual(seed);
    variants::vary(&mut objects, &mut Dice(seed ^ RARE));
    objects
}

/// Objects whose policies have little to say about rights, and whose floor about nothing but rights and the node.
fn usual(seed: u64) -> Vec<Value> {
    let mut dice = Dice(seed);
    let mut names = hostile_names();
    let mut wanted = Wanted { attested: dice.one_in(4), ..Wanted::default() };
    let mut packs = Vec::new();
    for _ in 0..dice.below(5) {
        let name = names.swap_remove(dice.below(names.len()));
        packs.push(Pack {
            namespace: dice.of(&[NAMESPACE, NAMESPACE, SYSTEM_NAMESPACE]),
            spec: pack(&mut dice, &name, &mut wanted),
            name,
        });
    }
    let run_name = names.swap_remove(dice.below(names.len()));
    let agent_kind = dice.of(&["Agent", "SympoziumInstance"]);
    let mut run = run(&mut dice, &run_name, seed, &packs, &mut wanted);
    let mut agent = object(
        agent_kind,
        "the.agent",
        json!({
            "agents": { "default": { "model": "gpt-4o-mini", "subagents": { "maxDepth": dice.below(4) } } },
            "policyRef": "p",
        }),
    );
    // Hooks are the run's own, or its agent's.
    if !run["spec"]["lifecycle"].is_null() && dice.one_in(2) {
        agent["spec"]["agents"]["default"]["lifecycle"] = run["spec"]["lifecycle"].take();
        if let Some(spec) = run["spec"].as_object_mut() {
            spec.remove("lifecycle");
        }
    }
    if dice.one_in(4) {
        agent["spec"]["agents"]["default"]["env"] = json!({ "MODE": "other", "LEVEL": "2" });
    }
    let mut objects = vec![run, agent];
    for pack in &packs {
        let mut object = object("SkillPack", &pack.name, pack.spec.clone());
        object["metadata"]["namespace"] = json!(pack.namespace);
        objects.push(object);
    }
    let model = &objects[0]["spec"]["model"]["modelRef"];
    if model == SERVED_MODEL {
        let mut model = object("Model", SERVED_MODEL, json!({ "source": { "url": "https://example.org/m.gguf" } }));
        wanted.model = true;
        if dice.one_in(2) {
            model["status"] = json!({ "endpoint": format!("http://{}:{}/v1", OTHER_SERVICE.0, OTHER_SERVICE.1) });
            wanted.address = true;
        }
        objects.push(model);
    }
    let policy = policy(&mut dice, &packs, &wanted);
    objects.push(object("SympoziumPolicy", "p", policy));
    objects.push(floor(&mut dice, &wanted));
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

fn run(dice: &mut Dice, name: &str, seed: u64, packs: &[Pack], wanted: &mut Wanted) -> Value {
    let mut skills: Vec<Value> =
        packs.iter().map(|pack| json!({ "skillPackRef": pack.name, "params": { "region": "here" } })).collect();
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
    // What shares the node's namespaces with a pack must be one that may have them; now and then it is not.
    let may_share = !wanted.node_namespaces || dice.one_in(8);
    if dice.one_in(3) && may_share {
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
        if may_share {
            spec["lifecycle"] = json!({ "preRun": [hook("first"), hook("second")] });
            spec["lifecycle"]["preRun"][0]["env"] = json!([{ "name": "STRICT", "value": "1" }]);
            spec["lifecycle"]["preRun"][0]["envFromRun"] = json!(["MODE", "ABSENT"]);
        }
        if !may_share || dice.one_in(2) {
            spec["lifecycle"]["postRun"] = json!([hook("first")]);
            spec["lifecycle"]["postRun"][0]["envFromRun"] = json!(["LEVEL", "MODE"]);
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
            "enabled": true, "hostNetwork": dice.one_in(3), "hostPID": dice.one_in(3),
            "privileged": dice.one_in(2), "runAsRoot": dice.one_in(2),
            "mounts": [
                { "hostPath": "/var/log", "mountPath": "/host/log" },
                { "hostPath": "/srv/out", "mountPath": "/host/out", "readOnly": false },
            ],
        });
        wanted.node = true;
        let access = &sidecar["hostAccess"];
        wanted.node_namespaces |= access["hostNetwork"] == true || access["hostPID"] == true;
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
