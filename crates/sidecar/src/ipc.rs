//! The front end over files: requests arrive on a volume that the requester can write to as well.
//!
//! One loop claims a request whenever a command can start, so that other requests wait on the volume and not in memory.
//! Every claimed request is answered, also when the executor fails.
//!
//! With `--authenticated` the executor announces its start and answers probes, but reads no request before the bridge has
//! handed over the request key; from then on it serves only requests that the bridge has signed.

mod key_handover;
mod result;
mod wakeups;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use sympozium_exec::{Cancel, Config, Executor, RunError};
use sympozium_ipc::inbox::{AnswerError, LEASE_GRACE};
use sympozium_ipc::message::{ExecRequest, ExecResult};
use sympozium_ipc::volume::DoneState;
use sympozium_ipc::watch::SAFETY_INTERVAL;
use sympozium_ipc::{Arrival, Claim, DoneCheck, DoneWatch, Inbox, InboxSettings, Volume, WatchMode};
use sympozium_program::{Failure, HangupSignal, ShutdownSignals, start_logging};
use tokio::task::JoinSet;

use crate::arguments::IpcArguments;
use crate::healthcheck;
use crate::isolation::IsolationSummary;
use crate::required_isolation::RequiredIsolation;
use crate::sandbox::WritableVolumes;
use crate::{build_runtime, sandbox};
use key_handover::KeyHandover;
use wakeups::{Readiness, WakeTimer};

/// Serves the volume until the file `done` appears or a signal arrives.
///
/// # Errors
/// When it cannot start, or when the sandbox or the volume is gone.
pub fn run(arguments: &IpcArguments) -> Result<(), Failure> {
    run_with(arguments, |config| config)
}

/// As [`run`], with a changed executor: tests leave out layers that gVisor does not have either.
#[doc(hidden)]
pub fn run_with(arguments: &IpcArguments, change: impl FnOnce(Config) -> Config) -> Result<(), Failure> {
    start_logging(&arguments.log);
    let volume = Volume::open(&arguments.ipc_dir).map_err(|error| {
        Failure::new(error, "mount the run's shared volume there, or name another directory with --ipc-dir")
    })?;
    let directory = std::fs::canonicalize(&arguments.ipc_dir)
        .with_context(|| format!("{} cannot be resolved", arguments.ipc_dir.display()))?;
    let required = RequiredIsolation::from_arguments(arguments);
    let volumes = match required {
        Some(_) => WritableVolumes::CommandLineOnly,
        None => WritableVolumes::MountedByDefault,
    };
    let mut config = sandbox::build_config(&arguments.sandbox, volumes, [directory])?;
    config.max_concurrent = arguments.max_concurrent.into();
    if let Some(required) = &required {
        config.floor = required.executor_floor(config.profile);
    }
    let executor = sandbox::build_executor(change(config))?;
    let isolation = match &required {
        Some(required) => IsolationSummary::from_report(&required.check(executor.report())?),
        None => IsolationSummary::from_report(executor.report()),
    };
    let max_timeout = Duration::from_secs(arguments.max_timeout);
    let lease_grace = match arguments.claim_lease.map(Duration::from_secs) {
        None => LEASE_GRACE,
        Some(lease) => lease.checked_sub(max_timeout).ok_or_else(|| {
            Failure::new(
                anyhow!("claims would expire while their commands may still run"),
                "make --claim-lease at least as long as --max-timeout",
            )
        })?,
    };
    let pack = arguments.pack.clone().filter(|pack| !pack.is_empty());
    if arguments.authenticated && matches!(volume.done_state(), Ok(DoneState::Present)) {
        // The kubelet has restarted this container after `done`. Another announced start would look like an executor that
        // died, and another exit like a crash loop; both end the run. But `done` may have been written by a command, which
        // must harm only its own pack.
        tracing::info!("the file `done` exists: no requests are served");
        let responder = ProbeResponder::new(&arguments.ipc_dir, pack.as_deref())?;
        let runtime = build_runtime(1).context("the runtime cannot be started")?;
        return runtime.block_on(answer_probes(&responder)).map_err(Failure::from);
    }
    let key_handover =
        if arguments.authenticated { Some(KeyHandover::announce_start(&volume, &isolation)?) } else { None };
    let front_end = FrontEnd {
        key_handover,
        probe_responder: ProbeResponder::new(&arguments.ipc_dir, pack.as_deref())?,
        runner: Arc::new(CommandRunner {
            isolation,
            executor,
            max_timeout,
            cancel: Cancel::new().context("no file descriptor is left")?,
        }),
        done: DoneWatch::new(&volume, WatchMode::Automatic),
        inbox: Inbox::new(
            &volume,
            InboxSettings {
                pack,
                max_timeout,
                lease_grace,
                safety_interval: safety_interval(),
                ..InboxSettings::default()
            },
        ),
        running: JoinSet::new(),
        max_concurrent: arguments.max_concurrent.into(),
    };
    build_runtime(arguments.max_concurrent.into())
        .context("the runtime cannot be started")?
        .block_on(front_end.serve())
        .map_err(Failure::from)
}

