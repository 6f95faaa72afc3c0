//! Who is alive, read from /proc: what a test asks after a command is over.

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

/// The memory that `pid` has resident, in bytes.
pub fn resident_bytes(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kibibytes: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// How often the threads of `pid` have gone to sleep by themselves: once for every time one was woken.
pub fn sleeps(pid: i32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    threads
        .flatten()
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok())
        .filter_map(|status| {
            let line = (status.lines()).find(|line| line.starts_with("voluntary_ctxt_switches:"))?;
            line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .sum()
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
