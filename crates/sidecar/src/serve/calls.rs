//! Runs calls: a bounded number concurrently, a bounded queue, and each cancelled when its caller disconnects.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::StatusCode;
use sympozium_exec::lookup::{LookupError, SkillName};
use sympozium_exec::{Cancel, Executor, Outcome, RunError};
use sympozium_program::error_chain;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::body::Call;
use super::metrics::{CallOutcome, Metrics};
use super::response::{CallResult, ErrorResponse};

/// Calls that wait for a slot; further ones are answered with 503.
pub const MAX_WAITING: usize = 256;
/// `Retry-After` for callers when the queue is full [seconds].
const BUSY_RETRY_AFTER: u32 = 1;

/// The executor, and the slots and the queue in front of it.
#[derive(Debug)]
pub struct Calls {
    executor: Arc<Executor>,
    slots: Arc<Semaphore>,
    waiting: AtomicUsize,
    metrics: Arc<Metrics>,
    sandbox_lost: Notify,
}

/// Whether a waiting call counts towards [`MAX_WAITING`]. Tasks have their own quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// The caller waits for the result.
    Bounded,
    Task,
}

impl Calls {
    pub fn new(executor: Executor, max_concurrent: usize, metrics: Arc<Metrics>) -> Self {
        Self {
            executor: Arc::new(executor),
            slots: Arc::new(Semaphore::new(max_concurrent)),
            waiting: AtomicUsize::new(0),
            metrics,
            sandbox_lost: Notify::new(),
        }
    }

    /// Returns when a call has found the sandbox gone; nothing can be executed from then on.
    pub async fn wait_for_sandbox_loss(&self) {
        self.sandbox_lost.notified().await;
    }

    /// Runs `skill` and returns when all of its processes have ended.
    ///
    /// The skill is cancelled when `stop` is ready, and when the returned future is dropped: then in the background.
    ///
    /// # Errors
    /// When there is no result. Unless the status is 500, nothing was executed.
    pub async fn run(
        &self,
        skill: &SkillName,
        call: Call,
        queue: Queue,
        stop: impl Future<Output = ()>,
    ) -> Result<CallResult, ErrorResponse> {
        let mut stop = pin!(stop);
        let slot = tokio::select! {
            biased;
            slot = self.acquire_slot(queue) => slot?,
            () = &mut stop => return Ok(self.record_cancelled(skill)),
        };
        let cancel = Cancel::new().map_err(|error| internal_error("the server is out of resources").cause(error))?;
        let cancel_on_drop = CancelOnDrop(cancel.clone());
        let executor = Arc::clone(&self.executor);
        let request = call.into_request(skill.clone());
        let running = RunningGuard::new(Arc::clone(&self.metrics));
        let mut run = tokio::task::spawn_blocking(move || {
            let outcome = executor.run(&request, Some(&cancel));
            drop((slot, running));
            outcome
        });
        let joined = tokio::select! {
            biased;
            joined = &mut run => joined,
            () = stop => {
                cancel_on_drop.0.cancel();
                run.await
            }
        };
        match joined {
            Ok(Ok(outcome)) => {
                self.metrics.count_call(skill.as_str(), classify(&outcome), Some(outcome.duration));
                Ok(CallResult::Completed(outcome))
            }
            Ok(Err(RunError::Cancelled)) => Ok(self.record_cancelled(skill)),
            Ok(Err(error)) => self.record_error(skill, &error),
            // The task panicked, or the runtime is shutting down.
            Err(error) => Err(internal_error("the call failed").cause(error)),
        }
    }

    /// Checks that `skill` exists and may run, without running it.
    ///
    /// # Errors
    /// When it does not exist or must not run.
    pub async fn check(&self, skill: &SkillName) -> Result<(), ErrorResponse> {
        let found = self.skills().await?.into_iter().find(|(name, _)| name == skill);
        match found {
            Some((_, Ok(()))) => Ok(()),
            Some((_, Err(error))) => Err(self.record_refused(&error)),
            None => Err(self.record_not_found()),
        }
    }

    /// The files of the skills directory, each with whether it may run.
    ///
    /// # Errors
    /// When their directory cannot be read.
    pub async fn skills(&self) -> Result<Vec<(SkillName, Result<(), LookupError>)>, ErrorResponse> {
        let executor = Arc::clone(&self.executor);
        let listed = tokio::task::spawn_blocking(move || executor.skills()).await;
        match listed {
            Ok(Ok(skills)) => Ok(skills.into_iter().collect()),
            Ok(Err(error)) => Err(internal_error("the skills cannot be listed").cause(error)),
            Err(error) => Err(internal_error("the skills cannot be listed").cause(error)),
        }
    }

