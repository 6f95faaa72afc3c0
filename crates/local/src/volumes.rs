//! The volumes of a plan as directories of this machine.
//!
//! Volumes of the run alone are below its `live` directory, and are removed with it. They are accessible to the run's
//! user alone; a sandbox sees them as its own by an idmapped mount, so no file must be readable for others.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::Value;
use sympozium_api::names::MountPath;
use sympozium_api::run_plan::{PartName, PlanVolume, SkillPlan, VolumeName, VolumeSource, paths};
use sympozium_api::skill_pack::Skill;
use sympozium_plan::admit::decode_contents;

use crate::prepared_run::PreparedRun;
use crate::secrets::Secret;
use crate::state::StateDirectory;

/// The volume that parts share files in.
pub const WORKSPACE: &str = "workspace";

/// The directory of claims in the state directory, by namespace.
const CLAIMS_NAME: &str = "volumes";

/// The directory of each volume, except those that a sandbox mounts itself (`/tmp`, `/dev/shm`).
#[derive(Debug, Default)]
pub struct Volumes {
    directories: BTreeMap<VolumeName, PathBuf>,
}

/// What volumes are created from, in addition to the plan.
pub struct VolumeInputs<'g> {
    /// The `live` directory of the run.
    pub live: &'g Path,
    pub workspace: &'g Path,
    /// Returns the directory of a claim.
    pub claims: &'g dyn Fn(&str) -> anyhow::Result<PathBuf>,
    /// The input files of each part, by file name.
    pub inputs: &'g BTreeMap<PartName, BTreeMap<String, Vec<u8>>>,
}

impl Volumes {
    /// Creates every volume of the plan. Fails for kinds that do not exist on one machine.
    pub fn create(prepared: &PreparedRun, ground: &VolumeInputs<'_>) -> anyhow::Result<Self> {
        let mut places = BTreeMap::new();
        for volume in &prepared.plan.volumes {
            if is_sandbox_tmpfs(prepared, volume) {
                continue;
            }
            let made = make_volume(prepared, volume, ground)
                .with_context(|| format!("cannot create volume {}", volume.name))?;
            places.insert(volume.name.clone(), made);
        }
        Ok(Self { directories: places })
    }

    /// The directory that a mount shows; `None` if the sandbox mounts it itself. Fails if `sub_path` is not below the
    /// volume.
    pub fn source(&self, volume: &VolumeName, sub_path: Option<&str>) -> anyhow::Result<Option<PathBuf>> {
        let Some(directory) = self.directories.get(volume) else {
            return Ok(None);
        };
        let Some(sub_path) = sub_path else {
            return Ok(Some(directory.clone()));
        };
        let below = Path::new(sub_path);
        if below.components().any(|it| !matches!(it, Component::Normal(_))) {
            bail!("subPath `{sub_path}` is not below volume {volume}");
        }
        // Checked component by component: skills may have left links in a persistent volume.
        let mut path = directory.clone();
        for step in below.components() {
            path.push(step);
            match std::fs::symlink_metadata(&path) {
                Ok(found) if found.is_dir() || found.is_file() => {}
                Ok(_) => bail!("subPath `{sub_path}` of volume {volume} contains a symbolic link or a special file"),
                Err(_) => make_directory(&path)?,
            }
        }
        Ok(Some(path))
    }
}

/// Whether the sandbox mounts it itself: scratch space that is only mounted at `/tmp` or `/dev/shm`.
fn is_sandbox_tmpfs(prepared: &PreparedRun, volume: &PlanVolume) -> bool {
    let own = |path: &MountPath| [paths::TMP, paths::SHM].contains(&path.as_str());
    let mounts = prepared.plan.parts.iter().flat_map(|part| &part.mounts);
    let mut mounts = mounts.filter(|it| it.volume == volume.name);
    matches!(volume.source, VolumeSource::Scratch { .. }) && mounts.all(|it| own(&it.path))
}

fn make_volume(prepared: &PreparedRun, volume: &PlanVolume, ground: &VolumeInputs<'_>) -> anyhow::Result<PathBuf> {
    let path = ground.live.join(format!("volume-{}", volume.name));
    match &volume.source {
        VolumeSource::Scratch { .. } | VolumeSource::Kept { .. } => {
            if volume.name.0 == WORKSPACE {
                return Ok(ground.workspace.to_owned());
            }
            make_directory(&path)?;
        }
        VolumeSource::Texts { pack, programs } => {
            let skills = prepared.skill_texts.get(pack);
            let skills = skills.with_context(|| format!("the texts of pack {pack} are missing"))?;
            write_texts(&path, skills, *programs)?;
        }
        VolumeSource::Input { part } => {
            let files = ground.inputs.get(part);
            let files = files.with_context(|| format!("the input of part {part} is missing"))?;
            write_files(&path, files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())))?;
        }
        VolumeSource::Secret { secret } => write_secret(&path, prepared, secret.as_str(), None)?,
        VolumeSource::ConfigMap { config_map } => {
            write_config_map(&path, prepared, config_map.as_str(), None)?;
        }
        VolumeSource::Declared { volume } => {
            return make_declared(&path, prepared, &volume.source, ground);
        }
        VolumeSource::Token { .. } | VolumeSource::Host { .. } => {
            bail!("volumes of this kind are not supported on one machine");
        }
    }
    Ok(path)
}

