//! The sidecars of packs, and the container `sandbox`.

use sympozium_api::names::SkillPackName;
use sympozium_api::quantity::{Quantity, Resources};
use sympozium_api::run_plan::{
    AmountsPlan, Identity, IdentityName, Medium, Mount, Part, PartName, Role, Start, VolumeSource, place,
};
use sympozium_api::skill_pack::{Executor, Sidecar};

use super::{
    Builder, IPC_SIZE, PACK_VARIABLE, PackPart, SANDBOX_KEPT, read_only, set, shared, variable, workspace, writable,
};
use crate::admit::{Amounts, ResolvedPack, SANDBOX_PACK, VolumeOwner, parameter_variable, usual_of_pack};
use crate::quantity::Amount;

/// Lifetime of a token in seconds: the minimum of the API server. The backend renews it.
pub const TOKEN_SECONDS: u64 = 600;

impl<'a> Builder<'_, 'a> {
    /// The sidecar of one pack. It sees what the pack declares and its own volumes, and nothing of another pack.
    pub fn skill(&mut self, part: &PackPart<'a>, pack: &ResolvedPack<'a>) -> Part {
        let sidecar = part.sidecar;
        let start = format!("skill-{}", part.number);
        let mut mounts = vec![self.ipc_of(&start)];
        mounts.extend(self.own_space(&start));
        if sidecar.mount_workspace {
            mounts.push(writable(workspace(), place::WORKSPACE));
        }
        if !sidecar.egress.is_empty() {
            mounts.push(self.input(&start, &part.part));
        }
        // Texts are for the agent; files are for the part that executes them.
        if pack.spec.skills.iter().any(|skill| !skill.files.is_empty()) {
            let source = VolumeSource::Texts { pack: part.pack.clone(), programs: true };
            let volume = self.volume(format!("{start}-texts"), source);
            let place = format!("{}/{}", place::SKILLS, part.pack);
            mounts.push(read_only(volume, &place));
        }
        if let (Some(secret), Some(place)) = (&sidecar.secret_ref, sidecar.secret_place()) {
            let source = VolumeSource::Secret { secret: secret.clone() };
            let volume = self.volume(format!("{start}-secret"), source);
            mounts.push(read_only(volume, &place));
        }
        mounts.extend(self.of_node(&start, sidecar));
        let owner = VolumeOwner::Pack(part.pack.clone());
        mounts.extend(self.declared(&owner, &sidecar.volumes, &sidecar.volume_mounts));
        let identity = self.identity(&start, part, &mut mounts);
        let mut env = vec![variable(PACK_VARIABLE, &part.pack)];
        env.extend(sidecar.env.iter().cloned());
        for (key, value) in &pack.params {
            set(&mut env, variable(&parameter_variable(key), value));
        }
        Part {
            name: part.part.clone(),
            role: Role::Skill { pack: SkillPackName::new(part.pack.clone()) },
            image: sidecar.image.clone(),
            image_pull_policy: sidecar.image_pull_policy,
            start: match sidecar.executor {
                Executor::Injected => self.injected(),
                Executor::Image => Start::Image { command: sidecar.command.clone(), args: Vec::new() },
            },
            env,
            mounts,
            amounts: written(sidecar, usual_of_pack(pack.spec, self.amounts.sidecar)),
            identity,
            host_access: sidecar.host_access.clone().filter(|it| it.enabled),
            ports: sidecar.ports.clone(),
            timeout_seconds: None,
        }
    }

    /// The part for commands that name no skill. It sees the workspace, and nothing else.
    pub fn sandbox(&mut self) -> Option<Part> {
        if !self.has_sandbox() {
            return None;
        }
        let sandbox = self.admitted.run.spec.sandbox.clone()?;
        let mut mounts = vec![self.ipc_of(SANDBOX_PACK)];
        mounts.extend(self.own_space(SANDBOX_PACK));
        mounts.push(writable(workspace(), place::WORKSPACE));
        let ours = Start::Image { command: Vec::new(), args: Vec::new() };
        let (image, start) = match sandbox.image {
            Some(image) => (image, self.injected()),
            None => (self.settings.images.sidecar.clone(), ours),
        };
        Some(Part {
            name: PartName(SANDBOX_PACK.to_owned()),
            role: Role::Sandbox,
            image,
            image_pull_policy: sandbox.image_pull_policy,
            start,
            env: vec![variable(PACK_VARIABLE, SANDBOX_PACK)],
            mounts,
            amounts: of_sandbox(sandbox.resources.as_ref(), self.amounts.sandbox),
            identity: None,
            host_access: None,
            ports: Vec::new(),
            timeout_seconds: None,
        })
    }

    fn injected(&self) -> Start {
        Start::Injected { executor: self.settings.images.sidecar.clone() }
    }

    /// Whether there is a container `sandbox`.
    pub fn has_sandbox(&self) -> bool {
        let mut tools = self.admitted.tools.iter();
        tools.any(|tool| tool.pack.as_deref() == Some(SANDBOX_PACK))
    }

    fn ipc_of(&mut self, start: &str) -> Mount {
        let volume = self.scratch(&format!("{start}-ipc"), Medium::Memory, IPC_SIZE);
        writable(volume, place::IPC)
    }

    /// The directories of the node that a policy allows the pack.
    fn of_node(&mut self, start: &str, sidecar: &Sidecar) -> Vec<Mount> {
        let access = sidecar.host_access.iter().filter(|it| it.enabled);
        let mut mounts = Vec::new();
        for (number, mount) in access.flat_map(|it| &it.mounts).enumerate() {
            let source = VolumeSource::Host { path: mount.host_path.clone() };
            let volume = self.volume(format!("{start}-host-{number}"), source);
            mounts.push(Mount { read_only: mount.read_only, ..writable(volume, mount.mount_path.as_str()) });
        }
        mounts
    }

    /// The identity of the pack at the Kubernetes API, if it has any permission there.
    fn identity(&mut self, start: &str, part: &PackPart<'_>, mounts: &mut Vec<Mount>) -> Option<IdentityName> {
        let sidecar = part.sidecar;
        if sidecar.rbac.is_empty() && sidecar.cluster_rbac.is_empty() {
            return None;
        }
        let name = IdentityName(start.to_owned());
        self.identities.push(Identity {
            name: name.clone(),
            pack: Some(part.pack.clone()),
            namespace_rules: sidecar.rbac.clone(),
            cluster_rules: sidecar.cluster_rbac.clone(),
            token_seconds: TOKEN_SECONDS,
        });
        mounts.push(self.token(start, &name));
        Some(name)
    }

    /// The token of an identity, mounted where every client looks for it.
    pub fn token(&mut self, start: &str, identity: &IdentityName) -> Mount {
        let source = VolumeSource::Token { identity: identity.clone() };
        read_only(self.volume(format!("{start}-token"), source), place::TOKEN)
    }
}

