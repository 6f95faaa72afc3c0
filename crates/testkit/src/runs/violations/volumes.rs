//! Volumes and where they are mounted.

use serde_json::{Value, json};

use super::super::objects::push;
use super::Violation;

pub const VIOLATIONS: &[Violation] = &[
    Violation::new("volume-secret", "a Secret for the agent", |objects| {
        add(objects.run(), json!({ "secret": { "secretName": "stolen" } }));
        Some(())
    }),
    Violation::new("volume-secret", "a projected Secret for the agent", |objects| {
        let sources = json!([{ "secret": { "name": "stolen" } }]);
        add(objects.run(), json!({ "projected": { "sources": sources } }));
        Some(())
    }),
    Violation::new("volume-host-path", "a directory of the node for the agent", |objects| {
        add(objects.run(), json!({ "hostPath": { "path": "/var/log" } }));
        Some(())
    }),
    Violation::new("volume-token", "a token by a volume", |objects| {
        let sources = json!([{ "serviceAccountToken": { "path": "token" } }]);
        add(objects.sidecar()?, json!({ "projected": { "sources": sources } }));
        Some(())
    }),
    Violation::new("volume-projected", "a source that is not for runs", |objects| {
        let sources = json!([{ "clusterTrustBundle": { "path": "ca.pem", "name": "x" } }]);
        add(objects.sidecar()?, json!({ "projected": { "sources": sources } }));
        Some(())
    }),
    Violation::new("volume-type", "a directory of another machine", |objects| {
        add(objects.sidecar()?, json!({ "nfs": { "server": "10.0.0.1", "path": "/" } }));
        Some(())
    }),
    Violation::new("volume-two-sources", "a volume that is two", |objects| {
        let both = json!({ "emptyDir": {}, "secret": { "secretName": "stolen" } });
        add(objects.sidecar()?, both);
        Some(())
    }),
    Violation::new("volume-twice", "two volumes of one name", |objects| {
        let sidecar = objects.sidecar()?;
        push(sidecar, "volumes", json!({ "name": "added", "configMap": { "name": "settings" } }));
        add(sidecar, json!({ "emptyDir": {} }));
        Some(())
    }),
    Violation::new("volume-source", "a volume of the cluster by its name", |objects| {
        let claim = json!({ "accessModes": ["ReadWriteOnce"], "volumeName": "pv-of-another" });
        let template = json!({ "volumeClaimTemplate": { "spec": claim } });
        add(objects.sidecar()?, json!({ "ephemeral": template }));
        Some(())
    }),
    Violation::new("volume-source", "a file outside of its volume", |objects| {
        let items = json!([{ "key": "a", "path": "../../etc/passwd" }]);
        add(objects.sidecar()?, json!({ "configMap": { "name": "settings", "items": items } }));
        Some(())
    }),
    Violation::new("mount-path", "a place of ours in a pack", |objects| {
        at(objects.sidecar()?, "/ipc/requests");
        Some(())
    }),
    Violation::new("mount-path", "a place of the agent's programs", |objects| {
        at(objects.run(), "/etc/ssl");
        Some(())
    }),
    Violation::new("mount-path", "a place by way of another", |objects| {
        at(objects.sidecar()?, "/data/../proc");
        Some(())
    }),
    Violation::new("mount-path", "a Secret in a place of the kernel's", |objects| {
        let sidecar = objects.sidecar()?;
        sidecar["secretRef"] = json!("secret-0");
        sidecar["secretMountPath"] = json!("/proc/keys");
        Some(())
    }),
    Violation::new("mount-overlap", "one volume in another", |objects| {
        let sidecar = objects.sidecar()?;
        at(sidecar, "/added");
        push(sidecar, "volumeMounts", json!({ "name": "added", "mountPath": "/added/deeper" }));
        Some(())
    }),
    Violation::new("mount-sub-path", "a path out of the volume", |objects| {
        let sidecar = objects.sidecar()?;
        push(sidecar, "volumes", json!({ "name": "added", "emptyDir": {} }));
        let mount = json!({ "name": "added", "mountPath": "/added", "subPath": "../other" });
        push(sidecar, "volumeMounts", mount);
        Some(())
    }),
    Violation::new("mount-sub-path-expr", "a path by a variable", |objects| {
        let sidecar = objects.sidecar()?;
        push(sidecar, "volumes", json!({ "name": "added", "emptyDir": {} }));
        let mount = json!({ "name": "added", "mountPath": "/added", "subPathExpr": "$(A)" });
        push(sidecar, "volumeMounts", mount);
        Some(())
    }),
];

fn add(owner: &mut Value, mut volume: Value) {
    volume["name"] = json!("added");
    push(owner, "volumes", volume);
    push(owner, "volumeMounts", json!({ "name": "added", "mountPath": "/added", "readOnly": true }));
}

fn at(owner: &mut Value, path: &str) {
    push(owner, "volumes", json!({ "name": "added", "emptyDir": {} }));
    push(owner, "volumeMounts", json!({ "name": "added", "mountPath": path }));
}
