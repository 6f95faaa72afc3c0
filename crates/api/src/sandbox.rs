//! Two settings with similar names: `sandbox`, a container in the run's pod, and `agentSandbox`, a kernel around the
//! pod.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;
use crate::limits;
use crate::names::{ImageRef, ObjectName};
use crate::quantity::Resources;
use crate::schema;

/// When an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::drop_description)]
pub enum ImagePullPolicy {
    /// At every start.
    Always,
    /// When the node does not have it.
    IfNotPresent,
    /// Never: the node must have it.
    Never,
}

/// A container `sandbox` in the run's pod, for commands that name no skill: no secret, no network, the workspace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct Sandbox {
    /// Whether there is one.
    pub enabled: bool,
    /// Its image; the policy's or ours when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageRef>,
    /// When the image is pulled: `Always`, `IfNotPresent` or `Never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Wishes about its confinement. They can tighten what we set, never loosen it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SandboxSecurityContext>,
    /// What it asks for and may not exceed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
}

/// Wishes about the confinement of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct SandboxSecurityContext {
    /// Whether its root file system is read-only. It always is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only_root_filesystem: Option<bool>,
    /// Whether it may not run as root. It never may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_non_root: Option<bool>,
    /// Capabilities to take away. All are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// The seccomp profile of its system calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seccomp_profile: Option<SeccompProfile>,
}

/// Capabilities of the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct Capabilities {
    /// Those to take away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::NAMES), inner(length(max = 64)))]
    pub drop: Vec<String>,
}

/// A filter of system calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description, transform = schema::Rules(&[(
    "has(self.localhostProfile) == (self.type == 'Localhost')",
    "`localhostProfile` goes with `type: Localhost`, and only with it",
)]))]
pub struct SeccompProfile {
    /// Which filter: `RuntimeDefault`, `Localhost` or `Unconfined`. The last is always refused.
    #[serde(rename = "type")]
    pub type_: SeccompProfileType,
    /// The file on the node that has the filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = limits::SHORT_TEXT))]
    pub localhost_profile: Option<String>,
}

/// Which filter of system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::drop_description)]
pub enum SeccompProfileType {
    /// The container runtime's own.
    RuntimeDefault,
    /// A file on the node.
    Localhost,
    /// None.
    Unconfined,
}

/// A run in a Sandbox of agent-sandbox instead of a Job: with gVisor or Kata, a kernel of its own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct AgentSandbox {
    /// Whether the run is made so.
    pub enabled: bool,
    /// The RuntimeClass: `gvisor`, `kata` or another that the cluster has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class: Option<ObjectName>,
    /// A SandboxWarmPool to claim a running sandbox from, instead of starting one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_pool_ref: Option<ObjectName>,
    /// CPU and memory that all containers of the sandbox ask for and may not exceed together. What the others leave of them is
    /// the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
}

/// How the runs of an agent use agent-sandbox, unless they say otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct AgentSandboxDefaults {
    /// Whether runs are made so.
    pub enabled: bool,
    /// The RuntimeClass: `gvisor`, `kata` or another that the cluster has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class: Option<ObjectName>,
    /// Sandboxes that wait ready for this agent's runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_pool: Option<WarmPool>,
}

/// Sandboxes that wait ready.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct WarmPool {
    /// How many.
    #[serde(default = "defaults::number::<2>")]
    #[schemars(range(min = 0, max = limits::WARM_SANDBOXES))]
    pub size: i32,
    /// Their RuntimeClass; the agent's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class: Option<ObjectName>,
    /// What each asks for and may not exceed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
}

impl Default for WarmPool {
    fn default() -> Self {
        Self { size: 2, runtime_class: None, resources: None }
    }
}
