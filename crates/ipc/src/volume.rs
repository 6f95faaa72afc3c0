//! The volume: opened once, then accessed by descriptor, one plain name at a time.

mod error;
mod file;
mod handover;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::beneath::{self, Method};
use crate::names;
use error::stat_error;
pub use error::{FileKind, VolumeError};
pub(crate) use file::FileStamp;
pub(crate) use file::{Existing, OpenedFile, ReadError, changed_at, fill_random};
use file::{identity, kind_for_error, open_error, random_bytes, read_all, rename_into_place, write_all};
pub use handover::{Announcement, MAX_START_BYTES};

/// A directory with `tools` in it, shared with the other side. Clones share the descriptors.
#[derive(Debug, Clone)]
pub struct Volume(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    root: OwnedFd,
    tools: OwnedFd,
    method: Method,
}

/// The state of the file `done`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoneState {
    /// It does not exist.
    Absent,
    /// It is a regular file: the run has ended.
    Present,
    /// It is an entry of another kind, which does not count.
    Foreign(FileKind),
}

/// Attempts to find an unused random name.
const MAX_NAME_ATTEMPTS: usize = 8;

impl Volume {
    /// Opens the IPC directory and `tools` in it, which is created (0770) if it is missing.
    ///
    /// `ipc_dir` is chosen by the operator, and links in it are followed. Nothing below it is trusted.
    ///
    /// # Errors
    /// When either is not a directory; for `tools`, the error names a link, a file or a mount point in its place.
    pub fn open(ipc_dir: &Path) -> Result<Self, VolumeError> {
        Self::open_with(Method::detect(), ipc_dir)
    }

    /// Like [`open`](Self::open), without the kernel's `openat2`, to test the fallback.
    ///
    /// # Errors
    /// Like [`open`](Self::open).
    #[doc(hidden)]
    pub fn open_without_openat2(ipc_dir: &Path) -> Result<Self, VolumeError> {
        Self::open_with(Method::CompareMounts, ipc_dir)
    }

    fn open_with(method: Method, ipc_dir: &Path) -> Result<Self, VolumeError> {
        let path = ipc_dir.to_owned();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(ipc_dir, flags, Mode::empty())
            .map_err(|error| VolumeError::Open { path: path.clone(), source: error.into() })?;
        let tools_error = |error: Errno| VolumeError::Tools { path: path.clone(), source: error.into() };
        let made = match rustix::fs::mkdirat(&root, names::TOOLS, Mode::from(0o770)) {
            // On a read-only volume it may exist already.
            made @ (Ok(()) | Err(Errno::EXIST | Errno::ROFS | Errno::ACCESS | Errno::PERM)) => made,
            Err(error) => return Err(tools_error(error)),
        };
        let tools =
            beneath::open(method, root.as_fd(), names::TOOLS, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        let tools = tools.map_err(|error| match kind_for_error(error, root.as_fd(), names::TOOLS) {
            Some(kind) => VolumeError::ToolsKind { path: path.clone(), kind },
            // The error of mkdir says more than that it does not exist.
            None if error == Errno::NOENT => tools_error(made.err().unwrap_or(error)),
            None => tools_error(error),
        })?;
        if made.is_ok() {
            // The umask has removed the group's write permission, which the other side may need.
            let _ = rustix::fs::fchmod(&tools, Mode::from(0o770));
        }
        Ok(Self(Arc::new(Inner { path, root, tools, method })))
    }

    /// The path by which it was opened, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Whether the run has ended. Only a regular file counts: the target of a link or a mount is not on the volume, and
    /// an honest writer creates neither a directory nor a FIFO.
    ///
    /// # Errors
    /// When the entry cannot be read.
    pub fn done_state(&self) -> Result<DoneState, VolumeError> {
        let root = self.0.root.as_fd();
        match beneath::open(self.0.method, root, names::DONE, OFlags::PATH, Mode::empty()) {
            Ok(file) => match rustix::fs::fstat(&file).map(|stat| FileKind::from_mode(stat.st_mode)) {
                Ok(FileKind::File) => Ok(DoneState::Present),
                Ok(kind) => Ok(DoneState::Foreign(kind)),
                Err(error) => Err(stat_error(names::DONE, error)),
            },
            Err(Errno::NOENT) => Ok(DoneState::Absent),
            Err(error) => match kind_for_error(error, root, names::DONE) {
                Some(kind) => Ok(DoneState::Foreign(kind)),
                None => Err(stat_error(names::DONE, error)),
            },
        }
    }

    /// Marks the run as ended. Must be the last action: executors that exit earlier are restarted.
    ///
    /// # Errors
    /// When the file cannot be written, for example because an entry of another kind is in its place.
    pub fn write_done(&self) -> Result<(), VolumeError> {
        self.write_in(self.0.root.as_fd(), names::DONE, b"done\n", Existing::Replace)?;
        Ok(())
    }

    /// Checks that `tools` is still the directory that was opened.
    ///
    /// # Errors
    /// [`VolumeError::Gone`] when it is not.
    pub fn check_tools(&self) -> Result<(), VolumeError> {
        let ours = rustix::fs::fstat(&self.0.tools);
        let there = rustix::fs::statat(&self.0.root, names::TOOLS, AtFlags::SYMLINK_NOFOLLOW);
        match (ours, there) {
            (Ok(ours), Ok(there)) if identity(&ours) == identity(&there) => Ok(()),
            (_, Err(Errno::NOENT | Errno::NOTDIR)) | (Ok(_), Ok(_)) => {
                Err(VolumeError::Gone { path: self.0.path.clone() })
            }
            (Err(error), _) | (_, Err(error)) => Err(stat_error(names::TOOLS, error)),
        }
    }

    fn method(&self) -> Method {
        self.0.method
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.0.root.as_fd()
    }

    pub(crate) fn tools(&self) -> BorrowedFd<'_> {
        self.0.tools.as_fd()
    }

