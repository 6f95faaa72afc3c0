//! The plan of a run: everything that will exist for it, and everything it may touch.
//!
//! `sympozium-plan` makes it once. Every backend, the bridge and the gateway read it, and none of them decides about
//! powers. It names Secrets and never contains one; it contains skill texts only by their digests.
//!
//! A plan is stored as canonical JSON and identified by its digest. A reader refuses a plan that it does not
//! understand: an unknown field may be a restriction. Fields that later releases add are left out where they have their
//! default, so that plans of earlier releases can be read, and serialise to the same bytes.

mod agent_view;
mod encoding;
mod identity;
mod limits;
mod model;
mod network;
mod part;
mod skill;
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

pub use agent_view::{AgentPaths, AgentView, OfferedTool, Root};
pub use encoding::{DOMAIN, FORMAT, Format, MAX_BYTES, UnreadablePlan};
pub use identity::{Identity, IdentityName};
pub use limits::{Deadlines, RunLimits};
pub use model::{ModelEndpoint, ModelKey, ModelPlan, WireFormat};
pub use network::{AllowedHosts, Destination, GatewayCredential};
pub use part::{Part, PartName, ResourcesPlan, Role, Start};
pub use skill::{FindSkillError, SkillContents, SkillFilePlan, SkillPlan, SkillSource};
pub use tool::{Gate, ToolHandler, ToolLimits, ToolPlan};
pub use volume::{Medium, Mount, PlanVolume, RecursiveReadOnly, VolumeName, VolumeSource};

/// The name of the container `sandbox` where a pack is expected. No pack may have this name.
pub const SANDBOX: &str = "sandbox";

/// Containers of a run's pod that other components must know by name.
pub mod container {
    /// The agent's part.
    pub const AGENT: &str = "agent";
    /// The bridge's part. The run ends with it.
    pub const BRIDGE: &str = "ipc-bridge";
    /// Checks that the run's network is confined, before anything else starts. Its termination message has the result.
    /// It is in no plan.
    pub const CHECK_NETWORK: &str = "check-network";
}

/// Paths in a part's container, the same on every backend.
pub mod paths {
    /// The files that parts of a run share.
    pub const WORKSPACE: &str = "/workspace";
    /// Skill texts, below it by pack and skill.
    pub const SKILLS: &str = "/skills";
    /// The files through which a skill gets its commands. The bridge has the directory of each skill below it, by pack.
    pub const IPC: &str = "/ipc";
    /// A part's own scratch space.
    pub const TMP: &str = "/tmp";
    /// A part's own shared memory.
    pub const SHM: &str = "/dev/shm";
    /// The input of a part: plan, credential of the gateway, certificates.
    pub const INPUT: &str = "/run/sympozium";
    /// The directory with the socket between agent and bridge.
    pub const DOOR: &str = "/run/door";
    /// Headers for the model's provider from a Secret, for the bridge.
    pub const HEADERS: &str = "/run/headers";
    /// The turns of a scripted model, for the bridge.
    pub const SCRIPT: &str = "/run/script";
    /// The token of a part that may use the Kubernetes API, where every client looks for it.
    pub const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
}

/// Everything that will exist for a run, and everything it may touch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunPlan {
    /// The format of the plan.
    pub format: Format,
    /// The run that the plan is for.
    pub run: RunIdentity,
    /// The objects that it was made from, as they were.
    pub resolved: Vec<ResolvedObject>,
    /// The task of the agent.
    pub task: TaskPlan,
    /// The model, and its address.
    pub model: ModelPlan,
    /// The kind of workload that the backend creates.
    pub workload: Workload,
    /// What must be enforced around every command, and by what.
    pub isolation: IsolationPlan,
    /// Every part of the run: the agent first, then the bridge, the skills in the run's order, hooks.
    pub parts: Vec<Part>,
    /// All volumes of the parts.
    pub volumes: Vec<PlanVolume>,
    /// The identities at the Kubernetes API, with their permissions. Empty for most runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub identities: Vec<Identity>,
    /// What each part may reach through the gateway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credentials: Vec<GatewayCredential>,
    /// Every tool, with its gate. A tool that is not here does not exist.
    pub tools: Vec<ToolPlan>,
    /// The skill texts that the agent can read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<SkillPlan>,
    /// Who approves calls of tools with the gate `ask`.
    pub approval: ApprovalPlan,
    /// Runs that this one may start.
    pub subagents: SubagentPlan,
    /// Limits of the run.
    pub limits: RunLimits,
    /// Deadlines of the run, as durations.
    pub deadlines: Deadlines,
    /// Where the run's pod may be scheduled, and the Secrets that its images are pulled with.
    pub placement: PlacementPlan,
    /// Whether the pod is deleted afterwards.
    pub cleanup: Cleanup,
}

