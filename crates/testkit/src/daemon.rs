//! A program of ours that serves probes, as a child process: started, asked, killed.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};

/// How long a probe may take to answer.
const PROBE_PATIENCE: Duration = Duration::from_secs(60);
/// Lines of its log that a failed test shows.
const LOG_LINES: usize = 40;
/// Bytes of a probe's answer that are read.
const MOST_ANSWER: u64 = 4 * 1024 * 1024;

/// A child that is killed when it is dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    probes: SocketAddr,
    log: PathBuf,
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
    /// Starts a program that was told to serve its probes at this address. What it says goes into the file `log`.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn start(mut command: Command, probes: SocketAddr, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("creating {}", log.display()))?;
        let other = file.try_clone().context("sharing the log")?;
        command.stdin(Stdio::null()).stdout(other).stderr(file);
        Ok(Self { child: command.spawn().context("starting the program")?, probes, log: log.to_owned() })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it answers at a path: the HTTP status and the body. Nothing while it does not answer.
    pub fn ask(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&self.probes, PROBE_PATIENCE).ok()?;
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

    /// `SIGKILL`, as from a node that loses its power. Gives how it ended: perhaps it was first.
    ///
    /// # Errors
    ///
    /// When it cannot be waited for.
    pub fn kill(mut self) -> Result<ExitStatus> {
        let _ = self.child.kill();
        self.child.wait().context("waiting for the program")
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
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
        let mut short = Daemon::start(shell("echo one; echo two >&2"), free_address()?, &log)?;
        assert!(crate::wait_until(Duration::from_secs(60), || short.has_ended()));
        assert_eq!(short.log_tail(), "one\ntwo");
        assert_eq!(short.ask("/healthz"), None);
        let long = Daemon::start(shell("exec sleep 600"), free_address()?, &log)?;
        assert_eq!(long.kill()?.signal(), Some(9));
        Ok(())
    }
}
