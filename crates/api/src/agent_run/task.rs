//! The task of a run.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A task: usually a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Task {
    /// The task of the agent, in words.
    Text(String),
    /// A task for a skill, which then leads the agent.
    Structured(StructuredTask),
    /// Neither. The schema cannot exclude it, so admission denies it.
    Other(Value),
}

/// A task for a skill that leads the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StructuredTask {
    /// The mode: `sidecar-driven`.
    pub mode: String,
    /// The tool of the skill that leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The parameters of that tool.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

impl From<&str> for Task {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl JsonSchema for Task {
    fn schema_name() -> Cow<'static, str> {
        "Task".into()
    }

    fn inline_schema() -> bool {
        true
    }

    // A structural schema has no type for "a text or an object".
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
    }
}
