//! The parts of a run: containers, or process trees on one machine.

use serde::Serialize;
use serde_json::Value;
use sympozium_api::environment::EnvVar;
use sympozium_api::lifecycle::GateDefault;
use sympozium_api::run_plan::{Part, Role, RunPlan, Start};
use sympozium_api::sandbox::ImagePullPolicy;

use super::files::{self, Access, VolumeKind};
use super::overview::{Executor, executor_kind};
use super::tools::digest_value;
use super::{grants, network, node};

/// One part of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PartInfo {
    /// The name of its container.
    pub part: String,
    /// Its role: `agent`, `bridge`, `skill`, `sandbox`, `preRun`, `postRun`.
    pub role: &'static str,
    /// The pack or the hook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Whether it is a gate hook, which decides about the result.
    pub is_gate: bool,
    /// What happens to the result without a verdict, unless it is blocked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate_default: Option<GateDefault>,
    /// The image of the container.
    pub image: String,
    /// The image pull policy; the cluster's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// What runs commands in it.
    pub executor: Executor,
    /// The command in place of the image's entrypoint.
    pub command: Vec<String>,
    /// Its variables, with digests instead of values: users write secrets into manifests that should not be there.
    pub environment: Vec<VariableInfo>,
    /// Its mounts.
    pub mounts: Vec<MountInfo>,
    /// What it may reach, in words.
    pub reaches: Vec<String>,
    /// Its ServiceAccount; absent when it has no identity at the Kubernetes API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// Its access to the node, in words; empty for most parts.
    pub node: Vec<String>,
    /// Ports that it listens on.
    pub ports: Vec<String>,
}

/// One environment variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VariableInfo {
    /// The name of the variable.
    pub name: String,
    /// The source of its value.
    pub from: VariableSource,
    /// The digest of a value in the manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// The source of a variable's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum VariableSource {
    /// A value in the manifest.
    Value,
    /// A Secret, by name and key.
    Secret(String, String),
    /// A ConfigMap, by name and key.
    ConfigMap(String, String),
    /// A field of the pod.
    Pod,
}

/// A mount of a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MountInfo {
    /// The path in the part.
    pub path: String,
    /// Whether the part may write to it.
    pub access: Access,
    /// The kind of the volume.
    pub kind: VolumeKind,
    /// A description of the volume in words.
    pub what: String,
    /// The digest of everything in the plan about the volume.
    pub digest: String,
    /// The path inside of the volume that is mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<String>,
    /// The other parts that mount the same volume.
    pub shared_with: Vec<String>,
}

pub fn all(plan: &RunPlan) -> Vec<PartInfo> {
    plan.parts.iter().map(|part| part_info(plan, part)).collect()
}

fn part_info(plan: &RunPlan, part: &Part) -> PartInfo {
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
    PartInfo {
        part: part.name.to_string(),
        role,
        owner,
        is_gate: part.role.gate_default().is_some(),
        gate_default: part.role.gate_default().filter(|gate_default| !gate_default.is_block()),
        image: part.image.to_string(),
        image_pull_policy: part.image_pull_policy,
        executor: executor_kind(&part.role, &part.start),
        command,
        environment: part.env.iter().map(variable_info).collect(),
        mounts: mount_infos(plan, part),
        reaches: network::describe_part(plan, part),
        service_account: identity
            .and_then(|identity| plan.identity(identity))
            .map(|identity| grants::service_account(plan, identity)),
        node: node::describe_node_access(plan, part),
        ports: part.ports.iter().map(|port| format!("{} ({})", port.container_port, port.name)).collect(),
    }
}

fn mount_infos(plan: &RunPlan, part: &Part) -> Vec<MountInfo> {
    let others = |mount: &sympozium_api::run_plan::Mount| {
        plan.parts_mounting(&mount.volume)
            .filter(|other| other.name != part.name)
            .map(|other| other.name.to_string())
            .collect()
    };
    let mounts = part.mounts.iter().map(|mount| MountInfo {
        path: mount.path.to_string(),
        access: Access::from_mount(mount),
        kind: files::mount_kind(plan, mount),
        what: files::describe_mount(plan, mount),
        digest: files::mount_digest(plan, mount),
        sub_path: mount.sub_path.clone(),
        shared_with: others(mount),
    });
    mounts.collect()
}

fn variable_info(variable: &EnvVar) -> VariableInfo {
    let from = variable.value_from.as_ref();
    let secret = from.and_then(|from| from.secret_key_ref.as_ref());
    let config_map = from.and_then(|from| from.config_map_key_ref.as_ref());
    let from = match (from, secret, config_map) {
        (None, _, _) => VariableSource::Value,
        (_, Some(key), _) => VariableSource::Secret(key.name.to_string(), key.key.clone()),
        (_, _, Some(key)) => VariableSource::ConfigMap(key.name.to_string(), key.key.clone()),
        _ => VariableSource::Pod,
    };
    VariableInfo {
        name: variable.name.to_string(),
        digest: (from == VariableSource::Value).then(|| {
            let value = variable.value.as_deref().unwrap_or_default();
            digest_value(&Value::from(value))
        }),
        from,
    }
}
