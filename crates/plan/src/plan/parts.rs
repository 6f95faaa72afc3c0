//! The parts of a run and their mounts.
//!
//! What a part may see is decided here, mount by mount: the agent has no credential, a skill has nothing of another
//! skill, the bridge has its end of every skill's `/ipc` and never the workspace. Names of volumes consist of fixed
//! words and numbers only.

mod agent_and_bridge;
mod hooks;
mod skill;
mod whole_sandbox;

#[cfg(test)]
pub use skill::TOKEN_SECONDS;

use sympozium_api::environment::EnvVar;
use sympozium_api::names::{EnvName, MountPath};
use sympozium_api::quantity::Quantity;
use sympozium_api::run_plan::Gate;
pub use sympozium_api::run_plan::container::{AGENT, BRIDGE};
use sympozium_api::run_plan::{
    Identity, Medium, ModelPlan, Mount, Part, PartName, PlanVolume, RecursiveReadOnly, ResourcesPlan, VolumeName,
    VolumeSource, paths,
};
use sympozium_api::skill_pack::Sidecar;

use super::PlanSettings;
use super::names::part_names;
use crate::admit::{Admitted, Input, MIN_AGENT_LIMITS, ResourceLimits, VolumeOwner};

/// The variable with the name of the executor's pack.
const PACK_VARIABLE: &str = "SYMPOZIUM_SKILL_PACK";

/// Requests of the agent, below its limits: it waits for the model most of the time.
pub const AGENT_REQUESTS: ResourceLimits = MIN_AGENT_LIMITS;
/// Requests of the bridge.
pub const BRIDGE_REQUESTS: ResourceLimits = ResourceLimits::from_millicores_mib(50, 64);
/// Requests of the container `sandbox`, where the run sets none.
pub const SANDBOX_REQUESTS: ResourceLimits = ResourceLimits::from_millicores_mib(100, 256);
/// Requests of a hook.
pub const HOOK_REQUESTS: ResourceLimits = ResourceLimits::from_millicores_mib(100, 128);

/// Size of the workspace.
pub const WORKSPACE_SIZE: &str = "1Gi";
/// Size of a part's `/tmp`.
pub const TMP_SIZE: &str = "256Mi";
/// Size of a part's `/dev/shm`. It counts as memory of the part.
pub const SHM_SIZE: &str = "64Mi";
/// Size of `/ipc` between bridge and skill: requests and results, each bounded.
pub const IPC_SIZE: &str = "64Mi";
/// Size of the volume with the socket between agent and bridge.
pub const DOOR_SIZE: &str = "1Mi";

/// Parts, their volumes, and their identities.
pub struct BuiltParts<'a> {
    pub parts: Vec<Part>,
    pub volumes: Vec<PlanVolume>,
    pub identities: Vec<Identity>,
    pub packs: Vec<PackPart<'a>>,
}

/// The sidecar of a pack.
pub struct PackPart<'a> {
    /// The name of the pack.
    pub pack: String,
    /// Its index among the run's packs; volumes and identities are named by it.
    pub number: usize,
    /// The spec of the sidecar.
    pub sidecar: &'a Sidecar,
    /// The name of the part.
    pub part: PartName,
}

/// Builds the parts, in the order in which they are listed.
pub fn build<'a>(
    admitted: &Admitted<'a>,
    model: &ModelPlan,
    settings: &PlanSettings,
    input: &Input<'_>,
) -> BuiltParts<'a> {
    let mut builder = PartsBuilder {
        admitted,
        settings,
        default_limits: &input.settings.default_limits,
        run_name: admitted.run.metadata.name.clone().unwrap_or_default(),
        namespace: input.namespace,
        volumes: Vec::new(),
        identities: Vec::new(),
    };
    let packs = pack_parts(admitted);
    builder.add_workspace();
    builder.add_scratch("door", Medium::Memory, DOOR_SIZE);
    let mut parts = vec![builder.build_agent(), builder.build_bridge(model, &packs)];
    parts.extend(
        packs
            .iter()
            .zip(admitted.packs.iter().filter(|pack| pack.sidecar().is_some()))
            .map(|(part, pack)| builder.build_skill(part, pack)),
    );
    parts.extend(builder.build_sandbox());
    parts.extend(builder.build_hooks());
    whole_sandbox::apply(admitted, &mut parts);
    // Where no part mounts the workspace, there is none.
    let mut volumes = builder.volumes;
    volumes.retain(|volume| {
        let mut mounts = parts.iter().flat_map(|part| &part.mounts);
        mounts.any(|mount| mount.volume == volume.name)
    });
    BuiltParts { parts, volumes, identities: builder.identities, packs }
}

fn pack_parts<'a>(admitted: &Admitted<'a>) -> Vec<PackPart<'a>> {
    let packs: Vec<_> = admitted
        .packs
        .iter()
        .enumerate()
        .filter_map(|(number, pack)| Some((number, pack.name.as_str(), pack.sidecar()?)))
        .collect();
    let names = part_names("skill", packs.iter().map(|(_, name, _)| *name));
    packs
        .into_iter()
        .zip(names)
        .map(|((number, pack, sidecar), part)| PackPart {
            pack: pack.to_owned(),
            number,
            sidecar,
            part: PartName(part),
        })
        .collect()
}

