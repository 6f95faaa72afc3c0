//! The volume itself: opened once, then used by descriptor, one plain name at a time.

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
use error::look_error;
pub use error::{FileKind, VolumeError};
pub(crate) use file::Stamp;
pub(crate) use file::{Existing, Opened, ReadProblem, changed, fill_random};
use file::{identity, kind_behind, open_problem, place, random, read_all, write_all};
pub use handover::{Announced, MAX_START_BYTES};

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

/// Whether the run is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// There is no `done`.
    No,
    /// There is a regular file `done`.
    Yes,
    /// There is something else of that name, which does not count.
    Foreign(FileKind),
}

/// How often a random name that is taken is drawn again.
const MAX_DRAWS: usize = 8;

impl Volume {
    /// Opens the IPC directory and `tools` in it, which is made (0770) when missing.
    ///
    /// `ipc_dir` is the operator's choice, links in it are followed. Nothing below it is trusted.
    ///
    /// # Errors
    /// When either is not a directory; a link, a file or a mount point in the place of `tools` is named.
    pub fn open(ipc_dir: &Path) -> Result<Self, VolumeError> {
        Self::open_with(Method::available(), ipc_dir)
    }

    /// As [`open`](Self::open), without the kernel's `openat2`, for tests of the other way.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[doc(hidden)]
    pub fn open_without_openat2(ipc_dir: &Path) -> Result<Self, VolumeError> {
        Self::open_with(Method::Compare, ipc_dir)
    }

