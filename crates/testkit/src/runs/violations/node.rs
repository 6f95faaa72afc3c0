//! Access to the node.

use serde_json::{Value, json};

use super::super::NAMESPACE;
use super::super::objects::{Objects, push, remove};
use super::Violation;

pub const VIOLATIONS: &[Violation] = &[
    Violation::new("host-access", "the node, which the policy gives to another pack", |objects| {
        objects.open_node()?;
        objects.policy()["hostAccessPolicy"]["packs"] = json!(["other"]);
        Some(())
    }),
    Violation::new("host-access", "the node, which the floor gives to another pack", |objects| {
        objects.open_node()?;
        objects.floor()["hostAccessPolicy"]["packs"] = json!(["other"]);
        Some(())
    }),
    Violation::new("host-access-namespace", "the node for a pack of the namespace", |objects| {
        objects.open_node()?;
        for sidecar in objects.sidecars() {
            remove(sidecar, &["hostAccess"]);
        }
        objects.sidecar_in(NAMESPACE)?["hostAccess"] = json!({ "enabled": true, "runAsRoot": true });
        remove(&mut objects.floor()["hostAccessPolicy"], &["namespaces"]);
        Some(())
    }),
    Violation::new("host-power", "the node's network", |objects| power(objects, "hostNetwork")),
    Violation::new("host-power", "the node's processes", |objects| power(objects, "hostPID")),
    Violation::new("host-power", "every power", |objects| power(objects, "privileged")),
    Violation::new("host-power", "root, which the floor does not give", |objects| {
        objects.open_node()?;
        objects.sidecar()?["hostAccess"]["runAsRoot"] = json!(true);
        objects.floor()["hostAccessPolicy"]["runAsRoot"] = json!(false);
        Some(())
    }),
    Violation::new("host-path", "a directory that no policy lists", |objects| {
        directory(objects, json!({ "hostPath": "/etc", "mountPath": "/host/etc" }))
    }),
    Violation::new("host-path", "writing to a directory that may be read", |objects| {
        directory(objects, json!({ "hostPath": "/var/log/x", "mountPath": "/host/x", "readOnly": false }))
    }),
    Violation::new("host-path", "a directory where the policy mounts none", |objects| {
        objects.open_node()?;
        objects.policy()["sandboxPolicy"]["allowHostMounts"] = json!(false);
        Some(())
    }),
    Violation::new("host-path", "a directory as a volume", |objects| {
        objects.open_node()?;
        let sidecar = objects.sidecar()?;
        push(sidecar, "volumes", json!({ "name": "node-etc", "hostPath": { "path": "/etc" } }));
        let mount = json!({ "name": "node-etc", "mountPath": "/host/etc", "readOnly": true });
        push(sidecar, "volumeMounts", mount);
        Some(())
    }),
    Violation::new("host-path-form", "a directory by way of another", |objects| {
        directory(objects, json!({ "hostPath": "/var/log/../../etc", "mountPath": "/host/etc" }))
    }),
    Violation::new("host-namespace-shared", "the node's network for a sandbox", |objects| {
        open_namespaces(objects)?;
        remove(objects.hooks().unwrap_or(&mut json!({})), &["preRun"]);
        objects.clear_sandboxes();
        objects.run()["sandbox"] = json!({ "enabled": true });
        Some(())
    }),
    Violation::new("host-namespace-shared", "the node's network for a hook", |objects| {
        objects.hooks()?.get("preRun")?;
        open_namespaces(objects)?;
        objects.clear_sandboxes();
        Some(())
    }),
    Violation::new("host-namespace-shared", "the node's network for another pack", |objects| {
        if let Some(hooks) = objects.hooks() {
            remove(hooks, &["preRun"]);
        }
        objects.clear_sandboxes();
        open_namespaces(objects)?;
        let names: Vec<String> = objects.packs().map(|it| qualified(it)).collect();
        for sidecar in objects.sidecars().skip(1) {
            remove(sidecar, &["hostAccess"]);
        }
        objects.policy()["hostAccessPolicy"]["packs"] = json!([names[0]]);
        (names.len() > 1).then_some(())
    }),
];

fn qualified(pack: &Value) -> String {
    let text = |field: &str| pack["metadata"][field].as_str().unwrap_or_default();
    format!("{}/{}", text("namespace"), text("name"))
}

/// Asks for a power that the policy does not give.
fn power(objects: &mut Objects<'_>, power: &str) -> Option<()> {
    if let Some(hooks) = objects.hooks() {
        remove(hooks, &["preRun"]);
    }
    objects.clear_sandboxes();
    objects.open_node()?;
    objects.sidecar()?["hostAccess"][power] = json!(true);
    objects.policy()["hostAccessPolicy"][power] = json!(false);
    Some(())
}

fn directory(objects: &mut Objects<'_>, mount: Value) -> Option<()> {
    objects.open_node()?;
    push(&mut objects.sidecar()?["hostAccess"], "mounts", mount);
    Some(())
}

fn open_namespaces(objects: &mut Objects<'_>) -> Option<()> {
    objects.open_node()?;
    objects.sidecar()?["hostAccess"]["hostNetwork"] = json!(true);
    Some(())
}
