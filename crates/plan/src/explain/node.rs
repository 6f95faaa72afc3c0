//! Access of parts to the node that they run on.

use sympozium_api::run_plan::{Mount, Part, PlanVolume, RunPlan, VolumeSource};
use sympozium_api::skill_pack::HostAccess;

use super::files::{self, Access};

/// The access of a part to the node, in words; empty for most parts.
pub fn describe_node_access(plan: &RunPlan, part: &Part) -> Vec<String> {
    let access = part.host_access.as_ref().filter(|host_access| host_access.enabled);
    let mut words = access.map(describe_powers).unwrap_or_default();
    for mount in &part.mounts {
        let path = plan.volume(&mount.volume).and_then(node_path);
        words.extend(path.map(|path| describe_mount(mount, &path)));
    }
    // A directory in `hostAccess` is a volume of the plan too.
    let mut unique = Vec::new();
    for word in words {
        if !unique.contains(&word) {
            unique.push(word);
        }
    }
    unique
}

/// Whether a run has any access to the node.
pub fn uses_node(plan: &RunPlan) -> bool {
    let mut parts = plan.parts.iter();
    parts.any(|part| !describe_node_access(plan, part).is_empty()) || !unmounted_paths(plan).is_empty()
}

/// Directories of the node that are volumes of the pod and that no part mounts.
pub fn unmounted_paths(plan: &RunPlan) -> Vec<String> {
    let volumes = plan.volumes.iter();
    let unseen = volumes.filter(|volume| plan.parts_mounting(&volume.name).next().is_none());
    unseen.filter_map(node_path).map(|path| format!("{path} of the node (mounted by no part)")).collect()
}

/// The directory of the node that a volume is.
pub fn node_path(volume: &PlanVolume) -> Option<String> {
    match &volume.source {
        VolumeSource::Host { path } => Some(path.to_string()),
        VolumeSource::Declared { volume } => files::host_path(volume),
        _ => None,
    }
}

fn describe_mount(mount: &Mount, path: &str) -> String {
    let path = match &mount.sub_path {
        Some(sub) => format!("{sub} below {path}"),
        None => path.to_owned(),
    };
    describe_directory(Access::from_mount(mount), &path, mount.path.as_str())
}

fn describe_directory(access: Access, path: &str, at: &str) -> String {
    format!("{} {path} of the node, at {at}", access.as_str())
}

fn describe_powers(access: &HostAccess) -> Vec<String> {
    let HostAccess { enabled: _, host_network, host_pid, privileged, run_as_root, mounts } = access;
    let words = [
        (*privileged, "every power over the node (privileged)"),
        (*host_pid, "the node's processes"),
        (*host_network, "the node's network, which no NetworkPolicy holds"),
        (*run_as_root, "root in its container"),
    ];
    let powers = words.iter().filter(|(has, _)| *has);
    let powers = powers.map(|(_, words)| (*words).to_owned());
    let mounts = mounts.iter().map(|mount| {
        let access = if mount.read_only { Access::ReadOnly } else { Access::ReadWrite };
        describe_directory(access, mount.host_path.as_str(), mount.mount_path.as_str())
    });
    powers.chain(mounts).collect()
}
