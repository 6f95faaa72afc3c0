//! A directory for the files of one input.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, StatVfsMountFlags};

/// Removed with everything in it when dropped. Not `tempfile`, which the product does not depend on.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// In memory if possible: some targets create dozens of files per input.
    pub(super) fn new() -> Self {
        Self::below(Path::new("/dev/shm"))
            .or_else(|| Self::below(&std::env::temp_dir()))
            .expect("a directory for temporary files can be written")
    }

    /// In a directory where programs may be executed; container runtimes forbid it in `/dev/shm`.
    pub(super) fn for_programs() -> Self {
        let scratch = Self::new();
        if !scratch.forbids_programs() {
            return scratch;
        }
        Self::below(&std::env::temp_dir()).unwrap_or(scratch)
    }

    pub(super) fn forbids_programs(&self) -> bool {
        rustix::fs::statvfs(&self.0).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::NOEXEC))
    }

    fn below(parent: &Path) -> Option<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700);
        // A name that is taken belongs to another process, or was left by one that crashed.
        (0..1000).find_map(|_| {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("sympozium-fuzz-{}-{count}", std::process::id());
            let path = parent.join(name);
            builder.create(&path).ok().map(|()| Self(path))
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A descriptor to resolve paths from.
pub(super) fn directory(path: &Path) -> OwnedFd {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).expect("it was made a moment ago")
}
