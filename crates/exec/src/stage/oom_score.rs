//! Makes the kernel kill commands, and not their keeper, when memory runs out.
//!
//! The kernel chooses by size, and memory may belong to no process (files in `/tmp`) or to many small ones. Without
//! this the keeper can be the largest process, and the whole sandbox ends with it.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;

/// How much sooner than the keeper a command is killed, in thousandths of all memory (proc_pid_oom_score_adj(5)).
pub(crate) const SCORE_STEP: i32 = 300;
const MAX_SCORE: i32 = 1000;

/// The score of this process. The open file stays writable when `/proc` does not.
#[derive(Debug)]
pub(crate) struct OomScore(Option<(File, i32)>);

impl OomScore {
    /// Opens the file; to be called before `/proc` becomes read-only. Without permission the score stays unchanged.
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

    /// From now on, processes that this one forks have a higher score.
    pub(crate) fn raise(&self) {
        self.set(|own| (own + SCORE_STEP).min(MAX_SCORE));
    }

    /// Restores the original score, which needs no privilege.
    pub(crate) fn restore(&self) {
        self.set(|own| own);
    }

    fn set(&self, score: impl Fn(i32) -> i32) {
        if let Self(Some((file, own))) = self {
            // On failure only the order of killing is worse.
            let _ = file.write_at(score(*own).to_string().as_bytes(), 0);
        }
    }
}
