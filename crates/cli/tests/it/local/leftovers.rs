//! Leftovers of the runs of a home: found in the lists of the kernel, by the home's name and user.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::Home;

/// Levels of control groups that are searched.
const CGROUP_LEVELS: usize = 8;
/// Links of a process that may point into a home.
const LINKS: [&str; 3] = ["cwd", "root", "exe"];

/// Processes, mounts, control groups, sockets and files of runs that should be gone.
pub fn of(home: &Home) -> Vec<String> {
    let mut found = processes(home);
    found.extend(listed("/proc/self/mountinfo", home.name()));
    // Tests have their own sockets next to it.
    found.extend(listed("/proc/net/unix", &format!("{}/state", home.name())));
    found.extend(control_groups(home));
    found.extend(files(&home.at("state")));
    found
}

/// The processes of a home: those whose `/proc` files contain its name, and those of its user.
pub fn processes(home: &Home) -> Vec<String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    let mut found = Vec::new();
    for entry in entries {
        let process = entry.path();
        let Some(pid) = entry.file_name().to_str().and_then(|it| it.parse().ok()) else {
            continue;
        };
        let names = |file: &&str| fs::read(process.join(file)).is_ok_and(|text| mentions(&text, home.name()));
        let leads = |link: &&str| {
            let target = fs::read_link(process.join(link)).ok();
            target.is_some_and(|it| mentions(it.as_os_str().as_encoded_bytes(), home.name()))
        };
        let mut texts = vec!["cmdline", "environ"];
        // Mounts of our own namespace belong to no process in particular.
        if fs::read_link(process.join("ns/mnt")).ok() != own {
            texts.push("mountinfo");
        }
        let by = texts.iter().find(|it| names(it)).or(LINKS.iter().find(|it| leads(it))).copied();
        let is_users = home.user().is_some_and(|user| fs::metadata(&process).is_ok_and(|found| found.uid() == user));
        let by = by.or(is_users.then_some("its user"));
        if let Some(by) = by.filter(|_| sympozium_testkit::processes::is_alive(pid)) {
            let line = fs::read(process.join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            found.push(format!("process {pid} ({line}) by {by}"));
        }
    }
    found
}

fn listed(file: &str, name: &str) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text.lines().filter(|it| it.contains(name));
    lines.map(|it| format!("{file}: {it}")).collect()
}

/// Control groups that processes of this home created, by their names: `sympozium-NAMESPACE-PID-…`.
fn control_groups(home: &Home) -> Vec<String> {
    let mut pids = Vec::new();
    let runs = fs::read_dir(home.at("state/runs")).into_iter().flatten();
    for run in runs.flatten() {
        let record = fs::read(run.path().join("run.json")).unwrap_or_default();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap_or_default();
        pids.extend(record["pid"].as_u64());
    }
    groups()
        .into_iter()
        .filter(|(_, pid)| pids.contains(pid))
        .map(|(path, _)| format!("control group {}", path.display()))
        .collect()
}

/// Every control group with a name of ours, with the process that created it.
fn groups() -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    let mut level = vec![PathBuf::from("/sys/fs/cgroup")];
    for _ in 0..CGROUP_LEVELS {
        let mut next = Vec::new();
        for directory in level {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                if !entry.file_type().is_ok_and(|it| it.is_dir()) {
                    continue;
                }
                let name = entry.file_name().to_string_lossy().into_owned();
                let pid = name.strip_prefix("sympozium-");
                let pid = pid.and_then(|rest| rest.split('-').nth(1)?.parse().ok());
                found.extend(pid.map(|pid| (entry.path(), pid)));
                next.push(entry.path());
            }
        }
        level = next;
    }
    found
}

/// Files that are needed only during a run, sockets and pipes.
fn files(state: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![state.to_owned()];
    while let Some(directory) = waiting.pop() {
        let is_run = directory.parent().is_some_and(|it| it.ends_with("runs"));
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else {
                continue;
            };
            let is_live = is_run && entry.file_name() == "live";
            if is_live || kind.is_socket() || kind.is_fifo() {
                found.push(path.display().to_string());
            } else if kind.is_dir() {
                waiting.push(path);
            }
        }
    }
    found
}

fn mentions(text: &[u8], name: &str) -> bool {
    text.windows(name.len()).any(|part| part == name.as_bytes())
}
