//! Volumes: their types, who mounts them, and where.

use std::collections::BTreeSet;

use serde_json::Value;
use sympozium_api::open::{Volume, VolumeMount};
use sympozium_api::run_plan::RecursiveReadOnly;
use sympozium_api::skill_pack::Sidecar;
use sympozium_api::text::{MAX_NAME, printable, quote, truncate};

use super::host_access::{check_directory, check_pack_allowed};
use super::violation::{Findings, violation};
use super::volume_sources::{self, SecretLocation};
use super::{ResolvedPack, RuleContext, Subject};
use crate::path::{self, ImageOwner};

/// Types of volumes that any part may mount.
const COMMON_TYPES: &[&str] = &["configMap", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"];
/// Types that may hold a credential: for packs, never for the agent.
const PACK_TYPES: &[&str] = &["secret"];
/// Sources of a `projected` volume, besides [`PACKS`].
const PROJECTED_TYPES: &[&str] = &["configMap", "downwardAPI"];

/// The owner of a volume. Only its owner mounts it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum VolumeOwner {
    /// The agent's container.
    Agent,
    /// The sidecar of a pack.
    Pack(String),
}

/// A volume of a run, under a name that no other part can know.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunVolume {
    /// The part that mounts it.
    pub owner: VolumeOwner,
    /// The name in the manifest of its owner.
    pub name: String,
    /// The name in the pod. It consists of numbers, so that two names cannot collide.
    pub pod_name: String,
}

/// Checks all volumes of a run, and names them.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) -> Vec<RunVolume> {
    let spec = &case.run.spec;
    check_agent(&case.subject, &spec.volumes, &spec.volume_mounts, findings);
    let mut all: Vec<RunVolume> = name_volumes(VolumeOwner::Agent, "agent", &spec.volumes).collect();
    for (number, pack) in case.packs.iter().enumerate() {
        let Some(sidecar) = pack.sidecar() else {
            continue;
        };
        check_sidecar(&pack.subject(), sidecar, findings);
        check_host_paths(case, pack, sidecar, findings);
        let owner = VolumeOwner::Pack(pack.name.as_str().to_owned());
        all.extend(name_volumes(owner, &format!("skill-{number}"), &sidecar.volumes));
    }
    all
}

fn name_volumes<'v>(owner: VolumeOwner, start: &str, volumes: &'v [Volume]) -> impl Iterator<Item = RunVolume> + 'v {
    let start = start.to_owned();
    volumes.iter().enumerate().map(move |(index, volume)| RunVolume {
        owner: owner.clone(),
        name: volume.name.as_str().to_owned(),
        pod_name: format!("{start}-volume-{index}"),
    })
}

/// Checks the volumes of an agent's container, independently of the policy.
pub fn check_agent(subject: &Subject, volumes: &[Volume], mounts: &[VolumeMount], findings: &mut Findings) {
    let agent =
        VolumeContext { subject: subject.clone(), field: "spec", is_agent: true, image_owner: ImageOwner::Sympozium };
    check_volumes(&agent, volumes, findings);
    check_mounts(&agent, volumes, mounts, Vec::new(), findings);
}

/// Checks the volumes of a pack, independently of the policy.
pub fn check_sidecar(subject: &Subject, sidecar: &Sidecar, findings: &mut Findings) {
    let owner = VolumeContext {
        subject: subject.clone(),
        field: "spec.sidecar",
        is_agent: false,
        image_owner: ImageOwner::Pack,
    };
    check_volumes(&owner, &sidecar.volumes, findings);
    let mut places = Vec::new();
    if let Some(place) = sidecar.effective_secret_path() {
        places.push(("spec.sidecar.secretMountPath".to_owned(), place));
    }
    for (index, mount) in sidecar
        .host_access
        .iter()
        .filter(|host_access| host_access.enabled)
        .flat_map(|host_access| host_access.mounts.iter().enumerate())
    {
        let field = format!("spec.sidecar.hostAccess.mounts[{index}].mountPath");
        places.push((field, mount.mount_path.to_string()));
    }
    check_mounts(&owner, &sidecar.volumes, &sidecar.volume_mounts, places, findings);
}

/// The owner of the volumes that are checked.
struct VolumeContext {
    subject: Subject,
    field: &'static str,
    is_agent: bool,
    /// Whose image the container has: decides which paths are reserved.
    image_owner: ImageOwner,
}