    async fn acquire_slot(&self, queue: Queue) -> Result<OwnedSemaphorePermit, ErrorResponse> {
        if let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() {
            return Ok(slot);
        }
        let _waiting = WaitingGuard::enter(self, queue).ok_or_else(|| {
            ErrorResponse::new(StatusCode::SERVICE_UNAVAILABLE, "too many calls are waiting")
                .hint(format!("at most {MAX_WAITING} calls can wait; try again later"))
                .retry_after(BUSY_RETRY_AFTER)
        })?;
        let slot = Arc::clone(&self.slots).acquire_owned().await;
        // The semaphore is never closed.
        slot.map_err(|error| internal_error("the server is shutting down").cause(error))
    }

    fn record_cancelled(&self, skill: &SkillName) -> CallResult {
        self.metrics.count_call(skill.as_str(), CallOutcome::Cancelled, None);
        CallResult::CancelledBeforeStart
    }

    fn record_error(&self, skill: &SkillName, error: &RunError) -> Result<CallResult, ErrorResponse> {
        match error {
            RunError::Lookup(LookupError::NotFound { .. }) => return Err(self.record_not_found()),
            RunError::Lookup(error) => return Err(self.record_refused(error)),
            RunError::Request(_) | RunError::Environment(_) | RunError::TooLarge => {
                self.metrics.count_refused();
                return Err(ErrorResponse::new(StatusCode::BAD_REQUEST, error.to_string()).quoting_input());
            }
            RunError::NotStarted(source) => {
                self.metrics.count_call(skill.as_str(), CallOutcome::Error, None);
                return Ok(CallResult::Failed(format!("{error}: {source}")));
            }
            _ => self.metrics.count_call(skill.as_str(), CallOutcome::Failed, None),
        }
        let chain = error_chain(error);
        match error {
            RunError::SandboxGone => {
                self.sandbox_lost.notify_one();
                let response = ErrorResponse::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the sandbox is gone; the server is about to be restarted",
                );
                Err(response.cause(chain).retry_after(BUSY_RETRY_AFTER).close())
            }
            RunError::WorkingDirectory { .. } => {
                Err(internal_error("the working directory of skills cannot be used").cause(chain))
            }
            _ => {
                Err(internal_error(&error.to_string()).hint("the skill may have run; its output is lost").cause(chain))
            }
        }
    }

    fn record_not_found(&self) -> ErrorResponse {
        self.metrics.count_refused();
        skill_not_found()
    }

    fn record_refused(&self, error: &LookupError) -> ErrorResponse {
        self.metrics.count_refused();
        ErrorResponse::new(StatusCode::FORBIDDEN, format!("the skill must not be run: {}", describe_rule(error)))
            .cause(error_chain(error))
    }
}

/// Also for an invalid name.
pub fn skill_not_found() -> ErrorResponse {
    ErrorResponse::new(StatusCode::NOT_FOUND, "there is no such skill")
        .hint("GET /skills lists those that can be called")
}

fn internal_error(message: &str) -> ErrorResponse {
    ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, message)
}

/// The rule that a refused skill breaks, without paths, which are for the log.
fn describe_rule(error: &LookupError) -> &'static str {
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

fn classify(outcome: &Outcome) -> CallOutcome {
    match outcome {
        _ if outcome.cancelled => CallOutcome::Cancelled,
        _ if outcome.timed_out => CallOutcome::Timeout,
        _ if outcome.termination.exit_code() == 0 => CallOutcome::Ok,
        _ => CallOutcome::Error,
    }
}

/// Cancels the command when its caller disconnects. Without effect once the command has ended.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Counts a running skill, until all of its processes have ended.
struct RunningGuard(Arc<Metrics>);

impl RunningGuard {
    fn new(metrics: Arc<Metrics>) -> Self {
        metrics.running.inc();
        Self(metrics)
    }
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.0.running.dec();
    }
}

/// A place in the queue.
struct WaitingGuard<'a>(&'a Calls, Queue);

impl<'a> WaitingGuard<'a> {
    fn enter(calls: &'a Calls, queue: Queue) -> Option<Self> {
        if queue == Queue::Bounded {
            let waiting = calls.waiting.fetch_add(1, Ordering::Relaxed);
            if waiting >= MAX_WAITING {
                calls.waiting.fetch_sub(1, Ordering::Relaxed);
                return None;
            }
        }
        calls.metrics.waiting.inc();
        Some(Self(calls, queue))
    }
}

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        if self.1 == Queue::Bounded {
            self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        self.0.metrics.waiting.dec();
    }
}
