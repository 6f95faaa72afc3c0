//! The IPC front end: requests are files on a volume that the other side can write to as well.
//!
//! One loop claims a request whenever a command may start, so that what cannot run yet waits on the volume and not
//! in memory. Everything that is claimed is answered, whatever happens to it.

mod answer;

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use sympozium_exec::{Cancel, Executor, RunError};
use sympozium_ipc::inbox::{AnswerError, LEASE_GRACE};
use sympozium_ipc::message::{ExecRequest, ExecResult};
use sympozium_ipc::watch::SAFETY_INTERVAL;
use sympozium_ipc::{Arrival, Claimed, DoneCheck, DoneWatch, Inbox, InboxSettings, Volume, WatchMode};
use sympozium_program::{Failure, start_logging};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::arguments::IpcArguments;
use crate::healthcheck;
use crate::isolation::Isolation;
use crate::{runtime, sandbox};

/// Serves the volume until it is done, or until the process is asked to end.
pub fn run(arguments: &IpcArguments) -> Result<(), Failure> {
    start_logging(&arguments.log);
    let volume = Volume::open(&arguments.ipc_dir).map_err(|error| {
        Failure::new(error, "mount the volume that is shared with the run there, or name another with --ipc-dir")
    })?;
    let directory = std::fs::canonicalize(&arguments.ipc_dir)
        .with_context(|| format!("{} cannot be resolved", arguments.ipc_dir.display()))?;
    let mut config = sandbox::config(&arguments.sandbox, [directory])?;
    config.max_concurrent = arguments.max_concurrent.into();
    let executor = sandbox::executor(config)?;
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
    let front = Front {
        ping: Ping::new(&arguments.ipc_dir, pack.as_deref())?,
        work: Arc::new(Work {
            isolation: Isolation::of(executor.report()),
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

/// How often the volume is looked at without an event. On gVisor none may ever come, which the first look finds out.
fn safety_interval() -> Duration {
    match sympozium_exec::features::is_gvisor() {
        true => Duration::from_secs(1),
        false => SAFETY_INTERVAL,
    }
}

/// The front end while it serves.
struct Front {
    work: Arc<Work>,
    inbox: Inbox,
    done: DoneWatch,
    ping: Ping,
    running: JoinSet<Result<(), Gone>>,
    max_concurrent: usize,
}

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
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
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
                }
                Wake::Ended(Ok(())) => {}
                Wake::Ended(Err(gone)) => break Err(gone.into()),
                Wake::Asked(how) => break Ok(how),
            }
            let room = match self.take_what_fits() {
                Ok(room) => room,
                Err(error) => break Err(error),
            };
            let (has_room, has_more) = (room != Room::None, room == Room::AndMore);
            // Without room, requests are looked at when a command has ended.
            let requests_at = self.inbox.wake_at().filter(|_| has_room);
            alarm.set(requests_at.map_or(self.done.wake_at(), |at| at.min(self.done.wake_at())))?;
            wake = tokio::select! {
                () = requests.come(), if has_room => Wake::Requests,
                () = tokio::task::yield_now(), if has_more => Wake::Requests,
                Some(ended) = self.running.join_next() => Wake::Ended(ended.unwrap_or(Err(Gone))),
                () = signs.come() => Wake::Signs,
                () = alarm.rings() => Wake::Signs,
                _ = terminate.recv() => Wake::Asked("SIGTERM"),
                _ = interrupt.recv() => Wake::Asked("SIGINT"),
                _ = hangup.recv() => Wake::Asked("SIGHUP"),
            };
        };
        self.work.cancel.cancel();
        let still_running = self.running.len();
        while self.running.join_next().await.is_some() {}
        let how = end?;
        tracing::info!(how, still_running, "ended");
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
            if let Some(reason) = self.inbox.take_notice() {
                tracing::warn!(%reason, "no events come from the volume, so it is polled");
                self.done.poll(reason);
            }
            match arrival {
                Some(Arrival::Request(claimed, request)) => {
                    let work = Arc::clone(&self.work);
                    (self.running).spawn_blocking(move || work.execute(&claimed, &request));
                }
                Some(Arrival::Refused(claimed, problem)) => {
                    tracing::warn!(id = %claimed.id(), %problem, "request refused");
                    let refusal = answer::of_failure(claimed.id(), "refused", &problem);
                    put(&claimed, &refusal);
                }
                Some(Arrival::Abandoned(abandoned)) => {
                    tracing::warn!(id = %abandoned.id(), "whoever claimed the request has not answered");
                    let unknown = answer::of_failure(abandoned.id(), "ambiguous", &Unanswered);
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
    fn execute(&self, claimed: &Claimed, request: &ExecRequest) -> Result<(), Gone> {
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
            Err(RunError::Gone) => Err(Gone),
            _ => Ok(()),
        }
    }
}

/// Answers, in short if the volume has no room for all of it.
fn put(claimed: &Claimed, result: &ExecResult) {
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

/// Something that becomes readable, or nothing at all.
struct Events(Option<AsyncFd<OwnedFd>>);

impl Events {
    /// A descriptor of our own: whoever owns the other is asked for requests while we wait.
    #[expect(
        deprecated,
        reason = "its successor is unsafe because of types that give out another descriptor each time; this one does not"
    )]
    fn of(descriptor: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let own = descriptor.map(|descriptor| descriptor.try_clone_to_owned());
        Ok(Self(match own {
            Some(own) => Some(AsyncFd::with_interest(own?, Interest::READABLE)?),
            None => None,
        }))
    }

    /// The caller then reads until there is no more: readiness is told once.
    async fn come(&self) {
        let ready = match &self.0 {
            Some(descriptor) => descriptor.readable().await,
            None => std::future::pending().await,
        };
        if let Ok(mut ready) = ready {
            ready.clear_ready();
        }
    }
}

/// Wakes once when the time has come. The runtime's own timers take several steps to a time that is far off, and an
/// idle sidecar should be idle.
struct Alarm(Events);

impl Alarm {
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self(Events::of(Some(timer.as_fd()))?))
    }

    /// Takes the place of what was set before.
    fn set(&self, time: Instant) -> io::Result<()> {
        // All zero would mean never.
        let left = time.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let once = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec::try_from(left).map_err(io::Error::other)?,
        };
        if let Some(timer) = &self.0.0 {
            timerfd_settime(timer, TimerfdTimerFlags::empty(), &once)?;
        }
        Ok(())
    }

    async fn rings(&self) {
        self.0.come().await;
    }
}
