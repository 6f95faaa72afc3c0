//! Starting programs, with a limit on how long they may take.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

/// The directory of the workspace's `Cargo.toml`.
pub fn workspace_root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Where cargo puts what it builds.
pub fn target_directory() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => workspace_root().join(directory),
        None => workspace_root().join("target"),
    }
}

/// A program to be started in the workspace's root.
#[expect(
    clippy::disallowed_methods,
    reason = "the tooling starts cargo, apt-get and the like; none of it ships"
)]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(workspace_root());
    command
}

/// Cargo, the one that started us.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments);
    // Who started this program told it its package. Build scripts look at that (ring's does), and what is built here and what a
    // person or a test builds would be compiled again for each other.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo
}

/// Whether `name` is a program on the search path.
pub fn has_program(name: &str) -> bool {
    find_program(name).is_some()
}

/// Where the program `name` is.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps some in sbin, which an ordinary user's path does not name.
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(name))
        .find(|place| place.is_file())
}

/// Runs a program to its end and gives what it printed; an error if it fails.
pub fn output(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("starting {name}"))?;
    anyhow::ensure!(output.status.success(), "{name}: {}", output.status);
    String::from_utf8(output.stdout).with_context(|| format!("reading what {name} printed"))
}

/// How a program ended.
#[derive(Debug)]
pub struct Run {
    pub ended: Ended,
    /// What it printed to standard output, which was shown as it came.
    pub stdout: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    Well,
    Badly(String),
    /// It was still running at the limit and was killed, with everything it had started.
    TimedOut,
}

/// Runs a program, shows its output, and ends it with all its descendants at the limit: a test that hangs must fail
/// and not use up the time of the whole run.
pub fn run(command: &mut Command, limit: Duration) -> anyhow::Result<Run> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {name}"))?;
    let pid = child.id();
    let stdout = child.stdout.take().context("no standard output")?;
    let (send, receive) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n') {
            let Ok(line) = line else { break };
            let mut shown = std::io::stdout().lock();
            let _ = shown.write_all(&line).and_then(|()| shown.write_all(b"\n"));
            let _ = send.send(String::from_utf8_lossy(&line).into_owned());
        }
    });
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = ended.send(child.wait());
    });
    let ended = match end.recv_timeout(limit) {
        Ok(status) => {
            let status = status.with_context(|| format!("waiting for {name}"))?;
            if status.success() {
                Ended::Well
            } else {
                Ended::Badly(status.to_string())
            }
        }
        Err(_) => {
            kill_tree(pid as i32);
            Ended::TimedOut
        }
    };
    // A descendant that lives on may hold the pipe: what came until now has to do.
    let patience = std::time::Instant::now() + Duration::from_secs(5);
    while !reader.is_finished() && std::time::Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(Run {
        ended,
        stdout: receive.try_iter().collect(),
    })
}

/// Kills a process and all that descend from it, the youngest last: a parent that is gone cannot make more.
fn kill_tree(root: i32) {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(1)?.parse::<i32>().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    let mut doomed = vec![root];
    let mut next = 0;
    while let Some(&parent) = doomed.get(next) {
        doomed.extend(
            parents
                .iter()
                .filter(|(_, of)| *of == parent)
                .map(|(pid, _)| *pid),
        );
        next += 1;
    }
    for pid in doomed.into_iter().filter_map(Pid::from_raw) {
        // Gone already is as good.
        let _ = kill_process(pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_ended_with_its_children() {
        let mut shell = command("sh");
        shell.args(["-c", "echo begun; sleep 300 & sleep 300"]);
        let run = run(&mut shell, Duration::from_millis(300)).unwrap();
        assert_eq!(run.ended, Ended::TimedOut);
        assert_eq!(run.stdout, ["begun"]);
    }

    #[test]
    fn a_failure_is_told_from_success() {
        assert_eq!(
            run(&mut command("true"), Duration::from_secs(60))
                .unwrap()
                .ended,
            Ended::Well
        );
        assert!(matches!(
            run(&mut command("false"), Duration::from_secs(60))
                .unwrap()
                .ended,
            Ended::Badly(_)
        ));
    }
}
