//! The input of admission. All of it is data that the caller has fetched.

use std::collections::{BTreeMap, BTreeSet};

use sympozium_api::builtin_tool::{SCHEDULE_TASK, SEND_CHANNEL_MESSAGE, SPAWN_SUBAGENTS};
use sympozium_api::names::{ObjectName, PolicyName, SkillPackName};
use sympozium_api::{
    Agent, AgentRun, AgentSpec, Model, SkillPack, SympoziumInstance, SympoziumPolicy, SympoziumPolicySpec,
};

use crate::quantity::ExactQuantity;
use crate::rbac::{Rule, Scope, harmless_rules};

/// Everything that decides about a run.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The run, as it was written.
    pub run: &'a AgentRun,
    /// The namespace of the run. The namespace in the run's metadata is ignored.
    pub namespace: &'a str,
    /// The agent that the run names, by both kinds that an agent may have.
    pub agents: Agents<'a>,
    /// The packs that [`referenced_packs`] returns, by name.
    pub packs: &'a BTreeMap<SkillPackName, PackCandidates<'a>>,
    /// The policy that [`referenced_policy`] returns.
    pub policies: Candidates<'a, SympoziumPolicy>,
    /// The policy floor of the cluster.
    pub floor: Option<&'a SympoziumPolicySpec>,
    /// The model that the run names in `modelRef`: in the namespace of the reference or else the run's, and in the
    /// system namespace.
    pub models: Candidates<'a, Model>,
    /// What the run's author may do. Absent, nothing is compared: for a run of one machine, where no rights are granted.
    pub author: Option<&'a Permissions>,
    /// The RuntimeClasses of the cluster, or of the files: the handler of each, by name. A name that is not in the map
    /// proves nothing.
    pub runtime_classes: &'a RuntimeClasses,
    /// Facts about other runs.
    pub facts: Facts,
    /// The settings of this installation.
    pub settings: &'a Settings,
}

/// The handlers of RuntimeClasses, by the name of the class.
pub type RuntimeClasses = BTreeMap<String, String>;

/// For callers that do not know the RuntimeClasses.
pub static NO_RUNTIME_CLASSES: RuntimeClasses = RuntimeClasses::new();

/// Handlers that give a pod its own kernel, unless the operator lists others: the names under which gVisor and Kata
/// Containers are installed.
pub const KERNEL_HANDLERS: [&str; 6] = ["runsc", "gvisor", "kata", "kata-qemu", "kata-clh", "kata-fc"];

/// The agent of a run, by both kinds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Agents<'a> {
    /// The `Agent` of the name, if there is one.
    pub agent: Option<&'a Agent>,
    /// The `SympoziumInstance` of the name, if there is one.
    pub instance: Option<&'a SympoziumInstance>,
    /// What its author may do in the run's namespace, which its hooks may not exceed. Absent, nothing is compared: for agents of the
    /// system namespace, which are the operator's own, and for a run of one machine, where no rights are granted.
    pub author: Option<&'a Permissions>,
}

/// An object by name, in the two namespaces that are searched.
#[derive(Debug)]
pub struct Candidates<'a, K> {
    /// In the run's namespace.
    pub own: Option<&'a K>,
    /// In the system namespace. Absent when that is the run's namespace.
    pub system: Option<&'a K>,
}

impl<K> Clone for Candidates<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Candidates<'_, K> {}

impl<K> Default for Candidates<'_, K> {
    fn default() -> Self {
        Self { own: None, system: None }
    }
}

/// A pack by name, in the two namespaces that are searched.
#[derive(Debug, Clone, Copy, Default)]
pub struct PackCandidates<'a> {
    /// In the run's namespace.
    pub own: Option<PackObject<'a>>,
    /// In the system namespace. Absent when that is the run's namespace.
    pub system: Option<PackObject<'a>>,
}

/// A pack, and what is known about its author.
#[derive(Debug, Clone, Copy)]
pub struct PackObject<'a> {
    /// The SkillPack.
    pub pack: &'a SkillPack,
    /// What its author may do, in the run's namespace. Absent, nothing is compared, as for [agents](Agents::author).
    pub author: Option<&'a Permissions>,
}

/// The permissions of a user at the Kubernetes API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Whether the user may grant permissions that they do not hold: verb `escalate` on `skillpacks`.
    pub may_escalate: bool,
    /// The user's rules in the run's namespace.
    pub namespace: Vec<Rule>,
    /// The user's rules in the whole cluster, which apply in the namespace too.
    pub cluster: Vec<Rule>,
}

impl Permissions {
    /// Only the permissions that are known to be harmless.
    pub fn harmless() -> Self {
        Self {
            may_escalate: false,
            namespace: harmless_rules(Scope::Namespace),
            cluster: harmless_rules(Scope::Cluster),
        }
    }

