//! Memory and time of a process.

use std::fmt;
use std::fs;
use std::time::Duration;

/// Memory in MiB, and processor time.
#[derive(Debug, Clone, Default)]
pub struct Process {
    pub resident: f64,
    pub anonymous: f64,
    /// Of files, such as its program; shared by all processes that run it.
    pub files: f64,
    pub peak: f64,
    /// Of all its threads.
    pub processor: Duration,
}

impl Process {
    pub fn of(pid: i32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
        let mebibytes = |name| field(&status, name) as f64 / 1024.0;
        Self {
            resident: mebibytes("VmRSS:"),
            anonymous: mebibytes("RssAnon:"),
            files: mebibytes("RssFile:") + mebibytes("RssShmem:"),
            peak: mebibytes("VmHWM:"),
            processor: processor(pid),
        }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.2} MiB resident, {:.2} of them its own, {:.2} of files; at most it had {:.2}",
            self.resident, self.anonymous, self.files, self.peak
        )
    }
}

fn processor(pid: i32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let nanoseconds = threads
        .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("schedstat")).ok())
        .filter_map(|it| it.split_ascii_whitespace().next()?.parse::<u64>().ok());
    Duration::from_nanos(nanoseconds.sum())
}

/// The number of a field in `/proc/PID/status`.
fn field(status: &str, name: &str) -> u64 {
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    let number = value.and_then(|it| it.split_ascii_whitespace().next());
    number.and_then(|it| it.parse().ok()).expect("a number")
}
