//! Hooks: containers that run before and after the agent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::DurationText;
use crate::environment::EnvVar;
use crate::limits;
use crate::names::{EnvName, ImageRef, LabelName};
use crate::rbac::RbacRule;
use crate::sandbox::ImagePullPolicy;
use crate::schema;

/// Hooks of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct LifecycleHooks {
    /// Containers that run, one after the other, before the agent starts. When one fails the run fails.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::HOOKS))]
    pub pre_run: Vec<LifecycleHook>,
    /// Containers that run, one after the other, after the agent has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::HOOKS))]
    pub post_run: Vec<LifecycleHook>,
    /// Access to the Kubernetes API that the hooks need, in the run's namespace, while they run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::RBAC_RULES))]
    pub rbac: Vec<RbacRule>,
    /// What becomes of the answer when the gate gives no verdict, because it took too long, could not be started or was lost:
    /// `block` or `allow`. A gate that ends with another exit code than 0 has given one: no.
    #[serde(default)]
    pub gate_default: GateDefault,
}

/// What becomes of an answer that no gate decided about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(transform = schema::drop_description)]
pub enum GateDefault {
    /// The result is released.
    Allow,
    /// The result is withheld.
    #[default]
    Block,
}

impl GateDefault {
    /// Whether a result without a verdict is blocked.
    pub const fn is_block(&self) -> bool {
        matches!(self, Self::Block)
    }
}

/// One hook.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct LifecycleHook {
    /// Its name, for logs and messages.
    pub name: LabelName,
    /// Its image.
    pub image: ImageRef,
    /// When the image is pulled: `Always`, `IfNotPresent` or `Never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// What it runs; the image's entrypoint when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::ARGUMENTS), inner(length(max = limits::ARGUMENT)))]
    pub command: Vec<String>,
    /// Arguments to that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::ARGUMENTS), inner(length(max = limits::ARGUMENT)))]
    pub args: Vec<String>,
    /// Its environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::ENVIRONMENT))]
    pub env: Vec<EnvVar>,
    /// Names of variables that it takes from the run's `env`. Of variables that are not listed here it sees none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::ENVIRONMENT), transform = schema::list_set)]
    pub env_from_run: Vec<EnvName>,
    /// How long it may take, such as `5m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<DurationText>,
    /// Whether it decides if the result is released. For hooks after the run only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<bool>,
}