/// Answers probes until a signal arrives.
async fn answer_probes(responder: &ProbeResponder) -> anyhow::Result<()> {
    let (mut signals, mut hangup) = (ShutdownSignals::listen()?, HangupSignal::listen()?);
    let timer = WakeTimer::new()?;
    loop {
        responder.answer();
        timer.set(Instant::now() + PROBE_INTERVAL)?;
        let how = tokio::select! {
            () = timer.wait() => continue,
            signal = signals.recv() => signal,
            () = hangup.recv() => "SIGHUP",
        };
        tracing::info!(how, "ended");
        return Ok(());
    }
}

/// How often the volume is read without an event. On gVisor there may be none at all; the first read detects that.
fn safety_interval() -> Duration {
    if sympozium_exec::features::is_gvisor() { Duration::from_secs(1) } else { SAFETY_INTERVAL }
}

struct FrontEnd {
    /// While it is `Some`, the key has not arrived and nothing is served.
    key_handover: Option<KeyHandover>,
    runner: Arc<CommandRunner>,
    inbox: Inbox,
    done: DoneWatch,
    probe_responder: ProbeResponder,
    running: JoinSet<Result<(), SandboxGone>>,
    max_concurrent: usize,
}

/// How often an executor that serves nothing answers probes; their timeout is in seconds.
const PROBE_INTERVAL: Duration = Duration::from_millis(200);

/// How many requests are read before signals, `done` and probes are checked again.
const MAX_PER_TURN: usize = 64;

/// Whether more commands can start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Capacity {
    Full,
    Free,
    /// Free, and there are requests that have not been read.
    FreeWithBacklog,
}

/// Why the loop continues.
enum Wakeup {
    Requests,
    /// A change of `done`, the key or a probe's file; or the timer.
    Control,
    CommandEnded(Result<(), SandboxGone>),
    Signal(&'static str),
}

impl FrontEnd {
    /// Starts commands until `done`, a signal or an error; then cancels those that still run and waits for their results.
    async fn serve(mut self) -> anyhow::Result<()> {
        let (mut signals, mut hangup) = (ShutdownSignals::listen()?, HangupSignal::listen()?);
        let requests = Readiness::new(self.inbox.descriptor())?;
        let control = Readiness::new(self.done.descriptor())?;
        let timer = WakeTimer::new()?;
        tracing::info!(isolation = %self.runner.isolation.as_json(), "ready");
        let mut wakeup = Wakeup::Control;
        let end = loop {
            match wakeup {
                Wakeup::Requests => {}
                Wakeup::Control => {
                    self.probe_responder.answer();
                    match self.done.check() {
                        Ok(DoneCheck::Running) => {}
                        Ok(DoneCheck::Done) => break Ok("done"),
                        Err(error) => break Err(error.into()),
                        Ok(DoneCheck::Foreign(kind)) => {
                            tracing::warn!(%kind, "`done` is not a regular file and is ignored");
                        }
                    }
                    // After the events were consumed: a key that arrives from now on causes another one.
                    if let Err(error) = self.take_key() {
                        break Err(error);
                    }
                }
                Wakeup::CommandEnded(Ok(())) => {}
                Wakeup::CommandEnded(Err(gone)) => break Err(gone.into()),
                Wakeup::Signal(name) => break Ok(name),
            }
            let capacity = match &self.key_handover {
                Some(_) => Ok(Capacity::Full),
                None => self.start_commands(),
            };
            let capacity = match capacity {
                Ok(capacity) => capacity,
                Err(error) => break Err(error),
            };
            let is_free = capacity != Capacity::Full;
            // At full capacity, requests are read when a command has ended.
            let next_requests = self.inbox.wake_at().filter(|_| is_free);
            let next_key = self.key_handover.as_ref().map(KeyHandover::next_poll);
            let deadlines = [next_requests, next_key, Some(self.done.wake_at())];
            if let Some(deadline) = deadlines.into_iter().flatten().min() {
                timer.set(deadline)?;
            }
            wakeup = tokio::select! {
                () = requests.wait(), if is_free => Wakeup::Requests,
                () = tokio::task::yield_now(), if capacity == Capacity::FreeWithBacklog => Wakeup::Requests,
                Some(ended) = self.running.join_next() => Wakeup::CommandEnded(ended.unwrap_or(Err(SandboxGone))),
                () = control.wait() => Wakeup::Control,
                () = timer.wait() => Wakeup::Control,
                signal = signals.recv() => Wakeup::Signal(signal),
                () = hangup.recv() => Wakeup::Signal("SIGHUP"),
            };
        };
        self.runner.cancel.cancel();
        let still_running = self.running.len();
        while self.running.join_next().await.is_some() {}
        let how = end?;
        tracing::info!(how, still_running, "ended");
        Ok(())
    }

