//! The owner of a cgroup directory, encoded in its name, and the sweep that relies on nothing else.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::CgroupError;
use super::hierarchies::Hierarchies;

const PREFIX: &str = "sympozium-";

/// Limit for the part of a name that the caller chooses.
const MAX_HINT_BYTES: usize = 32;

/// Limit for the directories that a sweep reads: far above what a large machine has.
const MAX_SWEPT_DIRECTORIES: usize = 20_000;

/// The process that created a directory. A pid alone is reused; with its start time it is unique until the next boot,
/// which no cgroup survives. The pid namespace keeps a process in another one, which cannot see the owner at all, from
/// considering it dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pid_namespace: u64,
    pid: u32,
    start_ticks: u64,
}

impl Owner {
    /// This process.
    pub fn current() -> Result<Self, CgroupError> {
        let failed = |path: &str| {
            let path = PathBuf::from(path);
            move |source| CgroupError::Read { path, source }
        };
        let link = fs::read_link("/proc/self/ns/pid").map_err(failed("/proc/self/ns/pid"))?;
        let pid_namespace = link
            .to_str()
            .and_then(|link| link.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok())
            .ok_or_else(|| failed("/proc/self/ns/pid")(io::ErrorKind::InvalidData.into()))?;
        let start_ticks = read_start_ticks("/proc/self/stat".as_ref()).map_err(failed("/proc/self/stat"))?;
        Ok(Self { pid_namespace, pid: std::process::id(), start_ticks })
    }

    /// A directory name that no other call returns, in this or any other process.
    pub fn new_name(self, hint: &str) -> String {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let hint: String = hint
            .chars()
            .take(MAX_HINT_BYTES)
            .map(|letter| match letter {
                'a'..='z' | '0'..='9' => letter,
                'A'..='Z' => letter.to_ascii_lowercase(),
                _ => '_',
            })
            .collect();
        self.name_prefix(count) + &hint
    }

    /// The owner that is encoded in a directory name, if the name is one of ours.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(PREFIX)?.splitn(5, '-');
        let owner = Self {
            pid_namespace: parts.next()?.parse().ok()?,
            pid: parts.next()?.parse().ok()?,
            start_ticks: parts.next()?.parse().ok()?,
        };
        let count: u64 = parts.next()?.parse().ok()?;
        parts.next()?;
        // `parse` also accepts signs and leading zeros, which we never write.
        name.starts_with(&owner.name_prefix(count)).then_some(owner)
    }

    fn name_prefix(self, count: u64) -> String {
        let Self { pid_namespace, pid, start_ticks } = self;
        format!("{PREFIX}{pid_namespace}-{pid}-{start_ticks}-{count}-")
    }

    /// Whether `self` has provably ended, as seen by `observer`. Doubt counts as alive.
    fn is_gone(self, observer: Self) -> bool {
        if self.pid_namespace != observer.pid_namespace {
            return false;
        }
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return false;
        };
        // Not by reading /proc alone: with hidepid= a live process of another user is not there.
        if test_kill_process(pid) == Err(Errno::SRCH) {
            return true;
        }
        read_start_ticks(format!("/proc/{}/stat", self.pid).as_ref()).is_ok_and(|ticks| ticks != self.start_ticks)
    }
}

/// Removes empty directories whose owner died without removing them; returns the number of removed ones.
///
/// The whole mounted tree is searched, because the owner may have lived in a cgroup that is not an ancestor of ours.
/// Only names that [`Owner::new_name`] creates are considered, and the kernel itself refuses to remove a cgroup with a
/// process.
pub(super) fn sweep(layout: &Hierarchies, observer: Owner) -> usize {
    // A /proc of another pid namespace would show other processes under the same numbers.
    if fs::read_link("/proc/self").ok() != Some(PathBuf::from(observer.pid.to_string())) {
        return 0;
    }
    let hierarchies = layout.v1.values().chain(&layout.v2);
    let mut pending: Vec<PathBuf> = hierarchies.map(|hierarchy| hierarchy.mount.clone()).collect();
    pending.sort();
    pending.dedup();

    let mut removed = 0;
    let mut seen = 0;
    while let Some(directory) = pending.pop() {
        // Unreadable or already gone: then there is nothing here that we could remove.
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries.flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            seen += 1;
            if seen > MAX_SWEPT_DIRECTORIES {
                return removed;
            }
            match entry.file_name().to_str().and_then(Owner::from_name) {
                Some(owner) if owner.is_gone(observer) => {
                    removed += usize::from(fs::remove_dir(entry.path()).is_ok());
                }
                Some(_) => {}
                None => pending.push(entry.path()),
            }
        }
    }
    removed
}

fn read_start_ticks(path: &Path) -> io::Result<u64> {
    parse_start_ticks(&fs::read(path)?).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Field 22 of `/proc/<pid>/stat`, counted after the command name, which may itself contain spaces, parentheses and
/// bytes that are not UTF-8; see proc_pid_stat(5).
pub(crate) fn parse_start_ticks(stat: &[u8]) -> Option<u64> {
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let fields = std::str::from_utf8(stat.get(after_name..)?).ok()?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_their_owner_and_differ() {
        let owner = Owner::current().unwrap();
        let first = owner.new_name("Skill/../x");
        assert_eq!(Owner::from_name(&first), Some(owner));
        assert!(first.ends_with("-skill____x"), "{first}");
        assert_ne!(first, owner.new_name("Skill/../x"));
        assert!(owner.new_name(&"é".repeat(4096)).len() < 128);
    }

    #[test]
    fn other_names_have_no_owner() {
        for name in [
            "",
            "sympozium-",
            "sympozium-1-2-3",
            "sympozium-1-2-3-4",
            "sympozium-a-2-3-4-x",
            "sympozium-+1-2-3-4-x",
            "sympozium-1-2-3-04-x",
            "system.slice",
            "sympozium-kube-0",
        ] {
            assert_eq!(Owner::from_name(name), None, "{name:?}");
        }
    }

    #[test]
    fn a_name_that_is_no_text_hides_no_start() {
        let fields = b") S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 123456 0 0";
        for name in [&b"sh"[..], b"a) b", b"caf\xc3", b"\xff)\xfe"] {
            let stat = [b"7 (", name, fields].concat();
            assert_eq!(parse_start_ticks(&stat), Some(123_456), "{name:?}");
        }
        assert_eq!(parse_start_ticks(b"7 (sh) S 1"), None);
    }

    #[test]
    fn only_a_provably_dead_owner_is_gone() {
        let alive = Owner::current().unwrap();
        assert!(!alive.is_gone(alive));
        let reused_pid = Owner { start_ticks: alive.start_ticks + 1, ..alive };
        assert!(reused_pid.is_gone(alive));
        let elsewhere = Owner { pid_namespace: 1, ..reused_pid };
        assert!(!elsewhere.is_gone(alive));
    }
}
