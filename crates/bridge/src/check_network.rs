//! Checks whether a pod is confined by its NetworkPolicy: the gateway must answer, and its canary must not.
//!
//! Networks program policies late, in both directions: at first nothing may be reachable, or everything. So this waits
//! for the gateway, and asks a canary that answers again before it believes it. A canary counts as unreachable if
//! several concurrent attempts fail and the gateway answers a moment after them: then the network itself works.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use rustix::fs::{Mode, OFlags};
use sympozium_program::{Failure, ShutdownSignals, start_logging};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::arguments::CheckNetworkArguments;
use crate::program::build_runtime;

/// Default timeout of the whole check.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum of `--timeout`.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
/// How long a canary that answers is asked again if the result is only reported. Every run in a cluster without
/// enforcement waits this long.
pub const REPORTED_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of one attempt to reach the gateway.
const GATEWAY_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout of one attempt to reach the canary: once for connecting, and once for its greeting. Where packets are
/// dropped, every run waits this long.
const CANARY_TIMEOUT: Duration = Duration::from_secs(1);
/// Concurrent attempts to reach the canary: a lost packet must not look like a policy.
const CANARY_ATTEMPTS: usize = 3;
/// How long after the attempts at the canary the gateway is asked. Networks that filter packets in software decide
/// about them in the order of their arrival: when the gateway answers, the packets to the canary have been decided
/// about.
const CONTROL_DELAY: Duration = Duration::from_millis(50);
/// The first pause between two attempts. Each pause is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The interval of log lines while waiting.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// The beginning of the canary's greeting.
const GREETING: &[u8] = b"sympozium-gateway canary";
/// Maximum number of bytes read from an answer.
const MAX_ANSWER_BYTES: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckNetwork {
    pub gateway: SocketAddr,
    pub canary: SocketAddr,
    /// What to do if the canary answers.
    pub enforcement: Enforcement,
    pub timeout: Duration,
}

/// What to do if the policy is not enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforcement {
    /// The run does not start. The check waits for enforcement until its timeout.
    Required,
    /// The run starts, and the result is logged and reported.
    Reported,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The gateway answers, and the canary is unreachable.
    Enforced,
    NotEnforced(CanaryAnswer),
}

/// What a peer at the canary's address does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CanaryAnswer {
    /// It sends the canary's greeting.
    Canary,
    /// It sends something else.
    SomethingElse,
    /// It accepts connections and sends nothing.
    Nothing,
}

