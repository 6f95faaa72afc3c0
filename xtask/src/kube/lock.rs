//! Advisory file locks: the kernel drops them with their holder, so a killed process never blocks the next.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

const POLL: Duration = Duration::from_millis(50);

/// A held exclusive lock; dropping it releases it.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Releases the lock and removes its file. A process that waits for the removed file notices that and takes a new
    /// one.
    pub fn remove(self) {
        // A file that is gone already, or cannot be removed, is still a valid lock.
        let _ = fs::remove_file(&self.path);
    }

    /// Whether the path still leads to the locked file.
    fn is_current(&self) -> bool {
        let held = self.file.metadata().map(|data| (data.dev(), data.ino()));
        let named = fs::metadata(&self.path).map(|data| (data.dev(), data.ino()));
        matches!((held, named), (Ok(held), Ok(named)) if held == named)
    }
}

/// Takes the lock if it is free.
pub fn try_exclusive(path: &Path) -> Result<Option<Lock>> {
    loop {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .with_context(|| format!("cannot open the lock {}", path.display()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
        let lock = Lock { file, path: path.to_owned() };
        // Between our open and our lock the last holder may have removed the file.
        if lock.is_current() {
            return Ok(Some(lock));
        }
    }
}

/// Takes the lock, waiting for its holder up to `patience`; `None` when it is still held then.
pub fn exclusive_within(path: &Path, patience: Duration) -> Result<Option<Lock>> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(lock) = try_exclusive(path)? {
            return Ok(Some(lock));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against hanging.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_lock_is_held_once_and_free_after() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = try_exclusive(&path).unwrap().unwrap();
        assert!(try_exclusive(&path).unwrap().is_none());
        assert!(exclusive_within(&path, Duration::from_millis(60)).unwrap().is_none());
        drop(held);
        // A process that another test starts has the descriptor, and with it the lock, from its fork to its exec.
        assert!(exclusive_within(&path, PATIENCE).unwrap().is_some());
    }

    #[test]
    fn a_removed_lock_is_never_held_beside_its_successor() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = try_exclusive(&path).unwrap().unwrap();
        // A waiter that opened the file before it was removed must not count its lock on the dead file.
        let waiter = OpenOptions::new().write(true).open(&path).unwrap();
        first.remove();
        flock(&waiter, FlockOperation::LockExclusive).unwrap();
        let stale = Lock { file: waiter, path: path.clone() };
        assert!(!stale.is_current());
        assert!(try_exclusive(&path).unwrap().is_some());
    }
}
