//! The path resolution of `openat2`, component by component: for kernels without it, and for callers that must inspect
//! every component.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, StatxFlags};
use rustix::io::Errno;

use super::{Links, MAX_DEPTH, MAX_LINKS, MAX_RETRIES, Mounts, Request, Resolve, Scope};

/// A component before the file: `dir` itself, a directory or a link.
pub(crate) struct VisitedEntry<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) stat: &'a Stat,
    /// Absolute within `dir`, without links.
    pub(crate) path: &'a dyn Fn() -> PathBuf,
}

/// The result of a walk.
#[derive(Debug)]
pub(crate) struct ResolvedFile {
    pub(crate) file: OwnedFd,
    /// Absolute within `dir`, without links.
    pub(crate) path: PathBuf,
}

/// Resolves `path` component by component and passes each one to `visit`, except the file itself.
pub(crate) fn walk(
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    resolve: Resolve,
    visit: &mut dyn FnMut(&VisitedEntry<'_>),
) -> io::Result<ResolvedFile> {
    let request = Request::new(path, flags, Mode::empty(), resolve)?;
    Ok(Walk::new(dir, &request)?.run(&request, visit)?)
}

/// The state of a walk.
pub(super) struct Walk<'a> {
    dir: BorrowedFd<'a>,
    resolve: Resolve,
    mount: MountId,
    /// The directories entered below `dir`. `..` goes back along them and does not ask the file system, so a directory
    /// that is moved meanwhile cannot lead outside.
    entered: Vec<(OwnedFd, OsString)>,
    links: usize,
}

impl<'a> Walk<'a> {
    pub(super) fn new(dir: BorrowedFd<'a>, request: &Request<'_>) -> Result<Self, Errno> {
        Ok(Self { dir, resolve: request.resolve, mount: MountId::from_fd(dir)?, entered: Vec::new(), links: 0 })
    }

    /// Follows `path_openat` in the kernel's fs/namei.c; the order of the checks determines the errno.
    pub(super) fn run(
        mut self,
        request: &Request<'_>,
        visit: &mut dyn FnMut(&VisitedEntry<'_>),
    ) -> Result<ResolvedFile, Errno> {
        let flags = request.flags;
        let mut follow = !flags.contains(OFlags::NOFOLLOW) && !flags.contains(OFlags::CREATE | OFlags::EXCL);
        let mut wanted = flags | OFlags::NOFOLLOW;
        let mut tries = 0;
        let mut rest = request.path.to_vec();
        if rest.starts_with(b"/") {
            self.jump_to_root()?;
        }
        let stat = rustix::fs::fstat(self.dir)?;
        visit(&VisitedEntry { fd: self.dir, stat: &stat, path: &|| PathBuf::from("/") });
        loop {
            let Some((name, tail)) = split(&rest) else {
                let file = rustix::fs::openat(self.current_dir(), ".", flags, request.mode)?;
                return Ok(ResolvedFile { file, path: self.path_to(None) });
            };
            if name == b"." || name == b".." {
                self.check_search_permission()?;
                if name == b".." {
                    self.go_up()?;
                }
                rest = tail.to_vec();
                continue;
            }
            let last = split(tail).is_none();
            if last && !tail.is_empty() {
                // A trailing slash asks for a directory, also through a link, and for every link after it.
                if flags.contains(OFlags::CREATE) {
                    self.check_search_permission()?;
                    return Err(Errno::ISDIR);
                }
                follow = true;
                wanted |= OFlags::DIRECTORY;
            }
            let entry = match self.open_entry(name) {
                Err(Errno::NOENT) if last && flags.contains(OFlags::CREATE) => None,
                entry => Some(entry?),
            };
            if let Some((entry, stat)) = entry {
                let kind = FileType::from_raw_mode(stat.st_mode);
                let path = || self.path_to(Some(name));
                let passed = VisitedEntry { fd: entry.as_fd(), stat: &stat, path: &path };
                if kind == FileType::Symlink && (!last || follow) {
                    visit(&passed);
                    let target = self.read_link(entry.as_fd(), &stat, name, last)?;
                    if target.starts_with(b"/") {
                        self.jump_to_root()?;
                    }
                    rest = join(target, tail);
                    continue;
                }
                if kind != FileType::Directory && (!last || wanted.contains(OFlags::DIRECTORY)) {
                    return Err(Errno::NOTDIR);
                }
                if !last {
                    visit(&passed);
                    self.enter(entry, name)?;
                    rest = tail.to_vec();
                    continue;
                }
                if wanted.contains(OFlags::PATH) {
                    return Ok(ResolvedFile { path: path(), file: entry });
                }
            }
            match rustix::fs::openat(self.current_dir(), name, wanted, request.mode) {
                // It was not a link a moment ago, so another process is replacing it: try again.
                Err(Errno::LOOP) if follow && tries < MAX_RETRIES => tries += 1,
                file => {
                    let file = file?;
                    // `O_PATH` does not trigger an automount, opening does (openat(2), O_PATH).
                    self.check_mount(file.as_fd())?;
                    return Ok(ResolvedFile { path: self.path_to(Some(name)), file });
                }
            }
        }
    }

    fn open_entry(&self, name: &[u8]) -> Result<(OwnedFd, Stat), Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = rustix::fs::openat(self.current_dir(), name, flags, Mode::empty())?;
        self.check_mount(entry.as_fd())?;
        let stat = rustix::fs::fstat(&entry)?;
        Ok((entry, stat))
    }

