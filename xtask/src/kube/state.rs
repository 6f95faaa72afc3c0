//! The folder of one cluster, and the record that says how to reach it.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::network::Link;
use super::paths::Root;

/// Longest name of a cluster: it is part of cgroup and file names.
const MAX_NAME: usize = 40;

/// A cluster's name and its places.
#[derive(Debug, Clone)]
pub struct Instance {
    pub name: String,
    /// Holds everything of the cluster; removed with it.
    pub folder: PathBuf,
    /// Held by the keeper as long as the cluster lives.
    pub lock: PathBuf,
}

impl Instance {
    pub fn new(root: &Root, name: &str) -> Result<Self> {
        let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(valid) || name.starts_with('-') {
            bail!("{name:?} is no name for a cluster\nhint: use up to {MAX_NAME} of a-z, 0-9 and '-'");
        }
        let clusters = root.clusters();
        Ok(Self { name: name.to_owned(), folder: clusters.join(name), lock: clusters.join(format!("{name}.lock")) })
    }

    /// Every cluster with a folder, living or dead.
    pub fn all(root: &Root) -> Result<Vec<Self>> {
        let clusters = root.clusters();
        let mut found = Vec::new();
        for entry in fs::read_dir(&clusters).with_context(|| format!("cannot list {}", clusters.display()))? {
            let entry = entry.with_context(|| format!("cannot list {}", clusters.display()))?;
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            if entry.path().is_dir() && !hidden {
                found.push(Self::new(root, &entry.file_name().to_string_lossy())?);
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Held by the first process inside as long as it lives.
    pub fn init_lock(&self) -> PathBuf {
        self.file("init.lock")
    }

    /// The record of a cluster that is ready; `None` before.
    pub fn record(&self) -> Result<Option<Record>> {
        read_json(&self.file("cluster.json"))
    }

    /// The first process inside, once it is started.
    pub fn init(&self) -> Result<Option<Process>> {
        read_json(&self.file("init.json"))
    }
}

/// How to reach a cluster that is ready; `testkit` reads it too.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub name: String,
    pub tier: String,
    pub kubeconfig: PathBuf,
    pub audit_log: PathBuf,
    /// Where the machine is seen from the cluster.
    pub host_address: Ipv4Addr,
    pub address: Ipv4Addr,
    /// Folders with `kubectl` and the rest, for `PATH`.
    pub programs: Vec<PathBuf>,
    /// The same folders as seen from inside.
    pub inner_programs: Vec<PathBuf>,
    /// A shared lock on this file keeps a cluster that was leased.
    pub lease: PathBuf,
    pub started_unix_seconds: u64,
}

/// What the first process inside needs to know.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plan {
    pub name: String,
    pub tier: String,
    pub link: Link,
    /// The folder outside the tree.
    pub root: PathBuf,
    /// Folders of the parts below `parts/`, by part.
    pub parts: Vec<(String, String)>,
    /// End by itself when the lease has had no holder for so long.
    pub idle_seconds: Option<u64>,
}

impl Plan {
    /// The folder of a part as seen from inside.
    pub fn part(&self, name: &str) -> Result<String> {
        let found = self.parts.iter().find(|(part, _)| part == name);
        let (_, folder) = found.with_context(|| format!("the plan has no part {name}"))?;
        Ok(format!("{}/{folder}", super::config::PARTS))
    }
}

/// A process. Its start time distinguishes it from a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    pub start: u64,
}

impl Process {
    /// The process that has this number now.
    pub fn find(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(Self { pid, start: stat_field(&stat, 22)? })
    }

    /// The child of `parent`, when it has exactly one.
    pub fn only_child(parent: u32) -> Option<Self> {
        let mut children = fs::read_dir("/proc").ok()?.filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            (stat_field(&stat, 4)? == u64::from(parent)).then_some(pid)
        });
        let child = Self::find(children.next()?)?;
        children.next().is_none().then_some(child)
    }

    pub fn is_alive(self) -> bool {
        Self::find(self.pid) == Some(self)
    }

    /// Ends it with SIGKILL, if it is still the same process.
    pub fn kill(self) {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return;
        };
        // The descriptor pins the process, so that the check and the signal speak of the same one.
        if let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty())
            && self.is_alive()
        {
            let _ = pidfd_send_signal(&descriptor, Signal::KILL);
        }
    }
}

/// Field `number` of `/proc/<pid>/stat`, counted as in proc(5). The name in field 2 may hold spaces and brackets.
fn stat_field(stat: &str, number: usize) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(number - 3)?.parse().ok()
}

/// Reads a JSON file that may not be there yet.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    match fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text).map(Some).with_context(|| format!("cannot read {}", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Writes a JSON file so that a reader sees all of it or none.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let text = serde_json::to_string_pretty(value).context("cannot write JSON")?;
    let draft = path.with_extension("draft");
    fs::write(&draft, text)
        .and_then(|()| fs::rename(&draft, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_the_folder_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path()).unwrap();
        assert!(Instance::new(&root, "test-1").is_ok());
        for name in ["", "..", "a/b", "A", "-a", &"x".repeat(41)] {
            assert!(Instance::new(&root, name).is_err(), "{name:?} was accepted");
        }
    }

    #[test]
    fn stat_fields_are_counted_behind_the_name() {
        let stat = "12 (a b) c) S 7 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1";
        assert_eq!(stat_field(stat, 4), Some(7));
        assert_eq!(stat_field(stat, 22), Some(98765));
    }

    #[test]
    fn a_process_is_not_taken_for_another_with_its_number() {
        let own = Process::find(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own.is_alive());
        assert!(!Process { start: own.start + 1, ..own }.is_alive());
    }
}
