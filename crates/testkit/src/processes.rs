//! Processes as /proc has them: which are alive, and what they use.

use std::fmt;
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A word that no other process has in its command line, whichever tests run beside this one. Given to
/// `probe do --marker WORD …`, it stays in the command line of every descendant.
pub fn new_marker() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Ids of processes are used again, and are different in another pid namespace.
    static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("marker-{:016x}-{number}", *PROCESS)
}

/// The processes with exactly this word in their command line. Zombies have no command line and are not among them.
pub fn with_marker(marker: &str) -> Vec<i32> {
    all()
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.split(|&byte| byte == 0).any(|word| word == marker.as_bytes()))
        })
        .collect()
}

/// The children of `parent` that have ended and have not been reaped.
pub fn zombies_of(parent: i32) -> Vec<i32> {
    all().filter(|&pid| state_and_parent(pid).is_some_and(|(state, of)| state == 'Z' && of == parent)).collect()
}

/// The living children of `parent`.
pub fn children_of(parent: i32) -> Vec<i32> {
    all().filter(|&pid| state_and_parent(pid).is_some_and(|(state, of)| state != 'Z' && of == parent)).collect()
}

/// `root` and its living descendants.
pub fn tree_of(root: i32) -> Vec<i32> {
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(&pid) = tree.get(next) {
        tree.extend(children_of(pid));
        next += 1;
    }
    tree
}

/// Whether `pid` exists and is not a zombie.
pub fn is_alive(pid: i32) -> bool {
    state_and_parent(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// The memory of a process, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// All that is in memory.
    pub resident: u64,
    /// Of that, what is its own.
    pub anonymous: u64,
    /// Of that, what is of files, such as its program, and shared by all processes that run it.
    pub files: u64,
    /// The most that was ever resident.
    pub peak: u64,
}

/// Bytes as MiB.
pub fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [resident, anonymous, files, peak] = [self.resident, self.anonymous, self.files, self.peak].map(mebibytes);
        write!(f, "{resident:.2} MiB resident, {anonymous:.2} of them its own, {files:.2} of files; at most {peak:.2}")
    }
}

/// The memory of `pid`, or of this process by the name `self`.
pub fn memory(pid: impl fmt::Display) -> Option<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let bytes = |name| Some(status_field(&status, name)? * 1024);
    Some(Memory {
        resident: bytes("VmRSS:")?,
        anonymous: bytes("RssAnon:")?,
        files: bytes("RssFile:")? + bytes("RssShmem:")?,
        peak: bytes("VmHWM:")?,
    })
}

/// The memory that `pid` has resident, in bytes.
pub fn resident_bytes(pid: i32) -> Option<u64> {
    Some(memory(pid)?.resident)
}

/// How often the threads of `pid` have gone to sleep by themselves: once for every time one was woken.
pub fn sleeps(pid: i32) -> u64 {
    sum_of_threads(pid, "voluntary_ctxt_switches:")
}

/// How often the threads of `pid` have given up the processor, by themselves or not.
pub fn context_switches(pid: i32) -> u64 {
    sleeps(pid) + sum_of_threads(pid, "nonvoluntary_ctxt_switches:")
}

fn sum_of_threads(pid: i32, field: &str) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let statuses = threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    statuses.filter_map(|status| status_field(&status, field)).sum()
}

/// The number of a field in `/proc/PID/status`, which begins a line.
fn status_field(status: &str, name: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_ascii_whitespace().next()?.parse().ok()
}

fn all() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn state_and_parent(pid: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets and may hold anything, brackets included: what counts begins after the last one.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}