fn check_volumes(owner: &VolumeContext, volumes: &[Volume], findings: &mut Findings) {
    let mut names = BTreeSet::new();
    for (index, volume) in volumes.iter().enumerate() {
        let field = format!("{}.volumes[{index}]", owner.field);
        let name = printable(truncate(volume.name.as_str(), MAX_NAME));
        if !names.insert(volume.name.as_str()) {
            let message = format!("two volumes are called `{name}`");
            findings.deny(
                &owner.subject,
                violation(format!("{field}.name"), "volume-twice", message, "rename one of them"),
            );
        }
        let mut kinds = volume.source.iter();
        match (kinds.next(), kinds.next()) {
            (None, _) => {}
            (Some((kind, source)), None) => check_source(owner, &field, kind, source, findings),
            (Some(_), Some(_)) => {
                let message = format!("the volume `{name}` says twice what it is");
                findings.deny(&owner.subject, violation(field, "volume-two-sources", message, "keep one of them"));
            }
        }
    }
}

fn check_source(owner: &VolumeContext, field: &str, kind: &str, source: &Value, findings: &mut Findings) {
    let field = format!("{field}.{}", printable(truncate(kind, MAX_NAME)));
    let mut look = || volume_sources::check(&owner.subject, &field, kind, source, findings);
    match kind {
        _ if COMMON_TYPES.contains(&kind) => look(),
        _ if PACK_TYPES.contains(&kind) && !owner.is_agent => {
            look();
            volume_sources::check_secret_name(&owner.subject, &field, SecretLocation::Volume, source, findings);
        }
        "secret" => findings.deny(
            &owner.subject,
            violation(
                field,
                "volume-secret",
                "the agent holds no credential, and this volume would give it one",
                "name the Secret in `secretRef` of the pack that needs it",
            ),
        ),
        "projected" => {
            look();
            check_projected(owner, &field, source, findings);
        }
        // The path is checked with the policy, where the whole run is known.
        "hostPath" if !owner.is_agent => look(),
        "hostPath" => findings.deny(
            &owner.subject,
            violation(
                field,
                "volume-host-path",
                "the agent sees nothing of the node",
                "use a pack with `hostAccess` that the policy allows",
            ),
        ),
        _ => {
            let all = COMMON_TYPES.iter().chain(if owner.is_agent { &[][..] } else { PACK_TYPES });
            findings.deny(
                &owner.subject,
                violation(
                    field,
                    "volume-type",
                    format!("volumes of type {} are not for runs", quote(kind)),
                    format!("use one of {}", crate::text::quote_list(all)),
                ),
            );
        }
    }
}

/// Checks each source of a projected volume. A token of a ServiceAccount is always denied.
fn check_projected(owner: &VolumeContext, field: &str, source: &Value, findings: &mut Findings) {
    let Some(sources) = source.get("sources").and_then(Value::as_array) else {
        let message = "a projected volume needs a list of `sources`";
        return findings.deny(&owner.subject, violation(field, "volume-projected", message, "add it"));
    };
    for (index, source) in sources.iter().enumerate() {
        let Some(kinds) = source.as_object() else {
            let at = format!("{field}.sources[{index}]");
            let message = "a source is an object";
            findings.deny(&owner.subject, violation(at, "volume-projected", message, "remove it"));
            continue;
        };
        for (kind, source) in kinds {
            let allowed =
                PROJECTED_TYPES.contains(&kind.as_str()) || (!owner.is_agent && PACK_TYPES.contains(&kind.as_str()));
            let at = format!("{field}.sources[{index}].{}", printable(truncate(kind, MAX_NAME)));
            if allowed {
                volume_sources::check(&owner.subject, &at, kind, source, findings);
                if PACK_TYPES.contains(&kind.as_str()) {
                    let place = SecretLocation::Projected;
                    volume_sources::check_secret_name(&owner.subject, &at, place, source, findings);
                }
                continue;
            }
            let (rule, message) = match kind.as_str() {
                "serviceAccountToken" => {
                    ("volume-token", "a run's tokens are made for it and bound to it, never mounted by a volume")
                }
                "secret" => ("volume-secret", "the agent holds no credential, and this volume would give it one"),
                _ => ("volume-projected", "this source is not for runs"),
            };
            let remedy = "remove the source; access to the Kubernetes API comes from the pack's `rbac`";
            findings.deny(&owner.subject, violation(at, rule, message, remedy));
        }
    }
}

