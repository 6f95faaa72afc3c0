//! Lists what is left of clusters that no keeper holds. An empty list after `down` is what the harness promises.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::command::{line, on_path, output};
use super::network::{self, PODS};
use super::paths::Root;
use super::{cgroups, lock};

/// How long what is ending may take: the process that waited for the first process of a cluster ends after it, and nothing waits for that
/// one when the keeper was killed.
const LAST_PROCESSES: Duration = Duration::from_secs(20);
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// One line per thing: its kind and what it is.
pub fn list(root: &Root) -> Result<Vec<String>> {
    let deadline = Instant::now() + LAST_PROCESSES;
    loop {
        let found = look(root)?;
        if found.is_empty() || Instant::now() > deadline {
            return Ok(found);
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

fn look(root: &Root) -> Result<Vec<String>> {
    let mut found = processes(root);
    found.extend(mounts(root)?);
    found.extend(network::unheld(&network::interfaces()?).into_iter().map(|name| format!("interface {name}")));
    found.extend(rules()?);
    let folders: Vec<_> = cgroups::all().iter().map(|path| path.display().to_string()).collect();
    found.extend(network::unheld(&folders).into_iter().map(|path| format!("cgroup {path}")));
    found.extend(files(root)?);
    Ok(found)
}

/// What is known of a process.
struct Known {
    parent: i32,
    command: String,
    program: String,
    cgroups: String,
}

/// Processes of a cluster that do not descend from a keeper.
fn processes(root: &Root) -> Vec<String> {
    let table: HashMap<i32, Known> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, examine(pid)?))
        })
        .collect();
    let built = root.parts().display().to_string();
    let mut left: Vec<_> = table
        .iter()
        .filter(|(_, process)| is_ours(process, &built))
        .filter(|(pid, _)| !descends_from_keeper(**pid, &table))
        .map(|(pid, process)| format!("process {pid} {}", process.command))
        .collect();
    left.sort();
    left
}

fn examine(pid: i32) -> Option<Known> {
    let folder = format!("/proc/{pid}");
    let stat = fs::read_to_string(format!("{folder}/stat")).ok()?;
    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    let command = fs::read(format!("{folder}/cmdline")).ok()?;
    let program = fs::read_link(format!("{folder}/exe")).unwrap_or_default();
    Some(Known {
        parent,
        command: String::from_utf8_lossy(&command).replace('\0', " ").trim().to_owned(),
        program: program.display().to_string(),
        cgroups: fs::read_to_string(format!("{folder}/cgroup")).unwrap_or_default(),
    })
}

/// A component has its program or an argument below the cluster's folders, a container's process is in its cgroup.
fn is_ours(process: &Known, built: &str) -> bool {
    let inside = "/run/kube/";
    // A person's `kubectl` outside is a program of ours but no part of a cluster.
    let outside = process.program.starts_with(built);
    let daemon = process.command.contains(inside) || process.program.starts_with(inside);
    let own = process.command.contains(" kube init ") || process.command.ends_with(" kube keep");
    (daemon && !outside) || own || process.cgroups.contains(cgroups::PREFIX)
}

fn descends_from_keeper(pid: i32, table: &HashMap<i32, Known>) -> bool {
    let mut next = pid;
    while let Some(process) = table.get(&next) {
        if process.command.ends_with(" kube keep") {
            return true;
        }
        next = process.parent;
    }
    false
}

fn mounts(root: &Root) -> Result<Vec<String>> {
    let text = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
    let clusters = root.clusters().display().to_string();
    let ours = text.lines().filter(|line| line.contains("/run/kube") || line.contains(&clusters));
    Ok(ours.map(|line| format!("mount {line}")).collect())
}

/// Clusters make rules in their own network namespace only; here there must be none.
fn rules() -> Result<Vec<String>> {
    // Without the program, or the right to ask, no cluster can have been started either.
    if !on_path("nft") || !rustix::process::geteuid().is_root() {
        return Ok(Vec::new());
    }
    let text = output(&mut line("nft list ruleset"))?;
    let ours = text
        .lines()
        .filter(|line| line.contains(PODS) || line.contains("kube-proxy") || line.contains("kube-network-policies"));
    Ok(ours.map(|line| format!("nftables {}", line.trim())).collect())
}

fn files(root: &Root) -> Result<Vec<String>> {
    let clusters = root.clusters();
    let mut found = Vec::new();
    for entry in fs::read_dir(&clusters).with_context(|| format!("cannot list {}", clusters.display()))? {
        let path = entry.with_context(|| format!("cannot list {}", clusters.display()))?.path();
        let lock_path = path.with_extension("lock");
        // Asking creates the file that is asked for; it goes again with the answer.
        if let Some(lock) = lock::try_exclusive(&lock_path)? {
            if path.is_dir() {
                found.push(format!("file {}", path.display()));
            }
            lock.remove();
        }
    }
    Ok(found)
}
