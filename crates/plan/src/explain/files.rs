//! Volumes: their kinds, and which parts mount them.

use serde::Serialize;
use serde_json::Value;
use sympozium_api::open::Volume;
use sympozium_api::run_plan::{Medium, Mount, PlanVolume, RunPlan, VolumeSource, paths};

/// Whether a volume may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Access {
    /// It may be read.
    ReadOnly,
    /// It may be read and written.
    ReadWrite,
}

impl Access {
    /// The word in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "read",
            Self::ReadWrite => "write",
        }
    }

    pub(super) fn from_mount(mount: &Mount) -> Self {
        if mount.read_only { Self::ReadOnly } else { Self::ReadWrite }
    }
}

/// The kind of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum VolumeKind {
    /// Empty at first, and deleted with the run.
    Scratch,
    /// Skill texts.
    Texts,
    /// The input of a part.
    Input,
    /// A token for the Kubernetes API.
    Token,
    /// A Secret.
    Secret,
    /// A ConfigMap.
    ConfigMap,
    /// A directory of the node.
    Host,
    /// Storage that exists before and after the run.
    Storage,
    /// A projected volume, or another type that a user declared.
    Other,
}

/// One volume of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeInfo {
    /// The name of the volume in the run.
    pub volume: String,
    /// The kind of the volume.
    pub kind: VolumeKind,
    /// A description of the volume in words.
    pub what: String,
    /// The size, where it is bounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// The parts that mount it.
    pub mounted_by: Vec<VolumeMountInfo>,
}

/// A mount of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMountInfo {
    /// The part that mounts it.
    pub part: String,
    /// The path in the part.
    pub path: String,
    /// Whether the part may write to it.
    pub access: Access,
    /// The path inside of the volume that is mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<String>,
}

pub fn all(plan: &RunPlan) -> Vec<VolumeInfo> {
    plan.volumes.iter().map(|volume| volume_info(plan, volume)).collect()
}

fn volume_info(plan: &RunPlan, volume: &PlanVolume) -> VolumeInfo {
    let size = match &volume.source {
        VolumeSource::Scratch { size, .. } | VolumeSource::Kept { size } => Some(size.to_string()),
        _ => None,
    };
    let mounted_by = plan.parts.iter().flat_map(|part| {
        let mounts = part.mounts.iter().filter(|mount| mount.volume == volume.name);
        mounts.map(|mount| VolumeMountInfo {
            part: part.name.to_string(),
            path: mount.path.to_string(),
            access: Access::from_mount(mount),
            sub_path: mount.sub_path.clone(),
        })
    });
    VolumeInfo {
        volume: volume.name.to_string(),
        kind: volume_kind(&volume.source),
        what: describe_volume(plan, volume),
        size,
        mounted_by: mounted_by.collect(),
    }
}

/// The mounted volume in words. A mount of a volume that does not exist is described too.
pub fn describe_mount(plan: &RunPlan, mount: &Mount) -> String {
    match plan.volume(&mount.volume) {
        Some(volume) => describe_volume(plan, volume),
        None => format!("volume {}", mount.volume),
    }
}

/// The kind of the mounted volume; `Other` for a volume that does not exist.
pub fn mount_kind(plan: &RunPlan, mount: &Mount) -> VolumeKind {
    let volume = plan.volume(&mount.volume);
    volume.map_or(VolumeKind::Other, |volume| volume_kind(&volume.source))
}

/// The digest of everything in the plan about the mounted volume.
pub fn mount_digest(plan: &RunPlan, mount: &Mount) -> String {
    let volume = plan.volume(&mount.volume).map(|volume| &volume.source);
    super::tools::digest_value(&serde_json::to_value(volume).unwrap_or_default())
}

pub fn volume_kind(source: &VolumeSource) -> VolumeKind {
    match source {
        VolumeSource::Scratch { .. } | VolumeSource::Kept { .. } => VolumeKind::Scratch,
        VolumeSource::Texts { .. } => VolumeKind::Texts,
        VolumeSource::Input { .. } => VolumeKind::Input,
        VolumeSource::Token { .. } => VolumeKind::Token,
        VolumeSource::Secret { .. } => VolumeKind::Secret,
        VolumeSource::ConfigMap { .. } => VolumeKind::ConfigMap,
        VolumeSource::Host { .. } => VolumeKind::Host,
        VolumeSource::Declared { volume } => match source_type(volume) {
            "emptyDir" | "ephemeral" => VolumeKind::Scratch,
            "configMap" => VolumeKind::ConfigMap,
            "secret" => VolumeKind::Secret,
            "hostPath" => VolumeKind::Host,
            "persistentVolumeClaim" => VolumeKind::Storage,
            _ => VolumeKind::Other,
        },
    }
}

fn describe_volume(plan: &RunPlan, volume: &PlanVolume) -> String {
    match &volume.source {
        VolumeSource::Scratch { medium, .. } => {
            let use_ = purpose(plan, volume).unwrap_or_else(|| "scratch space".to_owned());
            match medium {
                Medium::Disk => format!("{use_}, on disk, gone with the run"),
                Medium::Memory => format!("{use_}, in memory, gone with the run"),
            }
        }
        VolumeSource::Kept { .. } => {
            let use_ = purpose(plan, volume).unwrap_or_else(|| "scratch space".to_owned());
            format!("{use_}, on disk, kept until the hooks after the run have ended")
        }
        VolumeSource::Texts { pack, programs } => {
            if *programs {
                format!("texts and programs of pack {pack}")
            } else {
                format!("texts of pack {pack}")
            }
        }
        VolumeSource::Input { part } => format!("what {part} reads about the run"),
        VolumeSource::Token { identity } => {
            let account = plan
                .identity(identity)
                .map_or_else(|| identity.to_string(), |identity| super::grants::service_account(plan, identity));
            format!("token of ServiceAccount {account}")
        }
        VolumeSource::Secret { secret } => format!("Secret {secret}"),
        VolumeSource::ConfigMap { config_map } => format!("ConfigMap {config_map}"),
        VolumeSource::Host { path } => format!("directory {path} of the node"),
        VolumeSource::Declared { volume } => describe_declared(volume),
    }
}

