//! Packs, policies, images and tools.

use serde_json::{Value, json};

use super::super::objects::{Objects, remove};
use super::super::{NAMESPACE, SYSTEM_NAMESPACE};
use super::Violation;

/// The registries of the images of generated runs.
const REGISTRIES: [&str; 2] = ["ghcr.io/example", "docker.io/library"];
/// An image whose name begins as those of a registry that is listed do.
const FOREIGN_IMAGE: &str = "ghcr.io/examples/skill:1";

pub const VIOLATIONS: &[Violation] = &[
    Violation::new("policy-missing", "a policy that does not exist", |objects| {
        objects.agent()["policyRef"] = json!("absent");
        Some(())
    }),
    Violation::new("pack-not-allowed", "a pack that the policy does not list", |objects| {
        objects.sidecar()?;
        objects.policy()["packPolicy"]["allowedPacks"] = json!(["other"]);
        Some(())
    }),
    Violation::new("pack-not-allowed", "a pack that the floor does not list", |objects| {
        objects.sidecar()?;
        objects.floor()["packPolicy"]["allowedPacks"] = json!(["other"]);
        Some(())
    }),
    Violation::new("pack-of-system", "a system pack that the policy forbids", |objects| {
        objects.sidecar_in(SYSTEM_NAMESPACE)?;
        objects.policy()["packPolicy"]["allowSystemPacks"] = json!(false);
        Some(())
    }),
    Violation::new("pack-of-system", "a system pack that the floor forbids", |objects| {
        objects.sidecar_in(SYSTEM_NAMESPACE)?;
        objects.floor()["packPolicy"]["allowSystemPacks"] = json!(false);
        Some(())
    }),
    Violation::new("pack-ambiguous", "a pack of two namespaces", |objects| {
        let mut packs = objects.packs();
        let mut twin = packs.find(|it| it["metadata"]["namespace"] == NAMESPACE)?.clone();
        drop(packs);
        twin["metadata"]["namespace"] = json!(SYSTEM_NAMESPACE);
        remove(&mut objects.policy()["packPolicy"], &["allowShadowing"]);
        let policy = objects.policy();
        if !policy["packPolicy"].is_object() {
            remove(policy, &["packPolicy"]);
        }
        objects.0.insert(2, twin);
        Some(())
    }),
    Violation::new("pack-name-reserved", "a pack with the name of the sandbox", |objects| {
        let pack = objects.packs().next()?;
        let name = pack["metadata"]["name"].take();
        pack["metadata"]["name"] = json!("sandbox");
        let skills = objects.run()["skills"].as_array_mut()?;
        let skill = skills.iter_mut().find(|it| it["skillPackRef"] == name)?;
        skill["skillPackRef"] = json!("sandbox");
        Some(())
    }),
    Violation::new("image-invalid", "an image that is none", |objects| {
        objects.sidecar()?["image"] = json!("ghcr.io/example/../evil:1");
        Some(())
    }),
    Violation::new("image-registry", "a pack's image that the policy does not list", |objects| {
        list_registries(objects.policy());
        objects.sidecar()?["image"] = json!(FOREIGN_IMAGE);
        Some(())
    }),
    Violation::new("image-registry", "a pack's image that the floor does not list", |objects| {
        remove(objects.policy(), &["imagePolicy"]);
        list_registries(objects.floor());
        objects.sidecar()?["image"] = json!(FOREIGN_IMAGE);
        Some(())
    }),
    Violation::new("image-registry", "a hook's image that the policy does not list", |objects| {
        list_registries(objects.policy());
        objects.hook()?["image"] = json!(FOREIGN_IMAGE);
        Some(())
    }),
    Violation::new("image-registry", "a sandbox's image that the policy does not list", |objects| {
        list_registries(objects.policy());
        objects.clear_sandboxes();
        objects.run()["sandbox"] = json!({ "enabled": true, "image": FOREIGN_IMAGE });
        Some(())
    }),
    Violation::new("hook-name", "two hooks of one name", |objects| {
        let before = objects.hooks()?.get_mut("preRun")?;
        before.get_mut(1)?["name"] = json!("first");
        Some(())
    }),
    Violation::new("feature-code-execution", "a sandbox where the policy closes commands", |objects| {
        closed_sandbox(objects);
        objects.policy()["featureGates"] = json!({ "code-execution": false });
        Some(())
    }),
    Violation::new("feature-code-execution", "a sandbox where the floor closes commands", |objects| {
        closed_sandbox(objects);
        objects.floor()["featureGates"] = json!({ "code-execution": false });
        Some(())
    }),
    Violation::new("feature-sub-agents", "a run that another started", |objects| {
        objects.agent()["agents"]["default"]["subagents"] = json!({ "maxDepth": 2 });
        objects.run()["parent"] = json!({ "runName": "first", "sessionKey": "s", "spawnDepth": 1 });
        objects.policy()["featureGates"] = json!({ "sub-agents": false });
        Some(())
    }),
    Violation::new("feature-of-pack", "a pack that brings a closed feature", |objects| {
        objects.packs().next()?["spec"]["features"] = json!(["browser-automation"]);
        objects.policy()["featureGates"] = json!({ "browser-automation": false });
        Some(())
    }),
    Violation::new("feature-unknown", "a policy that closes what does not exist", |objects| {
        objects.policy()["featureGates"] = json!({ "network-access": false });
        Some(())
    }),
    Violation::new("tool-built-in", "a tool with the name of one of ours", |objects| {
        objects.sidecar()?["tools"] = tools("read_file");
        Some(())
    }),
    Violation::new("tool-twice", "a tool of two packs", |objects| {
        let mut packs = 0;
        for sidecar in objects.sidecars() {
            sidecar["tools"] = tools("same");
            packs += 1;
        }
        (packs > 1).then_some(())
    }),
];

fn list_registries(policy: &mut Value) {
    policy["imagePolicy"] = json!({ "allowedRegistries": REGISTRIES });
}

fn closed_sandbox(objects: &mut Objects<'_>) {
    objects.clear_sandboxes();
    objects.run()["sandbox"] = json!({ "enabled": true });
}

fn tools(name: &str) -> Value {
    json!([{ "name": name, "description": "Acts.", "exec": ["act"], "parameters": { "type": "object", "properties": {} } }])
}