    fn current_dir(&self) -> BorrowedFd<'_> {
        self.entered.last().map_or(self.dir, |(fd, _)| fd.as_fd())
    }

    /// The kernel requires search permission before it reads any component, including `.` and `..`.
    fn check_search_permission(&self) -> Result<(), Errno> {
        rustix::fs::openat(self.current_dir(), ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map(drop)
    }

    fn enter(&mut self, directory: OwnedFd, name: &[u8]) -> Result<(), Errno> {
        if self.entered.len() >= MAX_DEPTH {
            return Err(Errno::MFILE);
        }
        self.entered.push((directory, OsStr::from_bytes(name).to_owned()));
        Ok(())
    }

    fn go_up(&mut self) -> Result<(), Errno> {
        match (self.entered.pop(), self.resolve.scope) {
            (Some(_), _) | (None, Scope::InRoot) => Ok(()),
            (None, Scope::Beneath) => Err(Errno::XDEV),
        }
    }

    fn jump_to_root(&mut self) -> Result<(), Errno> {
        match self.resolve.scope {
            Scope::Beneath => Err(Errno::XDEV),
            Scope::InRoot => {
                self.entered.clear();
                Ok(())
            }
        }
    }

    fn check_mount(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        match self.resolve.mounts {
            Mounts::Stay if MountId::from_fd(fd)? != self.mount => Err(Errno::XDEV),
            Mounts::Stay | Mounts::Cross => Ok(()),
        }
    }

    fn read_link(&mut self, link: BorrowedFd<'_>, stat: &Stat, name: &[u8], last: bool) -> Result<Vec<u8>, Errno> {
        if self.links >= MAX_LINKS {
            return Err(Errno::LOOP);
        }
        self.links += 1;
        if last && protected_symlinks() {
            let directory = rustix::fs::fstat(self.current_dir())?;
            if is_planted(stat, &directory, rustix::process::geteuid().as_raw()) {
                return Err(Errno::ACCESS);
            }
        }
        if self.resolve.links == Links::Refuse {
            return Err(Errno::LOOP);
        }
        let target = rustix::fs::readlinkat(link, "", Vec::new())?.into_bytes();
        match rustix::fs::fstatfs(link)?.f_type {
            rustix::fs::PROC_SUPER_MAGIC if !is_plain_proc_link(name, &target) => Err(Errno::LOOP),
            APPARMORFS_MAGIC => Err(Errno::LOOP),
            _ => Ok(target),
        }
    }

    fn path_to(&self, name: Option<&[u8]>) -> PathBuf {
        let mut path = PathBuf::from("/");
        path.extend(self.entered.iter().map(|(_, name)| name));
        path.extend(name.map(OsStr::from_bytes));
        path
    }
}

/// The next component and everything after it; `None` when only slashes are left.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = path.iter().position(|byte| *byte != b'/')?;
    let path = &path[start..];
    Some(path.split_at(path.iter().position(|byte| *byte == b'/').unwrap_or(path.len())))
}

/// A link's target in place of the link; `tail` is empty or starts with a slash.
fn join(mut target: Vec<u8>, tail: &[u8]) -> Vec<u8> {
    // The slashes after a last component were handled already; repeating them would ask for a directory named "".
    if split(tail).is_some() {
        target.extend_from_slice(tail);
    }
    target
}

/// AppArmor's policy directory is a magic link as well.
const APPARMORFS_MAGIC: rustix::fs::FsWord = 0x5a3c_69f0;

/// A link's metadata does not distinguish a magic link from a plain one, so the plain ones of procfs are listed. The
/// target is compared too: `/proc/1/ns/net` shares a name with the plain `/proc/net`.
fn is_plain_proc_link(name: &[u8], target: &[u8]) -> bool {
    match name {
        b"self" => target.iter().all(u8::is_ascii_digit),
        b"thread-self" => target.iter().all(|byte| byte.is_ascii_digit() || b"/task".contains(byte)),
        b"mounts" => target == b"self/mounts",
        b"net" => target == b"self/net",
        _ => false,
    }
}

/// `fs.protected_symlinks`; if it cannot be read it counts as set, as in every distribution.
fn protected_symlinks() -> bool {
    static SET: OnceLock<bool> = OnceLock::new();
    *SET.get_or_init(|| {
        std::fs::read("/proc/sys/fs/protected_symlinks").map_or(true, |value| value.trim_ascii() != b"0")
    })
}

/// The rule of `fs.protected_symlinks` for the last link of a path: in a sticky, world-writable directory only the
/// follower's own links and those of the directory's owner are followed (proc_sys_fs(5)).
pub(super) fn is_planted(link: &Stat, directory: &Stat, follower: u32) -> bool {
    const SHARED: u32 = 0o1002;
    link.st_uid != follower && directory.st_mode & SHARED == SHARED && link.st_uid != directory.st_uid
}

/// Identifies a mount.
#[derive(PartialEq, Eq)]
enum MountId {
    /// From `statx`, Linux 5.8: distinguishes bind mounts of one file system.
    Mount(u64),
    /// The only information on older kernels.
    Device(u64),
}

impl MountId {
    fn from_fd(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        match rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID) {
            Ok(stat) if stat.stx_mask & StatxFlags::MNT_ID.bits() != 0 => Ok(Self::Mount(stat.stx_mnt_id)),
            Ok(_) | Err(Errno::NOSYS) => Ok(Self::Device(rustix::fs::fstat(fd)?.st_dev)),
            Err(errno) => Err(errno),
        }
    }
}