    fn open_with(method: Method, ipc_dir: &Path) -> Result<Self, VolumeError> {
        let path = ipc_dir.to_owned();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(ipc_dir, flags, Mode::empty())
            .map_err(|error| VolumeError::Open { path: path.clone(), source: error.into() })?;
        let tools_error = |error: Errno| VolumeError::Tools { path: path.clone(), source: error.into() };
        let made = match rustix::fs::mkdirat(&root, names::TOOLS, Mode::from(0o770)) {
            // Where nothing may be made there may still be one.
            made @ (Ok(()) | Err(Errno::EXIST | Errno::ROFS | Errno::ACCESS | Errno::PERM)) => made,
            Err(error) => return Err(tools_error(error)),
        };
        let tools =
            beneath::open(method, root.as_fd(), names::TOOLS, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        let tools = tools.map_err(|error| match kind_behind(error, root.as_fd(), names::TOOLS) {
            Some(kind) => VolumeError::ToolsKind { path: path.clone(), kind },
            // Why it could not be made says more than that it is not there.
            None if error == Errno::NOENT => tools_error(made.err().unwrap_or(error)),
            None => tools_error(error),
        })?;
        if made.is_ok() {
            // The umask has taken the group's right to write, which the other side may need.
            let _ = rustix::fs::fchmod(&tools, Mode::from(0o770));
        }
        Ok(Self(Arc::new(Inner { path, root, tools, method })))
    }

    /// The path it was opened by, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Whether the run is over. Only a regular file says so: what a link or a mount points at is not on the volume,
    /// and nobody who means it makes a directory or a FIFO.
    ///
    /// # Errors
    /// When the entry cannot be looked at.
    pub fn done(&self) -> Result<Done, VolumeError> {
        let root = self.0.root.as_fd();
        match beneath::open(self.0.method, root, names::DONE, OFlags::PATH, Mode::empty()) {
            Ok(file) => match rustix::fs::fstat(&file).map(|stat| FileKind::of(stat.st_mode)) {
                Ok(FileKind::File) => Ok(Done::Yes),
                Ok(kind) => Ok(Done::Foreign(kind)),
                Err(error) => Err(look_error(names::DONE, error)),
            },
            Err(Errno::NOENT) => Ok(Done::No),
            Err(error) => match kind_behind(error, root, names::DONE) {
                Some(kind) => Ok(Done::Foreign(kind)),
                None => Err(look_error(names::DONE, error)),
            },
        }
    }

    /// Says that the run is over. To be the last act: executors that leave earlier are started again.
    ///
    /// # Errors
    /// When it cannot be written, for one because something else than a file is in its place.
    pub fn write_done(&self) -> Result<(), VolumeError> {
        self.write_in(self.0.root.as_fd(), names::DONE, b"done\n", Existing::Replace)?;
        Ok(())
    }

    /// That `tools` is still the directory that was opened.
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
            (Err(error), _) | (_, Err(error)) => Err(look_error(names::TOOLS, error)),
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

    /// Another descriptor of `tools`, with a position of its own, to list it.
    pub(crate) fn list(&self) -> Result<rustix::fs::Dir, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&self.0.tools, ".", flags, Mode::empty())?;
        rustix::fs::Dir::new(directory)
    }

    /// Reads a file of `tools`, if it is a regular one with one name and at most `cap` bytes. Never waits.
    ///
    /// What was read is one moment's content. The answer has who the file was in any case that gets as far as that.
    pub(crate) fn read(&self, name: &str, cap: usize) -> (Option<Opened>, Result<Vec<u8>, ReadProblem>) {
        let tools = self.0.tools.as_fd();
        let opened = beneath::open(self.0.method, tools, name, OFlags::RDONLY, Mode::empty());
        let file = match opened {
            Ok(file) => file,
            Err(error) => return (None, Err(open_problem(error, tools, name))),
        };
        let stat = match rustix::fs::fstat(&file) {
            Ok(stat) => stat,
            Err(error) => return (None, Err(ReadProblem::Unreadable(error))),
        };
        let content = read_all(file.as_fd(), &stat, cap);
        (Some(Opened { file, stat }), content)
    }

    /// Who is behind a name now. Links are not followed.
    pub(crate) fn look(&self, name: &str) -> Result<Option<Stat>, Errno> {
        match rustix::fs::statat(&self.0.tools, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Which file is behind a name of `tools` now, and when it was changed last.
    pub(crate) fn stamp(&self, name: &str) -> Stamp {
        Stamp::of(self.look(name).ok().flatten().as_ref())
    }

    /// Makes a directory that only one can make. `Ok(false)`: somebody else did.
    pub(crate) fn make_marker(&self, name: &str) -> Result<bool, Errno> {
        match rustix::fs::mkdirat(&self.0.tools, name, Mode::from(0o750)) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes whatever is behind a name, if it is no full directory. The answer says whether anything was.
    pub(crate) fn remove(&self, name: &str) -> bool {
        let unlink = |flags| rustix::fs::unlinkat(&self.0.tools, name, flags);
        match unlink(AtFlags::empty()) {
            Ok(()) => true,
            Err(Errno::ISDIR | Errno::PERM) => unlink(AtFlags::REMOVEDIR).is_ok(),
            Err(_) => false,
        }
    }

    /// As [`remove`](Self::remove), for what is expected to be a directory.
    pub(crate) fn remove_marker(&self, name: &str) -> bool {
        match rustix::fs::unlinkat(&self.0.tools, name, AtFlags::REMOVEDIR) {
            Ok(()) => true,
            Err(Errno::NOTDIR) => self.remove(name),
            Err(_) => false,
        }
    }

    /// Puts a whole file in its place in `tools`, or nothing. The stamp is of the file that was written, whatever is behind its
    /// name by then.
    pub(crate) fn write(&self, name: &str, content: &[u8], existing: Existing) -> Result<Stamp, VolumeError> {
        self.write_in(self.0.tools.as_fd(), name, content, existing)
    }

    fn write_in(
        &self,
        directory: BorrowedFd<'_>,
        name: &str,
        content: &[u8],
        existing: Existing,
    ) -> Result<Stamp, VolumeError> {
        self.try_write(directory, name, content, existing)
            .map_err(|error| VolumeError::Write { name: name.to_owned(), source: error.into() })
    }

    fn try_write(
        &self,
        directory: BorrowedFd<'_>,
        name: &str,
        content: &[u8],
        existing: Existing,
    ) -> Result<Stamp, Errno> {
        let (temporary, file) = self.create_temporary(directory)?;
        // Not synced: the volume does not outlive the run, and a reader sees what is in the kernel's cache.
        let placed = write_all(file.as_fd(), content).and_then(|()| place(directory, &temporary, name, existing));
        if placed.is_err() {
            let _ = rustix::fs::unlinkat(directory, &temporary, AtFlags::empty());
        }
        placed?;
        // By the descriptor: another file may have taken the name since. The rename was the last change.
        Ok(Stamp::of(rustix::fs::fstat(&file).ok().as_ref()))
    }

    fn create_temporary(&self, directory: BorrowedFd<'_>) -> Result<(String, OwnedFd), Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut draws = 0;
        loop {
            let name = names::temporary(random()?);
            match beneath::open(self.0.method, directory, &name, flags, Mode::from(0o640)) {
                Err(Errno::EXIST) if draws < MAX_DRAWS => draws += 1,
                opened => return Ok((name, opened?)),
            }
        }
    }
}
