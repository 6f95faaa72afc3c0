//! Ends clusters and removes what is left of them.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::network;
use super::paths::Root;
use super::state::Instance;
use super::{lock, paths};

/// How long a cluster may take to end after its first process was killed.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long an orphaned first process may take to notice that its keeper is gone.
const NOTICE: Duration = Duration::from_secs(3);

/// Ends a living cluster and waits until nothing of it is left. A dead one is swept.
pub fn down(root: &Root, instance: &Instance) -> Result<()> {
    if let Some(init) = instance.init()? {
        init.kill();
    }
    // The keeper lets go of its lock when everything is removed. A keeper that has not started its first process yet
    // is found a moment later.
    let deadline = Instant::now() + PATIENCE;
    loop {
        match lock::try_exclusive(&instance.lock)? {
            Some(lock) => {
                remove_remains(instance)?;
                lock.remove();
                break;
            }
            None if Instant::now() > deadline => {
                bail!("cluster {} does not end\nhint: `cargo xtask kube status` shows its processes", instance.name);
            }
            None => {
                if let Some(init) = instance.init().unwrap_or_default() {
                    init.kill();
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
    sweep(root)
}

/// Ends the clusters that the tests of one run shared.
pub fn down_of_run(root: &Root, run: &str) -> Result<()> {
    let prefix = format!("test-{run}-");
    for instance in Instance::all(root)? {
        if instance.name.starts_with(&prefix) {
            down(root, &instance)?;
        }
    }
    sweep(root)
}

/// Removes what killed owners left, of every cluster that no keeper holds.
pub fn sweep(root: &Root) -> Result<()> {
    for instance in Instance::all(root)? {
        if let Some(lock) = lock::try_exclusive(&instance.lock)? {
            remove_remains(&instance)?;
            lock.remove();
        }
    }
    sweep_locks(root)?;
    network::sweep()
}

/// A keeper that was killed before it had a folder leaves its lock's file.
fn sweep_locks(root: &Root) -> Result<()> {
    let clusters = root.clusters();
    for entry in fs::read_dir(&clusters).with_context(|| format!("cannot list {}", clusters.display()))? {
        let path = entry.with_context(|| format!("cannot list {}", clusters.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "lock")
            && let Some(lock) = lock::try_exclusive(&path)?
        {
            lock.remove();
        }
    }
    Ok(())
}

/// Clears the place of a cluster whose keeper was killed. The caller holds the cluster's lock.
pub fn remove_remains(instance: &Instance) -> Result<()> {
    if !instance.folder.is_dir() {
        return Ok(());
    }
    // The first process ends by itself when its keeper is gone; one that hangs is killed.
    if lock::exclusive_within(&instance.init_lock(), NOTICE)?.is_none() {
        if let Some(init) = instance.init()? {
            init.kill();
        }
        lock::exclusive_within(&instance.init_lock(), PATIENCE)?
            .with_context(|| format!("what is left of cluster {} does not end", instance.name))?;
    }
    remove_folder(instance)
}

/// Removes the state folder, whose mounts went with their namespace.
pub fn remove_folder(instance: &Instance) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match fs::remove_dir_all(&instance.folder) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            // The kernel takes a namespace's mounts apart a moment after its last process.
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot remove {}", instance.folder.display()));
            }
        }
    }
}

/// Keeps the logs of a cluster that failed, in place of the last one's, and says where.
pub fn save_logs(root: &Root, instance: &Instance) -> String {
    let place = root.path().join(paths::LAST_FAILURE);
    let _ = fs::remove_dir_all(&place);
    match fs::rename(instance.file("logs"), &place) {
        Ok(()) => format!("\nhint: all logs of it are in {}", place.display()),
        Err(_) => String::new(),
    }
}
