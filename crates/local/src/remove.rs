//! Removes a directory tree, whatever its depth and permissions: hostile commands may have made it.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use anyhow::{Context as _, bail};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, chmod, openat, renameat_with, unlinkat};
use rustix::io::Errno;

/// Limit of iterations, far above the number of directories that the disk quota of a run permits.
const MAX_DIRECTORIES: u64 = 100_000_000;

/// Removes the tree. A missing path is fine.
///
/// No link is followed, and a mounted file system is not entered: that is an error. Nested directories are first moved
/// to the top, so that neither the length of paths nor the number of open files limits the depth; directories without
/// the needed permissions get them.
pub fn remove_tree(path: &Path) -> anyhow::Result<()> {
    let remove = || -> anyhow::Result<()> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            bail!("it has no parent directory");
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = match rustix::fs::open(parent, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            other => other?,
        };
        match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTDIR) => return Ok(unlinkat(&parent, name, AtFlags::empty())?),
            Err(_) => {}
        }
        let top = open_writable(&parent, name)?;
        empty_directory(&top)?;
        Ok(unlinkat(&parent, name, AtFlags::REMOVEDIR)?)
    };
    remove().with_context(|| format!("cannot remove {}", path.display()))
}

fn empty_directory(top: &OwnedFd) -> anyhow::Result<()> {
    let mut moved = 0;
    // After each pass only directories that were moved up from deeper levels are left.
    for _ in 0..MAX_DIRECTORIES {
        let mut is_empty = true;
        for (name, kind) in list_entries(top)? {
            is_empty = false;
            if !is_directory(top, &name, kind)? {
                unlink(top, &name)?;
                continue;
            }
            if unlinkat(top, &name, AtFlags::REMOVEDIR).is_ok() {
                continue;
            }
            let inner = open_writable(top, &name)?;
            for (below, kind) in list_entries(&inner)? {
                if !is_directory(&inner, &below, kind)? {
                    unlink(&inner, &below)?;
                } else if unlinkat(&inner, &below, AtFlags::REMOVEDIR).is_err() {
                    // Renaming a directory needs write permission on it: opening grants that.
                    drop(open_writable(&inner, &below)?);
                    move_up(&inner, &below, top, &mut moved)?;
                }
            }
            unlinkat(top, &name, AtFlags::REMOVEDIR)?;
        }
        if is_empty {
            return Ok(());
        }
    }
    bail!("it has more than {MAX_DIRECTORIES} directories")
}

/// Moves a directory to the top, under a number that is free there.
fn move_up(from: &OwnedFd, name: &[u8], top: &OwnedFd, moved: &mut u64) -> anyhow::Result<()> {
    while *moved < MAX_DIRECTORIES {
        *moved += 1;
        let new = format!(".removed-{moved}");
        match renameat_with(from, name, top, new.as_str(), RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            other => return Ok(other?),
        }
    }
    bail!("it has more than {MAX_DIRECTORIES} directories")
}

fn unlink(directory: &OwnedFd, name: &[u8]) -> rustix::io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

fn list_entries(directory: &OwnedFd) -> rustix::io::Result<Vec<(Vec<u8>, FileType)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if ![&b"."[..], b".."].contains(&name) {
            found.push((name.to_vec(), entry.file_type()));
        }
    }
    Ok(found)
}

/// Not every file system reports the type in its listings.
fn is_directory(directory: &OwnedFd, name: &[u8], kind: FileType) -> rustix::io::Result<bool> {
    if kind != FileType::Unknown {
        return Ok(kind == FileType::Directory);
    }
    let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(found.st_mode) == FileType::Directory)
}

/// Opens a directory, after giving its owner all permissions.
fn open_writable(parent: &OwnedFd, name: impl rustix::path::Arg + Copy) -> rustix::io::Result<OwnedFd> {
    let common = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = openat(parent, name, OFlags::PATH | common, Mode::empty())?;
    // An `O_PATH` descriptor cannot be passed to fchmod, so the mode is changed through `/proc/self/fd`. For another
    // user's directory that fails, and so does the next step if it matters.
    let _ = chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), Mode::RWXU);
    openat(&found, ".", OFlags::RDONLY | common, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_missing_path_is_not_an_error() {
        let temporary = tempfile::tempdir().unwrap();
        remove_tree(&temporary.path().join("none")).unwrap();
        remove_tree(&temporary.path().join("none/below")).unwrap();
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let temporary = tempfile::tempdir().unwrap();
        let outside = temporary.path().join("outside");
        fs::create_dir_all(outside.join("kept")).unwrap();
        let tree = temporary.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        symlink(&outside, tree.join("a/b/link")).unwrap();
        symlink(&outside, tree.join("link")).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        assert!(outside.join("kept").exists());

        let link = temporary.path().join("link");
        symlink(&outside, &link).unwrap();
        remove_tree(&link).unwrap();
        assert!(fs::symlink_metadata(&link).is_err());
        assert!(outside.join("kept").exists());
    }

    #[test]
    fn directories_without_permissions_are_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let tree = temporary.path().join("tree");
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        fs::write(tree.join("a/b/c/file"), "x").unwrap();
        fs::write(tree.join(".removed-1"), "x").unwrap();
        for closed in ["a/b/c", "a/b", "a", ""] {
            fs::set_permissions(tree.join(closed), fs::Permissions::from_mode(0o000)).unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn deep_trees_are_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let tree = temporary.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = rustix::fs::open(&tree, flags, Mode::empty()).unwrap();
        // Longer than a path may be, and deeper than the number of files that may be open.
        for _ in 0..1500 {
            rustix::fs::mkdirat(&at, "deeper", Mode::RWXU).unwrap();
            at = openat(&at, "deeper", flags, Mode::empty()).unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }
}
