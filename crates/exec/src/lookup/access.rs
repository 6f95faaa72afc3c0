//! What another identity could do to a file.

use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, Mode, OFlags, Stat, StatVfsMountFlags};
use rustix::io::Errno;

/// The identity that runs commands, as the process that performs the lookup sees it.
///
/// Root is treated like any other: commands hold no capabilities, so the mode bits apply to them. As they own what root
/// owns, commands that run as root find no trusted program except on read-only mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runner {
    /// The user.
    pub uid: u32,
    /// All groups: the primary one and the supplementary ones.
    pub gids: Vec<u32>,
}

impl Runner {
    /// Whether the mode bits let this identity execute the file: the first class that matches decides.
    pub(super) fn may_execute(&self, stat: &Stat) -> bool {
        let bit = if stat.st_uid == self.uid {
            Mode::XUSR
        } else if self.gids.contains(&stat.st_gid) {
            Mode::XGRP
        } else {
            Mode::XOTH
        };
        Mode::from_raw_mode(stat.st_mode).contains(bit)
    }

    /// Whether this identity could change the object, now or after a `chmod`. Doubt counts as yes.
    ///
    /// `fd` may be opened with `O_PATH` if it is a directory or a link.
    pub(super) fn could_write(&self, fd: BorrowedFd<'_>, stat: &Stat) -> bool {
        let mode = Mode::from_raw_mode(stat.st_mode);
        let kind = FileType::from_raw_mode(stat.st_mode);
        let permitted = if stat.st_uid == self.uid {
            // An owner can grant itself any permission.
            true
        } else if kind == FileType::Symlink {
            // Links show 0777 and cannot be written.
            false
        } else {
            // The sticky bit prevents others from renaming entries, not from adding them: `PathTrust` handles that.
            mode.contains(Mode::WOTH)
                || mode.contains(Mode::WGRP) && (self.gids.contains(&stat.st_gid) || has_acl(fd, kind))
        };
        permitted && !is_read_only(fd)
    }
}

/// Whether an access list may name further users. With one, the group bits of the mode are its mask (acl(5)), so this
/// matters only where they include write.
fn has_acl(fd: BorrowedFd<'_>, kind: FileType) -> bool {
    const ACL: &str = "system.posix_acl_access";
    let queried = if kind == FileType::Directory {
        // Extended attributes cannot be read from an O_PATH descriptor.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(fd, ".", flags, Mode::empty()).and_then(|open| rustix::fs::fgetxattr_query(&open, ACL))
    } else {
        rustix::fs::fgetxattr_query(fd, ACL)
    };
    !matches!(queried, Err(Errno::NODATA | Errno::NOTSUP | Errno::NOSYS))
}

fn is_read_only(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatvfs(fd).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::RDONLY))
}
