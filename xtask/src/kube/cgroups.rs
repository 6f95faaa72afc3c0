//! The cgroup folders of clusters, in every hierarchy of the machine (version 1, version 2 or both).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Folders of ours are called this and the cluster's number.
pub const PREFIX: &str = "sympozium-kube-";

const MOUNT: &str = "/sys/fs/cgroup";
/// The kernel releases a cgroup a moment after its last process.
const PATIENCE: Duration = Duration::from_secs(15);

/// Creates the folder `name` in every hierarchy that takes one: the kubelet looks for it before the first container.
pub fn create(name: &str) {
    for hierarchy in hierarchies() {
        // Not every folder there is a hierarchy; one that is and refuses shows when the first container starts.
        let _ = fs::create_dir(hierarchy.join(name));
    }
}

/// Removes the folder `name` and all below it from every hierarchy. Its processes must be ending.
pub fn remove(name: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left: Vec<_> = places(name).into_iter().filter(|place| !remove_tree(place)).collect();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("cannot remove the cgroups {left:?}: they still have processes");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Every cgroup folder of a cluster, living or dead.
pub fn all() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for hierarchy in hierarchies() {
        let names = fs::read_dir(&hierarchy).into_iter().flatten().flatten();
        found.extend(
            names.filter(|name| name.file_name().to_string_lossy().starts_with(PREFIX)).map(|name| name.path()),
        );
    }
    found
}

fn places(name: &str) -> Vec<PathBuf> {
    hierarchies().into_iter().map(|hierarchy| hierarchy.join(name)).filter(|place| place.is_dir()).collect()
}

/// Version 2 alone is mounted at the top; version 1 has one folder per hierarchy there, version 2 among them.
fn hierarchies() -> Vec<PathBuf> {
    let top = Path::new(MOUNT);
    if top.join("cgroup.controllers").is_file() { vec![top.to_owned()] } else { folders(top) }
}

/// Children first; a cgroup folder can be removed only when it has none.
fn remove_tree(folder: &Path) -> bool {
    let children = folders(folder).iter().all(|child| remove_tree(child));
    children && (fs::remove_dir(folder).is_ok() || !folder.exists())
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}
