//! Bounds of runs: models, images, hooks, grants, packs, the node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;
use crate::limits;
use crate::names::{MountPath, NamespaceName, PackRef};
use crate::rbac::RbacRule;
use crate::schema;

/// Which models may be used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct ModelPolicy {
    /// Namespaces whose `Model`s may be used. Absent: all. Empty: none. Where a policy or floor holds, a `Model` outside of the
    /// system namespace is reached at its Service only if the agent's policy lists its namespace here, and the floor's list has it too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::NAMES))]
    pub allowed_namespaces: Option<Vec<NamespaceName>>,
    /// Models that may be used, by the name that is asked for and, with `modelRef`, also by that of the `Model`; `*` at the end stands for any rest. Absent: all. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::NAMES), inner(length(min = 1, max = limits::SHORT_TEXT)))]
    pub allowed_models: Option<Vec<String>>,
}

/// Where images may come from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct ImagePolicy {
    /// Registries, or paths in them, such as `ghcr.io/example/`. Absent: all. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::NAMES), inner(length(min = 1, max = 512)))]
    pub allowed_registries: Option<Vec<String>>,
}

/// What hooks may not have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct LifecyclePolicy {
    /// Resources that no hook may have any access to, such as `secrets`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::NAMES), inner(length(min = 1, max = 253)))]
    pub denied_resources: Vec<String>,
}

/// What skills and hooks may be granted at the Kubernetes API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct RbacPolicy {
    /// Whatever is granted must lie within these rules. Absent: no such limit. Empty: nothing is granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::RBAC_RULES))]
    pub ceiling: Option<Vec<RbacRule>>,
    /// What is refused unless it is listed here and in the floor: `pods/exec`, reading secrets, `escalate` and so on. In the
    /// floor also what is refused without its consent: every right that is not known to be harmless, such as writing Services, or
    /// anything at kinds that are not Kubernetes' own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::RBAC_RULES))]
    pub exceptions: Vec<RbacRule>,
    /// Namespaces whose runs may have `clusterRBAC`. Absent: no restriction by this policy. Empty: none.
    #[serde(default, rename = "clusterRBACNamespaces", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::NAMES))]
    pub cluster_rbac_namespaces: Option<Vec<NamespaceName>>,
}

/// What skills may have of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct HostAccessPolicy {
    /// The packs that may have it: those of the system namespace by name, others as `namespace/name`. Absent: all. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::NAMES))]
    pub packs: Option<Vec<PackRef>>,
    /// Namespaces other than the system's whose packs may have it. The floor must list them. Absent in another policy: no
    /// restriction by that policy. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::NAMES))]
    pub namespaces: Option<Vec<NamespaceName>>,
    /// Whether they may have the node's network.
    #[serde(default)]
    pub host_network: bool,
    /// Whether they may see the node's processes.
    #[serde(default, rename = "hostPID")]
    pub host_pid: bool,
    /// Whether they may have every power over the node.
    #[serde(default)]
    pub privileged: bool,
    /// Whether they may be root in their container.
    #[serde(default)]
    pub run_as_root: bool,
    /// Directories of the node that they may see, with all below. `sandboxPolicy.allowHostMounts` must be on too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::NAMES))]
    pub allowed_host_paths: Vec<HostPath>,
}

/// A directory of the node that may be seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct HostPath {
    /// Where it is.
    pub path_prefix: MountPath,
    /// Whether it may only be read.
    #[serde(default = "defaults::yes")]
    pub read_only: bool,
}

/// Where packs may come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct PackPolicy {
    /// The packs that may be used: those of the system namespace by name, others as `namespace/name`. Absent: all. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::NAMES))]
    pub allowed_packs: Option<Vec<PackRef>>,
    /// Whether packs of the system namespace may be used.
    #[serde(default = "defaults::yes")]
    pub allow_system_packs: bool,
    /// Whether a pack of the run's namespace may take the place of a system pack of the same name. Otherwise such a name is
    /// ambiguous, and the run is denied.
    #[serde(default)]
    pub allow_shadowing: bool,
}

impl Default for PackPolicy {
    fn default() -> Self {
        Self { allowed_packs: None, allow_system_packs: true, allow_shadowing: false }
    }
}
