//! The volumes of a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, ConfigMapVolumeSource, EmptyDirVolumeSource, HostPathVolumeSource, KeyToPath,
    PersistentVolumeClaimVolumeSource, ProjectedVolumeSource, SecretProjection, SecretVolumeSource,
    ServiceAccountTokenProjection, Volume, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Deserialize as _;
use serde_json::Value;
use sympozium_api::open;
use sympozium_api::run_plan::{
    IdentityName, Medium, Part, PartName, PlanVolume, Role, SkillPlan, VolumeName, VolumeSource,
};

use super::inputs::{self, key};
use super::metadata::RenderContext;
use super::names::suffix;
use super::{RenderError, check, identities};
use crate::plan::PackTexts;

/// The volume with the executor for skills whose image has none. No volume of a plan may have this name.
pub const EXECUTOR: &str = "executor";
/// Its size: one program.
pub const EXECUTOR_SIZE: &str = "64Mi";
/// Size of an emptyDir that a user declares without one.
pub const EMPTY_DIR_SIZE: &str = "1Gi";
/// The audience of the run's own token. No other service accepts it.
const AUDIENCE: &str = "sympozium-gateway";
/// Lifetime of that token in seconds: the minimum. The kubelet renews it.
pub const TOKEN_SECONDS: i64 = 600;

/// Readable for the pod's group, which every container has.
const SECRET_MODE: i32 = 0o440;
const TEXT_MODE: i32 = 0o444;
const PROGRAM_MODE: i32 = 0o555;

/// The volumes that these parts mount, in the plan's order.
pub fn render_volumes(
    run: &RenderContext<'_>,
    parts: &[&Part],
    texts: &[PackTexts<'_>],
) -> Result<Vec<Volume>, RenderError> {
    for mount in parts.iter().flat_map(|part| &part.mounts) {
        check::find_volume(run.plan, &mount.volume.0)?;
    }
    let mounted = run.plan.volumes.iter();
    let mounted = mounted.filter(|volume| count_mounts(parts, &volume.name) > 0);
    mounted.map(|volume| render_volume(run, volume, texts)).collect()
}

/// The volume that the executor is copied to.
pub fn executor_volume() -> Volume {
    scratch_volume(EXECUTOR, Medium::Disk, EXECUTOR_SIZE)
}

/// Annotations that tell gVisor which scratch space containers share; without them sockets and inotify do not work
/// there.
pub fn gvisor_annotations(run: &RenderContext<'_>, parts: &[&Part], injected: bool) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::new();
    let mut share = |volume: &str, medium: Medium| {
        let type_ = match medium {
            Medium::Memory => "tmpfs",
            Medium::Disk => "bind",
        };
        for (field, value) in [("type", type_), ("share", "pod"), ("options", "rw")] {
            let name = format!("dev.gvisor.spec.mount.{volume}.{field}");
            annotations.insert(name, value.to_owned());
        }
    };
    for volume in &run.plan.volumes {
        if let VolumeSource::Scratch { medium, .. } = &volume.source
            && count_mounts(parts, &volume.name) > 1
        {
            share(&volume.name.0, *medium);
        }
    }
    if injected {
        share(EXECUTOR, Medium::Disk);
    }
    annotations
}

/// How many of the parts mount the volume.
fn count_mounts(parts: &[&Part], volume: &VolumeName) -> usize {
    let mounts = |part: &&&Part| part.mounts.iter().any(|mount| mount.volume == *volume);
    parts.iter().filter(mounts).count()
}

fn render_volume(run: &RenderContext<'_>, volume: &PlanVolume, texts: &[PackTexts<'_>]) -> Result<Volume, RenderError> {
    let name = volume.name.0.as_str();
    let empty = Volume { name: name.to_owned(), ..Volume::default() };
    Ok(match &volume.source {
        VolumeSource::Scratch { medium, size } => scratch_volume(name, *medium, &size.text()),
        VolumeSource::Kept { .. } => Volume {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: run.names.with_suffix(&suffix("a volume", name)?),
                read_only: None,
            }),
            ..empty
        },
        VolumeSource::Texts { pack, programs } => {
            Volume { config_map: Some(texts_volume(run, pack, *programs, texts)?), ..empty }
        }
        VolumeSource::Input { part } => input_volume(run, part, empty)?,
        VolumeSource::Token { identity } => Volume { secret: Some(token_volume(run, identity)?), ..empty },
        VolumeSource::Secret { secret } => Volume {
            secret: Some(SecretVolumeSource {
                secret_name: Some(secret.as_str().to_owned()),
                default_mode: Some(SECRET_MODE),
                ..SecretVolumeSource::default()
            }),
            ..empty
        },
        VolumeSource::ConfigMap { config_map } => Volume {
            config_map: Some(ConfigMapVolumeSource {
                name: config_map.as_str().to_owned(),
                default_mode: Some(TEXT_MODE),
                ..ConfigMapVolumeSource::default()
            }),
            ..empty
        },
        VolumeSource::Host { path } => {
            Volume { host_path: Some(HostPathVolumeSource { path: path.as_str().to_owned(), type_: None }), ..empty }
        }
        VolumeSource::Declared { volume } => declared_volume(name, volume)?,
    })
}

fn scratch_volume(name: &str, medium: Medium, size: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: (medium == Medium::Memory).then(|| "Memory".to_owned()),
            size_limit: Some(Quantity(size.to_owned())),
        }),
        ..Volume::default()
    }
}

