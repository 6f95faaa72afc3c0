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

/// What a part is called: the name of its container, unique in the run.
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
    /// Its name.
    pub name: PartName,
    /// What it is for.
    pub role: Role,
    /// Its image. Of our own parts, a local backend has them built in.
    pub image: ImageRef,
    /// When the image is pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// What starts in it.
    pub start: Start,
    /// Its environment, in this order. Of the run's own inputs only what is not known before the run starts is left to the
    /// backend: the addresses of gateway and API server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// What it sees besides its image.
    pub mounts: Vec<Mount>,
    /// What it asks for, and may not exceed.
    pub amounts: AmountsPlan,
    /// Who it is at the Kubernetes API; nobody when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<IdentityName>,
    /// What it has of the node; nothing when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_access: Option<HostAccess>,
    /// Ports that it listens at, in server mode.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// How long it may take; as long as the run when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
}

/// What a part is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Role {
    /// Thinks.
    Agent,
    /// Decides, dispatches, records.
    Bridge,
    /// Acts: the sidecar of a pack.
    #[serde(rename_all = "camelCase")]
    Skill {
        /// The pack.
        pack: SkillPackName,
    },
    /// Acts for commands that name no skill.
    Sandbox,
    /// Runs before the agent.
    #[serde(rename_all = "camelCase")]
    PreRun {
        /// The hook.
        hook: LabelName,
    },
    /// Runs after the agent.
    #[serde(rename_all = "camelCase")]
    PostRun {
        /// The hook.
        hook: LabelName,
        /// Whether it decides if the answer goes out.
        gate: bool,
        /// What becomes of the answer when it decides and gives no verdict.
        #[serde(default, skip_serializing_if = "GateDefault::is_block")]
        gate_default: GateDefault,
    },
}

/// What starts in a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Start {
    /// What the image starts, or this instead of it.
    #[serde(rename_all = "camelCase")]
    Image {
        /// Instead of the image's entrypoint; empty for that.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        command: Vec<String>,
        /// Arguments to it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        args: Vec<String>,
    },
    /// Our executor, put into the image.
    #[serde(rename_all = "camelCase")]
    Injected {
        /// The image that it is taken from. A local backend has it built in.
        executor: ImageRef,
    },
}

/// What a part asks for, and may not exceed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AmountsPlan {
    /// CPU that is kept for it.
    pub cpu_request: Quantity,
    /// CPU that it may not exceed.
    pub cpu_limit: Quantity,
    /// Memory that is kept for it.
    pub memory_request: Quantity,
    /// Memory that it may not exceed.
    pub memory_limit: Quantity,
}

impl Part {
    /// Whether our executor runs the part's commands, attests their isolation and verifies that the bridge wrote a request,
    /// whatever can write to its `/ipc`: it was put into the part's image, or the image is ours, as that of the part `sandbox` is
    /// where a run names none. What an image starts by itself cannot be known to.
    pub fn attests(&self) -> bool {
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
    pub const fn is_after(&self) -> bool {
        matches!(self, Self::PostRun { .. })
    }

    /// For a hook that decides if the answer goes out: what becomes of it without a verdict.
    pub const fn gate(&self) -> Option<GateDefault> {
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
