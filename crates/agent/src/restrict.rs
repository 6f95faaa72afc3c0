//! Restricts the process in three steps: first what no agent needs, then file access, then executing programs.
//!
//! Each step applies to the whole process and is irreversible, provided it comes before the first thread. What remains
//! besides the allowed files: the harmless devices, existence and size of any path (Landlock does not hide them), and
//! sockets in the file system that the user may connect to, such as the door.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use sympozium_api::run_plan::Root;
use sympozium_exec::lockdown::{self, Lockdown, LockdownError};
use sympozium_program::Failure;

use crate::tools::files::is_writable_root;

/// Top-level directories whose content comes from the runtime and not from the image.
const RUNTIME_DIRECTORIES: [&str; 5] = ["proc", "sys", "dev", "run", "ipc"];

/// Removes what does not depend on the run: network, core dumps, new privileges, signals to other processes. Must be
/// called before anything is read; when it fails, the process must end.
pub fn lock_down() -> Result<(), Failure> {
    let everything = vec![PathBuf::from("/")];
    let lockdown = Lockdown { readable: everything.clone(), writable: everything, tcp_connect: Vec::new() };
    let locked_down = lockdown.apply_available().map_err(lockdown_failure)?;
    let missing = locked_down.missing();
    if !missing.is_empty() {
        tracing::warn!(landlock = locked_down.landlock_abi, ?missing, "this kernel lacks a part of the lock-down");
    }
    Ok(())
}

/// Restricts file access to the agent's directories and, if given, its image. Tools write only below `writable_dirs`.
pub fn restrict_files(roots: &[Root], writable_dirs: &[&str], image: Option<&Path>) -> Result<(), Failure> {
    // Roots that tools do not write to are read-only, whatever their mount allows.
    let paths = |is_writable: bool| {
        let selected = roots.iter().filter(move |root| is_writable_root(root, writable_dirs) == is_writable);
        selected.map(|root| PathBuf::from(&root.path))
    };
    let image = image.map(image_paths).transpose();
    let image = image.context("the image cannot be looked at")?;
    let readable: Vec<PathBuf> = paths(false).chain(image.into_iter().flatten()).collect();
    let writable: Vec<PathBuf> = paths(true).collect();
    lockdown::narrow(&readable, &writable).map_err(lockdown_failure)
}

/// Forbids executing programs: readable files could be executed otherwise, and an image has a shell.
pub fn forbid_exec() -> Result<(), Failure> {
    lockdown::stop_executing().map_err(lockdown_failure)
}

/// The roots for the file tools: the agent's directories and its image.
pub fn roots_with_image(roots: &[Root], image: Option<&Path>) -> Vec<Root> {
    let image = image.map(|image| Root { path: image.to_string_lossy().into_owned(), writable: false });
    roots.iter().cloned().chain(image).collect()
}

/// The paths of an image without what the container runtime mounts. A rule for the root itself would cover everything.
///
/// Symbolic links are left out, because a Landlock rule applies to their target: a link to `/run`, which many images
/// have, would open what is excluded by name. Targets inside of the image have rules of their own.
fn image_paths(image: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for (name, path) in entries(image)? {
        if name == "var" {
            // `/var/run` holds service account tokens.
            let below = entries(&path)?.into_iter();
            paths.extend(below.filter(|(name, _)| name != "run").map(|(_, path)| path));
        } else if !RUNTIME_DIRECTORIES.contains(&name.as_str()) {
            paths.push(path);
        }
    }
    Ok(paths)
}

fn entries(directory: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if !entry.file_type()?.is_symlink() {
            let name = entry.file_name().to_string_lossy().into_owned();
            entries.push((name, entry.path()));
        }
    }
    Ok(entries)
}

fn lockdown_failure(error: LockdownError) -> Failure {
    let error = anyhow::Error::new(error).context("the agent cannot restrict itself");
    let hint = "a container's seccomp profile must let it use seccomp and prctl; RuntimeDefault does";
    Failure::new(error, hint)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn image_paths_exclude_mounts_and_links() {
        let image = tempfile::tempdir().unwrap();
        let at = |name: &str| image.path().join(name);
        for name in ["bin", "dev", "etc", "ipc", "proc", "run", "runs", "sys", "usr", "var", "var/cache", "var/run"] {
            fs::create_dir(at(name)).unwrap();
        }
        fs::write(at("file"), "").unwrap();
        symlink("/", at("all")).unwrap();
        symlink("usr/lib", at("lib")).unwrap();
        symlink("../run/lock", at("var/lock")).unwrap();
        let mut paths = image_paths(image.path()).unwrap();
        paths.sort();
        let expected = ["bin", "etc", "file", "runs", "usr", "var/cache"];
        assert_eq!(paths, expected.map(at));

        fs::remove_dir_all(at("var")).unwrap();
        symlink("run", at("var")).unwrap();
        let mut paths = image_paths(image.path()).unwrap();
        paths.sort();
        assert_eq!(paths, ["bin", "etc", "file", "runs", "usr"].map(at));

        assert!(image_paths(&at("nothing")).is_err());
    }

    #[test]
    fn the_image_is_the_last_root_and_read_only() {
        let workspace = Root { path: "/workspace".to_owned(), writable: true };
        let image = Root { path: "/".to_owned(), writable: false };
        let roots = [workspace.clone()];
        assert_eq!(roots_with_image(&roots, None), roots);
        assert_eq!(roots_with_image(&roots, Some(Path::new("/"))), [workspace, image]);
    }
}
