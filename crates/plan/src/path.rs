//! Paths in a container, and which of them a volume must not cover.

use sympozium_api::text::quote;

/// Maximum length of a path.
pub const MAX_PATH_BYTES: usize = 1024;

/// Directories that belong to us or to the kernel. In no container is anything mounted at, above or below them.
pub const RESERVED_PATHS: &[&str] =
    &["/dev", "/ipc", "/opt/sympozium", "/proc", "/run", "/skills", "/sys", "/tmp", "/var/run", "/workspace"];

/// Directories of the programs in our own images. In the container of a pack they belong to the pack.
pub const RESERVED_IN_OUR_IMAGES: &[&str] = &["/bin", "/etc", "/lib", "/lib32", "/lib64", "/sbin", "/usr"];

/// Whose image a container has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageOwner {
    /// One of our images.
    Sympozium,
    /// The image of a pack.
    Pack,
}

/// Why nothing may be mounted at a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMountPath {
    /// Not a plain absolute path.
    #[error("{} is not a plain path from the root (no `.`, `..`, `//`, `:` or control characters)", quote(.0))]
    Malformed(String),
    /// The path overlaps a reserved directory.
    #[error("{} covers or lies below `{reserved}`, which is not for volumes", quote(path))]
    Reserved {
        /// The path of the mount.
        path: String,
        /// The reserved directory.
        reserved: &'static str,
    },
}

/// Checks that a volume may be mounted at `path`: a plain path that overlaps no reserved directory.
///
/// # Errors
///
/// When the path is not plain, or overlaps a reserved directory.
pub fn check_mount_path(path: &str, container: ImageOwner) -> Result<(), InvalidMountPath> {
    if !is_plain(path) {
        return Err(InvalidMountPath::Malformed(path.to_owned()));
    }
    let path = path.trim_end_matches('/');
    let ours = match container {
        ImageOwner::Sympozium => RESERVED_IN_OUR_IMAGES,
        ImageOwner::Pack => &[],
    };
    let mut reserved = RESERVED_PATHS.iter().chain(ours);
    match reserved.find(|reserved| overlap(path, reserved)) {
        Some(reserved) => Err(InvalidMountPath::Reserved { path: path.to_owned(), reserved }),
        None => Ok(()),
    }
}

/// Whether two plain paths are equal, or one lies below the other.
pub fn overlap(left: &str, right: &str) -> bool {
    is_at_or_below(left, right) || is_at_or_below(right, left)
}

/// Whether a plain path is `directory` or lies below it.
pub fn is_at_or_below(path: &str, directory: &str) -> bool {
    let directory = directory.trim_end_matches('/');
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a path is absolute and unambiguous: no empty, `.` or `..` components; one slash at the end is accepted.
pub fn is_plain(path: &str) -> bool {
    let components = path.strip_prefix('/').map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    path.len() <= MAX_PATH_BYTES
        && components
            .is_some_and(|components| components.split('/').all(|component| !matches!(component, "" | "." | "..")))
        && path.chars().all(|letter| letter != ':' && letter != '\\' && !letter.is_control())
}

/// Whether a path relative to a volume is plain and does not leave the volume.
pub fn is_plain_relative(path: &str) -> bool {
    is_plain(&format!("/{path}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn places() {
        for path in [
            "/data",
            "/data/",
            "/secrets/my-api-key",
            "/var/lib/app",
            "/host/proc",
            "/opt/x",
            "/ipcs",
            "/runx",
            "/home/agent",
        ] {
            assert_eq!(check_mount_path(path, ImageOwner::Sympozium), Ok(()), "{path}");
        }
        for path in
            ["", "data", "/..", "/a/../ipc", "/a/./b", "//ipc", "/a//b", "/a:b", "/a\nb", "/a\\b", "/", "/a/..", "./a"]
        {
            assert_eq!(
                check_mount_path(path, ImageOwner::Sympozium),
                Err(InvalidMountPath::Malformed(path.to_owned())),
                "{path:?}"
            );
        }
        for (path, reserved) in [
            ("/ipc", "/ipc"),
            ("/ipc/tools", "/ipc"),
            ("/run/sympozium", "/run"),
            ("/run/sympozium/x", "/run"),
            ("/var/run/secrets/kubernetes.io", "/var/run"),
            ("/var", "/var/run"),
            ("/proc/1", "/proc"),
            ("/sys", "/sys"),
            ("/dev/shm", "/dev"),
            ("/workspace", "/workspace"),
            ("/skills/x", "/skills"),
            ("/tmp", "/tmp"),
            ("/etc/passwd", "/etc"),
            ("/usr/local/bin", "/usr"),
        ] {
            let expected = InvalidMountPath::Reserved { path: path.into(), reserved };
            assert_eq!(check_mount_path(path, ImageOwner::Sympozium), Err(expected), "{path}");
        }
    }

    #[test]
    fn a_pack_may_cover_what_is_its_own() {
        assert_eq!(check_mount_path("/etc/app", ImageOwner::Pack), Ok(()));
        assert!(check_mount_path("/run/app", ImageOwner::Pack).is_err());
    }

    #[test]
    fn sub_paths_stay_below() {
        for path in ["a", "a/b", "a b"] {
            assert!(is_plain_relative(path), "{path}");
        }
        for path in ["", "..", "a/../..", "/a", "a//b", "./a"] {
            assert!(!is_plain_relative(path), "{path}");
        }
    }

    proptest! {
        #[test]
        fn what_is_taken_resolves_to_itself(path in prop_oneof!["(/[a-c.]{0,3}){0,4}/?", any::<String>()]) {
            if check_mount_path(&path, ImageOwner::Pack).is_ok() {
                let resolved = path.split('/').filter(|part| !part.is_empty()).fold(String::new(), |sum, part| sum + "/" + part);
                prop_assert_eq!(resolved.as_str(), path.trim_end_matches('/'));
                prop_assert!(RESERVED_PATHS.iter().all(|reserved| !overlap(&resolved, reserved)));
            }
        }
    }
}
