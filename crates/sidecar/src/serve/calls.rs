//! Executing: so many at once, so many waiting, and each ended when nobody wants it any more.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::StatusCode;
use sympozium_exec::lookup::{LookupError, SkillName};
use sympozium_exec::{Cancel, Executor, Outcome, RunError};
use sympozium_program::error_chain;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::answer::{ErrorAnswer, Finished};
use super::body::Call;
use super::metrics::{Kind, Metrics};

/// Calls that wait for their turn; more are turned away.
pub const MAX_WAITING: usize = 256;
/// When a caller that was turned away should come back [seconds].
const BUSY_RETRY_AFTER: u32 = 1;

/// The executor, and who may use it when.
#[derive(Debug)]
pub struct Calls {
    executor: Arc<Executor>,
    turns: Arc<Semaphore>,
    waiting: AtomicUsize,
    metrics: Arc<Metrics>,
    gone: Notify,
}

/// Whether a call takes one of the places for those that wait. Tasks have a quota of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// Its caller waits for the answer.
    Bounded,
    /// It is a task.
    Task,
}

impl Calls {
    /// At most `max_concurrent` at once.
    pub fn new(executor: Executor, max_concurrent: usize, metrics: Arc<Metrics>) -> Self {
        Self {
            executor: Arc::new(executor),
            turns: Arc::new(Semaphore::new(max_concurrent)),
            waiting: AtomicUsize::new(0),
            metrics,
            gone: Notify::new(),
        }
    }

    /// Waits until the sandbox is found to be gone; nothing can be executed from then on.
    pub async fn gone(&self) {
        self.gone.notified().await;
    }

    /// Runs `skill` and returns when nothing of it lives.
    ///
    /// It is ended early when `stop` is ready, and when the returned future is dropped: then in the background.
    ///
    /// # Errors
    /// What the caller is told when there is no result. Unless its status is 500, nothing was executed.
    pub async fn run(
        &self,
        skill: &SkillName,
        call: Call,
        queue: Queue,
        stop: impl Future<Output = ()>,
    ) -> Result<Finished, ErrorAnswer> {
        let mut stop = pin!(stop);
        let turn = tokio::select! {
            biased;
            turn = self.turn(queue) => turn?,
            () = &mut stop => return Ok(self.never_ran(skill)),
        };
        let cancel = Cancel::new().map_err(|error| internal("the server is out of resources").cause(error))?;
        let hang_up = CancelOnDrop(cancel.clone());
        let executor = Arc::clone(&self.executor);
        let request = call.into_request(skill.clone());
        self.metrics.running.inc();
        let running = Running(Arc::clone(&self.metrics));
        let mut run = tokio::task::spawn_blocking(move || {
            let outcome = executor.run(&request, Some(&cancel));
            drop((turn, running));
            outcome
        });
        let ended = tokio::select! {
            biased;
            ended = &mut run => ended,
            () = stop => {
                hang_up.0.cancel();
                run.await
            }
        };
        match ended {
            Ok(Ok(outcome)) => {
                let kind = kind_of(&outcome);
                (self.metrics).called(skill.as_str(), kind, Some(outcome.duration));
                Ok(Finished::Ran(outcome))
            }
            Ok(Err(RunError::Cancelled)) => Ok(self.never_ran(skill)),
            Ok(Err(error)) => self.failed(skill, &error),
            // The task panicked, or the runtime is going down.
            Err(error) => Err(internal("the call failed").cause(error)),
        }
    }

    /// Whether `skill` is there and may run, without running it.
    ///
    /// # Errors
    /// What the caller is told when not.
    pub async fn check(&self, skill: &SkillName) -> Result<(), ErrorAnswer> {
        let found = self.skills().await?.into_iter().find(|(name, _)| name == skill);
        match found {
            Some((_, Ok(()))) => Ok(()),
            Some((_, Err(error))) => Err(self.refusal(&error)),
            None => Err(self.unknown()),
        }
    }

    /// The skills that are there, and for each whether it may run.
    ///
    /// # Errors
    /// When their directory cannot be read.
    pub async fn skills(&self) -> Result<Vec<(SkillName, Result<(), LookupError>)>, ErrorAnswer> {
        let executor = Arc::clone(&self.executor);
        let listed = tokio::task::spawn_blocking(move || executor.skills()).await;
        match listed {
            Ok(Ok(skills)) => Ok(skills.into_iter().collect()),
            Ok(Err(error)) => Err(internal("the skills cannot be listed").cause(error)),
            Err(error) => Err(internal("the skills cannot be listed").cause(error)),
        }
    }

