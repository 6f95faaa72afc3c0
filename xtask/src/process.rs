//! Starting programs, with a limit on how long they may take.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, PipeReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use crate::launch::{Role, launch};

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

/// Where cargo puts what it builds in a profile for this machine, which `.cargo/config.toml` names as the target.
pub fn build_directory(profile: &str) -> anyhow::Result<PathBuf> {
    let version = output(command("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("`rustc -vV` names no host")?;
    Ok(target_directory().join(host).join(profile))
}

/// A program to be started in the workspace's root.
#[expect(clippy::disallowed_methods, reason = "the tooling starts cargo, apt-get and the like; none of it ships")]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(workspace_root());
    command
}

/// Cargo for building and running tests. The workspace is compiled by clippy's driver, which is rustc that also lints: one
/// compilation does both, and a warning is an error.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = plain_cargo(arguments);
    cargo.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
    // As `cargo clippy -- -D warnings` tells its driver.
    cargo.env("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__");
    cargo
}

/// Cargo, the one that started us, with the compiler that builds what ships.
pub fn plain_cargo(arguments: &[&str]) -> Command {
    let mut cargo = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments);
    // The process that started this program set the variables of its package. Build scripts look at them (ring's does), so
    // what is built here and what a person or a test builds would be compiled again for each other.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    // Flags from the environment would take the place of those in `.cargo/config.toml`, which link everything static.
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
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
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("starting {name}"))?;
    anyhow::ensure!(output.status.success(), "{name}: {}", output.status);
    String::from_utf8(output.stdout).with_context(|| format!("reading what {name} printed"))
}

/// How a program ended.
#[derive(Debug)]
pub struct Run {
    pub ended: Ended,
    /// The lines that were collected; see [`Output`].
    pub lines: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    Well,
    Badly(String),
    /// It was still running at the limit and was killed, with everything it had started.
    TimedOut(Duration),
}

impl Ended {
    /// Why it is no success.
    pub fn failure(&self) -> Option<String> {
        match self {
            Self::Well => None,
            Self::Badly(how) => Some(how.clone()),
            Self::TimedOut(limit) => Some(format!("still running after {} s", limit.as_secs())),
        }
    }
}

/// Where what a program prints goes. Standard output is always collected.
pub enum Output {
    /// Shown as it comes; standard error is the tooling's own.
    Shown,
    /// Not shown: messages for machines.
    Hidden,
    /// Standard error is collected too; each line is handed on as it comes.
    Lines(Box<dyn FnMut(&str) + Send>),
}

/// Runs a program from a known state (see [`launch`]) and ends it with all its descendants at the limit: a test that hangs must
/// fail and not use up the time of the whole run.
pub fn run(command: &Command, role: Role, limit: Duration, output: Output) -> anyhow::Result<Run> {
    let name = command.get_program().to_string_lossy().into_owned();
    let (pipe, writer) = std::io::pipe().context("making a pipe")?;
    let mut launched = launch(command, role);
    if matches!(output, Output::Lines(_)) {
        launched.stderr(writer.try_clone().context("making a pipe")?);
    }
    let mut child = launched.stdin(Stdio::null()).stdout(writer).spawn().with_context(|| format!("starting {name}"))?;
    // It holds a writing end of the pipe.
    drop(launched);
    let pid = child.id();
    let (send, receive) = mpsc::channel();
    let reader = std::thread::spawn(move || collect(pipe, output, &send));
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = ended.send(child.wait());
    });
    let ended = match end.recv_timeout(limit) {
        Ok(status) => {
            let status = status.with_context(|| format!("waiting for {name}"))?;
            if status.success() { Ended::Well } else { Ended::Badly(status.to_string()) }
        }
        Err(_) => {
            kill_tree(pid as i32);
            Ended::TimedOut(limit)
        }
    };
    // A descendant that lives on may hold the pipe: what came until now has to do.
    let deadline = Instant::now() + Duration::from_secs(5);
    while !reader.is_finished() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(Run { ended, lines: receive.try_iter().collect() })
}

