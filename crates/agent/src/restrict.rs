//! What the agent gives up, in three steps: what no agent needs, then all files that are not its own, then programs.
//!
//! Each step holds for the whole process and for good, as long as it comes before the first thread. What is left then, besides
//! the files: the harmless devices, whether a path is there and how large it is (Landlock does not hide that), and sockets in
//! the file system that the user may connect to (the door is one).

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use sympozium_api::run_plan::Root;
use sympozium_exec::lockdown::{self, Lockdown, LockdownError};
use sympozium_program::Failure;

use crate::tools::files::is_written;

/// Directories at the root of an image in which there is nothing of the image.
const NOT_OF_THE_IMAGE: [&str; 5] = ["proc", "sys", "dev", "run", "ipc"];

/// Everything that does not depend on the run: no network, no dumps, no new privileges, no signals to others. For before
/// anything is read.
///
/// # Errors
///
/// The process is not restricted as promised: end it.
pub fn lock_down() -> Result<(), Failure> {
    let everything = vec![PathBuf::from("/")];
    let lockdown = Lockdown { readable: everything.clone(), writable: everything, tcp_connect: Vec::new() };
    let locked_down = lockdown.apply_available().map_err(unrestricted)?;
    let missing = locked_down.missing();
    if !missing.is_empty() {
        tracing::warn!(landlock = locked_down.landlock_abi, ?missing, "this kernel lacks a part of the lock-down");
    }
    Ok(())
}

/// And the files, once it is known which are the agent's: its directories, and its image where it has one. Tools write in
/// `places` and below them.
///
/// # Errors
///
/// As [`lock_down`].
pub fn narrow(roots: &[Root], places: &[&str], image: Option<&Path>) -> Result<(), Failure> {
    // What no tool writes to is for reading, whatever its mount allows.
    let paths = |written: bool| {
        let kept = roots.iter().filter(move |root| is_written(root, places) == written);
        kept.map(|root| PathBuf::from(&root.path))
    };
    let image = image.map(of_the_image).transpose();
    let image = image.context("the image cannot be looked at")?;
    let readable: Vec<PathBuf> = paths(false).chain(image.into_iter().flatten()).collect();
    let writable: Vec<PathBuf> = paths(true).collect();
    lockdown::narrow(&readable, &writable).map_err(unrestricted)
}

/// And programs: what may be read could be executed otherwise, and an image has a shell.
///
/// # Errors
///
/// As [`lock_down`].
pub fn start_nothing() -> Result<(), Failure> {
    lockdown::stop_executing().map_err(unrestricted)
}

/// The agent's directories, and its image, to be opened once nothing else can be.
pub fn with_image(roots: &[Root], image: Option<&Path>) -> Vec<Root> {
    let image = image.map(|image| Root { path: image.to_string_lossy().into_owned(), writable: false });
    roots.iter().cloned().chain(image).collect()
}

/// What is in an image, and nothing of what the container's runtime puts there. The image as a whole would be everything.
///
/// Links are left out, because a rule is about the place that they lead to: one to `/run`, which many images have, would open
/// what is left out by name. What they lead to in the image has a rule of its own.
fn of_the_image(image: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for (name, path) in entries(image)? {
        if name == "var" {
            // `/var/run` is where a token would be.
            let below = entries(&path)?.into_iter();
            paths.extend(below.filter(|(name, _)| name != "run").map(|(_, it)| it));
        } else if !NOT_OF_THE_IMAGE.contains(&name.as_str()) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Names and paths in a directory, but for links.
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

fn unrestricted(error: LockdownError) -> Failure {
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
    fn an_image_is_what_is_in_it_and_nothing_that_is_mounted_or_linked() {
        let image = tempfile::tempdir().unwrap();
        let at = |name: &str| image.path().join(name);
        for name in ["bin", "dev", "etc", "ipc", "proc", "run", "runs", "sys", "usr", "var", "var/cache", "var/run"] {
            fs::create_dir(at(name)).unwrap();
        }
        fs::write(at("file"), "").unwrap();
        symlink("/", at("all")).unwrap();
        symlink("usr/lib", at("lib")).unwrap();
        symlink("../run/lock", at("var/lock")).unwrap();
        let mut paths = of_the_image(image.path()).unwrap();
        paths.sort();
        let expected = ["bin", "etc", "file", "runs", "usr", "var/cache"];
        assert_eq!(paths, expected.map(at));

        fs::remove_dir_all(at("var")).unwrap();
        symlink("run", at("var")).unwrap();
        let mut paths = of_the_image(image.path()).unwrap();
        paths.sort();
        assert_eq!(paths, ["bin", "etc", "file", "runs", "usr"].map(at));

        assert!(of_the_image(&at("nothing")).is_err());
    }

    #[test]
    fn the_image_is_the_last_root_and_read_only() {
        let workspace = Root { path: "/workspace".to_owned(), writable: true };
        let image = Root { path: "/".to_owned(), writable: false };
        let roots = [workspace.clone()];
        assert_eq!(with_image(&roots, None), roots);
        assert_eq!(with_image(&roots, Some(Path::new("/"))), [workspace, image]);
    }
}
