//! The processes that a cluster hangs on, found as an outsider finds them.

use std::fs;

use sympozium_testkit::command;

use crate::own::Own;

pub fn kill(pid: Option<u32>) -> Option<()> {
    let pid = pid?.to_string();
    command("kill").args(["-KILL", &pid]).status().ok().filter(std::process::ExitStatus::success).map(drop)
}

pub fn first_process_of(own: &Own) -> Option<u32> {
    find_process(|_, command| {
        command.contains(" kube init ") && command.trim_end().ends_with(&own.0) && !command.starts_with("unshare")
    })
}

/// The keeper is told the cluster's name on its input; it is the parent of the parent of the first process.
pub fn keeper_of(own: &Own) -> Option<u32> {
    let unshare = parent(first_process_of(own)?)?;
    parent(unshare)
}

pub fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

pub fn find_process(wanted: impl Fn(u32, &str) -> bool) -> Option<u32> {
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let command = fs::read(entry.path().join("cmdline")).ok()?;
        wanted(pid, &String::from_utf8_lossy(&command).replace('\0', " ")).then_some(pid)
    })
}
