//! Secrets: by name, which parts read them, and how.

use std::collections::BTreeMap;

use serde::Serialize;
use sympozium_api::run_plan::{RunPlan, VolumeSource};

use super::files::secret_names;
use super::overview::bridge_name;

/// One Secret of the run's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretInfo {
    /// The name of the Secret.
    pub secret: String,
    /// The parts that read it, and how.
    pub seen: Vec<SecretUse>,
}

/// One use of a Secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretUse {
    /// The part that reads it; absent for the kubelet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// How it is read, in words.
    pub how: String,
}

pub fn all(plan: &RunPlan) -> Vec<SecretInfo> {
    let mut found: BTreeMap<String, Vec<SecretUse>> = BTreeMap::new();
    let mut add = |secret: &str, part: Option<&str>, how: String| {
        let seen = found.entry(secret.to_owned()).or_default();
        let one = SecretUse { part: part.map(str::to_owned), how };
        if !seen.contains(&one) {
            seen.push(one);
        }
    };
    let bridge = bridge_name(plan);
    for part in &plan.parts {
        let name = Some(part.name.0.as_str());
        for variable in &part.env {
            let from = variable.value_from.as_ref();
            if let Some(key) = from.and_then(|from| from.secret_key_ref.as_ref()) {
                let how = describe_variable(&key.key, variable.name.as_str());
                add(key.name.as_str(), name, how);
            }
        }
        for mount in &part.mounts {
            let source = plan.volume(&mount.volume).map(|volume| &volume.source);
            let secrets = match source {
                Some(VolumeSource::Secret { secret }) => vec![secret.to_string()],
                Some(VolumeSource::Declared { volume }) => secret_names(volume),
                _ => Vec::new(),
            };
            for secret in secrets {
                add(&secret, name, format!("files below {}", mount.path));
            }
        }
    }
    for key in &plan.model.keys {
        let variable = key.variable.as_str();
        let how = describe_variable(variable, variable);
        add(key.secret.as_str(), Some(&bridge), how);
    }
    if let Some(secret) = &plan.model.headers_secret {
        let mounted = found.get(secret.as_str());
        let is_known =
            mounted.is_some_and(|seen| seen.iter().any(|secret_use| secret_use.part.as_deref() == Some(&bridge)));
        if !is_known {
            let how = "headers of requests to the model".to_owned();
            let seen = found.entry(secret.to_string()).or_default();
            seen.push(SecretUse { part: Some(bridge.clone()), how });
        }
    }
    for reference in &plan.placement.image_pull_secrets {
        let seen = found.entry(reference.name.to_string()).or_default();
        seen.push(SecretUse { part: None, how: "the kubelet pulls images with it; no part sees it".to_owned() });
    }
    let found = found.into_iter();
    found.map(|(secret, seen)| SecretInfo { secret, seen }).collect()
}

fn describe_variable(key: &str, variable: &str) -> String {
    if key == variable { format!("variable {variable}") } else { format!("variable {variable} (key {key})") }
}
