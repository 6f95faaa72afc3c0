//! Whom the kernel kills first when memory runs out: commands, not the keeper they need.
//!
//! The kernel goes by size, and memory need not be anybody's (files in `/tmp`) or may be that of many small
//! processes. Without this the keeper can be the largest of all, and the whole sandbox ends with it.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;

/// How much sooner than the keeper a command is killed, in thousandths of all memory (proc_pid_oom_score_adj(5)).
pub(crate) const STEP: i32 = 300;
const HIGHEST: i32 = 1000;

/// This process's own score. It stays writable when `/proc` no longer is.
#[derive(Debug)]
pub(crate) struct OomScore(Option<(File, i32)>);

impl OomScore {
    /// Open it before `/proc` becomes read-only. Where it cannot be changed, commands get by.
    pub(crate) fn open() -> Self {
        let open = || {
            let path = "/proc/self/oom_score_adj";
            let mut file = OpenOptions::new().read(true).write(true).open(path).ok()?;
            let mut text = String::new();
            file.read_to_string(&mut text).ok()?;
            Some((file, text.trim().parse().ok()?))
        };
        Self(open())
    }

    /// From now on, what this process forks is killed sooner than it was meant to be itself.
    pub(crate) fn raise(&self) {
        self.set(|own| (own + STEP).min(HIGHEST));
    }

    /// Back to what it was, which needs no privilege.
    pub(crate) fn restore(&self) {
        self.set(|own| own);
    }

    fn set(&self, score: impl Fn(i32) -> i32) {
        if let Self(Some((file, own))) = self {
            // Without it only the order of killing is worse.
            let _ = file.write_at(score(*own).to_string().as_bytes(), 0);
        }
    }
}
