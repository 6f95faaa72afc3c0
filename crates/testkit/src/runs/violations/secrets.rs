//! Secrets that are the bridge's, and objects that are made for runs.

use serde_json::{Value, json};

use super::super::objects::{Objects, push};
use super::Violation;

/// A name as objects have it that are made for a run.
const OF_A_RUN: &str = "sympozium-0123456789abcdef0123456789abcdef";

pub const VIOLATIONS: &[Violation] = &[
    Violation::new("secret-of-model", "the key as files of a pack", |objects| {
        let key = key(objects)?;
        objects.sidecar()?["secretRef"] = key;
        Some(())
    }),
    Violation::new("secret-of-model", "the headers as files of a pack", |objects| {
        let headers = objects.run().pointer("/model/providerHeadersSecretRef")?.clone();
        objects.sidecar()?["secretRef"] = headers;
        Some(())
    }),
    Violation::new("secret-of-model", "the key as a variable of a pack", |objects| {
        let key = key(objects)?;
        push(objects.sidecar()?, "env", variable(&key));
        Some(())
    }),
    Violation::new("secret-of-model", "the key as a variable of a hook", |objects| {
        let key = key(objects)?;
        push(objects.hook()?, "env", variable(&key));
        Some(())
    }),
    Violation::new("secret-of-model", "the key as a volume of a pack", |objects| {
        let key = key(objects)?;
        mount(objects.sidecar()?, json!({ "secret": { "secretName": key } }));
        Some(())
    }),
    Violation::new("secret-of-model", "the key among the sources of a volume", |objects| {
        let key = key(objects)?;
        let sources = json!([{ "secret": { "name": key } }]);
        mount(objects.sidecar()?, json!({ "projected": { "sources": sources } }));
        Some(())
    }),
    Violation::new("name-of-a-run", "a run's Secret as files of a pack", |objects| {
        objects.sidecar()?["secretRef"] = json!(OF_A_RUN);
        Some(())
    }),
    Violation::new("name-of-a-run", "a run's Secret as a variable of a pack", |objects| {
        push(objects.sidecar()?, "env", variable(&json!(OF_A_RUN)));
        Some(())
    }),
    Violation::new("name-of-a-run", "a run's Secret as a volume of a pack", |objects| {
        mount(objects.sidecar()?, json!({ "secret": { "secretName": OF_A_RUN } }));
        Some(())
    }),
    Violation::new("name-of-a-run", "a run's claim as a volume of a pack", |objects| {
        let claim = json!({ "persistentVolumeClaim": { "claimName": OF_A_RUN } });
        mount(objects.sidecar()?, claim);
        Some(())
    }),
    Violation::new("name-of-a-run", "a run's ConfigMap as a volume of the agent", |objects| {
        mount(objects.run(), json!({ "configMap": { "name": OF_A_RUN } }));
        Some(())
    }),
    Violation::new("name-of-a-run", "a run's Secret as a variable of a hook", |objects| {
        push(objects.hook()?, "env", variable(&json!(OF_A_RUN)));
        Some(())
    }),
    Violation::new("name-of-a-run", "a run's Secret as the model's key", |objects| {
        key(objects)?;
        objects.run()["model"]["authSecretRef"] = json!(OF_A_RUN);
        Some(())
    }),
    Violation::new("name-of-a-run", "a run's Secret as the model's headers", |objects| {
        objects.run()["model"]["providerHeadersSecretRef"] = json!(OF_A_RUN);
        Some(())
    }),
    Violation::new("name-of-a-run", "a run's ConfigMap as the model's script", |objects| {
        objects.run()["model"] = json!({ "provider": "scripted", "model": OF_A_RUN });
        Some(())
    }),
    Violation::new("name-of-a-run", "a run's ConfigMap as a skill", |objects| {
        push(objects.run(), "skills", json!({ "configMapRef": OF_A_RUN }));
        Some(())
    }),
    Violation::new("name-of-a-run", "a run's Secret to pull with", |objects| {
        push(objects.run(), "imagePullSecrets", json!({ "name": OF_A_RUN }));
        Some(())
    }),
];

fn key(objects: &mut Objects<'_>) -> Option<Value> {
    objects.run().pointer("/model/authSecretRef").cloned()
}

fn variable(secret: &Value) -> Value {
    json!({ "name": "STOLEN", "valueFrom": { "secretKeyRef": { "name": secret, "key": "API_KEY" } } })
}

fn mount(owner: &mut Value, mut volume: Value) {
    volume["name"] = json!("stolen");
    push(owner, "volumes", volume);
    push(owner, "volumeMounts", json!({ "name": "stolen", "mountPath": "/stolen", "readOnly": true }));
}
