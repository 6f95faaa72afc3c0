//! Advisory file locks: the kernel drops them with their holder, so a killed process never blocks the next.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

const POLL: Duration = Duration::from_millis(50);

/// A held exclusive lock; dropping it releases it. The file stays: removing it would let two holders in.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held for its lock only")] File);

/// Takes the lock if nobody holds it.
pub fn try_exclusive(path: &Path) -> Result<Option<Lock>> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .with_context(|| format!("cannot open the lock {}", path.display()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(Lock(file))),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
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

    #[test]
    fn a_lock_is_held_once_and_free_after() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = try_exclusive(&path).unwrap().unwrap();
        assert!(try_exclusive(&path).unwrap().is_none());
        assert!(
            exclusive_within(&path, Duration::from_millis(60))
                .unwrap()
                .is_none()
        );
        drop(held);
        assert!(try_exclusive(&path).unwrap().is_some());
    }
}
