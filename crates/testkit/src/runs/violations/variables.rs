//! Variables.

use serde_json::json;

use super::super::objects::push;
use super::Violation;

pub const VIOLATIONS: &[Violation] = &[
    Violation::new("env-denied", "the libraries of the agent", |objects| {
        objects.run()["env"]["LD_PRELOAD"] = json!("/workspace/x.so");
        Some(())
    }),
    Violation::new("env-denied", "the libraries of the agent, by its defaults", |objects| {
        objects.agent()["agents"]["default"]["env"]["node_options"] = json!("--require x");
        Some(())
    }),
    Violation::new("env-denied", "the programs of a pack", |objects| {
        push(objects.sidecar()?, "env", json!({ "name": "PATH", "value": "/workspace" }));
        Some(())
    }),
    Violation::new("env-denied", "the token of a pack, by a parameter", |objects| {
        let skills = objects.run()["skills"].as_array_mut()?;
        let skill = skills.iter_mut().find(|it| it.get("params").is_some())?;
        skill["params"]["token"] = json!("forged");
        Some(())
    }),
    Violation::new("env-denied", "the start of a hook's shell", |objects| {
        push(objects.hook()?, "env", json!({ "name": "BASH_ENV", "value": "/workspace/x" }));
        Some(())
    }),
    Violation::new("env-name", "a name that is none", |objects| {
        objects.run()["env"]["A=B"] = json!("1");
        Some(())
    }),
    Violation::new("env-twice", "two values under one name", |objects| {
        let sidecar = objects.sidecar()?;
        push(sidecar, "env", json!({ "name": "TWICE", "value": "1" }));
        push(sidecar, "env", json!({ "name": "TWICE", "value": "2" }));
        Some(())
    }),
    Violation::new("env-two-values", "a value and a source", |objects| {
        let from = json!({ "configMapKeyRef": { "name": "settings", "key": "level" } });
        let variable = json!({ "name": "BOTH", "value": "1", "valueFrom": from });
        push(objects.sidecar()?, "env", variable);
        Some(())
    }),
    Violation::new("env-source", "two sources", |objects| {
        let reference = json!({ "name": "settings", "key": "level" });
        let from = json!({ "configMapKeyRef": reference, "secretKeyRef": reference });
        push(objects.sidecar()?, "env", json!({ "name": "BOTH", "valueFrom": from }));
        Some(())
    }),
    Violation::new("env-key", "a key that is none", |objects| {
        let from = json!({ "secretKeyRef": { "name": "token", "key": "../token" } });
        push(objects.sidecar()?, "env", json!({ "name": "KEYED", "valueFrom": from }));
        Some(())
    }),
    Violation::new("env-field", "a field of the pod that is not shown", |objects| {
        let from = json!({ "fieldRef": { "fieldPath": "metadata.annotations" } });
        push(objects.sidecar()?, "env", json!({ "name": "SHOWN", "valueFrom": from }));
        Some(())
    }),
];
