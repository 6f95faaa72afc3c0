//! Runs one part, from its sandbox to its end, on a thread of its own, because an executor blocks until its command
//! ends.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::{Condvar, Mutex};
use sympozium_exec::executor::StartError;
use sympozium_exec::{Cancel, Executor, IsolationReport, RunError, Termination};
use tokio::sync::{mpsc, oneshot};

use crate::sandbox_spec::PartSpec;

/// Bytes that are stored of the log of one part.
pub const MAX_LOG_BYTES: u64 = 4 << 20;
/// Bytes of the end of a log that an error message quotes.
const TAIL_BYTES: usize = 2048;
/// How often a failed skill is restarted.
pub const MAX_RESTARTS: u32 = 3;
/// Pause before the first restart; doubled each time.
const RESTART_BACKOFF: Duration = Duration::from_millis(100);
/// Stack size of the thread of a part.
const STACK_BYTES: usize = 256 * 1024;

/// Whether a part that ends by itself is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    Never,
    /// Restarted after a failure, a few times. No command runs twice, because the executor claims each request before
    /// it runs it.
    OnFailure,
}

/// The end of a part.
#[derive(Debug)]
pub struct PartEnd {
    pub part: String,
    pub termination: PartTermination,
    /// The end of its log.
    pub tail: String,
}

#[derive(Debug)]
pub enum PartTermination {
    /// It exited or was killed by a signal.
    Ended(Termination),
    TimedOut,
    OutOfMemory,
    /// The run ended it.
    Cancelled,
    /// It could not be run, or its sandbox was lost.
    Lost(RunError),
}

impl PartEnd {
    /// Whether it exited with code 0.
    pub fn is_success(&self) -> bool {
        matches!(self.termination, PartTermination::Ended(Termination::Exited(0)))
    }

    /// A description for error messages, with the end of its log.
    pub fn describe(&self) -> String {
        let how = match &self.termination {
            PartTermination::Ended(Termination::Exited(code)) => format!("exited with code {code}"),
            PartTermination::Ended(Termination::Signaled(signal)) => format!("was killed by signal {signal}"),
            PartTermination::TimedOut => "timed out".to_owned(),
            PartTermination::OutOfMemory => "exceeded its memory limit".to_owned(),
            PartTermination::Cancelled => "was cancelled".to_owned(),
            PartTermination::Lost(error) => sympozium_program::error_chain(error),
        };
        let tail = self.tail.trim();
        match tail.is_empty() {
            true => format!("{} {how}", self.part),
            false => format!("{} {how}; the end of its log:\n{tail}", self.part),
        }
    }
}

/// A sandbox that is built.
#[derive(Debug)]
pub struct BuiltSandbox {
    pub report: Arc<IsolationReport>,
    /// Upgrades while the sandbox exists.
    pub executor: Weak<Executor>,
}

/// Makes parts wait until all sandboxes are built.
#[derive(Debug, Default)]
pub struct StartBarrier {
    decision: Mutex<Option<bool>>,
    changed: Condvar,
}

impl StartBarrier {
    /// Releases all waiting parts: to start (`true`), or to end without having started.
    pub fn release(&self, through: bool) {
        *self.decision.lock() = Some(through);
        self.changed.notify_all();
    }

    /// Waits for the release. Returns whether to start.
    fn wait(&self) -> bool {
        let mut open = self.decision.lock();
        loop {
            match *open {
                Some(through) => return through,
                None => self.changed.wait(&mut open),
            }
        }
    }
}

/// A part to run.
pub struct PartTask {
    pub part: String,
    pub spec: PartSpec,
    pub restart: RestartPolicy,
    /// What it waits for after its sandbox is built.
    pub barrier: Option<Arc<StartBarrier>>,
    pub cancel: Cancel,
    pub log: PartLog,
}

/// Runs a part on a thread of its own. Sends on `built` when its sandbox is built or cannot be, and on `ended` when
/// nothing of the part is left, its sandbox included. Fails if no thread can be started.
pub fn spawn_part(
    task: PartTask,
    built: oneshot::Sender<Result<BuiltSandbox, StartError>>,
    ended: mpsc::UnboundedSender<PartEnd>,
) -> std::io::Result<()> {
    thread::Builder::new()
        .name(format!("part {}", task.part))
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let part = task.part.clone();
            let mut log = task.log;
            let run = PartRunner {
                spec: &task.spec,
                restart: task.restart,
                barrier: task.barrier.as_deref(),
                cancel: &task.cancel,
            };
            let how = run.run(built, &mut log);
            if let Some(how) = how {
                // The receiver may be gone.
                let _ = ended.send(PartEnd { part, termination: how, tail: log.tail() });
            }
        })
        .map(drop)
}

