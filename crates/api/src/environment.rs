//! Environment variables of a container.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::names::{EnvName, ObjectName};
use crate::quantity::Quantity;
use crate::schema;

/// One variable, with a value or a place where the value is found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description, transform = schema::Rules(&[(
    "!(has(self.value) && has(self.valueFrom))",
    "a variable has `value` or `valueFrom`, not both",
)]))]
pub struct EnvVar {
    /// The variable's name. Some names are refused: `PATH`, `HOME`, `LD_*`, `SYMPOZIUM_*` and others.
    pub name: EnvName,
    /// The variable's value, empty when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::VALUE))]
    pub value: Option<String>,
    /// Where the value is found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<EnvVarSource>,
}

/// Where a value is found; exactly one is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description, transform = schema::Rules(&[(
    "[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef), has(self.resourceFieldRef)].filter(set, set).size() == 1",
    "`valueFrom` needs exactly one of `secretKeyRef`, `configMapKeyRef`, `fieldRef` and `resourceFieldRef`",
)]))]
pub struct EnvVarSource {
    /// A key of a Secret in the run's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyReference>,
    /// A key of a ConfigMap in the run's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyReference>,
    /// A field of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field_ref: Option<FieldReference>,
    /// A request or limit of a container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_field_ref: Option<ResourceFieldReference>,
}

/// One key of a Secret or ConfigMap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct KeyReference {
    /// The object's name.
    pub name: ObjectName,
    /// The key in it.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
    /// Whether the container starts without the variable when object or key is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// A field of the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct FieldReference {
    /// The version that the path is written for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::WORD))]
    pub api_version: Option<String>,
    /// The path, such as `metadata.namespace`.
    #[schemars(length(min = 1, max = limits::SHORT_TEXT))]
    pub field_path: String,
}

/// A request or limit of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct ResourceFieldReference {
    /// The container; the one that has the variable when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::WORD))]
    pub container_name: Option<String>,
    /// Which one, such as `limits.memory`.
    #[schemars(length(min = 1, max = limits::WORD))]
    pub resource: String,
    /// The unit of the value; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divisor: Option<Quantity>,
}
