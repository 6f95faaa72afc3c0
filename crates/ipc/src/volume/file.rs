//! Reads an untrusted file, and writes a file atomically.

use std::time::{Duration, SystemTime};

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::{FileKind, Volume};

/// Why a file is not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// It does not exist.
    Missing,
    /// It is not a regular file.
    WrongKind(FileKind),
    /// It has several names.
    HardLinked { links: u64 },
    /// It is larger than the limit.
    TooLarge { bytes: u64 },
    /// This process has run out of a resource; the file itself may be fine.
    Temporary(Errno),
    /// It cannot be read.
    Unreadable(Errno),
}

/// An opened file: its metadata, and its descriptor, which prevents reuse of its inode number.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    pub(super) file: OwnedFd,
    pub(super) stat: Stat,
}

/// Whether a file may replace an existing one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existing {
    /// It may.
    Replace,
    /// It may not: `EEXIST`.
    Keep,
}

impl OpenedFile {
    /// Whether `name` still leads to this file.
    pub(crate) fn is_still_at(&self, volume: &Volume, name: &str) -> Result<bool, Errno> {
        let there = volume.stat(name)?;
        // The descriptor is still open here, so the inode number cannot belong to a newer file.
        let _open = &self.file;
        Ok(there.is_some_and(|there| identity(&there) == identity(&self.stat)))
    }

    /// When content or names of the file changed last.
    pub(crate) fn changed_at(&self) -> SystemTime {
        changed_at(&self.stat)
    }
}

/// Which file a name led to, and its change time, which cannot be set back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileStamp(Option<(u64, u64, i64, i64, u64)>);

impl FileStamp {
    pub(super) fn from_stat(stat: Option<&Stat>) -> Self {
        Self(stat.map(|stat| {
            let (device, inode) = identity(stat);
            let nanoseconds = stat.st_ctime_nsec;
            (device, inode, stat.st_size, stat.st_ctime, nanoseconds)
        }))
    }

    pub(crate) fn is_missing(&self) -> bool {
        self.0.is_none()
    }
}

/// When content or names changed last. A time in the future counts as now: it must not extend a timeout.
pub(crate) fn changed_at(stat: &Stat) -> SystemTime {
    let time = |seconds: i64, nanoseconds: u64| {
        let seconds = u64::try_from(seconds).unwrap_or_default();
        let nanoseconds = u32::try_from(nanoseconds).unwrap_or_default();
        SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds)
    };
    let content = time(stat.st_mtime, stat.st_mtime_nsec);
    let names = time(stat.st_ctime, stat.st_ctime_nsec);
    content.max(names).min(SystemTime::now())
}

pub(super) fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// The kind of the entry, if `error` means that it is of the wrong kind.
pub(super) fn kind_for_error(error: Errno, directory: BorrowedFd<'_>, name: &str) -> Option<FileKind> {
    match error {
        Errno::XDEV => Some(FileKind::MountPoint),
        Errno::LOOP => Some(FileKind::Link),
        // A device on a file system mounted `nodev` gives EACCES, as does a directory without permission.
        Errno::NOTDIR | Errno::NXIO | Errno::NODEV | Errno::ACCESS => {
            let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            let kind = FileKind::from_mode(stat.st_mode);
            (error != Errno::ACCESS || kind != FileKind::File).then_some(kind)
        }
        _ => None,
    }
}

pub(super) fn open_error(error: Errno, tools: BorrowedFd<'_>, name: &str) -> ReadError {
    match error {
        Errno::NOENT => ReadError::Missing,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN => ReadError::Temporary(error),
        _ => match kind_for_error(error, tools, name) {
            Some(kind) => ReadError::WrongKind(kind),
            None => ReadError::Unreadable(error),
        },
    }
}

pub(super) fn read_all(file: BorrowedFd<'_>, stat: &Stat, cap: usize) -> Result<Vec<u8>, ReadError> {
    let kind = FileKind::from_mode(stat.st_mode);
    if kind != FileKind::File {
        return Err(ReadError::WrongKind(kind));
    }
    match stat.st_nlink {
        0 => return Err(ReadError::Missing),
        1 => {}
        links => return Err(ReadError::HardLinked { links }),
    }
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if size > cap as u64 {
        return Err(ReadError::TooLarge { bytes: size });
    }
    // It may grow while it is read: one byte beyond the limit shows that.
    let mut content = Vec::with_capacity(usize::try_from(size).unwrap_or(cap) + 1);
    let mut piece = [0_u8; 8192];
    loop {
        match rustix::io::retry_on_intr(|| rustix::io::read(file, &mut piece)) {
            Ok(0) => return Ok(content),
            Ok(count) => content.extend_from_slice(&piece[..count]),
            Err(error) => return Err(ReadError::Unreadable(error)),
        }
        if content.len() > cap {
            return Err(ReadError::TooLarge { bytes: content.len() as u64 });
        }
    }
}

pub(super) fn write_all(file: BorrowedFd<'_>, mut content: &[u8]) -> Result<(), Errno> {
    while !content.is_empty() {
        let count = rustix::io::retry_on_intr(|| rustix::io::write(file, content))?;
        // A write of zero bytes would loop for ever.
        if count == 0 {
            return Err(Errno::NOSPC);
        }
        content = &content[count..];
    }
    Ok(())
}

pub(super) fn rename_into_place(
    directory: BorrowedFd<'_>,
    temporary: &str,
    name: &str,
    existing: Existing,
) -> Result<(), Errno> {
    if existing == Existing::Replace {
        return rustix::fs::renameat(directory, temporary, directory, name);
    }
    let flags = RenameFlags::NOREPLACE;
    match rustix::fs::renameat_with(directory, temporary, directory, name, flags) {
        // Network file systems and gVisor do not support the flag. The check beforehand leaves a small race.
        Err(Errno::INVAL | Errno::NOSYS) => match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => rustix::fs::renameat(directory, temporary, directory, name),
            Ok(_) => Err(Errno::EXIST),
            Err(error) => Err(error),
        },
        placed => placed,
    }
}

pub(super) fn random_bytes() -> Result<[u8; 16], Errno> {
    let mut bytes = [0; 16];
    fill_random(&mut bytes)?;
    Ok(bytes)
}

/// Fills all of `bytes` from the kernel's generator.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), Errno> {
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut bytes[filled..], flags))?;
    }
    Ok(())
}