fn check_mounts(
    owner: &VolumeContext,
    volumes: &[Volume],
    mounts: &[VolumeMount],
    mut places: Vec<(String, String)>,
    findings: &mut Findings,
) {
    for (index, mount) in mounts.iter().enumerate() {
        let field = format!("{}.volumeMounts[{index}]", owner.field);
        if !volumes.iter().any(|volume| volume.name == mount.name) {
            findings.deny(
                &owner.subject,
                violation(
                    format!("{field}.name"),
                    "mount-unknown",
                    format!("{} is not a volume of the same list", quote(mount.name.as_str())),
                    "declare it in `volumes`; volumes of others cannot be mounted",
                ),
            );
        }
        if mount.sub_path_expr.is_some() {
            let message = "`subPathExpr` puts variables into a path";
            let remedy = "use `subPath` with a fixed path";
            findings.deny(
                &owner.subject,
                violation(format!("{field}.subPathExpr"), "mount-sub-path-expr", message, remedy),
            );
        }
        if let Some(sub_path) =
            mount.sub_path.as_ref().filter(|sub_path| !sub_path.is_empty() && !path::is_plain_relative(sub_path))
        {
            let message = format!("{} is not a plain path below the volume", quote(sub_path));
            let remedy = "write it without `.`, `..`, `//` and a leading slash";
            findings.deny(&owner.subject, violation(format!("{field}.subPath"), "mount-sub-path", message, remedy));
        }
        if mount.mount_propagation.as_deref().is_some_and(|mount_propagation| mount_propagation != "None") {
            let message = "mounts of a run do not spread to or from the node";
            findings.deny(
                &owner.subject,
                violation(format!("{field}.mountPropagation"), "mount-propagation", message, "remove it"),
            );
        }
        check_recursive_read_only(&owner.subject, &field, mount, findings);
        places.push((format!("{field}.mountPath"), mount.mount_path.to_string()));
    }
    for (index, (field, place)) in places.iter().enumerate() {
        if let Err(error) = path::check_mount_path(place, owner.image_owner) {
            let remedy = "mount it at a place of its own, such as `/data`";
            findings.deny(&owner.subject, violation(field.clone(), "mount-path", error.to_string(), remedy));
        }
        let place = place.trim_end_matches('/');
        let other = places[..index].iter().map(|(_, other)| other.trim_end_matches('/'));
        if let Some(other) = other.into_iter().find(|other| path::overlap(place, other)) {
            let message = format!("{} and {} are in each other's way", quote(place), quote(other));
            findings.deny(&owner.subject, violation(field.clone(), "mount-overlap", message, "mount them apart"));
        }
    }
}

/// Checks that `recursiveReadOnly` is a valid value, on a mount that it can restrict.
fn check_recursive_read_only(subject: &Subject, field: &str, mount: &VolumeMount, findings: &mut Findings) {
    let Some(written) = mount.recursive_read_only.as_deref() else {
        return;
    };
    let restricts = RecursiveReadOnly::parse(written).is_some();
    let (message, remedy) = match (written, restricts, mount.read_only) {
        ("Disabled", ..) | (_, true, Some(true)) => return,
        (_, true, _) => (
            format!("`{written}` makes what is below a read-only mount read-only, and this one is not"),
            "set `readOnly: true`, or remove it",
        ),
        _ => (format!("{} is not `Disabled`, `IfPossible` or `Enabled`", quote(written)), "correct it"),
    };
    let field = format!("{field}.recursiveReadOnly");
    findings.deny(subject, violation(field, "mount-recursion", message, remedy));
}

/// Checks the directories of the node that a pack mounts as volumes.
fn check_host_paths(case: &RuleContext<'_, '_>, pack: &ResolvedPack<'_>, sidecar: &Sidecar, findings: &mut Findings) {
    let subject = &pack.subject();
    for (index, volume) in sidecar.volumes.iter().enumerate() {
        let Some(source) = volume.source.get("hostPath") else {
            continue;
        };
        let field = format!("spec.sidecar.volumes[{index}].hostPath");
        check_pack_allowed(case, pack, &field, findings);
        let mounts = sidecar.volume_mounts.iter().filter(|mount| mount.name == volume.name);
        let writable =
            mounts.into_iter().any(|mount| mount.read_only != Some(true)) || volume_sources::needs_write_access(source);
        let directory = source.get("path").and_then(Value::as_str).unwrap_or_default();
        check_directory(case, subject, &format!("{field}.path"), directory, writable, findings);
    }
}
