//! Memory and time of a process.

use std::fs;
use std::time::Duration;

use sympozium_testkit::processes::{Memory, memory};

#[derive(Debug, Clone)]
pub struct Process {
    pub memory: Memory,
    /// Processor time of all its threads.
    pub processor: Duration,
}

impl Process {
    pub fn of(pid: i32) -> Self {
        Self { memory: memory(pid).expect("a process"), processor: processor(pid) }
    }
}

fn processor(pid: i32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let nanoseconds = threads
        .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("schedstat")).ok())
        .filter_map(|schedstat| schedstat.split_ascii_whitespace().next()?.parse::<u64>().ok());
    Duration::from_nanos(nanoseconds.sum())
}
