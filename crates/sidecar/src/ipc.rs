//! The IPC front end: requests are files on a volume that the other side can write to as well.
//!
//! One loop claims a request whenever a command may start, so that what cannot run yet waits on the volume and not
//! in memory. Everything that is claimed is answered, whatever happens to it.
//!
//! With `--authenticated` the executor announces its start and is healthy, but looks at no request before the bridge has handed it
//! the key of the run; from then on it serves only what the bridge has signed.

mod answer;
mod handover;
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
use crate::isolation::Isolation;
use crate::required::Required;
use crate::sandbox::VolumesFrom;
use crate::{runtime, sandbox};
use handover::Handover;
use wakeups::{Alarm, Events};

/// Serves the volume until it is done, or until the process is asked to end.
///
/// # Errors
/// When it cannot start, or when the sandbox or the volume is gone.
pub fn run(arguments: &IpcArguments) -> Result<(), Failure> {
    run_with(arguments, |config| config)
}

/// As [`run`], with a change to the executor: tests leave layers out that gVisor does not have either.
#[doc(hidden)]
pub fn run_with(arguments: &IpcArguments, change: impl FnOnce(Config) -> Config) -> Result<(), Failure> {
    start_logging(&arguments.log);
    let volume = Volume::open(&arguments.ipc_dir).map_err(|error| {
        Failure::new(error, "mount the volume that is shared with the run there, or name another with --ipc-dir")
    })?;
    let directory = std::fs::canonicalize(&arguments.ipc_dir)
        .with_context(|| format!("{} cannot be resolved", arguments.ipc_dir.display()))?;
    let required = Required::of(arguments);
    let volumes_from = match required {
        Some(_) => VolumesFrom::CommandLine,
        None => VolumesFrom::Mounts,
    };
    let mut config = sandbox::config(&arguments.sandbox, volumes_from, [directory])?;
    config.max_concurrent = arguments.max_concurrent.into();
    if let Some(required) = &required {
        config.floor = required.floor_in(config.profile);
    }
    let executor = sandbox::executor(change(config))?;
    let isolation = match &required {
        Some(required) => Isolation::of(&required.check(executor.report())?),
        None => Isolation::of(executor.report()),
    };
    let max_timeout = Duration::from_secs(arguments.max_timeout);
    let lease_grace = match arguments.claim_lease.map(Duration::from_secs) {
        None => LEASE_GRACE,
        Some(lease) => lease.checked_sub(max_timeout).ok_or_else(|| {
            Failure::new(
                anyhow!("claims would be given up while their commands may still run"),
                "make --claim-lease at least as long as --max-timeout",
            )
        })?,
    };
    let pack = arguments.pack.clone().filter(|pack| !pack.is_empty());
    if arguments.authenticated && matches!(volume.done_state(), Ok(DoneState::Present)) {
        // The kubelet has started it again after it was told to leave. The start is not announced: it would be taken for that of
        // an executor that died. Nor does it leave again, which would be taken for a crash loop and end the run: a `done` that a
        // command wrote is its pack's loss only.
        tracing::info!("told to leave before: nothing is served");
        let ping = Ping::new(&arguments.ipc_dir, pack.as_deref())?;
        return runtime(1).context("the runtime cannot start")?.block_on(stay(&ping)).map_err(Failure::from);
    }
    let handover = match arguments.authenticated {
        true => Some(Handover::begin(&volume, &isolation)?),
        false => None,
    };
    let front = Front {
        handover,
        ping: Ping::new(&arguments.ipc_dir, pack.as_deref())?,
        work: Arc::new(Work {
            isolation,
            executor,
            max_timeout,
            cancel: Cancel::new().context("no descriptor is left")?,
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
    runtime(arguments.max_concurrent.into())
        .context("the runtime cannot start")?
        .block_on(front.serve())
        .map_err(Failure::from)
}

/// Answers probes until the process is asked to end.
async fn stay(ping: &Ping) -> anyhow::Result<()> {
    let (mut signals, mut hangup) = (ShutdownSignals::listen()?, HangupSignal::listen()?);
    let alarm = Alarm::new()?;
    loop {
        ping.answer();
        alarm.set(Instant::now() + PING_INTERVAL)?;
        let how = tokio::select! {
            () = alarm.rings() => continue,
            signal = signals.recv() => signal,
            () = hangup.recv() => "SIGHUP",
        };
        tracing::info!(how, "ended");
        return Ok(());
    }
}

/// How often the volume is looked at without an event. On gVisor none may ever come, which the first look finds out.
fn safety_interval() -> Duration {
    match sympozium_exec::features::is_gvisor() {
        true => Duration::from_secs(1),
        false => SAFETY_INTERVAL,
    }
}

/// The front end while it serves.
struct Front {
    /// The key that is waited for: nothing is served before it is here.
    handover: Option<Handover>,
    work: Arc<Work>,
    inbox: Inbox,
    done: DoneWatch,
    ping: Ping,
    running: JoinSet<Result<(), Gone>>,
    max_concurrent: usize,
}

/// How often an executor that serves nothing looks for probes; they wait for seconds.
const PING_INTERVAL: Duration = Duration::from_millis(200);

/// How many requests are looked at before signals, `done` and probes are again.
const MAX_AT_ONCE: usize = 64;

/// Whether more commands can start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    None,
    Some,
    /// And there is something to look at.
    AndMore,
}

/// Why the loop stops waiting.
enum Wake {
    Requests,
    Signs,
    Ended(Result<(), Gone>),
    Asked(&'static str),
}

impl Front {
    /// Takes a request whenever there is room, until the end; then ends and answers what still runs.
    async fn serve(mut self) -> anyhow::Result<()> {
        let (mut signals, mut hangup) = (ShutdownSignals::listen()?, HangupSignal::listen()?);
        let requests = Events::of(self.inbox.descriptor())?;
        let signs = Events::of(self.done.descriptor())?;
        let alarm = Alarm::new()?;
        tracing::info!(isolation = %self.work.isolation.as_json(), "ready");
        let mut wake = Wake::Signs;
        let end = loop {
            match wake {
                Wake::Requests => {}
                Wake::Signs => {
                    self.ping.answer();
                    match self.done.check() {
                        Ok(DoneCheck::Running) => {}
                        Ok(DoneCheck::Done) => break Ok("done"),
                        Err(error) => break Err(error.into()),
                        Ok(DoneCheck::Foreign(kind)) => {
                            tracing::warn!(%kind, "what is named done is no file and does not count");
                        }
                    }
                    // After the events were taken: one that comes now is told of.
                    if let Err(error) = self.look_for_key() {
                        break Err(error);
                    }
                }
                Wake::Ended(Ok(())) => {}
                Wake::Ended(Err(gone)) => break Err(gone.into()),
                Wake::Asked(how) => break Ok(how),
            }
            let room = match &self.handover {
                Some(_) => Ok(Room::None),
                None => self.take_what_fits(),
            };
            let room = match room {
                Ok(room) => room,
                Err(error) => break Err(error),
            };
            let (has_room, has_more) = (room != Room::None, room == Room::AndMore);
            // Without room, requests are looked at when a command has ended.
            let requests_at = self.inbox.wake_at().filter(|_| has_room);
            let key_at = self.handover.as_ref().map(Handover::wake_at);
            let times = [requests_at, key_at, Some(self.done.wake_at())];
            if let Some(at) = times.into_iter().flatten().min() {
                alarm.set(at)?;
            }
            wake = tokio::select! {
                () = requests.come(), if has_room => Wake::Requests,
                () = tokio::task::yield_now(), if has_more => Wake::Requests,
                Some(ended) = self.running.join_next() => Wake::Ended(ended.unwrap_or(Err(Gone))),
                () = signs.come() => Wake::Signs,
                () = alarm.rings() => Wake::Signs,
                signal = signals.recv() => Wake::Asked(signal),
                () = hangup.recv() => Wake::Asked("SIGHUP"),
            };
        };
        self.work.cancel.cancel();
        let still_running = self.running.len();
        while self.running.join_next().await.is_some() {}
        let how = end?;
        tracing::info!(how, still_running, "ended");
        Ok(())
    }

    /// Takes the key that was waited for, if it is here by now.
    fn look_for_key(&mut self) -> anyhow::Result<()> {
        if let Some(handover) = &self.handover
            && let Some(verifier) = handover.verifier()?
        {
            self.inbox.authenticate(verifier);
            self.handover = None;
            tracing::info!("the key of the run is here");
        }
        Ok(())
    }

    /// Starts what can start, and comes back soon: what needs no room could keep it for ever.
    fn take_what_fits(&mut self) -> anyhow::Result<Room> {
        let mut taken = 0;
        while self.running.len() < self.max_concurrent {
            if taken == MAX_AT_ONCE {
                return Ok(Room::AndMore);
            }
            taken += 1;
            let arrival = self.inbox.next()?;
            if let Some(reason) = self.inbox.take_poll_notice() {
                tracing::warn!(%reason, "no events come from the volume, so it is polled");
                self.done.start_polling(reason);
            }
            match arrival {
                Some(Arrival::Request(claimed, request)) => {
                    let work = Arc::clone(&self.work);
                    (self.running).spawn_blocking(move || work.execute(&claimed, &request));
                }
                Some(Arrival::Refused(claimed, problem)) => {
                    tracing::warn!(id = %claimed.id(), %problem, "request refused");
                    let isolation = &self.work.isolation;
                    let refusal = answer::of_failure(claimed.id(), "refused", &problem, isolation);
                    put(&claimed, &refusal);
                }
                Some(Arrival::Abandoned(abandoned)) => {
                    tracing::warn!(id = %abandoned.id(), "whoever claimed the request has not answered");
                    let isolation = &self.work.isolation;
                    let unknown = answer::of_failure(abandoned.id(), "ambiguous", &Unanswered, isolation);
                    if let Err(error) = abandoned.answer(&unknown) {
                        tell_unwritten(&unknown, &error);
                    }
                }
                Some(Arrival::Ignored { name, reason }) => {
                    tracing::warn!(name, %reason, "ignored");
                }
                None => return Ok(Room::Some),
            }
        }
        Ok(Room::None)
    }
}

/// What the threads that run commands share.
struct Work {
    executor: Executor,
    isolation: Isolation,
    max_timeout: Duration,
    /// The wish that everything ends.
    cancel: Cancel,
}

/// The sandbox is gone, and with it the use of this process.
#[derive(Debug, thiserror::Error)]
#[error("the sandbox for commands is gone")]
struct Gone;

/// What is said of a request that somebody claimed and did not answer.
#[derive(Debug, thiserror::Error)]
#[error("the executor that took this request ended without an answer; the command may have run, in part or in whole")]
struct Unanswered;

impl Work {
    fn execute(&self, claimed: &Claim, request: &ExecRequest) -> Result<(), Gone> {
        let command = answer::command(request, self.max_timeout);
        let ran = self.executor.run(&command, Some(&self.cancel));
        let result = answer::of_run(claimed.id(), &ran, &self.isolation);
        put(claimed, &result);
        // Never the command or its output: they may hold secrets.
        match &ran {
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
        match ran {
            Err(RunError::SandboxGone) => Err(Gone),
            _ => Ok(()),
        }
    }
}

/// Answers, in short if the volume has no room for all of it.
fn put(claimed: &Claim, result: &ExecResult) {
    let Err(error) = claimed.answer(result) else {
        return;
    };
    if claimed.answer(&answer::without_output(result)).is_err() {
        tell_unwritten(result, &error);
    }
}

fn tell_unwritten(result: &ExecResult, error: &AnswerError) {
    tracing::error!(id = %result.id, %error, "the result cannot be written; whoever asked will time out");
}

/// The answer to [`healthcheck`]: the file by which it asks is taken away.
struct Ping {
    volume: OwnedFd,
    name: String,
}

impl Ping {
    fn new(ipc_dir: &Path, pack: Option<&str>) -> anyhow::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            volume: rustix::fs::open(ipc_dir, flags, Mode::empty()).context("the volume is gone")?,
            name: healthcheck::ping(pack),
        })
    }

    fn answer(&self) {
        // Mostly there is none. A directory of that name would keep every probe from being answered.
        if rustix::fs::unlinkat(&self.volume, &self.name, AtFlags::empty()) == Err(Errno::ISDIR) {
            let _ = rustix::fs::unlinkat(&self.volume, &self.name, AtFlags::REMOVEDIR);
        }
    }
}
