//! Opens one name in a directory, and never anything outside of it.
//!
//! Uses the kernel's `openat2(2)` where that is available. Older gVisor and old seccomp filters lack it; a single
//! component needs no walk, so there `O_NOFOLLOW` and a comparison of mounts have the same effect.

use std::sync::OnceLock;

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

/// The system calls that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// `openat2`.
    Openat2,
    /// `openat`, followed by a comparison of mounts.
    CompareMounts,
}

impl Method {
    /// The best method on this machine, probed once per process.
    pub(crate) fn detect() -> Self {
        static PROBED: OnceLock<Method> = OnceLock::new();
        *PROBED.get_or_init(|| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let none = ResolveFlags::empty();
            match rustix::fs::openat2(rustix::fs::CWD, "/", flags, Mode::empty(), none) {
                // Seccomp filters older than the system call return EPERM.
                Err(Errno::NOSYS | Errno::PERM) => Self::CompareMounts,
                Ok(_) | Err(_) => Self::Openat2,
            }
        })
    }
}

/// Opens `name`, one path component, in `directory`: follows no link, crosses no mount point, never blocks.
///
/// `O_CLOEXEC`, `O_NOFOLLOW`, `O_NONBLOCK` and `O_NOCTTY` are added. With `O_PATH` a link itself is opened.
///
/// # Errors
/// `ELOOP` for a link, `EXDEV` for a mount point, `EINVAL` when `name` is not a single component.
pub(crate) fn open(
    method: Method,
    directory: BorrowedFd<'_>,
    name: &str,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(Errno::INVAL);
    }
    let mut flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    if !flags.contains(OFlags::PATH) {
        flags |= OFlags::NONBLOCK | OFlags::NOCTTY;
    }
    match method {
        Method::Openat2 => {
            let resolve =
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
            rustix::io::retry_on_intr(|| rustix::fs::openat2(directory, name, flags, mode, resolve))
        }
        Method::CompareMounts => {
            let opened = rustix::io::retry_on_intr(|| rustix::fs::openat(directory, name, flags, mode));
            let file = match opened {
                // With O_DIRECTORY the kernel checks the type first, and a link is not a directory.
                Err(Errno::NOTDIR) if is_link(directory, name) => return Err(Errno::LOOP),
                opened => opened?,
            };
            if mount_id(directory)? != mount_id(rustix::fd::AsFd::as_fd(&file))? {
                return Err(Errno::XDEV);
            }
            Ok(file)
        }
    }
}

fn is_link(directory: BorrowedFd<'_>, name: &str) -> bool {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Symlink)
}

/// Identifies a mount: by its id, or by the device where the kernel (before 5.8, and gVisor) has no ids. The device
/// does not distinguish a bind mount of the same file system.
fn mount_id(file: BorrowedFd<'_>) -> Result<(Option<u64>, u64), Errno> {
    let by_id = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)
        .ok()
        .filter(|statx| statx.stx_mask & StatxFlags::MNT_ID.bits() != 0)
        .map(|statx| statx.stx_mnt_id);
    Ok((by_id, rustix::fs::fstat(file)?.st_dev))
}

#[cfg(test)]
mod tests {
    use rustix::fd::AsFd as _;

    use super::*;

    #[test]
    fn only_a_single_component_is_a_name() {
        let directory = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        for method in [Method::Openat2, Method::CompareMounts] {
            let open = |name| open(method, directory.as_fd(), name, OFlags::PATH, Mode::empty());
            for name in ["", ".", "..", "etc/passwd", "/etc", "etc/", "a\0b"] {
                assert_eq!(open(name).err(), Some(Errno::INVAL), "{name:?}");
            }
            assert!(open("etc").is_ok());
            assert_eq!(open("nonexistent").err(), Some(Errno::NOENT));
        }
    }

    #[test]
    fn another_mount_is_another_file_system_to_both_ways() {
        let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        for method in [Method::Openat2, Method::CompareMounts] {
            let opened = open(method, root.as_fd(), "proc", OFlags::PATH, Mode::empty());
            assert_eq!(opened.err(), Some(Errno::XDEV), "{method:?}");
        }
    }
}
