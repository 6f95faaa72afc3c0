//! The containers of a run, or its process trees.

use serde::Serialize;
use serde_json::Value;
use sympozium_api::environment::EnvVar;
use sympozium_api::lifecycle::GateDefault;
use sympozium_api::run_plan::{Part, Role, RunPlan, Start};
use sympozium_api::sandbox::ImagePullPolicy;

use super::about::{Executor, executor};
use super::files::{self, Access, VolumeKind};
use super::tools::digest_of;
use super::{grants, network, node};

/// One part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PartAbout {
    /// The name of its container.
    pub part: String,
    /// What it is for: `agent`, `bridge`, `skill`, `sandbox`, `preRun`, `postRun`.
    pub role: &'static str,
    /// The pack or the hook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Whether what it says about the run's result counts.
    pub is_gate: bool,
    /// What becomes of the result when it says nothing, where that is not to keep it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate_default: Option<GateDefault>,
    /// Its image.
    pub image: String,
    /// When its image is pulled; as the cluster does by itself when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// What runs commands in it.
    pub executor: Executor,
    /// What starts instead of the image's entrypoint.
    pub command: Vec<String>,
    /// Its variables, with digests instead of values: people write into manifests what they should not.
    pub environment: Vec<VariableAbout>,
    /// What it sees besides its image.
    pub mounts: Vec<MountAbout>,
    /// What it may reach, in words.
    pub reaches: Vec<String>,
    /// Who it is at the Kubernetes API; nobody when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// What it has of the node, in words; nothing for most.
    pub node: Vec<String>,
    /// Ports that it listens at.
    pub ports: Vec<String>,
}

/// One variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VariableAbout {
    /// Its name.
    pub name: String,
    /// Where its value is from.
    pub from: VariableSource,
    /// The digest of a value that is written in the manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// Where the value of a variable is from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum VariableSource {
    /// Written in the manifest.
    Value,
    /// A Secret, by name and key.
    Secret(String, String),
    /// A ConfigMap, by name and key.
    ConfigMap(String, String),
    /// The pod.
    Pod,
}

/// Where a part sees a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MountAbout {
    /// Where.
    pub path: String,
    /// Whether it may change it.
    pub access: Access,
    /// What it is.
    pub kind: VolumeKind,
    /// The same in words.
    pub what: String,
    /// The digest of everything that is said about the volume.
    pub digest: String,
    /// The part of the volume that it sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<String>,
    /// The others that see the same.
    pub shared_with: Vec<String>,
}

pub fn all(plan: &RunPlan) -> Vec<PartAbout> {
    plan.parts.iter().map(|part| about(plan, part)).collect()
}

fn about(plan: &RunPlan, part: &Part) -> PartAbout {
    let (role, owner) = match &part.role {
        Role::Agent => ("agent", None),
        Role::Bridge => ("bridge", None),
        Role::Skill { pack } => ("skill", Some(pack.to_string())),
        Role::Sandbox => ("sandbox", None),
        Role::PreRun { hook } => ("preRun", Some(hook.to_string())),
        Role::PostRun { hook, .. } => ("postRun", Some(hook.to_string())),
    };
    let command = match &part.start {
        Start::Image { command, args } => command.iter().chain(args).cloned().collect(),
        Start::Injected { .. } => Vec::new(),
    };
    let identity = part.identity.as_ref();
    PartAbout {
        part: part.name.to_string(),
        role,
        owner,
        is_gate: part.role.gate().is_some(),
        gate_default: part.role.gate().filter(|it| !it.is_block()),
        image: part.image.to_string(),
        image_pull_policy: part.image_pull_policy,
        executor: executor(&part.role, &part.start),
        command,
        environment: part.env.iter().map(variable).collect(),
        mounts: mounts(plan, part),
        reaches: network::in_words(plan, part),
        service_account: identity.and_then(|it| plan.identity(it)).map(|it| grants::service_account(plan, it)),
        node: node::of(plan, part),
        ports: part.ports.iter().map(|it| format!("{} ({})", it.container_port, it.name)).collect(),
    }
}

fn mounts(plan: &RunPlan, part: &Part) -> Vec<MountAbout> {
    let others = |mount: &sympozium_api::run_plan::Mount| {
        plan.mounted_by(&mount.volume).filter(|it| it.name != part.name).map(|it| it.name.to_string()).collect()
    };
    let mounts = part.mounts.iter().map(|mount| MountAbout {
        path: mount.path.to_string(),
        access: Access::of(mount),
        kind: files::kind_of(plan, mount),
        what: files::named(plan, mount),
        digest: files::digest(plan, mount),
        sub_path: mount.sub_path.clone(),
        shared_with: others(mount),
    });
    mounts.collect()
}

fn variable(variable: &EnvVar) -> VariableAbout {
    let from = variable.value_from.as_ref();
    let secret = from.and_then(|it| it.secret_key_ref.as_ref());
    let config_map = from.and_then(|it| it.config_map_key_ref.as_ref());
    let from = match (from, secret, config_map) {
        (None, _, _) => VariableSource::Value,
        (_, Some(key), _) => VariableSource::Secret(key.name.to_string(), key.key.clone()),
        (_, _, Some(key)) => VariableSource::ConfigMap(key.name.to_string(), key.key.clone()),
        _ => VariableSource::Pod,
    };
    VariableAbout {
        name: variable.name.to_string(),
        digest: (from == VariableSource::Value).then(|| {
            let value = variable.value.as_deref().unwrap_or_default();
            digest_of(&Value::from(value))
        }),
        from,
    }
}