struct PartsBuilder<'b, 'a> {
    admitted: &'b Admitted<'a>,
    settings: &'b PlanSettings,
    default_limits: &'b crate::admit::DefaultLimits,
    run_name: String,
    namespace: &'b str,
    volumes: Vec<PlanVolume>,
    identities: Vec<Identity>,
}

impl PartsBuilder<'_, '_> {
    fn add_volume(&mut self, name: String, source: VolumeSource) -> VolumeName {
        let name = VolumeName(name);
        self.volumes.push(PlanVolume { name: name.clone(), source });
        name
    }

    fn add_scratch(&mut self, name: &str, medium: Medium, size: &str) -> VolumeName {
        let source = VolumeSource::Scratch { medium, size: size.into() };
        self.add_volume(name.to_owned(), source)
    }

    /// With hooks after the run, the workspace outlives the agent's pod.
    fn add_workspace(&mut self) {
        let hooks = self.admitted.run.spec.lifecycle.as_ref();
        if hooks.is_some_and(|hooks| !hooks.post_run.is_empty()) {
            let size = WORKSPACE_SIZE.into();
            self.add_volume("workspace".to_owned(), VolumeSource::Kept { size });
        } else {
            self.add_scratch("workspace", Medium::Disk, WORKSPACE_SIZE);
        }
    }

    /// The scratch space and shared memory of a part, which no other part can access.
    fn add_private_scratch(&mut self, start: &str) -> Vec<Mount> {
        let tmp = self.add_scratch(&format!("{start}-tmp"), Medium::Disk, TMP_SIZE);
        let shm = self.add_scratch(&format!("{start}-shm"), Medium::Memory, SHM_SIZE);
        vec![writable(tmp, paths::TMP), writable(shm, paths::SHM)]
    }

    fn add_input(&mut self, start: &str, part: &PartName) -> Mount {
        let source = VolumeSource::Input { part: part.clone() };
        read_only(self.add_volume(format!("{start}-input"), source), paths::INPUT)
    }

    /// The volumes that a user declared for a part, as far as the part mounts them.
    fn add_declared_volumes(
        &mut self,
        owner: &VolumeOwner,
        volumes: &[sympozium_api::open::Volume],
        mounts: &[sympozium_api::open::VolumeMount],
    ) -> Vec<Mount> {
        let named = self.admitted.volumes.iter();
        let named: Vec<_> = named.filter(|named| named.owner == *owner).cloned().collect();
        let mut made = Vec::new();
        for volume in volumes {
            let own: Vec<_> = mounts.iter().filter(|mount| mount.name == volume.name).collect();
            let name = named.iter().find(|named| volume.name == named.name.as_str());
            let (Some(name), false) = (name, own.is_empty()) else {
                continue;
            };
            let source = VolumeSource::Declared { volume: volume.clone() };
            let name = self.add_volume(name.pod_name.clone(), source);
            made.extend(own.into_iter().map(|mount| Mount {
                volume: name.clone(),
                path: mount.mount_path.clone(),
                read_only: mount.read_only == Some(true),
                sub_path: mount.sub_path.clone().filter(|sub_path| !sub_path.is_empty()),
                recursive_read_only: (mount.recursive_read_only.as_deref()).and_then(RecursiveReadOnly::parse),
            }));
        }
        made
    }

    /// Whether the policy allows one of these tools.
    fn has_tool(&self, names: &[&str]) -> bool {
        let mut tools = self.admitted.tools.iter();
        tools.any(|tool| tool.pack.is_none() && names.contains(&tool.name.as_str()) && tool.action != Gate::Deny)
    }
}

fn workspace() -> VolumeName {
    VolumeName("workspace".to_owned())
}

fn door() -> VolumeName {
    VolumeName("door".to_owned())
}

fn ipc(start: &str) -> VolumeName {
    VolumeName(format!("{start}-ipc"))
}

fn writable(volume: VolumeName, path: &str) -> Mount {
    Mount { volume, path: MountPath::new(path), read_only: false, sub_path: None, recursive_read_only: None }
}

fn read_only(volume: VolumeName, path: &str) -> Mount {
    Mount { read_only: true, ..writable(volume, path) }
}

fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: EnvName::new(name), value: Some(value.to_owned()), value_from: None }
}

/// Sets a variable; replaces one of the same name.
fn set_variable(env: &mut Vec<EnvVar>, variable: EnvVar) {
    match env.iter_mut().find(|env| env.name == variable.name) {
        Some(there) => *there = variable,
        None => env.push(variable),
    }
}

/// Limits as they are, and requests below them: our parts wait most of the time.
fn plan_resources(limits: ResourceLimits, request: ResourceLimits) -> ResourcesPlan {
    let text = |amount: crate::quantity::ExactQuantity| Quantity::Text(amount.to_string());
    ResourcesPlan {
        cpu_request: text(request.cpu.min(limits.cpu)),
        cpu_limit: text(limits.cpu),
        memory_request: text(request.memory.min(limits.memory)),
        memory_limit: text(limits.memory),
    }
}