/// The volume of a part's input, projected from its own sources.
fn input_volume(run: &RenderContext<'_>, part: &PartName, empty: Volume) -> Result<Volume, RenderError> {
    let part = run.plan.part(part).ok_or_else(|| RenderError::Missing { what: "part", name: part.0.clone() })?;
    let name = inputs::input_name(run, part)?;
    if part.role == Role::Agent {
        let view = ConfigMapVolumeSource {
            name,
            items: Some(vec![key_item(key::AGENT, TEXT_MODE)]),
            ..ConfigMapVolumeSource::default()
        };
        return Ok(Volume { config_map: Some(view), ..empty });
    }
    let keys = inputs::keys(run, part);
    let items = keys.iter().map(|key| key_item(key, SECRET_MODE)).collect();
    if part.role != Role::Bridge {
        let secret =
            SecretVolumeSource { secret_name: Some(name), items: Some(items), ..SecretVolumeSource::default() };
        return Ok(Volume { secret: Some(secret), ..empty });
    }
    let plan = VolumeProjection {
        config_map: Some(ConfigMapProjection {
            name: run.names.with_suffix(inputs::PLAN_SUFFIX),
            items: Some(vec![key_item(key::PLAN, TEXT_MODE)]),
            optional: None,
        }),
        ..VolumeProjection::default()
    };
    let secret = VolumeProjection {
        secret: Some(SecretProjection { name, items: Some(items), optional: None }),
        ..VolumeProjection::default()
    };
    let token = VolumeProjection {
        service_account_token: Some(ServiceAccountTokenProjection {
            audience: Some(AUDIENCE.to_owned()),
            expiration_seconds: Some(TOKEN_SECONDS),
            path: key::TOKEN.to_owned(),
        }),
        ..VolumeProjection::default()
    };
    let projected = ProjectedVolumeSource { default_mode: Some(SECRET_MODE), sources: Some(vec![plan, secret, token]) };
    Ok(Volume { projected: Some(projected), ..empty })
}

/// Keys are listed one by one: a container does not start before all of them are there.
fn key_item(key: &str, mode: i32) -> KeyToPath {
    KeyToPath { key: key.to_owned(), path: key.to_owned(), mode: Some(mode) }
}

fn token_volume(run: &RenderContext<'_>, identity: &IdentityName) -> Result<SecretVolumeSource, RenderError> {
    let known = run.plan.identity(identity);
    let known = known.ok_or_else(|| RenderError::Missing { what: "identity", name: identity.0.clone() })?;
    Ok(SecretVolumeSource {
        secret_name: Some(identities::token_secret(run, known)?),
        items: Some(identities::TOKEN_KEYS.iter().map(|key| key_item(key, SECRET_MODE)).collect()),
        ..SecretVolumeSource::default()
    })
}

/// Every file at its path below the skill's directory. Files are executable only where `programs` is set.
fn texts_volume(
    run: &RenderContext<'_>,
    pack: &str,
    programs: bool,
    texts: &[PackTexts<'_>],
) -> Result<ConfigMapVolumeSource, RenderError> {
    let (number, texts) = inputs::find_texts(texts, pack)?;
    let mut items = Vec::new();
    for (skill_number, skill) in texts.skills.iter().enumerate() {
        items.push(KeyToPath {
            key: inputs::text_key(skill_number),
            path: format!("{}/{}", skill.name, SkillPlan::TEXT_FILE),
            mode: None,
        });
        for (file_number, file) in skill.files.iter().enumerate() {
            let is_program = programs && file.executable == Some(true);
            items.push(KeyToPath {
                key: inputs::file_key(skill_number, file_number),
                path: format!("{}/{}", skill.name, file.path),
                mode: is_program.then_some(PROGRAM_MODE),
            });
        }
    }
    Ok(ConfigMapVolumeSource {
        name: run.names.with_suffix(&inputs::texts_suffix(number)),
        default_mode: Some(TEXT_MODE),
        items: Some(items),
        optional: None,
    })
}

/// Sets the size of a user's scratch space: without a limit it could fill the node's disk. A volume without a source is
/// scratch space too.
fn with_default_size(mut volume: Volume) -> Volume {
    let is_empty = Volume { name: String::new(), ..volume.clone() } == Volume::default();
    if is_empty {
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
    }
    if let Some(scratch) = &mut volume.empty_dir {
        let usual = || Quantity(EMPTY_DIR_SIZE.to_owned());
        scratch.size_limit.get_or_insert_with(usual);
    }
    volume
}

/// A volume as a user wrote it, under our name. Fields that our types do not know are refused, because they would be
/// lost.
fn declared_volume(name: &str, volume: &open::Volume) -> Result<Volume, RenderError> {
    let unknown = || RenderError::UnknownVolume { name: volume.name.as_str().to_owned() };
    let mut written = serde_json::Map::new();
    written.insert("name".to_owned(), Value::from(name));
    for (key, value) in &volume.source {
        written.insert(key.clone(), value.clone());
    }
    let written = Value::Object(written);
    let read = Volume::deserialize(&written).map_err(|_| unknown())?;
    let again = serde_json::to_value(&read).map_err(|_| unknown())?;
    if again != written {
        return Err(unknown());
    }
    Ok(with_default_size(read))
}
