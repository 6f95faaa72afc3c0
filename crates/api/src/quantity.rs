//! Quantities as Kubernetes writes them: `200m`, `256Mi`, `2`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::names::LabelName;
use crate::schema;

/// A quantity of CPU, memory or another resource, as a text or a whole number, stored as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Quantity {
    /// `2`
    Number(i64),
    /// `"200m"`
    Text(String),
}

impl Quantity {
    /// Maximum number of characters.
    pub const MAX_CHARS: usize = 32;
    /// The syntax of a text, as a regular expression for the schema. There is no sign: no quantity of ours can be
    /// negative.
    pub const PATTERN: &'static str = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?$";

    /// The quantity as a text.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Number(number) => number.to_string().into(),
            Self::Text(text) => text.into(),
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text())
    }
}

impl From<&str> for Quantity {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 0,
            "maxLength": Self::MAX_CHARS,
            "pattern": Self::PATTERN,
        })
    }
}

/// What a container asks for and may not exceed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct Resources {
    /// What is set aside, by resource: `cpu`, `memory` and others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = schema::MaxEntries(limits::ENTRIES))]
    pub requests: BTreeMap<String, Quantity>,
    /// What must not be exceeded, by resource.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = schema::MaxEntries(limits::ENTRIES))]
    pub limits: BTreeMap<String, Quantity>,
    /// Claims of the pod on devices that the container uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::VOLUMES))]
    pub claims: Vec<ResourceClaim>,
}

/// A claim of the pod on a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct ResourceClaim {
    /// The claim's name in the pod.
    pub name: LabelName,
    /// The part of the claim that the container uses; all of it when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::WORD))]
    pub request: Option<String>,
}