    /// The permissions that an author of whom nothing is recorded is assumed to hold: none, and in a namespace that the
    /// floor lists in `clusterRBACNamespaces` the harmless ones. That list says where grants may be, not that every
    /// user of the namespace holds what the floor's exceptions leave to packs of the system namespace.
    pub fn for_unknown_author(floor: Option<&SympoziumPolicySpec>, namespace: &str) -> Self {
        let listed = floor
            .and_then(|floor| floor.rbac_policy.as_ref())
            .and_then(|rbac_policy| rbac_policy.cluster_rbac_namespaces.as_ref());
        match listed {
            Some(list) if list.iter().any(|listed| listed.as_str() == namespace) => Self::harmless(),
            _ => Self::default(),
        }
    }
}

/// Facts about other runs. Unknown facts are not checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Facts {
    /// Number of active runs of the same tree, without this one.
    pub runs_in_tree: Option<u32>,
    /// Number of runs that the parent has started, without this one.
    pub siblings: Option<u32>,
    /// Number of runs above the parent.
    pub parent_depth: Option<u32>,
}

/// The settings of an installation.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The namespace of built-in packs and policies.
    pub system_namespace: String,
    /// The RuntimeClass of runs in agent-sandbox that name none.
    pub default_runtime_class: Option<ObjectName>,
    /// Handlers of RuntimeClasses that give a pod its own kernel.
    pub kernel_handlers: BTreeSet<String>,
    /// The default resources of each container.
    pub default_limits: DefaultLimits,
    /// The optional services that are available.
    pub services: Services,
}

/// The optional services of an installation. A tool without its service could only fail and is not offered; a run that
/// needs a missing service is denied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Services {
    /// Whether messages are delivered to channels: `send_channel_message`.
    pub channels: bool,
    /// Whether tasks are scheduled: `schedule_task`.
    pub schedules: bool,
    /// Whether runs can start runs: `spawn_subagents`.
    pub subagents: bool,
    /// Whether sandboxes are claimed from warm pools: `agentSandbox.warmPoolRef`.
    pub warm_pools: bool,
    /// Whether runs can wait for requests: `mode: server`.
    pub server_mode: bool,
}

impl Services {
    /// Whether the service of this tool is available; true for tools that need none.
    pub fn supports(self, tool: &str) -> bool {
        match tool {
            SEND_CHANNEL_MESSAGE => self.channels,
            SCHEDULE_TASK => self.schedules,
            SPAWN_SUBAGENTS => self.subagents,
            _ => true,
        }
    }
}

/// The default resources of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefaultLimits {
    /// The agent.
    pub agent: ResourceLimits,
    /// The bridge.
    pub bridge: ResourceLimits,
    /// The sidecar of a pack.
    pub sidecar: ResourceLimits,
    /// The container `sandbox`.
    pub sandbox: ResourceLimits,
    /// A hook.
    pub hook: ResourceLimits,
}

/// Maximum resources of one container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceLimits {
    /// CPU, in cores.
    pub cpu: ExactQuantity,
    /// Memory, in bytes.
    pub memory: ExactQuantity,
}

impl ResourceLimits {
    /// From millicores and MiB.
    pub const fn from_millicores_mib(cpu_thousandths: u64, memory_mebibytes: u64) -> Self {
        Self {
            cpu: ExactQuantity::from_millis(cpu_thousandths),
            memory: ExactQuantity::from_units(memory_mebibytes << 20),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            system_namespace: sympozium_api::labels::SYSTEM_NAMESPACE.to_owned(),
            default_runtime_class: None,
            kernel_handlers: KERNEL_HANDLERS.map(str::to_owned).into(),
            default_limits: DefaultLimits {
                agent: ResourceLimits::from_millicores_mib(1000, 1024),
                bridge: ResourceLimits::from_millicores_mib(100, 128),
                sidecar: ResourceLimits::from_millicores_mib(100, 128),
                sandbox: ResourceLimits::from_millicores_mib(500, 512),
                hook: ResourceLimits::from_millicores_mib(500, 512),
            },
            services: Services::default(),
        }
    }
}

impl<'a> Agents<'a> {
    /// The spec of the agent, if there is exactly one.
    pub fn spec(&self) -> Option<&'a AgentSpec> {
        match (self.agent, self.instance) {
            (Some(agent), None) => Some(&agent.spec),
            (None, Some(instance)) => Some(&instance.spec),
            _ => None,
        }
    }
}

/// The packs of a run: its own, or those of the agent where it names none.
pub fn referenced_packs(run: &AgentRun, agents: Agents<'_>) -> Vec<SkillPackName> {
    let of_agent = agents.spec().map(|spec| spec.skills.as_slice());
    let skills = match run.spec.skills.as_slice() {
        [] => of_agent.unwrap_or_default(),
        skills => skills,
    };
    let mut names: Vec<_> = skills.iter().filter_map(|skill| skill.skill_pack_ref.clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// The policy of a run.
pub fn referenced_policy(agents: Agents<'_>) -> Option<&PolicyName> {
    agents.spec()?.policy_ref.as_ref()
}