    /// Takes the request key if it is awaited and has arrived.
    fn take_key(&mut self) -> anyhow::Result<()> {
        if let Some(handover) = &self.key_handover
            && let Some(verifier) = handover.take_verifier()?
        {
            self.inbox.authenticate(verifier);
            self.key_handover = None;
            tracing::info!("the request key has arrived");
        }
        Ok(())
    }

    /// Starts commands up to `max_concurrent`, and returns after [`MAX_PER_TURN`] requests: those that start no command
    /// would otherwise occupy the loop without end.
    fn start_commands(&mut self) -> anyhow::Result<Capacity> {
        let mut read = 0;
        while self.running.len() < self.max_concurrent {
            if read == MAX_PER_TURN {
                return Ok(Capacity::FreeWithBacklog);
            }
            read += 1;
            let arrival = self.inbox.next()?;
            if let Some(reason) = self.inbox.take_poll_notice() {
                tracing::warn!(%reason, "the volume delivers no events and is polled");
                self.done.start_polling(reason);
            }
            match arrival {
                Some(Arrival::Request(claimed, request)) => {
                    let runner = Arc::clone(&self.runner);
                    self.running.spawn_blocking(move || runner.run(&claimed, &request));
                }
                Some(Arrival::Refused(claimed, problem)) => {
                    tracing::warn!(id = %claimed.id(), %problem, "request refused");
                    let refusal = result::from_failure(claimed.id(), "refused", &problem, &self.runner.isolation);
                    write_result(&claimed, &refusal);
                }
                Some(Arrival::Abandoned(abandoned)) => {
                    tracing::warn!(id = %abandoned.id(), "the executor that claimed the request has not answered");
                    let isolation = &self.runner.isolation;
                    let unknown = result::from_failure(abandoned.id(), "ambiguous", &ClaimAbandoned, isolation);
                    if let Err(error) = abandoned.answer(&unknown) {
                        log_unwritten(&unknown, &error);
                    }
                }
                Some(Arrival::Ignored { name, reason }) => {
                    tracing::warn!(name, %reason, "request ignored");
                }
                None => return Ok(Capacity::Free),
            }
        }
        Ok(Capacity::Full)
    }
}

/// Shared by the threads that run commands.
struct CommandRunner {
    executor: Executor,
    isolation: IsolationSummary,
    max_timeout: Duration,
    /// Cancels every command at shutdown.
    cancel: Cancel,
}

/// No command can run any more, so the process must exit.
#[derive(Debug, thiserror::Error)]
#[error("the sandbox for commands is gone")]
struct SandboxGone;

/// Another executor claimed the request, and its claim has expired.
#[derive(Debug, thiserror::Error)]
#[error(
    "the executor that claimed this request ended without an answer; the command may have run, in part or completely"
)]
struct ClaimAbandoned;

impl CommandRunner {
    fn run(&self, claimed: &Claim, request: &ExecRequest) -> Result<(), SandboxGone> {
        let command = result::build_request(request, self.max_timeout);
        let outcome = self.executor.run(&command, Some(&self.cancel));
        let result = result::from_run(claimed.id(), &outcome, &self.isolation);
        write_result(claimed, &result);
        // Never the command or its output: they may contain secrets.
        match &outcome {
            Ok(outcome) => tracing::info!(
                id = %claimed.id(),
                exit_code = result.exit_code,
                timed_out = outcome.timed_out,
                cancelled = outcome.cancelled,
                duration_millis = u64::try_from(outcome.duration.as_millis()).unwrap_or(u64::MAX),
                "executed"
            ),
            Err(error) => {
                tracing::warn!(id = %claimed.id(), exit_code = result.exit_code, %error, "not executed")
            }
        }
        match outcome {
            Err(RunError::SandboxGone) => Err(SandboxGone),
            _ => Ok(()),
        }
    }
}

/// Writes the result, without output if the volume is too full for it.
fn write_result(claimed: &Claim, result: &ExecResult) {
    let Err(error) = claimed.answer(result) else {
        return;
    };
    if claimed.answer(&result::without_output(result)).is_err() {
        log_unwritten(result, &error);
    }
}

fn log_unwritten(result: &ExecResult, error: &AnswerError) {
    tracing::error!(id = %result.id, %error, "the result cannot be written; the requester will time out");
}

/// Answers [`healthcheck`] by removing the file that it has created.
struct ProbeResponder {
    volume: OwnedFd,
    name: String,
}

impl ProbeResponder {
    fn new(ipc_dir: &Path, pack: Option<&str>) -> anyhow::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            volume: rustix::fs::open(ipc_dir, flags, Mode::empty()).context("the volume is gone")?,
            name: healthcheck::probe_file_name(pack),
        })
    }

    fn answer(&self) {
        // Usually there is none. A directory with that name would keep every probe from being answered.
        if rustix::fs::unlinkat(&self.volume, &self.name, AtFlags::empty()) == Err(Errno::ISDIR) {
            let _ = rustix::fs::unlinkat(&self.volume, &self.name, AtFlags::REMOVEDIR);
        }
    }
}
