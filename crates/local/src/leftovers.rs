//! Verifies teardown: lists what is left of a run.

use std::fs;
use std::path::Path;

use rustix::process::Pid;

use crate::state::RunDirectory;

/// The processes, mounts, control groups, sockets and files of a run that still exist.
pub fn find_leftovers(directory: &RunDirectory) -> Vec<String> {
    let processes = list_children().into_iter();
    let mut found: Vec<String> = processes.map(|pid| format!("process {pid}")).collect();
    found.extend(find_mounts(directory.path()));
    if let Ok(groups) = sympozium_exec::cgroup::list_own() {
        found.extend(groups.iter().map(|it| format!("control group {}", it.display())));
    }
    for (what, path) in [("directory", directory.live_directory()), ("socket", directory.control_socket())] {
        if fs::symlink_metadata(&path).is_ok() {
            found.push(format!("{what} {}", path.display()));
        }
    }
    found
}

/// The children of this process. The sandboxes of a run are its children; every other process of the run is below them.
pub fn list_children() -> Vec<Pid> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children = children.collect::<Vec<_>>().join(" ");
    let children = children.split_ascii_whitespace();
    let numbers = children.filter(|pid| !has_exited(pid));
    let numbers = numbers.filter_map(|pid| pid.parse().ok());
    numbers.filter_map(Pid::from_raw).collect()
}

/// Whether a child has exited and only waits to be reaped by the thread that started it.
fn has_exited(pid: &str) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return true;
    };
    // The name is in parentheses and may contain anything: the state follows the last one.
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| state.starts_with(['Z', 'X']))
}

fn find_mounts(directory: &Path) -> Vec<String> {
    let Some(directory) = directory.to_str() else {
        return Vec::new();
    };
    let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") else {
        return vec!["mounts: /proc/self/mountinfo cannot be read".to_owned()];
    };
    // Escaped as in proc_pid_mountinfo(5).
    let mut escaped = directory.replace('\\', "\\134");
    for (letter, octal) in [(' ', "\\040"), ('\t', "\\011"), ('\n', "\\012")] {
        escaped = escaped.replace(letter, octal);
    }
    let ours = mounts.lines().filter(|line| line.contains(&escaped));
    ours.map(|line| format!("mount {line}")).collect()
}