/// Creates a volume that a user declared, if it is of a kind that is supported here.
fn make_declared(
    path: &Path,
    prepared: &PreparedRun,
    source: &BTreeMap<String, Value>,
    ground: &VolumeInputs<'_>,
) -> anyhow::Result<PathBuf> {
    let text = |settings: &Value, field: &str| {
        let value = settings.get(field).and_then(Value::as_str);
        value.map(str::to_owned).with_context(|| format!("it has no `{field}`"))
    };
    let mut kinds = source.iter();
    match (kinds.next(), kinds.next()) {
        (None, _) => make_directory(path)?,
        (Some((kind, settings)), None) => match kind.as_str() {
            "emptyDir" => make_directory(path)?,
            "configMap" => {
                write_config_map(path, prepared, &text(settings, "name")?, settings.get("items"))?;
            }
            "secret" => {
                let name = text(settings, "secretName")?;
                write_secret(path, prepared, &name, settings.get("items"))?;
            }
            "persistentVolumeClaim" => return (ground.claims)(&text(settings, "claimName")?),
            other => bail!("volumes of kind `{other}` are not supported on one machine"),
        },
        (Some(_), Some(_)) => bail!("the volume has several kinds"),
    }
    Ok(path.to_owned())
}

/// The name of the claim, if the volume is one.
pub fn claim_name(volume: &PlanVolume) -> Option<&str> {
    let VolumeSource::Declared { volume } = &volume.source else {
        return None;
    };
    volume.source.get("persistentVolumeClaim")?.get("claimName")?.as_str()
}

/// The directory of a claim, created if needed.
pub fn make_claim(state: &StateDirectory, namespace: &str, claim: &str) -> anyhow::Result<PathBuf> {
    let path = state.make_subdirectory(&format!("{CLAIMS_NAME}/{namespace}"))?.join(claim);
    make_directory(&path)?;
    restore_owner_mode(&path)?;
    Ok(path)
}

/// The directory of a claim, if an earlier run has created it.
pub fn find_claim(state: &StateDirectory, namespace: &str, claim: &str) -> anyhow::Result<Option<PathBuf>> {
    let path = state.join(CLAIMS_NAME).join(namespace).join(claim);
    if !path.is_dir() {
        return Ok(None);
    }
    restore_owner_mode(&path)?;
    Ok(Some(path))
}

/// A skill owns the directory of a claim, and may have changed its mode. The directories above it keep other users
/// away.
fn restore_owner_mode(path: &Path) -> anyhow::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(0o700))
        .with_context(|| format!("cannot change the mode of {}", path.display()))
}

fn write_secret(path: &Path, prepared: &PreparedRun, name: &str, items: Option<&Value>) -> anyhow::Result<()> {
    // An optional Secret that does not exist is an empty volume.
    let nothing = Secret::default();
    let secret = prepared.secrets.get(name).unwrap_or(&nothing);
    let files = secret.0.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
    write_items(path, files, items)
}

fn write_config_map(path: &Path, prepared: &PreparedRun, name: &str, items: Option<&Value>) -> anyhow::Result<()> {
    let nothing = BTreeMap::new();
    let data = prepared.config_maps.get(name).unwrap_or(&nothing);
    let files = data.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
    write_items(path, files, items)
}

/// Writes every key as a file of its name, or only the keys in `items`, at their paths.
fn write_items<'f>(
    path: &Path,
    files: impl Iterator<Item = (&'f str, &'f [u8])>,
    items: Option<&Value>,
) -> anyhow::Result<()> {
    let Some(items) = items.and_then(Value::as_array) else {
        return write_files(path, files);
    };
    let all: BTreeMap<&str, &[u8]> = files.collect();
    let mut listed = Vec::new();
    for item in items {
        let field = |name: &str| item.get(name).and_then(Value::as_str);
        let (Some(key), Some(file)) = (field("key"), field("path")) else {
            bail!("an item has no `key` or no `path`");
        };
        let bytes = all.get(key).with_context(|| format!("there is no key `{key}`"))?;
        listed.push((file, *bytes));
    }
    write_files(path, listed.into_iter())
}

fn write_texts(path: &Path, skills: &[Skill], programs: bool) -> anyhow::Result<()> {
    make_directory(path)?;
    for skill in skills {
        let directory = path.join(skill.name.as_str());
        make_directory(&directory)?;
        write(&directory, SkillPlan::TEXT_FILE, skill.content.as_bytes(), false)?;
        for file in &skill.files {
            let is_program = programs && file.executable == Some(true);
            let bytes = decode_contents(file).unwrap_or_default();
            write(&directory, file.path.as_str(), &bytes, is_program)?;
        }
    }
    Ok(())
}

fn write_files<'f>(path: &Path, files: impl Iterator<Item = (&'f str, &'f [u8])>) -> anyhow::Result<()> {
    make_directory(path)?;
    for (name, bytes) in files {
        write(path, name, bytes, false)?;
    }
    Ok(())
}

/// Writes a file below a directory of ours, and creates its parents.
fn write(directory: &Path, name: &str, bytes: &[u8], program: bool) -> anyhow::Result<()> {
    let below = Path::new(name);
    if name.is_empty() || below.components().any(|it| !matches!(it, Component::Normal(_))) {
        bail!("`{name}` is not a valid name of a file");
    }
    let mut parent = directory.to_owned();
    let mut steps = below.components().peekable();
    while let Some(step) = steps.next() {
        if steps.peek().is_none() {
            break;
        }
        parent.push(step);
        make_directory(&parent)?;
    }
    let path = directory.join(below);
    let mode = if program { 0o500 } else { 0o400 };
    let write = || {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(mode).open(&path)?;
        file.write_all(bytes)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Creates a directory with mode 700; an existing one is fine.
pub fn make_directory(path: &Path) -> anyhow::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("cannot create {}", path.display()))
        }
        _ => Ok(()),
    }
}
