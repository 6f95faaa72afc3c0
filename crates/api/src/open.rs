//! Parts of Kubernetes that our objects contain: kept open in the schemas, so that these stay small and follow the
//! cluster's version. What we must look at has a field; the rest is kept as it was written.

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

/// A volume of a pod: a name, and one key that says what it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// What mounts call it.
    pub name: LabelName,
    /// What it is: `persistentVolumeClaim`, `emptyDir`, `configMap` and so on, each with its settings. A volume without
    /// any is an `emptyDir` to Kubernetes.
    #[serde(flatten)]
    pub source: BTreeMap<String, Value>,
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
#[schemars(transform = schema::nested)]
pub struct VolumeMount {
    /// The volume's name.
    pub name: LabelName,
    /// Where the container sees it.
    pub mount_path: MountPath,
    /// Whether the container may not write to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Whether mounts below it are read-only too: `Disabled`, `IfPossible` or `Enabled`.
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
#[schemars(transform = schema::nested)]
pub struct LocalReference {
    /// The object's name.
    pub name: ObjectName,
}
