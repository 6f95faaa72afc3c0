//! Sockets in the file system, however long the path to them is: an address has room for 107 bytes, so they are named by way
//! of a descriptor of their directory.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::{AtFlags, Mode, OFlags, chmodat, open, unlinkat};
use rustix::io::Errno;
use tokio::net::UnixListener;

/// Listens at a socket of this name, for its owner alone. The directory is the caller's: whatever is there of that name was
/// left by nobody who lives.
///
/// # Errors
///
/// When it cannot be made.
pub fn listen(directory: &Path, name: &str) -> anyhow::Result<UnixListener> {
    let bind = || -> anyhow::Result<UnixListener> {
        let (opened, path) = address(directory, name)?;
        match unlinkat(&opened, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let listener = UnixListener::bind(path)?;
        // Until here the directory alone, which is its owner's, keeps others away.
        chmodat(&opened, name, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        Ok(listener)
    };
    bind().with_context(|| format!("cannot listen at {}", directory.join(name).display()))
}

/// A socket by way of its directory. Good for as long as the directory is open.
///
/// # Errors
///
/// When the directory cannot be opened.
pub fn address(directory: &Path, name: &str) -> rustix::io::Result<(OwnedFd, PathBuf)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = open(directory, flags, Mode::empty())?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", opened.as_raw_fd()));
    Ok((opened, path))
}
