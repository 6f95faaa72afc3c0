//! Opens an untrusted path relative to a directory descriptor.
//!
//! Uses the kernel's `openat2(2)` where that is available. Older gVisor and old seccomp filters lack it; there a walk
//! resolves the path component by component with the same results, errno included. The tests run both over the same
//! cases.
//!
//! The walk differs from the kernel in three cases, each time by refusing more: it holds one descriptor per level and
//! returns `EMFILE` below [`MAX_DEPTH`] levels; it treats every link of procfs except the four well-known plain ones as
//! a magic link; opening only `/` needs search permission on `dir`.

mod walk;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use walk::Walk;
pub(crate) use walk::{VisitedEntry, walk};

/// The meaning of `/`, `..` and absolute links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// A path that would leave the directory fails with `EXDEV`, including absolute paths and links.
    Beneath,
    /// The directory is the root: `/` starts at it and `..` stops at it, as after `chroot`.
    InRoot,
}

/// The treatment of symbolic links. Magic links (`/proc/*/exe`, `/proc/*/fd/*`) are never followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Follow it, within the scope.
    Follow,
    /// Fail with `ELOOP`, wherever in the path it is.
    Refuse,
}

/// The treatment of mount points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounts {
    /// Continue in the mounted file system.
    Cross,
    /// Fail with `EXDEV`, for bind mounts too.
    Stay,
}

/// How a path is resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resolve {
    /// The meaning of `/` and `..`.
    pub scope: Scope,
    /// The treatment of links.
    pub links: Links,
    /// The treatment of mount points.
    pub mounts: Mounts,
}

impl Resolve {
    /// Stay below the directory; links and mounts are followed within it.
    pub const BENEATH: Self = Self { scope: Scope::Beneath, links: Links::Follow, mounts: Mounts::Cross };
    /// Stay below the directory, on its file system, and follow no link: for names that are data.
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
/// Directory levels below `dir` that the walk supports, because it holds a descriptor for each.
pub const MAX_DEPTH: usize = 256;
/// How often a resolution that was disturbed by renames or mounts is repeated before the walk takes over, and how often
/// the walk reads a last component again that keeps changing.
pub const MAX_RETRIES: usize = 32;

/// Opens `path` relative to `dir`, and nothing outside it.
///
/// `O_CLOEXEC` is always added. `mode` is for `O_CREAT` only and must be empty without it.
///
/// # Caller's duties
/// Pass `O_NONBLOCK` (and `O_NOCTTY`) unless with `O_PATH`: opening a FIFO without it waits for a peer that never
/// comes. The opened file may still be a device or a directory: check it before reading.
///
/// # Errors
/// Those of `openat2(2)`. `EXDEV`: the path leaves the scope or crosses a mount. `ELOOP`: a refused, magic or endless
/// link. `EINVAL`: a NUL in the path, or flags that make no sense together (`O_TMPFILE` included).
pub fn open(dir: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: Mode, resolve: Resolve) -> io::Result<OwnedFd> {
    match open_with(Method::detect(), dir, path, flags, mode, resolve) {
        // openat2 gives up on a `..` when anything on the machine is renamed meanwhile, so a loop of renames in one
        // container starves all others. The walk takes no kernel lock and succeeds.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::AGAIN) => {
            open_with(Method::Walk, dir, path, flags, mode, resolve)
        }
        answer => answer,
    }
}

/// The implementation that resolves the path.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Openat2,
    Walk,
}

impl Method {
    /// The best method on this machine, probed once per process.
    #[must_use]
    pub fn detect() -> Self {
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
                // Seccomp filters older than the system call return EPERM; opening `/` has no other cause for it.
                Err(Errno::NOSYS | Errno::PERM) => Self::Walk,
                Ok(_) | Err(_) => Self::Openat2,
            }
        })
    }
}

/// Like [`open`], by a given method, for tests and benchmarks.
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

/// A request that both methods interpret in the same way.
struct Request<'a> {
    path: &'a [u8],
    flags: OFlags,
    mode: Mode,
    resolve: Resolve,
}

/// The only flags that the kernel accepts with `O_PATH`.
const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const KNOWN_FLAGS: OFlags = PATH_FLAGS
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
    /// Checks what `openat` accepts and `openat2` refuses, and what kernels have changed over time.
    fn new(path: &'a Path, flags: OFlags, mode: Mode, resolve: Resolve) -> Result<Self, Errno> {
        let path = path.as_os_str().as_bytes();
        let nonsense = path.contains(&0)
            || !KNOWN_FLAGS.contains(flags)
            || flags.contains(OFlags::PATH) && !PATH_FLAGS.contains(flags)
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
