//! `SympoziumPolicy`: what agents and their runs may be given.
//!
//! An absent section restricts nothing. An absent allow-list allows everything, an empty one nothing.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;
use crate::guarantee::Guarantee;
use crate::limits;
use crate::names::{ImageRef, ObjectName, ToolPattern};
use crate::network::NetworkPolicy;
use crate::quantity::Quantity;
use crate::run_plan::Gate;
use crate::sandbox::SeccompProfile;
use crate::schema;

mod approval;
mod bounds;

pub use approval::{ApprovalPolicy, Approver, ApproverKind};
pub use bounds::{HostAccessPolicy, HostPath, ImagePolicy, LifecyclePolicy, ModelPolicy, PackPolicy, RbacPolicy};

/// What agents and their runs may be given. Every run is held to the cluster's floor as well.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "sympozium.ai",
    version = "v1alpha1",
    kind = "SympoziumPolicy",
    plural = "sympoziumpolicies",
    namespaced,
    status = "SympoziumPolicyStatus",
    shortname = "spol",
    category = "sympozium",
    doc = "What agents and their runs may be given. Every run is held to the cluster's floor as well.",
    derive = "PartialEq",
    printcolumn(name = "Bound", type_ = "integer", json_path = ".status.boundInstances"),
    printcolumn(name = "Tools", type_ = "string", json_path = ".spec.toolGating.defaultAction"),
    printcolumn(name = "Sandbox", type_ = "boolean", json_path = ".spec.sandboxPolicy.required"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct SympoziumPolicySpec {
    /// How runs are isolated, and how much they may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_policy: Option<SandboxPolicy>,
    /// How many agents a run may start, and how deep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subagent_policy: Option<SubagentPolicy>,
    /// Which tools may be used, which not, and which need an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_gating: Option<ToolGating>,
    /// Features that are on or off: `code-execution`, `sub-agents`, `browser-automation`, `file-access`. On when absent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = schema::MaxEntries(16), transform = schema::Rules(&[(
        "self.all(feature, feature in ['code-execution', 'sub-agents', 'browser-automation', 'file-access'])",
        "a feature is `code-execution`, `sub-agents`, `browser-automation` or `file-access`",
    )]))]
    pub feature_gates: BTreeMap<String, bool>,
    /// What runs may reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<NetworkPolicy>,
    /// Which models may be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_policy: Option<ModelPolicy>,
    /// Where images may come from: of hooks, sandboxes and skill sidecars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_policy: Option<ImagePolicy>,
    /// What hooks may not have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle_policy: Option<LifecyclePolicy>,
    /// What skills and hooks may be granted at the Kubernetes API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rbac_policy: Option<RbacPolicy>,
    /// What skills may have of the node. Nothing when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_access_policy: Option<HostAccessPolicy>,
    /// Where packs may come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack_policy: Option<PackPolicy>,
    /// Who approves calls of tools with the action `ask`, how many approvals are needed, and how long a request waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_policy: Option<ApprovalPolicy>,
}

/// How runs are isolated, and how much they may use.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct SandboxPolicy {
    /// Whether every run needs `sandbox.enabled` or `agentSandbox.enabled`.
    #[serde(default)]
    pub required: bool,
    /// The image of sandboxes that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_image: Option<ImageRef>,
    /// Most CPU of a whole run.
    #[serde(default, rename = "maxCPU", skip_serializing_if = "Option::is_none")]
    pub max_cpu: Option<Quantity>,
    /// Most memory of a whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_memory: Option<Quantity>,
    /// Whether skills may mount directories of the node that `hostAccessPolicy` names.
    #[serde(default)]
    pub allow_host_mounts: bool,
    /// The filter of system calls of every container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seccomp_profile: Option<SeccompProfile>,
    /// Whether runs must use agent-sandbox, and with which RuntimeClasses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_sandbox_policy: Option<AgentSandboxPolicy>,
    /// What must be enforced around every command, or the run is refused: `filesystem`, `network`, `processes`, `syscalls`,
    /// `memory`, `pids`, `cpu`, `kernel`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = Guarantee::ALL.len()), transform = schema::list_set)]
    pub minimum_isolation: Vec<Guarantee>,
}

/// Whether runs must use agent-sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description, transform = schema::Rules(&[(
    "!has(self.defaultRuntimeClass) || !has(self.allowedRuntimeClasses) || self.defaultRuntimeClass in self.allowedRuntimeClasses",
    "`defaultRuntimeClass` must be one of `allowedRuntimeClasses`",
)]))]
pub struct AgentSandboxPolicy {
    /// Whether every run must.
    #[serde(default)]
    pub required: bool,
    /// The RuntimeClass of runs that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_runtime_class: Option<ObjectName>,
    /// The RuntimeClasses that may be used. Absent: all. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::NAMES))]
    pub allowed_runtime_classes: Option<Vec<ObjectName>>,
}

/// How many agents a run may start, and how deep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct SubagentPolicy {
    /// Levels below the first run.
    #[serde(default = "defaults::number::<3>")]
    #[schemars(range(min = 0, max = limits::DEPTH))]
    pub max_depth: i32,
    /// At a time, in the whole tree.
    #[serde(default = "defaults::number::<5>")]
    #[schemars(range(min = 0, max = limits::CONCURRENCY))]
    pub max_concurrent: i32,
}

impl Default for SubagentPolicy {
    fn default() -> Self {
        Self { max_depth: 3, max_concurrent: 5 }
    }
}

/// Which tools may be used, which not, and which need an approval.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct ToolGating {
    /// What holds for tools without a rule: `allow`, `deny` or `ask`.
    #[serde(default)]
    pub default_action: Gate,
    /// Rules. The most exact name decides; of two that are equal, the stricter. A pack without a namespace means the one of the
    /// system namespace where the rule gives more than holds otherwise, and every pack of the name where it gives less.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::TOOL_RULES))]
    pub rules: Vec<ToolRule>,
}

/// What holds for one tool, or for all tools of a pack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct ToolRule {
    /// `tool`, `pack/tool`, `pack/*`, `namespace/pack/tool` or `namespace/pack/*`.
    pub tool: ToolPattern,
    /// `allow`, `deny` or `ask`.
    pub action: Gate,
}

/// What the controller says about a policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SympoziumPolicyStatus {
    /// How many agents name this policy: those of its namespace and, for a policy of the system namespace,
    /// those of others that have none of that name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_instances: Option<i32>,
    /// The generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The conditions of the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
