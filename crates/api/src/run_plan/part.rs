//! The parts of a run: containers in a pod, or process trees in namespaces of their own.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::identity::IdentityName;
use super::volume::Mount;
use crate::environment::EnvVar;
use crate::lifecycle::GateDefault;
use crate::names::{ImageRef, LabelName, SkillPackName};
use crate::quantity::Quantity;
use crate::sandbox::ImagePullPolicy;
use crate::skill_pack::{HostAccess, Port};

/// The name of a part, which is that of its container and unique in the run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PartName(pub String);

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// One container, or one process tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    /// The name of the part.
    pub name: PartName,
    /// The role of the part in the run.
    pub role: Role,
    /// The image of the part. A local backend has our own parts built in.
    pub image: ImageRef,
    /// When the image is pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// What is started in it.
    pub start: Start,
    /// Its environment, in this order. The backend adds only what is not known before the run starts: the addresses of
    /// gateway and API server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Its mounts.
    pub mounts: Vec<Mount>,
    /// Its requests and limits.
    pub amounts: ResourcesPlan,
    /// Its identity at the Kubernetes API; none when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<IdentityName>,
    /// Its access to the node; none when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_access: Option<HostAccess>,
    /// Ports that it listens on, in server mode.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// Its timeout in seconds; that of the run when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
}

/// The role of a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Role {
    /// Runs the model loop.
    Agent,
    /// Decides about tool calls, dispatches them and records them.
    Bridge,
    /// The sidecar of a pack, which runs its commands.
    #[serde(rename_all = "camelCase")]
    Skill {
        /// The pack of the sidecar.
        pack: SkillPackName,
    },
    /// Runs commands that name no skill.
    Sandbox,
    /// Runs before the agent.
    #[serde(rename_all = "camelCase")]
    PreRun {
        /// The name of the hook.
        hook: LabelName,
    },
    /// Runs after the agent.
    #[serde(rename_all = "camelCase")]
    PostRun {
        /// The name of the hook.
        hook: LabelName,
        /// Whether it is a gate hook, which decides whether the result is released.
        gate: bool,
        /// What happens to the result when a gate hook gives no verdict.
        #[serde(default, skip_serializing_if = "GateDefault::is_block")]
        gate_default: GateDefault,
    },
}

/// What is started in a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Start {
    /// The entrypoint of the image, or this command in its place.
    #[serde(rename_all = "camelCase")]
    Image {
        /// Replaces the image's entrypoint; empty to keep it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        command: Vec<String>,
        /// Arguments of the command.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        args: Vec<String>,
    },
    /// Our executor, injected into the image.
    #[serde(rename_all = "camelCase")]
    Injected {
        /// The image that it is taken from. A local backend has it built in.
        executor: ImageRef,
    },
}

/// Requests and limits of a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourcesPlan {
    /// CPU that is reserved for it.
    pub cpu_request: Quantity,
    /// CPU that it may not exceed.
    pub cpu_limit: Quantity,
    /// Memory that is reserved for it.
    pub memory_request: Quantity,
    /// Memory that it may not exceed.
    pub memory_limit: Quantity,
}

impl Part {
    /// Whether our executor runs the part's commands, attests their isolation and verifies that the bridge wrote a
    /// request, whatever else can write to its `/ipc`: it was injected into the part's image, or the image is ours, as
    /// for the part `sandbox` of a run that names no image. The entrypoint of any other image is not known to do so.
    pub fn is_attested(&self) -> bool {
        match &self.start {
            Start::Injected { .. } => true,
            Start::Image { command, .. } => self.role == Role::Sandbox && command.is_empty(),
        }
    }
}

impl Role {
    /// The pack whose commands the part runs.
    pub fn pack(&self) -> Option<&str> {
        match self {
            Self::Skill { pack } => Some(pack.as_str()),
            Self::Sandbox => Some(super::SANDBOX),
            _ => None,
        }
    }

    /// Whether the part runs after the agent, in a pod of its own.
    pub const fn is_post_run(&self) -> bool {
        matches!(self, Self::PostRun { .. })
    }

    /// For a gate hook: what happens to the result without a verdict.
    pub const fn gate_default(&self) -> Option<GateDefault> {
        match self {
            Self::PostRun { gate: true, gate_default, .. } => Some(*gate_default),
            _ => None,
        }
    }

    /// Whether the part runs before or after the agent instead of beside it.
    pub const fn is_hook(&self) -> bool {
        matches!(self, Self::PreRun { .. } | Self::PostRun { .. })
    }
}