    /// Another descriptor of `tools`, with its own position, for listing.
    pub(crate) fn open_listing(&self) -> Result<rustix::fs::Dir, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&self.0.tools, ".", flags, Mode::empty())?;
        rustix::fs::Dir::new(directory)
    }

    /// Reads a file of `tools`, if it is a regular one with one name and at most `cap` bytes. Never blocks.
    ///
    /// The content is that of one moment. The opened file is returned in every case in which it could be opened.
    pub(crate) fn read(&self, name: &str, cap: usize) -> (Option<OpenedFile>, Result<Vec<u8>, ReadError>) {
        let tools = self.0.tools.as_fd();
        let opened = beneath::open(self.0.method, tools, name, OFlags::RDONLY, Mode::empty());
        let file = match opened {
            Ok(file) => file,
            Err(error) => return (None, Err(open_error(error, tools, name))),
        };
        let stat = match rustix::fs::fstat(&file) {
            Ok(stat) => stat,
            Err(error) => return (None, Err(ReadError::Unreadable(error))),
        };
        let content = read_all(file.as_fd(), &stat, cap);
        (Some(OpenedFile { file, stat }), content)
    }

    /// The metadata of a name. Links are not followed.
    pub(crate) fn stat(&self, name: &str) -> Result<Option<Stat>, Errno> {
        match rustix::fs::statat(&self.0.tools, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Which file a name of `tools` leads to, and when it was changed last.
    pub(crate) fn stamp(&self, name: &str) -> FileStamp {
        FileStamp::from_stat(self.stat(name).ok().flatten().as_ref())
    }

    /// Creates a directory, atomically. `Ok(false)`: another process has created it.
    pub(crate) fn create_marker(&self, name: &str) -> Result<bool, Errno> {
        match rustix::fs::mkdirat(&self.0.tools, name, Mode::from(0o750)) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes an entry, unless it is a directory that is not empty. Returns whether it was removed.
    pub(crate) fn remove(&self, name: &str) -> bool {
        let unlink = |flags| rustix::fs::unlinkat(&self.0.tools, name, flags);
        match unlink(AtFlags::empty()) {
            Ok(()) => true,
            Err(Errno::ISDIR | Errno::PERM) => unlink(AtFlags::REMOVEDIR).is_ok(),
            Err(_) => false,
        }
    }

    /// Like [`remove`](Self::remove), for an entry that should be a directory.
    pub(crate) fn remove_marker(&self, name: &str) -> bool {
        match rustix::fs::unlinkat(&self.0.tools, name, AtFlags::REMOVEDIR) {
            Ok(()) => true,
            Err(Errno::NOTDIR) => self.remove(name),
            Err(_) => false,
        }
    }

    /// Writes a file of `tools` atomically. The stamp is that of the written file, even if its name leads to another
    /// one by now.
    pub(crate) fn write(&self, name: &str, content: &[u8], existing: Existing) -> Result<FileStamp, VolumeError> {
        self.write_in(self.0.tools.as_fd(), name, content, existing)
    }

    fn write_in(
        &self,
        directory: BorrowedFd<'_>,
        name: &str,
        content: &[u8],
        existing: Existing,
    ) -> Result<FileStamp, VolumeError> {
        self.try_write(directory, name, content, existing)
            .map_err(|error| VolumeError::Write { name: name.to_owned(), source: error.into() })
    }

    fn try_write(
        &self,
        directory: BorrowedFd<'_>,
        name: &str,
        content: &[u8],
        existing: Existing,
    ) -> Result<FileStamp, Errno> {
        let (temporary, file) = self.create_temporary(directory)?;
        // Not synced: the volume does not outlive the run, and a reader sees the kernel's cache.
        let placed =
            write_all(file.as_fd(), content).and_then(|()| rename_into_place(directory, &temporary, name, existing));
        if placed.is_err() {
            let _ = rustix::fs::unlinkat(directory, &temporary, AtFlags::empty());
        }
        placed?;
        // By the descriptor: the name may lead to another file by now. The rename was the last change.
        Ok(FileStamp::from_stat(rustix::fs::fstat(&file).ok().as_ref()))
    }

    fn create_temporary(&self, directory: BorrowedFd<'_>) -> Result<(String, OwnedFd), Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut draws = 0;
        loop {
            let name = names::temporary(random_bytes()?);
            match beneath::open(self.0.method, directory, &name, flags, Mode::from(0o640)) {
                Err(Errno::EXIST) if draws < MAX_NAME_ATTEMPTS => draws += 1,
                opened => return Ok((name, opened?)),
            }
        }
    }
}