/// The purpose of scratch space, from the paths where it is mounted.
fn purpose(plan: &RunPlan, volume: &PlanVolume) -> Option<String> {
    for part in &plan.parts {
        let mut mounts = part.mounts.iter().filter(|mount| mount.volume == volume.name);
        let purpose = mounts.find_map(|mount| match mount.path.as_str() {
            paths::WORKSPACE => Some("files that parts share".to_owned()),
            paths::DOOR => Some("the socket between agent and bridge".to_owned()),
            paths::IPC => Some(format!("calls of {} and their results", part.name)),
            _ => None,
        });
        if purpose.is_some() {
            return purpose;
        }
    }
    None
}

/// The directory of the node in a declared volume, whatever other sources it has.
pub fn host_path(volume: &Volume) -> Option<String> {
    let source = volume.source.get("hostPath")?;
    let path = source.get("path").and_then(Value::as_str);
    Some(path.unwrap_or("(unnamed)").to_owned())
}

/// The key with the type of a declared volume. Admission allows only one.
fn source_type(volume: &Volume) -> &str {
    volume.source.keys().next().map_or("emptyDir", String::as_str)
}

fn describe_declared(volume: &Volume) -> String {
    let type_ = source_type(volume);
    let source = volume.source.get(type_).unwrap_or(&Value::Null);
    let text = |field: &str| source.get(field).and_then(Value::as_str).unwrap_or("(unnamed)");
    match type_ {
        "emptyDir" => "scratch space, on disk, gone with the run".to_owned(),
        "configMap" => format!("ConfigMap {}", text("name")),
        "secret" => format!("Secret {}", text("secretName")),
        "hostPath" => format!("directory {} of the node", text("path")),
        "persistentVolumeClaim" => format!("PersistentVolumeClaim {}, which outlasts the run", text("claimName")),
        "ephemeral" => "storage of its own, gone with the pod".to_owned(),
        "downwardAPI" => "what the pod knows about itself".to_owned(),
        "image" => format!("files of image {}", text("reference")),
        "projected" => describe_projected(source),
        other => format!("a volume of type {other}"),
    }
}

fn describe_projected(source: &Value) -> String {
    let sources = source.get("sources").and_then(Value::as_array);
    let mut words = Vec::new();
    for source in sources.into_iter().flatten() {
        for (type_, source) in source.as_object().into_iter().flatten() {
            let name = source.get("name").and_then(Value::as_str).unwrap_or("(unnamed)");
            words.push(match type_.as_str() {
                "secret" => format!("Secret {name}"),
                "configMap" => format!("ConfigMap {name}"),
                "downwardAPI" => "what the pod knows about itself".to_owned(),
                "serviceAccountToken" => "a token of the pod's ServiceAccount".to_owned(),
                other => other.to_owned(),
            });
        }
    }
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}

/// The credential that a volume may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialKind {
    /// No credential.
    NoCredential,
    /// A Secret.
    Secret,
    /// A token for the Kubernetes API.
    Token,
    /// Not known.
    Unknown,
}

/// The credentials in each source of a declared volume.
pub fn credential_kinds(volume: &Volume) -> Vec<CredentialKind> {
    let mut found = Vec::new();
    for (type_, source) in &volume.source {
        if type_ != "projected" {
            found.push(credential_kind(type_));
            continue;
        }
        let sources = source.get("sources").and_then(Value::as_array);
        let sources = sources.into_iter().flatten().filter_map(Value::as_object);
        found.extend(sources.flat_map(|source| source.keys()).map(|key| credential_kind(key)));
    }
    found
}

fn credential_kind(type_: &str) -> CredentialKind {
    match type_ {
        "emptyDir" | "ephemeral" | "configMap" | "downwardAPI" | "image" | "persistentVolumeClaim" => {
            CredentialKind::NoCredential
        }
        "secret" => CredentialKind::Secret,
        "serviceAccountToken" => CredentialKind::Token,
        _ => CredentialKind::Unknown,
    }
}

/// The PersistentVolumeClaim of a volume that exists before and after the run.
pub fn persistent_claim(volume: &PlanVolume) -> Option<String> {
    let VolumeSource::Declared { volume } = &volume.source else {
        return None;
    };
    let claim = volume.source.get("persistentVolumeClaim")?;
    let name = claim.get("claimName").and_then(Value::as_str);
    let name = name.unwrap_or("(unnamed)");
    Some(format!("PersistentVolumeClaim {name}"))
}

/// The Secrets in a declared volume.
pub fn secret_names(volume: &Volume) -> Vec<String> {
    let mut found = Vec::new();
    let mut add = |source: Option<&Value>, field: &str| {
        let name = source.and_then(|source| source.get(field)).and_then(Value::as_str);
        found.extend(name.map(str::to_owned));
    };
    add(volume.source.get("secret"), "secretName");
    let projected = volume.source.get("projected");
    let sources = projected.and_then(|source| source.get("sources")).and_then(Value::as_array);
    for source in sources.into_iter().flatten() {
        add(source.get("secret"), "name");
    }
    found
}