/// The run that a plan is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunIdentity {
    /// The run's namespace.
    pub namespace: NamespaceName,
    /// The run's name.
    pub name: RunName,
    /// The run's UID: names are reused, UIDs are not.
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

/// The task of the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskPlan {
    /// The task itself; absent in server mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Whether the agent gets its memory.
    pub use_context: bool,
    /// Whether the run ends with its task.
    pub mode: RunMode,
}

/// The kind of workload that a backend creates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Workload {
    /// A Job, or processes on this machine.
    Job,
    /// A Sandbox of agent-sandbox.
    #[serde(rename_all = "camelCase")]
    Sandbox {
        /// A warm pool to claim a running one from, instead of starting one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warm_pool: Option<ObjectName>,
    },
}

/// What must be enforced around every command, and by what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IsolationPlan {
    /// The isolation floor: what must be enforced, or the run is refused. With `network` in it, a cluster that does not
    /// enforce NetworkPolicies is refused too; otherwise the run reports that they are not enforced.
    pub floor: Vec<Guarantee>,
    /// The seccomp profile of every part.
    pub seccomp: SeccompProfile,
    /// The RuntimeClass of the pod; the cluster's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class: Option<ObjectName>,
    /// The kernel that the RuntimeClass gives the pod, where the operator lists its handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelPlan>,
}

/// A kernel of the pod's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelPlan {
    /// The handler of the RuntimeClass, which the operator lists.
    pub handler: String,
    /// Whether it is gVisor, which an executor recognises from inside. The kernel of a virtual machine looks like the
    /// node's.
    pub gvisor: bool,
}

/// Who approves calls of tools with the gate `ask`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalPlan {
    /// Who may approve. Absent: all users who may write the status of the ToolApproval. Empty: no user, and every
    /// question is denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvers: Option<Vec<Approver>>,
    /// The number of approvers who must vote approve. One vote to deny is enough.
    pub required: u32,
    /// Whether an approval may also cover repetitions of the identical action in this run.
    pub run_scope: bool,
    /// Whether the author of the run may approve its actions.
    pub run_author: bool,
}

/// Runs that this one may start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubagentPlan {
    /// Levels below this one. Zero: it may start none.
    pub levels: u32,
    /// Concurrent runs in the whole tree.
    pub concurrent: u32,
    /// Runs that this run may start.
    pub children: u32,
}

/// Where the run's pod may be scheduled, and the Secrets that its images are pulled with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementPlan {
    /// Labels that the node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Secrets to pull images with. The kubelet reads them; no part does.
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

    /// Timeout in seconds of the pod of the hooks after the run, where there are any: the sum of their timeouts, and
    /// the time that a pod needs to start and to end.
    pub fn after_run_seconds(&self) -> Option<u64> {
        let deadlines = &self.deadlines;
        let hooks = self.parts.iter().filter(|part| part.role.is_post_run());
        let seconds = hooks.map(|hook| hook.timeout_seconds.unwrap_or(deadlines.run_seconds));
        let around = deadlines.start_seconds.saturating_add(deadlines.grace_seconds);
        let all = seconds.reduce(u64::saturating_add)?;
        Some(all.saturating_add(around))
    }

    /// The parts that mount a volume.
    pub fn parts_mounting(&self, volume: &VolumeName) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| part.mounts.iter().any(|mount| mount.volume == *volume))
    }
}
