//! The container in which the commands of a pack run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;
use crate::environment::EnvVar;
use crate::limits;
use crate::names::{ImageRef, LabelName, MountPath, SecretName, ToolName};
use crate::network::Egress;
use crate::open::{OpenObject, Volume, VolumeMount};
use crate::quantity::Quantity;
use crate::rbac::RbacRule;
use crate::sandbox::ImagePullPolicy;
use crate::schema;

/// A container of its own for one pack, with what it needs and nothing else.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description, transform = schema::Rules(&[
    (
        "!has(self.secretMountPath) || has(self.secretRef)",
        "`secretMountPath` says where a Secret is seen: name it in `secretRef`",
    ),
    (
        "self.executor != 'injected' || !has(self.command)",
        "with `executor: injected` our executor is what starts: leave `command` out",
    ),
]))]
pub struct Sidecar {
    /// The image.
    pub image: ImageRef,
    /// When the image is pulled: `Always`, `IfNotPresent` or `Never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// What starts in the container: the image's own entrypoint (`image`), or our executor put into it (`injected`), for which
    /// the image needs neither bash, jq nor coreutils, and which confines each command and attests to it.
    #[serde(default)]
    pub executor: Executor,
    /// What starts instead of the image's entrypoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::ARGUMENTS), inner(length(max = limits::ARGUMENT)))]
    pub command: Vec<String>,
    /// Environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::ENVIRONMENT), transform = schema::list_by_name)]
    pub env: Vec<EnvVar>,
    /// Whether it sees the run's `/workspace`.
    #[serde(default)]
    pub mount_workspace: bool,
    /// What it asks for, and may not exceed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<SidecarResources>,
    /// A Secret that it sees as files, one for each key. No other part of the run sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretName>,
    /// Where it sees that Secret; `/secrets/` and the Secret's name when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_mount_path: Option<MountPath>,
    /// Volumes of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::VOLUMES), transform = schema::list_by_name)]
    pub volumes: Vec<Volume>,
    /// Where it sees them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::VOLUMES))]
    pub volume_mounts: Vec<VolumeMount>,
    /// Access to the Kubernetes API in the run's namespace, while the run lasts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::RBAC_RULES))]
    pub rbac: Vec<RbacRule>,
    /// Access to the Kubernetes API in the whole cluster, while the run lasts. Needs consent of the floor policy.
    #[serde(default, rename = "clusterRBAC", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::RBAC_RULES))]
    pub cluster_rbac: Vec<RbacRule>,
    /// Hosts that it may reach, through the gateway, where the policy allows them. None when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::EGRESS))]
    pub egress: Vec<Egress>,
    /// Access to the node. Denied unless a policy names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_access: Option<HostAccess>,
    /// Whether the pack is for runs in server mode only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requires_server: Option<bool>,
    /// Ports that it listens at, in server mode.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::PORTS), transform = schema::list_by_name)]
    pub ports: Vec<Port>,
    /// Tools that the agent can call by name, instead of writing command lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::TOOLS), transform = schema::list_by_name)]
    pub tools: Vec<Tool>,
}

impl Sidecar {
    /// Where its Secret is mounted, if it names one.
    pub fn effective_secret_path(&self) -> Option<String> {
        let secret = self.secret_ref.as_ref()?;
        let written = self.secret_mount_path.as_ref().map(ToString::to_string);
        Some(written.unwrap_or_else(|| format!("/secrets/{secret}")))
    }
}

/// What starts in a sidecar.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(transform = schema::drop_description)]
pub enum Executor {
    /// The image's own entrypoint.
    #[default]
    Image,
    /// Our executor, put into the image.
    Injected,
}

/// What a sidecar asks for, and may not exceed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct SidecarResources {
    /// CPU, such as `200m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Quantity>,
    /// Memory, such as `256Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
}

/// Access to the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct HostAccess {
    /// Whether any of this counts.
    #[serde(default)]
    pub enabled: bool,
    /// The node's network instead of the pod's own.
    #[serde(default)]
    pub host_network: bool,
    /// The node's processes instead of the pod's own.
    #[serde(default, rename = "hostPID")]
    pub host_pid: bool,
    /// Every power over the node.
    #[serde(default)]
    pub privileged: bool,
    /// Root in the container.
    #[serde(default)]
    pub run_as_root: bool,
    /// Directories of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::VOLUMES))]
    pub mounts: Vec<HostMount>,
}

/// A directory of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct HostMount {
    /// Where it is on the node.
    pub host_path: MountPath,
    /// Where the container sees it.
    pub mount_path: MountPath,
    /// Whether the container may not write to it.
    #[serde(default = "defaults::yes")]
    pub read_only: bool,
}

/// A port that a sidecar listens at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct Port {
    /// Its name.
    pub name: LabelName,
    /// Its number.
    #[schemars(range(min = 1, max = 65535))]
    pub container_port: i32,
    /// `TCP`, `UDP` or `SCTP`; the first when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<PortProtocol>,
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(transform = schema::drop_description)]
pub enum PortProtocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// A tool that the agent can call by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct Tool {
    /// Its name. Names of built-in tools are taken.
    pub name: ToolName,
    /// What it does, for the model.
    #[schemars(length(max = limits::TOOL_DESCRIPTION))]
    pub description: String,
    /// The program, with arguments that come first.
    #[schemars(length(min = 1, max = limits::ARGUMENTS), inner(length(max = limits::ARGUMENT)))]
    pub exec: Vec<String>,
    /// A word after those arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::WORD))]
    pub subcommand: Option<String>,
    /// How the program gets the model's arguments: as words (`args`), or as JSON on its standard input (`stdin`).
    #[serde(default)]
    pub input_mode: InputMode,
    /// Parameters that are passed as words, in this order. Each must be declared and required.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::ARGUMENTS), inner(length(min = 1, max = limits::WORD)))]
    pub positional_args: Vec<String>,
    /// What the tool takes, as a JSON Schema of an object; nothing when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<OpenObject>,
}

/// How a program gets the model's arguments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(transform = schema::drop_description)]
pub enum InputMode {
    /// As words.
    #[default]
    Args,
    /// As JSON on its standard input.
    Stdin,
}