fn collect(pipe: PipeReader, mut output: Output, send: &mpsc::Sender<String>) {
    for line in BufReader::new(pipe).split(b'\n') {
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line).into_owned();
        match &mut output {
            Output::Shown => crate::output::line(&line),
            Output::Hidden => {}
            Output::Lines(hand_on) => hand_on(&line),
        }
        let _ = send.send(line);
    }
}

/// Kills a process and all its descendants, and waits until they are gone. They are stopped first: a tree that is still running
/// forks between the look at it and the signal, and what it forked then would live on.
fn kill_tree(root: i32) {
    let deadline = Instant::now() + Duration::from_secs(30);
    let tree = loop {
        let tree = process_tree(root);
        let running = tree.iter().filter(|process| process.may_fork());
        let signalled = running.fold(0, |count, process| {
            signal(process.pid, Signal::STOP);
            count + 1
        });
        if signalled == 0 || Instant::now() >= deadline {
            break tree;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    for process in &tree {
        signal(process.pid, Signal::KILL);
    }
    let alive = |process: &Process| Process::read(process.pid).is_some_and(|now| !now.is_dead());
    while tree.iter().any(alive) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A process as `/proc/PID/stat` shows it.
struct Process {
    pid: i32,
    parent: i32,
    state: char,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name before it is in parentheses and may hold any character.
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        Some(Self { pid, state: fields.next()?.chars().next()?, parent: fields.next()?.parse().ok()? })
    }

    fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    fn may_fork(&self) -> bool {
        !self.is_dead() && !matches!(self.state, 'T' | 't')
    }
}

/// A process and its descendants, parents first.
fn process_tree(root: i32) -> Vec<Process> {
    let mut others: Vec<Process> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != root)
        .filter_map(Process::read)
        .collect();
    let mut tree: Vec<Process> = Process::read(root).into_iter().collect();
    let mut next = 0;
    while let Some(parent) = tree.get(next).map(|process| process.pid) {
        tree.extend(others.extract_if(.., |process| process.parent == parent));
        next += 1;
    }
    tree
}

/// Sends a signal to a process, which may be gone already.
fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_for(program: &Command, limit: Duration) -> Run {
        run(program, Role::Tool, limit, Output::Hidden).unwrap()
    }

    #[test]
    fn a_program_that_hangs_is_ended_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let mut shell = command("sh");
        shell.current_dir(folder.path());
        // The child writes for as long as it lives.
        shell.args(["-c", "while :; do date +%N > alive; done & echo begun; wait"]);
        let limit = Duration::from_millis(300);
        let run = run_for(&shell, limit);
        assert_eq!(run.ended, Ended::TimedOut(limit));
        assert!(run.lines.is_empty() || run.lines == ["begun"]);
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let directories = processes.filter_map(|process| std::fs::read_link(process.path().join("cwd")).ok());
        assert_eq!(directories.filter(|directory| directory == folder.path()).count(), 0);
    }

    #[test]
    fn a_failure_is_distinguished_from_success() {
        let long = Duration::from_secs(600);
        assert_eq!(run_for(&command("true"), long).ended, Ended::Well);
        let mut shell = command("sh");
        shell.args(["-c", "echo out; echo err >&2; exit 3"]);
        let failed = run_for(&shell, long);
        assert!(matches!(failed.ended, Ended::Badly(_)));
        assert_eq!(failed.lines, ["out"]);
    }

    #[test]
    fn lines_of_both_streams_are_handed_on() {
        let mut shell = command("sh");
        shell.args(["-c", "echo out; echo err >&2"]);
        let (send, receive) = mpsc::channel();
        let hand_on = Box::new(move |line: &str| send.send(line.to_owned()).unwrap());
        let long = Duration::from_secs(600);
        let run = run(&shell, Role::Background, long, Output::Lines(hand_on)).unwrap();
        assert_eq!(run.lines, ["out", "err"]);
        assert_eq!(receive.iter().collect::<Vec<_>>(), ["out", "err"]);
    }
}
