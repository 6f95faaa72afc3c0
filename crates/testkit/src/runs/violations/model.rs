//! The model with its address, and hosts.

use serde_json::{Value, json};

use super::super::objects::{Objects, push, remove};
use super::Violation;

pub const VIOLATIONS: &[Violation] = &[
    Violation::new("model-not-allowed", "a model that the policy does not list", |objects| {
        objects.run()["model"]["model"] = json!("expensive");
        objects.policy()["modelPolicy"]["allowedModels"] = json!(["m", "served"]);
        Some(())
    }),
    Violation::new("model-not-allowed", "a model that the floor does not list", |objects| {
        objects.run()["model"]["model"] = json!("expensive");
        remove(&mut objects.policy()["modelPolicy"], &["allowedModels"]);
        clear_if_empty(objects.policy(), "modelPolicy");
        objects.floor()["modelPolicy"]["allowedModels"] = json!(["m", "served"]);
        Some(())
    }),
    Violation::new("model-namespace", "a Model of a namespace that the policy does not list", |objects| {
        objects.run().pointer("/model/modelRef")?;
        objects.policy()["modelPolicy"]["allowedNamespaces"] = json!(["other"]);
        Some(())
    }),
    Violation::new("model-namespace", "a Model of a namespace that the floor does not list", |objects| {
        objects.run().pointer("/model/modelRef")?;
        objects.floor()["modelPolicy"]["allowedNamespaces"] = json!(["other"]);
        Some(())
    }),
    Violation::new("model-ref-missing", "a Model that does not exist", |objects| {
        let mut others = objects.0.iter();
        if others.any(|it| it["kind"] == "Model") {
            return None;
        }
        objects.run()["model"]["modelRef"] = json!("absent");
        Some(())
    }),
    Violation::new("model-endpoint", "an address that no policy lists", |objects| {
        objects.run()["model"] = at("https://evil.example.net/v1");
        Some(())
    }),
    Violation::new("model-endpoint", "an address that the floor does not list", |objects| {
        close_floor(objects);
        objects.open_host("evil.example.net", 443);
        objects.floor()["networkPolicy"]["allowedEgress"] = json!([]);
        objects.run()["model"] = at("https://evil.example.net/v1");
        Some(())
    }),
    Violation::new("model-url", "an address that is none", |objects| {
        objects.run()["model"] = at("ftp://llm.example.com/v1");
        Some(())
    }),
    Violation::new("model-url-missing", "a provider without an address", |objects| {
        objects.run()["model"] = json!({ "provider": "vllm", "model": "m" });
        Some(())
    }),
    Violation::new("model-url-link-local", "the address of a metadata service", |objects| {
        objects.open_host("169.254.169.254", 443);
        objects.run()["model"] = at("https://169.254.169.254/v1");
        Some(())
    }),
    Violation::new("model-url-link-local", "the name of a metadata service", |objects| {
        objects.open_host("metadata.google.internal", 443);
        objects.run()["model"] = at("https://metadata.google.internal/v1");
        Some(())
    }),
    Violation::new("model-url-plain", "a key in plain", |objects| {
        objects.open_host("llm.example.net", 8080);
        objects.run()["model"] = at("http://llm.example.net:8080/v1");
        Some(())
    }),
    Violation::new("model-service-plain", "a key for a Service that no policy opens", |objects| {
        objects.run()["model"] = json!({ "provider": "ollama", "model": "m", "authSecretRef": "provider-key" });
        Some(())
    }),
    Violation::new("model-header", "the header with the host", |objects| {
        objects.run()["model"]["providerHeaders"]["Host"] = json!("evil.example.net");
        Some(())
    }),
    Violation::new("egress-not-allowed", "a host that no policy lists", |objects| {
        push(objects.sidecar()?, "egress", json!({ "host": "vault.other.svc", "port": 8200 }));
        Some(())
    }),
    Violation::new("egress-not-allowed", "a host that the floor does not list", |objects| {
        close_floor(objects);
        objects.open_host("evil.example.net", 443);
        objects.floor()["networkPolicy"]["allowedEgress"] = json!([]);
        push(objects.sidecar()?, "egress", json!({ "host": "evil.example.net" }));
        Some(())
    }),
];

fn at(url: &str) -> Value {
    json!({ "provider": "openai", "model": "m", "authSecretRef": "provider-key", "baseURL": url })
}

/// Lets nothing be reached, and no pack ask for it.
fn close_floor(objects: &mut Objects<'_>) {
    objects.floor()["networkPolicy"] = json!({ "denyAll": true, "allowedEgress": [] });
    for sidecar in objects.sidecars() {
        remove(sidecar, &["egress"]);
    }
}

fn clear_if_empty(object: &mut Value, field: &str) {
    if object[field].as_object().is_none_or(serde_json::Map::is_empty) {
        remove(object, &[field]);
    }
}
