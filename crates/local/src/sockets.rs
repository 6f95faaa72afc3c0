//! Unix sockets at paths of any length: `sun_path` has room for 107 bytes, so sockets are addressed through a
//! descriptor of their directory.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::{AtFlags, Mode, OFlags, chmodat, open, unlinkat};
use rustix::io::Errno;
use tokio::net::UnixListener;

/// Listens at a socket of this name, which only its owner may connect to. The directory must be the caller's alone: an
/// existing socket of that name is taken for stale, and removed.
pub fn listen(directory: &Path, name: &str) -> anyhow::Result<UnixListener> {
    let bind = || -> anyhow::Result<UnixListener> {
        let (opened, path) = socket_path(directory, name)?;
        match unlinkat(&opened, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let listener = UnixListener::bind(path)?;
        // Until then the permissions of the directory keep other users away.
        chmodat(&opened, name, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        Ok(listener)
    };
    bind().with_context(|| format!("cannot listen at {}", directory.join(name).display()))
}

/// The path of a socket through its directory. Valid while the returned descriptor is open.
pub fn socket_path(directory: &Path, name: &str) -> rustix::io::Result<(OwnedFd, PathBuf)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = open(directory, flags, Mode::empty())?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", opened.as_raw_fd()));
    Ok((opened, path))
}
