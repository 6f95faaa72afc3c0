//! The sidecars of packs, and the container `sandbox`.

use sympozium_api::names::SkillPackName;
use sympozium_api::quantity::{Quantity, Resources};
use sympozium_api::run_plan::{
    Identity, IdentityName, Medium, Mount, Part, PartName, ResourcesPlan, Role, Start, VolumeSource, paths,
};
use sympozium_api::skill_pack::{Executor, Sidecar};

use super::{
    IPC_SIZE, PACK_VARIABLE, PackPart, PartsBuilder, SANDBOX_REQUESTS, plan_resources, read_only, set_variable,
    variable, workspace, writable,
};
use crate::admit::{
    ResolvedPack, ResourceLimits, SANDBOX_PACK, VolumeOwner, default_sidecar_limits, parameter_variable,
};
use crate::quantity::ExactQuantity;

/// Lifetime of a token in seconds: the minimum of the API server. The backend renews it.
pub const TOKEN_SECONDS: u64 = 600;

impl<'a> PartsBuilder<'_, 'a> {
    /// The sidecar of one pack. It sees what the pack declares and its own volumes, and nothing of another pack.
    pub fn build_skill(&mut self, part: &PackPart<'a>, pack: &ResolvedPack<'a>) -> Part {
        let sidecar = part.sidecar;
        let start = format!("skill-{}", part.number);
        let mut mounts = vec![self.add_ipc(&start)];
        mounts.extend(self.add_private_scratch(&start));
        if sidecar.mount_workspace {
            mounts.push(writable(workspace(), paths::WORKSPACE));
        }
        if !sidecar.egress.is_empty() {
            mounts.push(self.add_input(&start, &part.part));
        }
        // Texts are for the agent; files are for the part that executes them.
        if pack.spec.skills.iter().any(|skill| !skill.files.is_empty()) {
            let source = VolumeSource::Texts { pack: part.pack.clone(), programs: true };
            let volume = self.add_volume(format!("{start}-texts"), source);
            let place = format!("{}/{}", paths::SKILLS, part.pack);
            mounts.push(read_only(volume, &place));
        }
        if let (Some(secret), Some(place)) = (&sidecar.secret_ref, sidecar.effective_secret_path()) {
            let source = VolumeSource::Secret { secret: secret.clone() };
            let volume = self.add_volume(format!("{start}-secret"), source);
            mounts.push(read_only(volume, &place));
        }
        mounts.extend(self.add_host_paths(&start, sidecar));
        let owner = VolumeOwner::Pack(part.pack.clone());
        mounts.extend(self.add_declared_volumes(&owner, &sidecar.volumes, &sidecar.volume_mounts));
        let identity = self.add_identity(&start, part, &mut mounts);
        let mut env = vec![variable(PACK_VARIABLE, &part.pack)];
        env.extend(sidecar.env.iter().cloned());
        for (key, value) in &pack.params {
            set_variable(&mut env, variable(&parameter_variable(key), value));
        }
        Part {
            name: part.part.clone(),
            role: Role::Skill { pack: SkillPackName::new(part.pack.clone()) },
            image: sidecar.image.clone(),
            image_pull_policy: sidecar.image_pull_policy,
            start: match sidecar.executor {
                Executor::Injected => self.injected_start(),
                Executor::Image => Start::Image { command: sidecar.command.clone(), args: Vec::new() },
            },
            env,
            mounts,
            amounts: sidecar_resources(sidecar, default_sidecar_limits(pack.spec, self.default_limits.sidecar)),
            identity,
            host_access: sidecar.host_access.clone().filter(|host_access| host_access.enabled),
            ports: sidecar.ports.clone(),
            timeout_seconds: None,
        }
    }

    /// The part for commands that name no skill. It sees the workspace, and nothing else.
    pub fn build_sandbox(&mut self) -> Option<Part> {
        if !self.has_sandbox() {
            return None;
        }
        let sandbox = self.admitted.run.spec.sandbox.clone()?;
        let mut mounts = vec![self.add_ipc(SANDBOX_PACK)];
        mounts.extend(self.add_private_scratch(SANDBOX_PACK));
        mounts.push(writable(workspace(), paths::WORKSPACE));
        let ours = Start::Image { command: Vec::new(), args: Vec::new() };
        let (image, start) = match sandbox.image {
            Some(image) => (image, self.injected_start()),
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
            amounts: sandbox_resources(sandbox.resources.as_ref(), self.default_limits.sandbox),
            identity: None,
            host_access: None,
            ports: Vec::new(),
            timeout_seconds: None,
        })
    }

    fn injected_start(&self) -> Start {
        Start::Injected { executor: self.settings.images.sidecar.clone() }
    }

    /// Whether there is a container `sandbox`.
    pub fn has_sandbox(&self) -> bool {
        let mut tools = self.admitted.tools.iter();
        tools.any(|tool| tool.pack.as_deref() == Some(SANDBOX_PACK))
    }

    fn add_ipc(&mut self, start: &str) -> Mount {
        let volume = self.add_scratch(&format!("{start}-ipc"), Medium::Memory, IPC_SIZE);
        writable(volume, paths::IPC)
    }

    /// The directories of the node that a policy allows the pack.
    fn add_host_paths(&mut self, start: &str, sidecar: &Sidecar) -> Vec<Mount> {
        let access = sidecar.host_access.iter().filter(|host_access| host_access.enabled);
        let mut mounts = Vec::new();
        for (number, mount) in access.flat_map(|access| &access.mounts).enumerate() {
            let source = VolumeSource::Host { path: mount.host_path.clone() };
            let volume = self.add_volume(format!("{start}-host-{number}"), source);
            mounts.push(Mount { read_only: mount.read_only, ..writable(volume, mount.mount_path.as_str()) });
        }
        mounts
    }

    /// The identity of the pack at the Kubernetes API, if it has any permission there.
    fn add_identity(&mut self, start: &str, part: &PackPart<'_>, mounts: &mut Vec<Mount>) -> Option<IdentityName> {
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
        mounts.push(self.add_token(start, &name));
        Some(name)
    }

    /// The token of an identity, mounted where every client looks for it.
    pub fn add_token(&mut self, start: &str, identity: &IdentityName) -> Mount {
        let source = VolumeSource::Token { identity: identity.clone() };
        read_only(self.add_volume(format!("{start}-token"), source), paths::TOKEN)
    }
}

