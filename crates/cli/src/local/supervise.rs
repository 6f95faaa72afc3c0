//! Runs one part, from its sandbox to its end, on a thread of its own, because an executor blocks until its command
//! ends.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use sympozium_exec::executor::StartError;
use sympozium_exec::{Cancel, Ending, Executor, IsolationReport, RunError};
use tokio::sync::{mpsc, oneshot};

use super::worlds::Sandbox;

/// Bytes that are stored of the log of one part.
pub const MAX_LOG_BYTES: u64 = 4 << 20;
/// Bytes of the end of a log that an error message quotes.
const TAIL_BYTES: usize = 2048;
/// How often a failed skill is restarted.
pub const MAX_RESTARTS: u32 = 3;
/// Pause before the first restart; doubled each time.
const RESTART_PAUSE: Duration = Duration::from_millis(100);
/// Stack size of the thread of a part.
const STACK_BYTES: usize = 256 * 1024;

/// Whether a part that ends by itself is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    Never,
    /// Restarted after a failure, a few times. No command runs twice, because the executor claims each request before
    /// it runs it.
    OnFailure,
}

/// The end of a part.
#[derive(Debug)]
pub struct PartEnd {
    pub part: String,
    pub how: How,
    /// The end of its log.
    pub tail: String,
}

#[derive(Debug)]
pub enum How {
    /// It exited or was killed by a signal.
    Ended(Ending),
    TimedOut,
    OutOfMemory,
    /// The run ended it.
    Cancelled,
    /// It could not be run, or its sandbox was lost.
    Lost(RunError),
}

impl PartEnd {
    /// Whether it exited with code 0.
    pub fn is_well(&self) -> bool {
        matches!(self.how, How::Ended(Ending::Exited(0)))
    }

    /// A description for error messages, with the end of its log.
    pub fn describe(&self) -> String {
        let how = match &self.how {
            How::Ended(Ending::Exited(code)) => format!("exited with code {code}"),
            How::Ended(Ending::Signaled(signal)) => format!("was ended by signal {signal}"),
            How::TimedOut => "took too long".to_owned(),
            How::OutOfMemory => "used more memory than it may".to_owned(),
            How::Cancelled => "was ended".to_owned(),
            How::Lost(error) => sympozium_program::chain(error),
        };
        let tail = self.tail.trim();
        match tail.is_empty() {
            true => format!("{} {how}", self.part),
            false => format!("{} {how}; it last said:\n{tail}", self.part),
        }
    }
}

/// A sandbox that is built.
#[derive(Debug)]
pub struct Built {
    pub report: Arc<IsolationReport>,
    /// Upgrades while the sandbox exists.
    pub executor: Weak<Executor>,
}

/// Makes parts wait until all sandboxes are built.
#[derive(Debug, Default)]
pub struct Gate {
    open: Mutex<Option<bool>>,
    changed: Condvar,
}

impl Gate {
    /// Releases all waiting parts: to start (`true`), or to end without having started.
    pub fn open(&self, through: bool) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some(through);
        self.changed.notify_all();
    }

    /// Waits for the release. Returns whether to start.
    fn pass(&self) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *open {
                Some(through) => return through,
                None => {
                    open = self.changed.wait(open).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

/// A part to run.
pub struct Task {
    pub part: String,
    pub sandbox: Sandbox,
    pub restart: Restart,
    /// What it waits for after its sandbox is built.
    pub gate: Option<Arc<Gate>>,
    pub cancel: Cancel,
    pub log: PartLog,
}

/// Runs a part on a thread of its own. Sends on `built` when its sandbox is built or cannot be, and on `ended` when
/// nothing of the part is left, its sandbox included. Fails if no thread can be started.
pub fn start(
    task: Task,
    built: oneshot::Sender<Result<Built, StartError>>,
    ended: mpsc::UnboundedSender<PartEnd>,
) -> std::io::Result<()> {
    thread::Builder::new()
        .name(format!("part {}", task.part))
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let part = task.part.clone();
            let mut log = task.log;
            let run =
                Run { sandbox: &task.sandbox, restart: task.restart, gate: task.gate.as_deref(), cancel: &task.cancel };
            let how = run.to_the_end(built, &mut log);
            if let Some(how) = how {
                // The receiver may be gone.
                let _ = ended.send(PartEnd { part, how, tail: log.tail() });
            }
        })
        .map(drop)
}

struct Run<'r> {
    sandbox: &'r Sandbox,
    restart: Restart,
    gate: Option<&'r Gate>,
    cancel: &'r Cancel,
}

impl Run<'_> {
    /// Returns `None` if the sandbox could not be built, which was sent on `built`.
    fn to_the_end(&self, built: oneshot::Sender<Result<Built, StartError>>, log: &mut PartLog) -> Option<How> {
        let executor = match Executor::new(self.sandbox.config.clone()) {
            Ok(executor) => Arc::new(executor),
            Err(error) => {
                let _ = built.send(Err(error));
                return None;
            }
        };
        let told = built.send(Ok(Built { report: Arc::clone(executor.report()), executor: Arc::downgrade(&executor) }));
        if told.is_err() || self.gate.is_some_and(|gate| !gate.pass()) {
            return Some(How::Cancelled);
        }
        let mut executor = executor;
        let mut restarts = 0;
        loop {
            let how = self.once(&executor, log);
            let failed = match &how {
                How::Ended(Ending::Exited(0)) | How::Cancelled | How::TimedOut => false,
                How::Ended(_) | How::OutOfMemory | How::Lost(_) => true,
            };
            if !failed || self.restart == Restart::Never || restarts == MAX_RESTARTS || self.cancel.is_cancelled() {
                return Some(how);
            }
            log.note(&format!("it failed ({how:?}) and is started again"));
            thread::sleep(RESTART_PAUSE * 2u32.pow(restarts));
            restarts += 1;
            if matches!(how, How::Lost(RunError::Gone | RunError::Lost(_) | RunError::SupervisorDied)) {
                // The sandbox may be gone with it.
                drop(executor);
                executor = match Executor::new(self.sandbox.config.clone()) {
                    Ok(executor) => Arc::new(executor),
                    Err(_) => return Some(how),
                };
            }
        }
    }

    /// Runs the program of the part, with the forwarder to the gateway beside it.
    fn once(&self, executor: &Executor, log: &mut PartLog) -> How {
        let Some(forward) = &self.sandbox.forward else {
            return ran(executor.run_watched(&self.sandbox.start, Some(self.cancel), &mut |_, bytes| log.write(bytes)));
        };
        let Ok(stop) = Cancel::new() else {
            return How::Lost(RunError::Cancelled);
        };
        thread::scope(|scope| {
            let beside = scope.spawn(|| executor.run(forward, Some(&stop)));
            let main = executor.run_watched(&self.sandbox.start, Some(self.cancel), &mut |_, bytes| log.write(bytes));
            stop.cancel();
            let _ = beside.join();
            ran(main)
        })
    }
}

fn ran(result: Result<sympozium_exec::Outcome, RunError>) -> How {
    match result {
        Ok(outcome) if outcome.cancelled => How::Cancelled,
        Ok(outcome) if outcome.timed_out => How::TimedOut,
        Ok(outcome) if outcome.oom_killed => How::OutOfMemory,
        Ok(outcome) => How::Ended(outcome.ending),
        Err(RunError::Cancelled) => How::Cancelled,
        Err(error) => How::Lost(error),
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
            file: file.with_context(|| format!("cannot make {}", path.display()))?,
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
