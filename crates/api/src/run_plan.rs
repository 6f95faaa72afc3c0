//! The plan of a run: everything that will exist for it, and everything it may touch.
//!
//! `sympozium-plan` makes it once; every backend, the bridge and the gateway read it, and none of them decides about powers
//! any more. It names secrets and never holds one; texts of skills are in it by their digests.
//!
//! A plan is stored as canonical JSON and known by its digest. A reader refuses what it does not understand: an unknown
//! field may be a restriction. Fields that later releases add are left out where they say nothing new, so that plans of
//! earlier releases are read, and written again as they were.

mod agent_view;
mod identity;
mod model;
mod network;
mod part;
mod read;
mod skill;
mod timing;
mod tool;
mod volume;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::agent_run::{Cleanup, ParentRun, ResolvedObject, RunMode, Task};
use crate::guarantee::Guarantee;
use crate::names::{NamespaceName, ObjectName, RunName, Uid};
use crate::open::LocalReference;
use crate::policy::Approver;
use crate::sandbox::SeccompProfile;

pub use agent_view::{AgentView, OfferedTool, Places, Root};
pub use identity::{Identity, IdentityName};
pub use model::{ModelEndpoint, ModelKey, ModelPlan, WireFormat};
pub use network::{Destination, GatewayCredential, Reach};
pub use part::{AmountsPlan, Part, PartName, Role, Start};
pub use read::{DOMAIN, FORMAT, Format, MAX_BYTES, UnreadablePlan};
pub use skill::{FindSkillError, SkillContents, SkillFilePlan, SkillPlan, SkillSource};
pub use timing::{Deadlines, RunLimits};
pub use tool::{Acts, Gate, ToolLimits, ToolPlan};
pub use volume::{Medium, Mount, PlanVolume, RecursiveReadOnly, VolumeName, VolumeSource};

/// What the container `sandbox` is called where packs are named. No pack may have this name.
pub const SANDBOX: &str = "sandbox";

/// Containers of a run's pod that more than its maker has to know by name.
pub mod container {
    /// The agent's part.
    pub const AGENT: &str = "agent";
    /// The bridge's part. Its end is the run's.
    pub const BRIDGE: &str = "ipc-bridge";
    /// Looks whether the run's network is held in, before anything else starts; its last words say what it found. It is in no
    /// plan.
    pub const CHECK_NETWORK: &str = "check-network";
}

/// Places in a part's container, the same on every backend.
pub mod place {
    /// The files that parts of a run share.
    pub const WORKSPACE: &str = "/workspace";
    /// The texts of skills, below it by pack and skill.
    pub const SKILLS: &str = "/skills";
    /// The files through which a skill gets its commands. The bridge has one of each skill below it, by pack.
    pub const IPC: &str = "/ipc";
    /// A part's own scratch space.
    pub const TMP: &str = "/tmp";
    /// A part's own shared memory.
    pub const SHM: &str = "/dev/shm";
    /// What a part reads about the run: plan, credential of the gateway, certificates.
    pub const INPUT: &str = "/run/sympozium";
    /// The directory with the socket between agent and bridge.
    pub const DOOR: &str = "/run/door";
    /// Headers for the model's provider that a Secret holds. The bridge's.
    pub const HEADERS: &str = "/run/headers";
    /// The turns of a scripted model. The bridge's.
    pub const SCRIPT: &str = "/run/script";
    /// The token of a part that may use the Kubernetes API, where every client looks for it.
    pub const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
}

/// Everything that will exist for a run, and everything it may touch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunPlan {
    /// How this is written.
    pub format: Format,
    /// Whose plan it is.
    pub run: RunIdentity,
    /// The objects that it was made from, as they were.
    pub resolved: Vec<ResolvedObject>,
    /// What the agent is to do.
    pub task: TaskPlan,
    /// The model, and where it answers.
    pub model: ModelPlan,
    /// What the backend makes of the plan.
    pub workload: Workload,
    /// What must be enforced around every command, and by what.
    pub isolation: IsolationPlan,
    /// Every process tree of the run: the agent first, then the bridge, the skills in the run's order, hooks.
    pub parts: Vec<Part>,
    /// Everything that parts mount.
    pub volumes: Vec<PlanVolume>,
    /// Who may do what at the Kubernetes API. Empty for most runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub identities: Vec<Identity>,
    /// What may be reached through the gateway, and by whom.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credentials: Vec<GatewayCredential>,
    /// Every tool, with what becomes of a call. A tool that is not here does not exist.
    pub tools: Vec<ToolPlan>,
    /// The texts that the agent can read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<SkillPlan>,
    /// Who decides where a gate is `ask`.
    pub approval: ApprovalPlan,
    /// Runs that this one may start.
    pub subagents: SubagentPlan,
    /// How much the run may use.
    pub limits: RunLimits,
    /// How long everything may take.
    pub deadlines: Deadlines,
    /// Where the run's pod may be, and with what its images are pulled.
    pub placement: PlacementPlan,
    /// What becomes of the pod afterwards.
    pub cleanup: Cleanup,
}