impl CanaryAnswer {
    const fn text(self) -> &'static str {
        match self {
            Self::Canary => "the gateway's canary answers",
            Self::SomethingElse => "something that is not the canary answers at its address",
            Self::Nothing => "connections to the gateway's canary are accepted",
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the gateway at {gateway} did not answer in {} s", .waited.as_secs())]
pub struct GatewayUnreachable {
    pub gateway: SocketAddr,
    pub waited: Duration,
    /// The error of the last attempt.
    #[source]
    pub last: io::Error,
}

/// `ipc-bridge check-network`.
pub(crate) fn main(arguments: &CheckNetworkArguments) -> Result<ExitCode, Failure> {
    start_logging(&arguments.log);
    let check = arguments.to_check();
    let verdict = build_runtime()?.block_on(async {
        let mut signals = ShutdownSignals::listen()?;
        tokio::select! {
            checked = check.run() => checked.map_err(|error| Failure::new(
                error,
                "is the gateway running (`kubectl -n sympozium-system get pods`), and does the run's NetworkPolicy let its pods reach it?",
            )),
            _ = signals.recv() => Err(Failure::new(
                anyhow!("asked to end before the network was checked"),
                "the pod was deleted, or took too long to start",
            )),
        }
    })?;
    let canary = check.canary;
    match (verdict, check.enforcement) {
        (Verdict::Enforced, _) => {
            tracing::info!(%canary, "the run's NetworkPolicy is enforced");
            write_termination_log(&arguments.termination_log, "enforced");
            Ok(ExitCode::SUCCESS)
        }
        (Verdict::NotEnforced(answer), Enforcement::Required) => {
            let text = format!("the run's NetworkPolicy is not enforced: {} ({canary})", answer.text());
            write_termination_log(&arguments.termination_log, &format!("unenforced: {text}"));
            Err(Failure::new(
                anyhow!(text),
                "use a network plugin that enforces NetworkPolicies, or a policy whose isolation floor does not need the network",
            ))
        }
        (Verdict::NotEnforced(answer), Enforcement::Reported) => {
            let text = format!("unenforced: nothing holds this run's network in: {} ({canary})", answer.text());
            tracing::warn!(%canary, "{text}");
            write_termination_log(&arguments.termination_log, &text);
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl CheckNetwork {
    /// Waits for the gateway, then for the canary to become unreachable.
    ///
    /// # Errors
    ///
    /// Returns an error if the gateway does not answer in time.
    pub async fn run(&self) -> Result<Verdict, GatewayUnreachable> {
        let start = Instant::now();
        let end = start + self.timeout;
        self.wait_for_gateway(start, end).await?;
        tracing::info!(gateway = %self.gateway, "the gateway answers");
        let settled = match self.enforcement {
            Enforcement::Required => end,
            Enforcement::Reported => end.min(Instant::now() + REPORTED_TIMEOUT),
        };
        let mut pauses = Backoff::new();
        let mut progress = Progress::new();
        loop {
            let (found, gateway_answers) = tokio::join!(self.probe_canary(), self.gateway_still_answers());
            let answer = match found {
                Some(answer) => answer,
                // A packet that was sent after those to the canary got through, so those were dropped and not only
                // delayed.
                None if gateway_answers => return Ok(Verdict::Enforced),
                // Nothing was reachable, by policy or because a busy node delivers nothing: this proves nothing.
                None => {
                    let late = Instant::now() + GATEWAY_TIMEOUT;
                    self.wait_for_gateway(start, end.max(late)).await?;
                    if Instant::now() >= end + GATEWAY_TIMEOUT {
                        return Err(GatewayUnreachable {
                            gateway: self.gateway,
                            waited: start.elapsed(),
                            last: io::ErrorKind::TimedOut.into(),
                        });
                    }
                    continue;
                }
            };
            if Instant::now() >= settled {
                return Ok(Verdict::NotEnforced(answer));
            }
            if progress.is_due() {
                let seconds = start.elapsed().as_secs();
                tracing::info!(canary = %self.canary, seconds, "waiting for the run's NetworkPolicy to be enforced: {}", answer.text());
            }
            pauses.wait(settled).await;
        }
    }

    async fn wait_for_gateway(&self, start: Instant, end: Instant) -> Result<(), GatewayUnreachable> {
        let mut pauses = Backoff::new();
        let mut progress = Progress::new();
        loop {
            let last = match timeout(GATEWAY_TIMEOUT, TcpStream::connect(self.gateway)).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => io::ErrorKind::TimedOut.into(),
            };
            if Instant::now() >= end {
                return Err(GatewayUnreachable { gateway: self.gateway, waited: start.elapsed(), last });
            }
            if progress.is_due() {
                let seconds = start.elapsed().as_secs();
                tracing::info!(gateway = %self.gateway, seconds, error = %last, "waiting for the gateway");
            }
            pauses.wait(end).await;
        }
    }

    /// Whether the gateway accepts a connection that is opened a moment after those to the canary.
    async fn gateway_still_answers(&self) -> bool {
        sleep(CONTROL_DELAY).await;
        matches!(timeout(CANARY_TIMEOUT, TcpStream::connect(self.gateway)).await, Ok(Ok(_)))
    }

    /// What answers at the canary's address, or `None` if all attempts failed.
    async fn probe_canary(&self) -> Option<CanaryAnswer> {
        let attempts: [_; CANARY_ATTEMPTS] = std::array::from_fn(|_| tokio::spawn(probe_once(self.canary)));
        let mut found = None;
        for attempt in attempts {
            // A task that panicked is no evidence of a policy.
            let answer = attempt.await.unwrap_or(Some(CanaryAnswer::Nothing));
            found = found.or(answer);
        }
        found
    }
}

/// Connects and reads. Any answer got through; a refused, reset or dropped connection did not.
async fn probe_once(canary: SocketAddr) -> Option<CanaryAnswer> {
    let connecting = timeout(CANARY_TIMEOUT, TcpStream::connect(canary)).await;
    let mut stream = connecting.ok()?.ok()?;
    let mut answer = [0; MAX_ANSWER_BYTES];
    let mut filled = 0;
    let reading = timeout(CANARY_TIMEOUT, async {
        while filled < answer.len() {
            match stream.read(&mut answer[filled..]).await? {
                0 => break,
                count => filled += count,
            }
        }
        io::Result::Ok(())
    });
    let ending = reading.await;
    match (&answer[..filled], ending) {
        (text, _) if text.starts_with(GREETING) => Some(CanaryAnswer::Canary),
        // Accepted and closed without a byte: by a middlebox. The canary always sends a greeting.
        (b"", Ok(_)) => None,
        (b"", Err(_)) => Some(CanaryAnswer::Nothing),
        _ => Some(CanaryAnswer::SomethingElse),
    }
}

/// Exponential backoff up to a bound.
struct Backoff(Duration);

impl Backoff {
    const fn new() -> Self {
        Self(FIRST_PAUSE)
    }

    async fn wait(&mut self, end: Instant) {
        sleep_until(end.min(Instant::now() + self.0)).await;
        self.0 = (self.0 * 2).min(LONGEST_PAUSE);
    }
}

/// Limits how often a log line about waiting is written.
struct Progress(Option<Instant>);

impl Progress {
    const fn new() -> Self {
        Self(None)
    }

    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = self.0.is_none_or(|last| now - last >= PROGRESS_INTERVAL);
        if due {
            self.0 = Some(now);
        }
        due
    }
}

/// Writes a line to the container's termination log, which the kubelet reads. Outside of pods this file does not exist,
/// and it is not created.
fn write_termination_log(path: &Path, line: &str) {
    let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) {
        let written = writeln!(std::fs::File::from(file), "{line}");
        if let Err(error) = written {
            tracing::debug!(path = %path.display(), %error, "the outcome could not be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two programs do not depend on each other, so the text that they share is compared here.
    #[test]
    fn the_greeting_is_the_gateways() {
        let gateway = include_str!("../../gateway/src/server/canary.rs");
        let greeting = std::str::from_utf8(GREETING).unwrap();
        assert!(gateway.contains(&format!("b\"{greeting}: ")));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_a_bound_and_end_with_the_time() {
        let start = Instant::now();
        let end = start + Duration::from_secs(10);
        let mut pauses = Backoff::new();
        let mut times = Vec::new();
        while Instant::now() < end {
            pauses.wait(end).await;
            times.push(start.elapsed().as_millis());
        }
        assert_eq!(times, [100, 300, 700, 1500, 3100, 5100, 7100, 9100, 10000]);
    }
}
