//! Agent and bridge.

use sympozium_api::builtin_tool::{EDIT_FILE, LIST_DIRECTORY, READ_FILE, WRITE_FILE};
use sympozium_api::environment::{EnvVar, EnvVarSource, KeyReference};
use sympozium_api::names::ObjectName;
use sympozium_api::run_plan::{ModelPlan, Mount, Part, PartName, Role, Start, VolumeSource, paths};

use super::{
    AGENT, BRIDGE, PackPart, PartsBuilder, door, ipc, plan_resources, read_only, variable, workspace, writable,
};
use super::{AGENT_REQUESTS, BRIDGE_REQUESTS};
use crate::admit::{SANDBOX_PACK, VolumeOwner};
use crate::plan::skills::{CONFIG_MAPS, config_maps, packs_with_texts};

impl PartsBuilder<'_, '_> {
    /// The part that runs the model loop. It sees skill texts, and files as far as its tools may access them; no
    /// Secret, no token, no files of other parts.
    pub fn build_agent(&mut self) -> Part {
        let name = PartName(AGENT.to_owned());
        let admitted = self.admitted;
        let spec = &admitted.run.spec;
        let mut mounts = self.add_private_scratch(AGENT);
        mounts.push(self.add_input(AGENT, &name));
        // The bridge creates the socket; the agent only connects to it.
        mounts.push(read_only(door(), paths::DOOR));
        mounts.extend(self.agent_workspace());
        for (number, pack) in packs_with_texts(admitted) {
            let source = VolumeSource::Texts { pack: pack.name.as_str().to_owned(), programs: false };
            let volume = self.add_volume(format!("agent-texts-{number}"), source);
            let place = format!("{}/{}", paths::SKILLS, pack.name);
            mounts.push(read_only(volume, &place));
        }
        for (number, config_map) in config_maps(admitted).into_iter().enumerate() {
            let source = VolumeSource::ConfigMap { config_map: ObjectName::new(config_map) };
            let volume = self.add_volume(format!("agent-config-{number}"), source);
            let place = format!("{}/{CONFIG_MAPS}/{config_map}", paths::SKILLS);
            mounts.push(read_only(volume, &place));
        }
        mounts.extend(self.agent_volumes());
        Part {
            name,
            role: Role::Agent,
            image: self.settings.images.agent.clone(),
            image_pull_policy: None,
            start: image_entrypoint(),
            env: spec.env.iter().map(|(name, value)| variable(name, value)).collect(),
            mounts,
            amounts: plan_resources(self.default_limits.agent, AGENT_REQUESTS),
            identity: None,
            host_access: None,
            ports: Vec::new(),
            timeout_seconds: None,
        }
    }

    /// The agent's access to the workspace is that of its file tools: where they are all denied it has no workspace.
    fn agent_workspace(&self) -> Option<Mount> {
        if self.has_tool(&[WRITE_FILE, EDIT_FILE]) {
            return Some(writable(workspace(), paths::WORKSPACE));
        }
        let reads = self.has_tool(&[READ_FILE, LIST_DIRECTORY]);
        reads.then(|| read_only(workspace(), paths::WORKSPACE))
    }

    /// The volumes that the author mounted for the agent are as accessible as the workspace.
    fn agent_volumes(&mut self) -> Vec<Mount> {
        let Some(Mount { read_only, .. }) = self.agent_workspace() else {
            return Vec::new();
        };
        let spec = &self.admitted.run.spec;
        let mut mounts = self.add_declared_volumes(&VolumeOwner::Agent, &spec.volumes, &spec.volume_mounts);
        for mount in &mut mounts {
            mount.read_only |= read_only;
        }
        mounts
    }

    /// The part that decides about tool calls. It has the model key and its end of every skill's `/ipc`, and no
    /// workspace.
    pub fn build_bridge(&mut self, model: &ModelPlan, packs: &[PackPart<'_>]) -> Part {
        let name = PartName(BRIDGE.to_owned());
        let mut mounts = self.add_private_scratch("bridge");
        mounts.push(self.add_input("bridge", &name));
        mounts.push(writable(door(), paths::DOOR));
        for pack in packs {
            let place = format!("{}/{}", paths::IPC, pack.pack);
            mounts.push(writable(ipc(&format!("skill-{}", pack.number)), &place));
        }
        if self.has_sandbox() {
            let place = format!("{}/{SANDBOX_PACK}", paths::IPC);
            mounts.push(writable(ipc("sandbox"), &place));
        }
        if let Some(secret) = &model.headers_secret {
            let source = VolumeSource::Secret { secret: secret.clone() };
            let volume = self.add_volume("bridge-headers".to_owned(), source);
            mounts.push(read_only(volume, paths::HEADERS));
        }
        if let Some(config_map) = &model.script {
            let source = VolumeSource::ConfigMap { config_map: config_map.clone() };
            let volume = self.add_volume("bridge-script".to_owned(), source);
            mounts.push(read_only(volume, paths::SCRIPT));
        }
        let key = |key: &sympozium_api::run_plan::ModelKey| EnvVar {
            name: key.variable.clone(),
            value: None,
            value_from: Some(EnvVarSource {
                secret_key_ref: Some(KeyReference {
                    name: ObjectName::new(key.secret.as_str()),
                    key: key.variable.as_str().to_owned(),
                    // One of the two keys is enough.
                    optional: Some(true),
                }),
                ..EnvVarSource::default()
            }),
        };
        Part {
            name,
            role: Role::Bridge,
            image: self.settings.images.bridge.clone(),
            image_pull_policy: None,
            start: image_entrypoint(),
            env: model.keys.iter().map(key).collect(),
            mounts,
            amounts: plan_resources(self.default_limits.bridge, BRIDGE_REQUESTS),
            identity: None,
            host_access: None,
            ports: Vec::new(),
            timeout_seconds: None,
        }
    }
}

fn image_entrypoint() -> Start {
    Start::Image { command: Vec::new(), args: Vec::new() }
}