/// Whose plan it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunIdentity {
    /// The run's namespace.
    pub namespace: NamespaceName,
    /// Its name.
    pub name: RunName,
    /// Its UID: names come back, UIDs do not.
    pub uid: Uid,
    /// The agent's kind: `Agent` or `SympoziumInstance`.
    pub agent_kind: String,
    /// The agent's name.
    pub agent: ObjectName,
    /// Which of the agent's roles this is.
    pub agent_id: String,
    /// The conversation that the run belongs to.
    pub session_key: String,
    /// The run that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentRun>,
}

/// What the agent is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskPlan {
    /// The task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// What the agent is told before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Whether the agent is given what it remembers.
    pub use_context: bool,
    /// Whether the run ends with its task.
    pub mode: RunMode,
}

/// What a backend makes of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Workload {
    /// A Job, or processes on this machine.
    Job,
    /// A Sandbox of agent-sandbox.
    #[serde(rename_all = "camelCase")]
    Sandbox {
        /// A pool to claim a running one from, instead of starting one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warm_pool: Option<ObjectName>,
    },
}

/// What must be enforced around every command, and by what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IsolationPlan {
    /// What must be enforced, or the run is refused. With `network` in it, a cluster that enforces no NetworkPolicy is refused
    /// too; otherwise the run reports that nothing enforces it.
    pub floor: Vec<Guarantee>,
    /// The filter of system calls of every part.
    pub seccomp: SeccompProfile,
    /// The RuntimeClass of the pod; the cluster's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class: Option<ObjectName>,
    /// The kernel that the RuntimeClass gives the pod, where its handler is one that the operator lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelPlan>,
}

/// A kernel of the pod's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelPlan {
    /// The handler of the RuntimeClass, which the operator lists.
    pub handler: String,
    /// Whether it is gVisor, which an executor recognises from inside. The kernel of a virtual machine looks like the node's.
    pub gvisor: bool,
}

/// Who decides where a gate is `ask`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalPlan {
    /// Who may decide. Absent: everybody who may write the request's status. Empty: nobody, and every answer is no.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvers: Option<Vec<Approver>>,
    /// How many must say yes. One no is enough.
    pub required: u32,
    /// Whether a yes may be given for the identical action as often as the run repeats it.
    pub run_scope: bool,
    /// Whether whoever started the run may approve what it does.
    pub run_author: bool,
}

/// Runs that this one may start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubagentPlan {
    /// How many levels below this one. None at all when zero.
    pub levels: u32,
    /// How many at a time, in the whole tree.
    pub concurrent: u32,
    /// How many of this run.
    pub children: u32,
}

/// Where the run's pod may be, and with what its images are pulled.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementPlan {
    /// Labels that the node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Secrets to pull images with. The kubelet reads them; no part sees them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalReference>,
}

impl RunPlan {
    /// The part of this name.
    pub fn part(&self, name: &PartName) -> Option<&Part> {
        self.parts.iter().find(|part| part.name == *name)
    }

    /// The volume of this name.
    pub fn volume(&self, name: &VolumeName) -> Option<&PlanVolume> {
        self.volumes.iter().find(|volume| volume.name == *name)
    }

    /// The identity of this name.
    pub fn identity(&self, name: &IdentityName) -> Option<&Identity> {
        self.identities.iter().find(|identity| identity.name == *name)
    }

    /// Seconds that the pod of the hooks after the run may take, where there are any: their own, and what a pod needs to start
    /// and to end.
    pub fn after_run_seconds(&self) -> Option<u64> {
        let deadlines = &self.deadlines;
        let hooks = self.parts.iter().filter(|part| part.role.is_after());
        let seconds = hooks.map(|hook| hook.timeout_seconds.unwrap_or(deadlines.run_seconds));
        let around = deadlines.start_seconds.saturating_add(deadlines.grace_seconds);
        let all = seconds.reduce(u64::saturating_add)?;
        Some(all.saturating_add(around))
    }

    /// The parts that mount a volume.
    pub fn mounted_by(&self, volume: &VolumeName) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| part.mounts.iter().any(|mount| mount.volume == *volume))
    }
}