    async fn turn(&self, queue: Queue) -> Result<OwnedSemaphorePermit, ErrorAnswer> {
        if let Ok(turn) = Arc::clone(&self.turns).try_acquire_owned() {
            return Ok(turn);
        }
        let _waiting = Waiting::enter(self, queue).ok_or_else(|| {
            ErrorAnswer::new(StatusCode::SERVICE_UNAVAILABLE, "too many calls are waiting")
                .hint(format!("at most {MAX_WAITING} calls wait for their turn; try again later"))
                .retry_after(BUSY_RETRY_AFTER)
        })?;
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        // The semaphore is never closed.
        turn.map_err(|error| internal("the server is ending").cause(error))
    }

    fn never_ran(&self, skill: &SkillName) -> Finished {
        self.metrics.called(skill.as_str(), Kind::Cancelled, None);
        Finished::NeverRan
    }

    fn failed(&self, skill: &SkillName, error: &RunError) -> Result<Finished, ErrorAnswer> {
        match error {
            RunError::Lookup(LookupError::NotFound { .. }) => return Err(self.unknown()),
            RunError::Lookup(error) => return Err(self.refusal(error)),
            RunError::Request(_) | RunError::Environment(_) | RunError::TooLarge => {
                self.metrics.refused();
                let answer = ErrorAnswer::new(StatusCode::BAD_REQUEST, error.to_string());
                return Err(answer.quoting());
            }
            RunError::NotStarted(source) => {
                self.metrics.called(skill.as_str(), Kind::Error, None);
                return Ok(Finished::Failed(format!("{error}: {source}")));
            }
            _ => self.metrics.called(skill.as_str(), Kind::Failed, None),
        }
        let chain = error_chain(error);
        match error {
            RunError::SandboxGone => {
                self.gone.notify_one();
                let answer = ErrorAnswer::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the sandbox is gone; the server is about to be started again",
                );
                Err(answer.cause(chain).retry_after(BUSY_RETRY_AFTER).close())
            }
            RunError::WorkingDirectory { .. } => {
                Err(internal("the working directory of skills cannot be used").cause(chain))
            }
            _ => Err(internal(&error.to_string())
                .hint("the skill may have run; nothing of it was returned")
                .cause(chain)),
        }
    }

    fn unknown(&self) -> ErrorAnswer {
        self.metrics.refused();
        no_such_skill()
    }

    fn refusal(&self, error: &LookupError) -> ErrorAnswer {
        self.metrics.refused();
        ErrorAnswer::new(StatusCode::FORBIDDEN, format!("the skill must not be run: {}", rule(error)))
            .cause(error_chain(error))
    }
}

/// There is none of that name, or it is no name.
pub fn no_such_skill() -> ErrorAnswer {
    ErrorAnswer::new(StatusCode::NOT_FOUND, "there is no such skill").hint("GET /skills lists those that can be called")
}

fn internal(message: &str) -> ErrorAnswer {
    ErrorAnswer::new(StatusCode::INTERNAL_SERVER_ERROR, message)
}

/// The rule that a refused skill breaks. Paths are for the log.
fn rule(error: &LookupError) -> &'static str {
    match error {
        LookupError::NotAFile { .. } => "it is not a regular file",
        LookupError::NotExecutable { .. } => "it is not executable",
        LookupError::NoExecMount { .. } => "it is on a mount that executes nothing",
        LookupError::Format { .. } => "it is neither an ELF file nor a #! script",
        LookupError::SetId { .. } => "it has a setuid or setgid bit",
        LookupError::WorldWritable { .. } => "it is world-writable",
        LookupError::Writable { .. } => "it, or something on the way to it, can be changed by the user who runs skills",
        LookupError::Replaced { .. } => "it was replaced while it was looked at",
        LookupError::Open { .. } => "it cannot be opened",
        LookupError::Name { .. }
        | LookupError::NotAbsolute { .. }
        | LookupError::NotFound { .. }
        | LookupError::ScriptWithoutPath { .. } => "it cannot be found",
    }
}

fn kind_of(outcome: &Outcome) -> Kind {
    match outcome {
        _ if outcome.cancelled => Kind::Cancelled,
        _ if outcome.timed_out => Kind::Timeout,
        _ if outcome.termination.exit_code() == 0 => Kind::Ok,
        _ => Kind::Error,
    }
}

/// Ends the command when its caller is gone. One that is over does not mind.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Counted among those that run, to the very end.
struct Running(Arc<Metrics>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.dec();
    }
}

/// A place among those that wait.
struct Waiting<'a>(&'a Calls, Queue);

impl<'a> Waiting<'a> {
    fn enter(calls: &'a Calls, queue: Queue) -> Option<Self> {
        if queue == Queue::Bounded {
            let before = calls.waiting.fetch_add(1, Ordering::Relaxed);
            if before >= MAX_WAITING {
                calls.waiting.fetch_sub(1, Ordering::Relaxed);
                return None;
            }
        }
        calls.metrics.waiting.inc();
        Some(Self(calls, queue))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.1 == Queue::Bounded {
            self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        self.0.metrics.waiting.dec();
    }
}