/// A pack's limits are also its requests.
fn written(sidecar: &Sidecar, usual: Amounts) -> AmountsPlan {
    let resources = sidecar.resources.clone().unwrap_or_default();
    let usual_text = |amount: Amount| Quantity::Text(amount.to_string());
    let cpu = resources.cpu.unwrap_or_else(|| usual_text(usual.cpu));
    let memory = resources.memory.unwrap_or_else(|| usual_text(usual.memory));
    AmountsPlan { cpu_request: cpu.clone(), cpu_limit: cpu, memory_request: memory.clone(), memory_limit: memory }
}

fn of_sandbox(resources: Option<&Resources>, usual: Amounts) -> AmountsPlan {
    let amount = |quantity: Option<&Quantity>| {
        // Admission has checked it.
        quantity.and_then(|it| Amount::parse(&it.text()).ok())
    };
    let limit = |name: &str, usual: Amount| amount(resources.and_then(|it| it.limits.get(name))).unwrap_or(usual);
    let request = |name: &str, usual: Amount| amount(resources.and_then(|it| it.requests.get(name))).unwrap_or(usual);
    let limits = Amounts { cpu: limit("cpu", usual.cpu), memory: limit("memory", usual.memory) };
    shared(limits, Amounts { cpu: request("cpu", SANDBOX_KEPT.cpu), memory: request("memory", SANDBOX_KEPT.memory) })
}
