//! Kubernetes types inside of our objects. They are open in the schemas, so that the schemas stay small and follow the
//! cluster's version. What we must read has a field; the rest is stored as it was written.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::names::{LabelName, MountPath, ObjectName};
use crate::schema;

/// Any object: a toleration, an affinity, the JSON Schema of a tool's arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpenObject(pub BTreeMap<String, Value>);

impl JsonSchema for OpenObject {
    fn schema_name() -> Cow<'static, str> {
        "OpenObject".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
    }
}

/// A volume of a pod: a name, and one key with its type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// The name that mounts refer to.
    pub name: LabelName,
    /// The source: `persistentVolumeClaim`, `emptyDir`, `configMap` and so on, each with its settings. Kubernetes takes
    /// a volume without a source for an `emptyDir`.
    #[serde(flatten)]
    pub source: BTreeMap<String, Value>,
}

/// A Secret in a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSecret<'v> {
    /// The name of the Secret; `None` where it is not a text.
    pub name: Option<&'v str>,
    /// The field with the name, relative to the volume.
    pub field: String,
}

impl Volume {
    /// Every Secret in the volume, itself or projected. One without a valid name is included, so that no caller
    /// overlooks it.
    pub fn secrets(&self) -> Vec<VolumeSecret<'_>> {
        let whole = self.source.get("secret").map(|source| VolumeSecret {
            name: source.get("secretName").and_then(Value::as_str),
            field: "secret.secretName".to_owned(),
        });
        let projected = self.projected_sources().filter_map(|(index, source)| {
            let secret = source.get("secret")?;
            Some(VolumeSecret {
                name: secret.get("name").and_then(Value::as_str),
                field: format!("projected.sources[{index}].secret.name"),
            })
        });
        whole.into_iter().chain(projected).collect()
    }

    /// Whether the volume contains a Secret or a token of a ServiceAccount.
    pub fn holds_credential(&self) -> bool {
        let token = |(_, source): (usize, &Value)| source.get("serviceAccountToken").is_some();
        !self.secrets().is_empty() || self.projected_sources().any(token)
    }

    fn projected_sources(&self) -> impl Iterator<Item = (usize, &Value)> {
        let projected = self.source.get("projected");
        let sources = projected.and_then(|projected| projected.get("sources")?.as_array());
        sources.into_iter().flatten().enumerate()
    }
}

impl JsonSchema for Volume {
    fn schema_name() -> Cow<'static, str> {
        "Volume".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "required": ["name"],
            "properties": { "name": LabelName::json_schema(generator) },
            "x-kubernetes-preserve-unknown-fields": true,
        })
    }
}

/// Where a container sees a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct VolumeMount {
    /// The volume's name.
    pub name: LabelName,
    /// Where the container sees it.
    pub mount_path: MountPath,
    /// Whether the container may not write to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Whether mounts below it are read-only too: `Disabled`, `IfPossible` or `Enabled`. The last two need `readOnly`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub recursive_read_only: Option<String>,
    /// The part of the volume that is mounted, instead of all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub sub_path: Option<String>,
    /// The same, with environment variables as `$(NAME)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub sub_path_expr: Option<String>,
    /// How mounts spread between host and container: `None`, `HostToContainer` or `Bidirectional`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub mount_propagation: Option<String>,
}

/// Names an object in the same namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct LocalReference {
    /// The object's name.
    pub name: ObjectName,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_found_wherever_a_volume_shows_them() -> Result<(), serde_json::Error> {
        let found = |source: Value| -> Result<_, serde_json::Error> {
            let volume: Volume = serde_json::from_value(source)?;
            let secrets = volume.secrets();
            let secrets = secrets.iter().map(|secret| format!("{} {}", secret.field, secret.name.unwrap_or("?")));
            Ok((secrets.collect::<Vec<_>>(), volume.holds_credential()))
        };
        let none: Vec<String> = Vec::new();
        for (source, secrets, holds) in [
            (json!({ "name": "v" }), none.clone(), false),
            (json!({ "name": "v", "emptyDir": {} }), none.clone(), false),
            (json!({ "name": "v", "secret": { "secretName": "a" } }), vec!["secret.secretName a".to_owned()], true),
            (json!({ "name": "v", "secret": 1 }), vec!["secret.secretName ?".to_owned()], true),
            (
                json!({ "name": "v", "projected": { "sources": [
                    { "configMap": { "name": "c" } }, { "secret": { "name": "b" } }, { "secret": {} },
                ] } }),
                vec!["projected.sources[1].secret.name b".to_owned(), "projected.sources[2].secret.name ?".to_owned()],
                true,
            ),
            (
                json!({ "name": "v", "projected": { "sources": [{ "serviceAccountToken": { "path": "t" } }] } }),
                none.clone(),
                true,
            ),
            (json!({ "name": "v", "projected": { "sources": "x" } }), none.clone(), false),
        ] {
            assert_eq!(found(source)?, (secrets, holds));
        }
        Ok(())
    }
}
