//! A program of ours that serves until it is told to end, as a child process: started, asked, signalled, killed.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::wait_until;

/// How long a probe may take to answer.
const PROBE_PATIENCE: Duration = Duration::from_secs(60);
/// How long a line may take to be logged, or the program to end.
const PATIENCE: Duration = Duration::from_secs(180);
/// Lines of its log that a failed test shows.
const LOG_LINES: usize = 40;
/// Bytes of a probe's answer that are read.
const MOST_ANSWER: u64 = 4 * 1024 * 1024;
/// What a program logs when it serves its probes.
const PROBES: &str = "listening for probes";

/// A child that is killed when it is dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    log: PathBuf,
    probes: OnceLock<SocketAddr>,
}

/// An address of loopback that is not in use now. It is no other process's until it is used, either: each has an address of its
/// own in 127.0.0.0/8, and only the port is looked for.
///
/// # Errors
///
/// When there is no port.
pub fn free_address() -> Result<SocketAddr> {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let own = Ipv4Addr::new(127, 64 | high, middle, low);
    let listener = TcpListener::bind((own, 0)).context("looking for a port")?;
    listener.local_addr().context("asking for the port")
}

impl Daemon {
    /// Starts a program. What it logs goes into the file `log`, as JSON unless the command says otherwise; where it listens it
    /// logs, so that it can take any port.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn start(mut command: Command, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("creating {}", log.display()))?;
        let other = file.try_clone().context("sharing the log")?;
        command.stdin(Stdio::null()).stdout(other).stderr(file);
        let child = command.spawn().context("starting the program")?;
        Ok(Self { child, log: log.to_owned(), probes: OnceLock::new() })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The address of the line with this message in its log, once that is there.
    pub fn address(&self, message: &str) -> Option<SocketAddr> {
        self.log().lines().find_map(|line| {
            let line: Value = serde_json::from_str(line).ok().filter(|line: &Value| line["message"] == message)?;
            let address = line["address"].as_str()?;
            address.trim_start_matches("Some(").trim_end_matches(')').parse().ok()
        })
    }

    /// What its probes answer at a path: the HTTP status and the body. Nothing while they do not answer.
    pub fn ask(&self, path: &str) -> Option<(u16, String)> {
        let probes = match self.probes.get() {
            Some(known) => *known,
            None => {
                let found = self.address(PROBES)?;
                *self.probes.get_or_init(|| found)
            }
        };
        let mut stream = TcpStream::connect_timeout(&probes, PROBE_PATIENCE).ok()?;
        stream.set_read_timeout(Some(PROBE_PATIENCE)).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: probes\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.take(MOST_ANSWER).read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Sends a signal.
    ///
    /// # Errors
    ///
    /// When it has ended and was waited for.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("sending a signal")
    }

    /// Waits until it has ended by itself, and returns how; `None` when it does not.
    pub fn wait(&mut self) -> Option<ExitStatus> {
        wait_until(PATIENCE, || self.has_ended());
        self.child.try_wait().ok().flatten()
    }

    /// `SIGKILL`, as from a node that loses its power. Returns how it ended: perhaps it was first.
    ///
    /// # Errors
    ///
    /// When it cannot be waited for.
    pub fn kill(mut self) -> Result<ExitStatus> {
        let _ = self.child.kill();
        self.child.wait().context("waiting for the program")
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until its log has a text in it.
    ///
    /// # Panics
    ///
    /// When it does not get there.
    #[track_caller]
    pub fn wait_for_log(&self, text: &str) {
        assert!(wait_until(PATIENCE, || self.log().contains(text)), "no {text:?} in {}", self.log());
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        let text = self.log();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn one_that_ends_is_seen_one_that_does_not_is_killed_and_the_log_is_kept() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let log = folder.path().join("log");
        let shell = |line: &str| {
            let mut command = crate::command("/bin/sh");
            command.args(["-c", line]);
            command
        };
        let mut short = Daemon::start(shell("echo one; echo two >&2"), &log)?;
        assert!(short.wait().is_some_and(|status| status.success()));
        assert_eq!(short.log_tail(), "one\ntwo");
        assert_eq!(short.ask("/healthz"), None);
        let line = r#"echo '{"message":"listening","address":"Some(127.0.0.1:7)"}'; exec sleep 600"#;
        let long = Daemon::start(shell(line), &log)?;
        long.wait_for_log("listening");
        assert_eq!(long.address("listening"), Some(SocketAddr::from(([127, 0, 0, 1], 7))));
        assert_eq!(long.address("listening for probes"), None);
        assert_eq!(long.kill()?.signal(), Some(9));
        Ok(())
    }
}
