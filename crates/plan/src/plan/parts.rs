//! The parts of a run and their mounts.
//!
//! What a part may see is decided here, mount by mount: the agent has no credential, a skill has nothing of another
//! skill, the bridge has its end of every skill's `/ipc` and never the workspace. Names of volumes consist of fixed
//! words and numbers only.

mod hooks;
mod ours;
mod skill;
mod whole_sandbox;

#[cfg(test)]
pub use skill::TOKEN_SECONDS;

use sympozium_api::environment::EnvVar;
use sympozium_api::names::{EnvName, MountPath};
use sympozium_api::quantity::Quantity;
pub use sympozium_api::run_plan::container::{AGENT, BRIDGE};
use sympozium_api::run_plan::{
    AmountsPlan, Identity, Medium, ModelPlan, Mount, Part, PartName, PlanVolume, RecursiveReadOnly, VolumeName,
    VolumeSource, place,
};
use sympozium_api::skill_pack::Sidecar;

use super::PlanSettings;
use super::names::part_names;
use crate::admit::{Admitted, Amounts, Input, LEAST_AGENT, VolumeOwner};
use crate::policy::tools::Action;

/// The variable with the name of the executor's pack.
const PACK_VARIABLE: &str = "SYMPOZIUM_SKILL_PACK";

/// Requests of the agent, below its limits: it waits for the model most of the time.
pub const AGENT_KEPT: Amounts = LEAST_AGENT;
/// Requests of the bridge.
pub const BRIDGE_KEPT: Amounts = Amounts::of(50, 64);
/// Requests of the container `sandbox`, where the run sets none.
pub const SANDBOX_KEPT: Amounts = Amounts::of(100, 256);
/// Requests of a hook.
pub const HOOK_KEPT: Amounts = Amounts::of(100, 128);

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
pub struct Built<'a> {
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
pub fn build<'a>(admitted: &Admitted<'a>, model: &ModelPlan, settings: &PlanSettings, input: &Input<'_>) -> Built<'a> {
    let mut builder = Builder {
        admitted,
        settings,
        amounts: &input.settings.amounts,
        run_name: admitted.run.metadata.name.clone().unwrap_or_default(),
        namespace: input.namespace,
        volumes: Vec::new(),
        identities: Vec::new(),
    };
    let packs = pack_parts(admitted);
    builder.add_workspace();
    builder.scratch("door", Medium::Memory, DOOR_SIZE);
    let mut parts = vec![builder.agent(), builder.bridge(model, &packs)];
    parts.extend(
        packs
            .iter()
            .zip(admitted.packs.iter().filter(|it| it.sidecar().is_some()))
            .map(|(part, pack)| builder.skill(part, pack)),
    );
    parts.extend(builder.sandbox());
    parts.extend(builder.hooks());
    whole_sandbox::apply(admitted, &mut parts);
    // Where no part mounts the workspace, there is none.
    let mut volumes = builder.volumes;
    volumes.retain(|volume| {
        let mut mounts = parts.iter().flat_map(|part| &part.mounts);
        mounts.any(|mount| mount.volume == volume.name)
    });
    Built { parts, volumes, identities: builder.identities, packs }
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

struct Builder<'b, 'a> {
    admitted: &'b Admitted<'a>,
    settings: &'b PlanSettings,
    amounts: &'b crate::admit::ContainerAmounts,
    run_name: String,
    namespace: &'b str,
    volumes: Vec<PlanVolume>,
    identities: Vec<Identity>,
}

impl Builder<'_, '_> {
    fn volume(&mut self, name: String, source: VolumeSource) -> VolumeName {
        let name = VolumeName(name);
        self.volumes.push(PlanVolume { name: name.clone(), source });
        name
    }

    fn scratch(&mut self, name: &str, medium: Medium, size: &str) -> VolumeName {
        let source = VolumeSource::Scratch { medium, size: size.into() };
        self.volume(name.to_owned(), source)
    }

    /// With hooks after the run, the workspace outlives the agent's pod.
    fn add_workspace(&mut self) {
        let hooks = self.admitted.run.spec.lifecycle.as_ref();
        if hooks.is_some_and(|it| !it.post_run.is_empty()) {
            let size = WORKSPACE_SIZE.into();
            self.volume("workspace".to_owned(), VolumeSource::Kept { size });
        } else {
            self.scratch("workspace", Medium::Disk, WORKSPACE_SIZE);
        }
    }

    /// The scratch space and shared memory of a part, which no other part can access.
    fn own_space(&mut self, start: &str) -> Vec<Mount> {
        let tmp = self.scratch(&format!("{start}-tmp"), Medium::Disk, TMP_SIZE);
        let shm = self.scratch(&format!("{start}-shm"), Medium::Memory, SHM_SIZE);
        vec![writable(tmp, place::TMP), writable(shm, place::SHM)]
    }

    fn input(&mut self, start: &str, part: &PartName) -> Mount {
        let source = VolumeSource::Input { part: part.clone() };
        read_only(self.volume(format!("{start}-input"), source), place::INPUT)
    }

    /// The volumes that a user declared for a part, as far as the part mounts them.
    fn declared(
        &mut self,
        owner: &VolumeOwner,
        volumes: &[sympozium_api::open::Volume],
        mounts: &[sympozium_api::open::VolumeMount],
    ) -> Vec<Mount> {
        let named = self.admitted.volumes.iter();
        let named: Vec<_> = named.filter(|it| it.owner == *owner).cloned().collect();
        let mut made = Vec::new();
        for volume in volumes {
            let own: Vec<_> = mounts.iter().filter(|it| it.name == volume.name).collect();
            let name = named.iter().find(|it| volume.name == it.name.as_str());
            let (Some(name), false) = (name, own.is_empty()) else {
                continue;
            };
            let source = VolumeSource::Declared { volume: volume.clone() };
            let name = self.volume(name.pod_name.clone(), source);
            made.extend(own.into_iter().map(|mount| Mount {
                volume: name.clone(),
                path: mount.mount_path.clone(),
                read_only: mount.read_only == Some(true),
                sub_path: mount.sub_path.clone().filter(|it| !it.is_empty()),
                recursive_read_only: (mount.recursive_read_only.as_deref()).and_then(RecursiveReadOnly::parse),
            }));
        }
        made
    }

    /// Whether the policy allows one of these tools.
    fn has_tool(&self, names: &[&str]) -> bool {
        let mut tools = self.admitted.tools.iter();
        tools.any(|tool| tool.pack.is_none() && names.contains(&tool.name.as_str()) && tool.action != Action::Deny)
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
fn set(env: &mut Vec<EnvVar>, variable: EnvVar) {
    match env.iter_mut().find(|it| it.name == variable.name) {
        Some(there) => *there = variable,
        None => env.push(variable),
    }
}

/// Limits as they are, and requests below them: our parts wait most of the time.
fn shared(limits: Amounts, request: Amounts) -> AmountsPlan {
    let text = |amount: crate::quantity::Amount| Quantity::Text(amount.to_string());
    AmountsPlan {
        cpu_request: text(request.cpu.min(limits.cpu)),
        cpu_limit: text(limits.cpu),
        memory_request: text(request.memory.min(limits.memory)),
        memory_limit: text(limits.memory),
    }
}
