//! Runs `--key-command`, the user's own command that prints the key, with the user's rights and environment.

use std::io::Read;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use sympozium_api::text::is_visible;
use zeroize::Zeroizing;

use super::{MAX_KEY_BYTES, parse_key};

pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of its stderr that an error message quotes: the last ones.
const STDERR_TAIL_BYTES: usize = 2 << 10;
/// How often its exit status is polled after it has closed its output.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Runs the command and returns the key that it printed.
pub fn run(command: &str) -> anyhow::Result<Zeroizing<String>> {
    run_within(command, TIMEOUT)
}

pub fn run_within(command: &str, timeout: Duration) -> anyhow::Result<Zeroizing<String>> {
    let mut running = KeyCommand::start(command)?;
    let deadline = Instant::now() + timeout;
    let printed = running.read_stdout(deadline)?;
    if printed.len() > MAX_KEY_BYTES {
        bail!("the key command printed more than {MAX_KEY_BYTES} bytes, which is too long for a key");
    }
    let status = running.wait(deadline)?;
    if !status.success() {
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exited with code {code}"),
            (None, signal) => format!("was killed by signal {}", signal.unwrap_or_default()),
        };
        let stderr = running.read_stderr();
        let why = match stderr.is_empty() {
            true => String::new(),
            false => format!(": {stderr}"),
        };
        return Err(anyhow!("the key command {how}{why}"));
    }
    running.has_succeeded = true;
    parse_key(&printed).context("the output of the key command")
}

/// The command and every process in its group, killed unless it succeeds.
struct KeyCommand {
    child: Child,
    stdout: Receiver<Zeroizing<Vec<u8>>>,
    stderr: Receiver<Zeroizing<Vec<u8>>>,
    has_succeeded: bool,
}

impl KeyCommand {
    fn start(command: &str) -> anyhow::Result<Self> {
        #[expect(
            clippy::disallowed_methods,
            reason = "it is the user's own command, with their rights and environment: no sandbox is wanted around it"
        )]
        let mut shell = Command::new("sh");
        let mut child = shell
            .args(["-c", command])
            // A process group of its own, so that it can be killed as a whole.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start sh for the key command")?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            bail!("the key command has no output");
        };
        Ok(Self {
            child,
            stdout: read_in_thread(move || read_head(stdout)),
            stderr: read_in_thread(move || read_tail(stderr)),
            has_succeeded: false,
        })
    }

    /// Waits for its output: all of it, or more than a key may have.
    fn read_stdout(&self, deadline: Instant) -> anyhow::Result<Zeroizing<Vec<u8>>> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.stdout.recv_timeout(left).map_err(|_| timed_out())
    }

    /// Waits for its exit.
    fn wait(&mut self, deadline: Instant) -> anyhow::Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait().context("cannot wait for the key command")? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                return Err(timed_out());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// The last bytes of its stderr, printable.
    fn read_stderr(&mut self) -> String {
        // Its children may hold the other end of the pipe open.
        self.kill();
        let text = self.stderr.recv_timeout(Duration::from_secs(1));
        let text = text.unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let text = text.trim().replace(['\n', '\t'], " ");
        text.chars().filter(|it| is_visible(*it)).collect()
    }

    fn kill(&mut self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have exited already.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for KeyCommand {
    fn drop(&mut self) {
        if !self.has_succeeded {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

fn timed_out() -> anyhow::Error {
    anyhow!("the key command took too long and was killed")
}

fn read_in_thread(read: impl FnOnce() -> Zeroizing<Vec<u8>> + Send + 'static) -> Receiver<Zeroizing<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // The receiver may have timed out.
        let _ = sender.send(read());
    });
    receiver
}

/// Reads one byte more than a key may have.
fn read_head(stream: impl Read) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(Vec::new());
    // Bytes read before an error are not the key; the exit status shows that.
    let _ = stream.take(MAX_KEY_BYTES as u64 + 1).read_to_end(&mut bytes);
    bytes
}

/// Reads everything and keeps the last bytes.
fn read_tail(mut stream: impl Read) -> Zeroizing<Vec<u8>> {
    let mut tail = Zeroizing::new(Vec::new());
    let mut chunk = [0; 1024];
    while let Ok(count @ 1..) = stream.read(&mut chunk) {
        tail.extend_from_slice(&chunk[..count]);
        let too_much = tail.len().saturating_sub(STDERR_TAIL_BYTES);
        tail.drain(..too_much);
    }
    tail
}
