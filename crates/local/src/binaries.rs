//! Finds programs of this machine that packs without a usable image declare (RULINGS 17).

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

/// Bytes of a program's name.
const MAX_NAME_BYTES: usize = 128;
/// Directories of PATH that are searched.
const MAX_DIRECTORIES: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    /// The name under which the skill calls it.
    pub name: String,
    /// Absolute, with all links resolved.
    pub path: PathBuf,
}

impl Binary {
    /// Finds the first program of this name in `search`, a list of directories like `PATH`. Relative directories are
    /// skipped: what they mean depends on the current directory.
    pub fn find(name: &str, search: &OsStr) -> Option<Self> {
        if !is_program_name(name) {
            return None;
        }
        let directories = std::env::split_paths(search).filter(|it| it.is_absolute());
        let mut found =
            directories.take(MAX_DIRECTORIES).filter_map(|directory| resolve_executable(&directory.join(name)));
        Some(Self { name: name.to_owned(), path: found.next()? })
    }
}

/// Whether this is one component of a path, and cannot be mistaken for an option.
pub fn is_program_name(name: &str) -> bool {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"_.+-".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.starts_with(['.', '-']) && name.bytes().all(is_usual)
}

/// Resolves all links. Returns the file if this process may execute it.
fn resolve_executable(path: &Path) -> Option<PathBuf> {
    let real = fs::canonicalize(path).ok()?;
    let is_file = fs::metadata(&real).ok()?.is_file();
    let may = accessat(CWD, &real, Access::EXEC_OK, AtFlags::EACCESS);
    (is_file && may.is_ok()).then_some(real)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn put(path: &Path, mode: u32) {
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_first_program_is_found_and_resolved() {
        let directory = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(directory.path()).unwrap();
        for name in ["one", "two", "real"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        put(&root.join("real/busybox"), 0o755);
        symlink("../real/busybox", root.join("two/link")).unwrap();
        symlink(root.join("two/link"), root.join("two/ls")).unwrap();
        put(&root.join("one/plain"), 0o644);
        put(&root.join("two/plain"), 0o755);
        fs::create_dir(root.join("one/directory")).unwrap();
        symlink("nowhere", root.join("one/dangling")).unwrap();
        symlink("loop", root.join("one/loop")).unwrap();
        let search = std::env::join_paths(["relative", "", "."].map(PathBuf::from).into_iter().chain([
            root.join("missing"),
            root.join("one"),
            root.join("two"),
        ]))
        .unwrap();
        let find = |name: &str| Binary::find(name, &search).map(|it| it.path);
        assert_eq!(find("ls"), Some(root.join("real/busybox")));
        assert_eq!(find("plain"), Some(root.join("two/plain")));
        for name in ["directory", "dangling", "loop", "missing", "../two/ls", ""] {
            assert_eq!(find(name), None, "{name}");
        }
        let binary = Binary::find("ls", &search).unwrap();
        assert_eq!(binary.name, "ls");
        assert_eq!(Binary::find("ls", OsStr::new("")), None);
    }

    #[test]
    fn relative_directories_are_skipped() {
        let here = std::env::current_dir().unwrap();
        let directory = tempfile::tempdir_in(&here).unwrap();
        put(&directory.path().join("tool"), 0o755);
        let relative = directory.path().strip_prefix(&here).unwrap();
        assert_eq!(Binary::find("tool", relative.as_os_str()), None);
        assert!(Binary::find("tool", directory.path().as_os_str()).is_some());
    }

    #[test]
    fn names_are_one_component() {
        for name in ["gh", "yt-dlp", "g++", "python3.12", "_x"] {
            assert!(is_program_name(name), "{name}");
        }
        for name in ["", ".", "..", "-c", ".x", "a/b", "a b", "a\n", "ä", &"x".repeat(129)] {
            assert!(!is_program_name(name), "{name:?}");
        }
        assert!(is_program_name(&"x".repeat(128)));
    }
}