struct PartRunner<'r> {
    spec: &'r PartSpec,
    restart: RestartPolicy,
    barrier: Option<&'r StartBarrier>,
    cancel: &'r Cancel,
}

impl PartRunner<'_> {
    /// Returns `None` if the sandbox could not be built, which was sent on `built`.
    fn run(
        &self,
        built: oneshot::Sender<Result<BuiltSandbox, StartError>>,
        log: &mut PartLog,
    ) -> Option<PartTermination> {
        let executor = match Executor::new(self.spec.config.clone()) {
            Ok(executor) => Arc::new(executor),
            Err(error) => {
                let _ = built.send(Err(error));
                return None;
            }
        };
        let sent =
            built.send(Ok(BuiltSandbox { report: Arc::clone(executor.report()), executor: Arc::downgrade(&executor) }));
        if sent.is_err() || self.barrier.is_some_and(|gate| !gate.wait()) {
            return Some(PartTermination::Cancelled);
        }
        let mut executor = executor;
        let mut restarts = 0;
        loop {
            let how = self.run_once(&executor, log);
            let failed = match &how {
                PartTermination::Ended(Termination::Exited(0))
                | PartTermination::Cancelled
                | PartTermination::TimedOut => false,
                PartTermination::Ended(_) | PartTermination::OutOfMemory | PartTermination::Lost(_) => true,
            };
            if !failed || self.restart == RestartPolicy::Never || restarts == MAX_RESTARTS || self.cancel.is_cancelled()
            {
                return Some(how);
            }
            log.note(&format!("the part failed ({how:?}) and is restarted"));
            thread::sleep(RESTART_BACKOFF * 2u32.pow(restarts));
            restarts += 1;
            if matches!(
                how,
                PartTermination::Lost(RunError::SandboxGone | RunError::ContactLost(_) | RunError::SupervisorDied)
            ) {
                // The sandbox may be gone with it.
                drop(executor);
                executor = match Executor::new(self.spec.config.clone()) {
                    Ok(executor) => Arc::new(executor),
                    Err(_) => return Some(how),
                };
            }
        }
    }

    /// Runs the program of the part, and concurrently the forwarder to the gateway.
    fn run_once(&self, executor: &Executor, log: &mut PartLog) -> PartTermination {
        let Some(forward) = &self.spec.forward else {
            return to_termination(
                executor.run_with_output(&self.spec.start, Some(self.cancel), &mut |_, bytes| log.write(bytes)),
            );
        };
        let Ok(stop) = Cancel::new() else {
            return PartTermination::Lost(RunError::Cancelled);
        };
        thread::scope(|scope| {
            let forwarder = scope.spawn(|| executor.run(forward, Some(&stop)));
            let main = executor.run_with_output(&self.spec.start, Some(self.cancel), &mut |_, bytes| log.write(bytes));
            stop.cancel();
            let _ = forwarder.join();
            to_termination(main)
        })
    }
}

fn to_termination(result: Result<sympozium_exec::Outcome, RunError>) -> PartTermination {
    match result {
        Ok(outcome) if outcome.cancelled => PartTermination::Cancelled,
        Ok(outcome) if outcome.timed_out => PartTermination::TimedOut,
        Ok(outcome) if outcome.oom_killed => PartTermination::OutOfMemory,
        Ok(outcome) => PartTermination::Ended(outcome.termination),
        Err(RunError::Cancelled) => PartTermination::Cancelled,
        Err(error) => PartTermination::Lost(error),
    }
}

/// The log of a part: the beginning in a file, the end in memory.
#[derive(Debug)]
pub struct PartLog {
    file: File,
    written: u64,
    tail: Vec<u8>,
}

impl PartLog {
    /// The file must not exist.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(path);
        Ok(Self {
            file: file.with_context(|| format!("cannot create {}", path.display()))?,
            written: 0,
            tail: Vec::new(),
        })
    }

    fn write(&mut self, bytes: &[u8]) {
        let room = usize::try_from(MAX_LOG_BYTES - self.written).unwrap_or(usize::MAX);
        let fitting = &bytes[..bytes.len().min(room)];
        // A full disk must not end the part: only its log is lost.
        if self.file.write_all(fitting).is_ok() {
            self.written += fitting.len() as u64;
        }
        self.tail.extend_from_slice(bytes);
        if self.tail.len() > 2 * TAIL_BYTES {
            let start = self.tail.len() - TAIL_BYTES;
            self.tail.drain(..start);
        }
    }

    fn note(&mut self, text: &str) {
        self.write(format!("sympozium: {text}\n").as_bytes());
    }

    fn tail(&self) -> String {
        let start = self.tail.len().saturating_sub(TAIL_BYTES);
        String::from_utf8_lossy(&self.tail[start..]).into_owned()
    }
}
