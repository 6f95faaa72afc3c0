//! Looks for setuid and setgid files in directories of this machine that a run may write to: its workspace and its
//! claims.
//!
//! A sandbox cannot create such files: seccomp refuses it. But an existing one can be rewritten through a shared
//! mapping, for which the kernel does not clear the bits as it does for `write`. What a skill writes into it would then
//! run outside of the sandbox as the owner of the directory: as root, if root owns it.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use sympozium_api::RunPlan;
use sympozium_api::run_plan::PlanVolume;
use sympozium_api::text::quote;

use crate::failure::Failure;
use sympozium_local::state::StateDirectory;
use sympozium_local::volumes::{WORKSPACE, claim_name, find_claim};

/// Entries of a directory that are examined.
const MAX_ENTRIES: usize = 250_000;
/// Files listed in an error message.
const MAX_NAMED: usize = 5;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_MAY_EXECUTE: u32 = 0o0010;
const OTHERS_MAY_WRITE: u32 = 0o0022;

/// A writable directory that outlives runs.
struct WritableDirectory {
    label: String,
    path: PathBuf,
    /// The hint if it cannot be searched.
    unreadable_hint: String,
    /// What the user can do instead of changing its files.
    alternative: &'static str,
}

/// Refuses directories with such files if any part of the run may write to them. Volumes that are created for the run
/// are empty at first, so they have none. The hint has the command that clears the bits.
pub fn check(
    plan: &RunPlan,
    state: &StateDirectory,
    workspace: Option<&Path>,
    warnings: &mut Vec<String>,
) -> Result<(), Failure> {
    for directory in list_writable(plan, state, workspace)? {
        let found = find_privileged_files(&directory.path, MAX_ENTRIES)
            .map_err(|error| Failure::new(error, directory.unreadable_hint.clone()))?;
        if !found.files.is_empty() {
            return Err(privileged_files_failure(&directory, &found.files));
        }
        if let Some(unseen) = found.incomplete {
            warnings.push(format!(
                "{} was not searched for setuid files in full ({unseen}): the run could rewrite one, and it would keep its privileges",
                directory.label
            ));
        }
    }
    Ok(())
}

fn list_writable(
    plan: &RunPlan,
    state: &StateDirectory,
    workspace: Option<&Path>,
) -> Result<Vec<WritableDirectory>, Failure> {
    let is_writable = |volume: &PlanVolume| {
        let mut mounts = plan.parts.iter().flat_map(|part| &part.mounts);
        mounts.any(|it| it.volume == volume.name && !it.read_only)
    };
    let mut directories: Vec<WritableDirectory> = Vec::new();
    for volume in plan.volumes.iter().filter(|it| is_writable(it)) {
        if let (WORKSPACE, Some(path)) = (volume.name.0.as_str(), workspace) {
            directories.push(WritableDirectory {
                label: "the workspace".to_owned(),
                path: path.to_owned(),
                unreadable_hint: "give --workspace a directory that you may read".to_owned(),
                alternative: "give --workspace another directory",
            });
        }
        let Some(claim) = claim_name(volume) else {
            continue;
        };
        let found = find_claim(state, plan.run.namespace.as_str(), claim)
            .map_err(|error| Failure::new(error, "make it yours: chown, chmod 700"))?;
        // Packs may share a claim.
        let found = found.filter(|path| directories.iter().all(|it| it.path != *path));
        if let Some(path) = found {
            directories.push(WritableDirectory {
                label: format!("claim {}", quote(claim)),
                unreadable_hint: format!("make it readable: chmod 700 '{}'", path.display()),
                path,
                alternative: "name another claim",
            });
        }
    }
    Ok(directories)
}

