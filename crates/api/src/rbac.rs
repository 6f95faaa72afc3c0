//! RBAC permissions that a skill or a hook requests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::schema;

/// Some verbs on some resources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct RbacRule {
    /// Groups of the resources; the empty text is the core group.
    #[schemars(length(min = 1, max = limits::RBAC_WORDS), inner(length(max = 253)))]
    pub api_groups: Vec<String>,
    /// Resources in the plural, and subresources such as `pods/log`.
    #[schemars(length(min = 1, max = limits::RBAC_WORDS), inner(length(min = 1, max = 253)))]
    pub resources: Vec<String>,
    /// What may be done: `get`, `list`, `watch`, `create` and so on.
    #[schemars(length(min = 1, max = limits::RBAC_WORDS), inner(length(min = 1, max = 64)))]
    pub verbs: Vec<String>,
    /// The objects that this is for, by name; all of them when empty. `create` and `list` cannot be narrowed so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::RBAC_WORDS), inner(length(min = 1, max = 253)))]
    pub resource_names: Vec<String>,
}
