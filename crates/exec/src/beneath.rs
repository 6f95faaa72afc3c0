//! Open a path that somebody hostile chose, relative to a directory descriptor.
//!
//! The kernel does it (`openat2(2)`) where it can. Older gVisor and old seccomp filters lack that call;
//! there a walk goes component by component and gives the same answers, errno included. The tests run
//! both over the same cases.
//!
//! The walk differs from the kernel in three places, each time by refusing more: it holds one descriptor
//! per level and gives `EMFILE` below [`MAX_DEPTH`] levels; it takes every link of procfs but the four
//! well-known plain ones for a magic link; opening nothing but `/` needs search permission on `dir`.

mod walk;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use walk::Walk;
pub(crate) use walk::{Passed, walk};

/// What `/`, `..` and absolute links mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Whatever would leave the directory fails with `EXDEV`, absolute paths and links included.
    Beneath,
    /// The directory is the root: `/` starts at it and `..` stops at it, as after `chroot`.
    InRoot,
}

/// What happens at a symbolic link. Magic links (`/proc/*/exe`, `/proc/*/fd/*`) are never followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Follow it, within the scope.
    Follow,
    /// Fail with `ELOOP`, wherever on the way it is.
    Refuse,
}

/// What happens at a mount point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounts {
    /// Go on, into the mounted filesystem.
    Cross,
    /// Fail with `EXDEV`, for bind mounts too.
    Stay,
}

/// How a path is resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resolve {
    /// What `/` and `..` mean.
    pub scope: Scope,
    /// What happens at a link.
    pub links: Links,
    /// What happens at a mount point.
    pub mounts: Mounts,
}

impl Resolve {
    /// Stay below the directory; links and mounts are followed while they do.
    pub const BENEATH: Self = Self { scope: Scope::Beneath, links: Links::Follow, mounts: Mounts::Cross };
    /// Stay below the directory, on its filesystem, and follow no link: for names that are data.
    pub const STRICT: Self = Self { scope: Scope::Beneath, links: Links::Refuse, mounts: Mounts::Stay };
    /// The directory is the root of a view: a sandbox's files seen from outside.
    pub const IN_ROOT: Self = Self { scope: Scope::InRoot, links: Links::Follow, mounts: Mounts::Cross };

    fn flags(self) -> ResolveFlags {
        let mut flags = ResolveFlags::NO_MAGICLINKS;
        flags |= match self.scope {
            Scope::Beneath => ResolveFlags::BENEATH,
            Scope::InRoot => ResolveFlags::IN_ROOT,
        };
        if self.links == Links::Refuse {
            flags |= ResolveFlags::NO_SYMLINKS;
        }
        if self.mounts == Mounts::Stay {
            flags |= ResolveFlags::NO_XDEV;
        }
        flags
    }
}

/// Links followed in one resolution before `ELOOP`: the kernel's `MAXSYMLINKS`.
pub const MAX_LINKS: usize = 40;
/// Directory levels below `dir` that the walk goes, because it holds a descriptor for each.
pub const MAX_DEPTH: usize = 256;
/// How often a resolution disturbed by renames or mounts is begun again before the walk takes over, and how
/// often the walk looks again at a last component that keeps changing.
pub const MAX_RETRIES: usize = 32;

/// Opens `path` relative to `dir`, and nothing outside it.
///
/// `O_CLOEXEC` is always added. `mode` is for `O_CREAT` only and must be empty without it.
///
/// # Caller's duties
/// Pass `O_NONBLOCK` (and `O_NOCTTY`) unless with `O_PATH`: opening a FIFO without it waits for a peer
/// that never comes. What was opened may still be a device or a directory: look before reading.
///
/// # Errors
/// Those of `openat2(2)`. `EXDEV`: the path leaves the scope or crosses a mount. `ELOOP`: a refused, magic or
/// endless link. `EINVAL`: a NUL in the path, or flags that make no sense together (`O_TMPFILE` included).
pub fn open(dir: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: Mode, resolve: Resolve) -> io::Result<OwnedFd> {
    match open_with(Method::available(), dir, path, flags, mode, resolve) {
        // openat2 gives up on a `..` when anything on the machine is renamed meanwhile, so a loop of renames in
        // one container starves all others. The walk asks no lock of the kernel's and gets there.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::AGAIN) => {
            open_with(Method::Walk, dir, path, flags, mode, resolve)
        }
        answer => answer,
    }
}

/// Which implementation resolves the path.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Openat2,
    Walk,
}

impl Method {
    /// The best one here, probed once for the life of the process.
    #[must_use]
    pub fn available() -> Self {
        static PROBED: OnceLock<Method> = OnceLock::new();
        *PROBED.get_or_init(|| {
            let probe = rustix::fs::openat2(
                rustix::fs::CWD,
                "/",
                OFlags::PATH | OFlags::CLOEXEC,
                Mode::empty(),
                ResolveFlags::NO_MAGICLINKS,
            );
            match probe {
                // EPERM is how seccomp filters older than the call answer; opening `/` has no other cause for it.
                Err(Errno::NOSYS | Errno::PERM) => Self::Walk,
                Ok(_) | Err(_) => Self::Openat2,
            }
        })
    }
}

/// [`open`] by a given method, for tests and for measuring.
#[doc(hidden)]
pub fn open_with(
    method: Method,
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    resolve: Resolve,
) -> io::Result<OwnedFd> {
    let request = Request::new(path, flags, mode, resolve)?;
    Ok(match method {
        Method::Openat2 => openat2(dir, &request)?,
        Method::Walk => Walk::new(dir, &request)?.run(&request, &mut |_| ())?.file,
    })
}

/// A request both methods understand in the same way.
struct Request<'a> {
    path: &'a [u8],
    flags: OFlags,
    mode: Mode,
    resolve: Resolve,
}

/// With `O_PATH` the kernel takes these and no other flags.
const WITH_PATH: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const KNOWN: OFlags = WITH_PATH
    .union(OFlags::ACCMODE)
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOCTTY)
    .union(OFlags::TRUNC)
    .union(OFlags::APPEND)
    .union(OFlags::NONBLOCK)
    .union(OFlags::SYNC)
    .union(OFlags::NOATIME)
    .union(OFlags::DIRECT)
    .union(OFlags::LARGEFILE);
const PATH_MAX: usize = 4096;

impl<'a> Request<'a> {
    /// Checks what `openat` lets pass and `openat2` refuses, and what kernels have changed their mind about.
    fn new(path: &'a Path, flags: OFlags, mode: Mode, resolve: Resolve) -> Result<Self, Errno> {
        let path = path.as_os_str().as_bytes();
        let nonsense = path.contains(&0)
            || !KNOWN.contains(flags)
            || flags.contains(OFlags::PATH) && !WITH_PATH.contains(flags)
            || flags.contains(OFlags::CREATE | OFlags::DIRECTORY)
            || !flags.contains(OFlags::CREATE) && !mode.is_empty()
            || mode.bits() & !0o7777 != 0;
        if nonsense {
            return Err(Errno::INVAL);
        }
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        if path.len() >= PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        Ok(Self { path, flags: flags | OFlags::CLOEXEC, mode, resolve })
    }
}

fn openat2(dir: BorrowedFd<'_>, request: &Request<'_>) -> Result<OwnedFd, Errno> {
    let mut tries = 0;
    loop {
        // The kernel gives up with EAGAIN when a rename or mount anywhere raced with a `..` (openat2(2)).
        match rustix::fs::openat2(dir, request.path, request.flags, request.mode, request.resolve.flags()) {
            Err(Errno::AGAIN) if tries < MAX_RETRIES => tries += 1,
            answer => return answer,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