fn privileged_files_failure(directory: &WritableDirectory, files: &[PathBuf]) -> Failure {
    let named = files.iter().take(MAX_NAMED);
    let named: Vec<String> = named.map(|it| quote(&it.display().to_string())).collect();
    let more = match files.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let WritableDirectory { label: what, path, alternative: instead, .. } = directory;
    let error = anyhow!(
        "the run could rewrite setuid or setgid files in {what}, which would keep their rights: {}{more}",
        named.join(", ")
    );
    let hint = format!(
        "take the bits away (find '{}' -type f -perm /6000 -exec chmod ug-s {{}} +), or {instead}",
        path.display()
    );
    Failure::new(error, hint)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct SearchResult {
    /// Relative to the directory.
    files: Vec<PathBuf>,
    /// Why the search is incomplete, if it is.
    incomplete: Option<String>,
}

/// Walks a directory without following links.
fn find_privileged_files(root: &Path, most: usize) -> anyhow::Result<SearchResult> {
    let owner = fs::metadata(root).with_context(|| format!("cannot look at {}", root.display()))?.uid();
    let mut found = SearchResult::default();
    let mut left = most;
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if directory == root => {
                return Err(error).with_context(|| format!("cannot list {}", root.display()));
            }
            Err(error) => {
                let name = quote(&directory.display().to_string());
                found.incomplete = Some(format!("{name} cannot be listed: {error}"));
                continue;
            }
        };
        for entry in entries {
            if left == 0 {
                found.incomplete = Some(format!("it has more than {most} files"));
                return Ok(found);
            }
            left -= 1;
            // A file that disappears meanwhile is not there for the run either.
            let Ok((path, metadata)) = entry.and_then(|it| Ok((it.path(), it.metadata()?))) else {
                continue;
            };
            if metadata.is_dir() {
                directories.push(path);
            } else if is_privileged(&metadata) && is_writable_by_run(&metadata, owner) {
                let below = path.strip_prefix(root).unwrap_or(&path);
                found.files.push(below.to_owned());
            }
        }
    }
    found.files.sort();
    Ok(found)
}

/// Whether it runs as its owner or its group. Without execute permission for the group, the setgid bit does not mean
/// that.
fn is_privileged(metadata: &Metadata) -> bool {
    let mode = metadata.mode();
    let group = SET_GROUP_ID | GROUP_MAY_EXECUTE;
    metadata.is_file() && (mode & SET_USER_ID != 0 || mode & group == group)
}

/// Whether a run may write to it: the run acts as the owner of the directory.
fn is_writable_by_run(metadata: &Metadata, owner: u32) -> bool {
    metadata.uid() == owner || metadata.mode() & OTHERS_MAY_WRITE != 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn file(path: &Path, mode: u32) {
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn files_that_keep_their_rights_are_found() {
        let outside = tempfile::tempdir().unwrap();
        file(&outside.path().join("setuid"), 0o4755);
        let workspace = tempfile::tempdir().unwrap();
        let at = |name: &str| workspace.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::set_permissions(at("a"), PermissionsExt::from_mode(0o2755)).unwrap();
        for (name, mode) in [
            ("plain", 0o755),
            ("locked", 0o2644),
            ("sticky", 0o1755),
            ("setuid", 0o4755),
            ("a/setgid", 0o2755),
            ("a/b/both", 0o6711),
            ("a/b/not-executable", 0o4644),
        ] {
            file(&at(name), mode);
        }
        symlink(outside.path(), at("elsewhere")).unwrap();
        symlink(outside.path().join("setuid"), at("link")).unwrap();
        symlink(".", at("a/loop")).unwrap();
        let found = find_privileged_files(workspace.path(), 100).unwrap();
        let files = ["a/b/both", "a/b/not-executable", "a/setgid", "setuid"];
        assert_eq!(found.files, files.map(PathBuf::from));
        assert_eq!(found.incomplete, None);
    }

    #[test]
    fn a_search_is_bounded_and_says_so() {
        let workspace = tempfile::tempdir().unwrap();
        for number in 0..10 {
            file(&workspace.path().join(number.to_string()), 0o644);
        }
        assert_eq!(find_privileged_files(workspace.path(), 10).unwrap(), SearchResult::default());
        let cut = find_privileged_files(workspace.path(), 9).unwrap();
        assert_eq!(cut.incomplete.as_deref(), Some("it has more than 9 files"));
        assert!(find_privileged_files(&workspace.path().join("none"), 9).is_err());
    }

    #[test]
    fn what_the_run_cannot_write_is_no_obstacle() {
        if !rustix::process::geteuid().is_root() {
            sympozium_testkit::skip!("files of others need root");
        }
        let workspace = tempfile::tempdir().unwrap();
        chown(workspace.path(), Some(61_236), None).unwrap();
        for (name, owner, mode) in
            [("of-root", 0, 0o4755), ("of-root-for-everybody", 0, 0o4757), ("of-the-owner", 61_236, 0o4755)]
        {
            let path = workspace.path().join(name);
            fs::write(&path, "").unwrap();
            // Before the mode: changing the owner clears the bits.
            chown(&path, Some(owner), None).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        }
        let found = find_privileged_files(workspace.path(), 100).unwrap();
        let files = ["of-root-for-everybody", "of-the-owner"];
        assert_eq!(found.files, files.map(PathBuf::from));
    }
}