/// A pack's limits are also its requests.
fn sidecar_resources(sidecar: &Sidecar, usual: ResourceLimits) -> ResourcesPlan {
    let resources = sidecar.resources.clone().unwrap_or_default();
    let usual_text = |amount: ExactQuantity| Quantity::Text(amount.to_string());
    let cpu = resources.cpu.unwrap_or_else(|| usual_text(usual.cpu));
    let memory = resources.memory.unwrap_or_else(|| usual_text(usual.memory));
    ResourcesPlan { cpu_request: cpu.clone(), cpu_limit: cpu, memory_request: memory.clone(), memory_limit: memory }
}

fn sandbox_resources(resources: Option<&Resources>, usual: ResourceLimits) -> ResourcesPlan {
    let amount = |quantity: Option<&Quantity>| {
        // Admission has checked it.
        quantity.and_then(|quantity| ExactQuantity::parse(&quantity.text()).ok())
    };
    let limit = |name: &str, usual: ExactQuantity| {
        amount(resources.and_then(|resources| resources.limits.get(name))).unwrap_or(usual)
    };
    let request = |name: &str, usual: ExactQuantity| {
        amount(resources.and_then(|resources| resources.requests.get(name))).unwrap_or(usual)
    };
    let limits = ResourceLimits { cpu: limit("cpu", usual.cpu), memory: limit("memory", usual.memory) };
    plan_resources(
        limits,
        ResourceLimits {
            cpu: request("cpu", SANDBOX_REQUESTS.cpu),
            memory: request("memory", SANDBOX_REQUESTS.memory),
        },
    )
}
