//! A System V shared memory segment of the host, for a sandbox not to find.
#![expect(unsafe_code, reason = "System V IPC has no safe wrapper")]

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

/// A segment that everybody may read, removed when dropped.
#[derive(Debug)]
pub struct SharedMemory {
    key: i32,
    id: i32,
}

impl SharedMemory {
    /// Creates one page under an unused key.
    ///
    /// # Errors
    ///
    /// Those of `shmget(2)`.
    pub fn new() -> io::Result<Self> {
        static NEXT: AtomicI32 = AtomicI32::new(0);
        let process = i32::try_from(std::process::id()).unwrap_or(1);
        let key = process.wrapping_mul(64) + NEXT.fetch_add(1, Ordering::Relaxed) + 1;
        let flags = libc::IPC_CREAT | libc::IPC_EXCL | 0o666;
        // SAFETY: makes a segment; no memory of ours is involved.
        let id = unsafe { libc::shmget(key, 4096, flags) };
        if id < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { key, id })
    }

    /// The number under which others find it.
    pub fn key(&self) -> i32 {
        self.key
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: marks our own segment for removal; the buffer is not used by IPC_RMID.
        unsafe {
            libc::shmctl(self.id, libc::IPC_RMID, std::ptr::null_mut());
        }
    }
}
