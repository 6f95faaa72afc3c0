//! Calls whose caller polls for the result: their quotas, and how long results are stored.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;
use uuid::Uuid;

use super::response::CallResult;
use super::tokens::Caller;

/// How long a result is stored.
pub const RETENTION: Duration = Duration::from_secs(60 * 60);
/// How often expired results are removed.
pub const REAPER_PERIOD: Duration = Duration::from_secs(10 * 60);
/// Tasks of one caller, running, waiting and finished.
const MAX_TASKS_OF_CALLER: usize = 256;
/// Tasks of all callers.
const MAX_TASKS: usize = 1024;
/// Bytes of requests and results of one caller.
const MAX_BYTES_OF_CALLER: usize = 32 * 1024 * 1024;
/// Bytes of requests and results of all callers.
const MAX_BYTES: usize = 64 * 1024 * 1024;

#[derive(Debug, Default)]
pub struct Tasks {
    tasks: Mutex<HashMap<Uuid, Task>>,
}

#[derive(Debug)]
struct Task {
    caller: Caller,
    bytes: usize,
    finished: Option<(Arc<CallResult>, Instant)>,
    /// True when it must end.
    cancel: watch::Sender<bool>,
    /// True when it has ended.
    ended: watch::Sender<bool>,
}

#[derive(Debug, Clone)]
pub enum TaskState {
    /// Waiting or running.
    Pending,
    Finished(Arc<CallResult>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    #[error("you have too many tasks: at most {MAX_TASKS_OF_CALLER}, with at most {MAX_BYTES_OF_CALLER} bytes")]
    OfCaller,
    #[error("there are too many tasks")]
    OfAll,
}

impl Tasks {
    /// Creates a task that stores at most `bytes`. The receiver becomes true when the task must end.
    ///
    /// # Errors
    /// When a quota is exceeded.
    pub fn create(
        &self,
        caller: Caller,
        bytes: usize,
        now: Instant,
    ) -> Result<(Uuid, watch::Receiver<bool>), QuotaError> {
        let mut tasks = self.tasks.lock();
        let mut usage = Usage::measure(&tasks, caller);
        if usage.check(bytes).is_err() {
            remove_expired(&mut tasks, now);
            usage = Usage::measure(&tasks, caller);
        }
        usage.check(bytes)?;
        let id = Uuid::new_v4();
        let (cancel, cancelled) = watch::channel(false);
        let task = Task { caller, bytes, finished: None, cancel, ended: watch::Sender::new(false) };
        tasks.insert(id, task);
        Ok((id, cancelled))
    }

    pub fn finish(&self, id: Uuid, result: CallResult, now: Instant) {
        if let Some(task) = self.tasks.lock().get_mut(&id) {
            task.bytes = result.bytes();
            task.finished = Some((Arc::new(result), now));
            task.ended.send_replace(true);
        }
    }

    /// Removes a task that was not started.
    pub fn remove(&self, id: Uuid) {
        self.tasks.lock().remove(&id);
    }

    /// `None` also for a task of another caller, and for one that has expired.
    pub fn find(&self, caller: Caller, id: Uuid, now: Instant) -> Option<TaskState> {
        let tasks = self.tasks.lock();
        let task = tasks.get(&id).filter(|task| task.caller == caller)?;
        match &task.finished {
            None => Some(TaskState::Pending),
            Some((_, at)) if is_expired(*at, now) => None,
            Some((result, _)) => Some(TaskState::Finished(Arc::clone(result))),
        }
    }

    /// Cancels a task of this caller. The receiver becomes true when it has ended.
    pub fn cancel(&self, caller: Caller, id: Uuid) -> Option<watch::Receiver<bool>> {
        let tasks = self.tasks.lock();
        let task = tasks.get(&id).filter(|task| task.caller == caller)?;
        task.cancel.send_replace(true);
        Some(task.ended.subscribe())
    }

    /// Returns how many there were.
    pub fn remove_expired(&self, now: Instant) -> usize {
        remove_expired(&mut self.tasks.lock(), now)
    }

    /// Of pending and of finished tasks.
    pub fn counts(&self) -> (usize, usize) {
        let tasks = self.tasks.lock();
        let finished = tasks.values().filter(|task| task.finished.is_some()).count();
        (tasks.len() - finished, finished)
    }
}

fn remove_expired(tasks: &mut HashMap<Uuid, Task>, now: Instant) -> usize {
    let before = tasks.len();
    tasks.retain(|_, task| !matches!(task.finished, Some((_, at)) if is_expired(at, now)));
    if tasks.is_empty() {
        tasks.shrink_to_fit();
    }
    before - tasks.len()
}

fn is_expired(finished: Instant, now: Instant) -> bool {
    now.saturating_duration_since(finished) >= RETENTION
}

/// The number and the bytes of tasks.
#[derive(Debug, Default)]
struct Usage {
    of_caller: (usize, usize),
    of_all: (usize, usize),
}

impl Usage {
    fn measure(tasks: &HashMap<Uuid, Task>, caller: Caller) -> Self {
        let mut usage = Self::default();
        for task in tasks.values() {
            usage.of_all.0 += 1;
            usage.of_all.1 += task.bytes;
            if task.caller == caller {
                usage.of_caller.0 += 1;
                usage.of_caller.1 += task.bytes;
            }
        }
        usage
    }

    fn check(&self, bytes: usize) -> Result<(), QuotaError> {
        if self.of_caller.0 >= MAX_TASKS_OF_CALLER || self.of_caller.1 + bytes > MAX_BYTES_OF_CALLER {
            return Err(QuotaError::OfCaller);
        }
        if self.of_all.0 >= MAX_TASKS || self.of_all.1 + bytes > MAX_BYTES {
            return Err(QuotaError::OfAll);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::tokens::Tokens;

    fn callers() -> [Caller; 6] {
        ["a", "b", "c", "d", "e", "f"].map(|token| {
            let tokens = Tokens::load(Some(token), None).unwrap();
            tokens.authenticate(token.as_bytes()).unwrap()
        })
    }

    fn is_pending(state: Option<TaskState>) -> bool {
        matches!(state, Some(TaskState::Pending))
    }

    #[test]
    fn a_task_belongs_to_its_caller_and_expires_an_hour_after_it_finished() {
        let [one, other, ..] = callers();
        let tasks = Tasks::default();
        let now = Instant::now();
        let (id, _) = tasks.create(one, 10, now).unwrap();
        assert!(is_pending(tasks.find(one, id, now + 10 * RETENTION)));
        assert!(tasks.find(other, id, now).is_none());
        assert!(tasks.find(one, Uuid::new_v4(), now).is_none());
        assert!(tasks.cancel(other, id).is_none());

        let finished = now + RETENTION;
        tasks.finish(id, CallResult::Failed("x".to_owned()), finished);
        let just_before = finished + RETENTION - Duration::from_millis(1);
        assert!(matches!(tasks.find(one, id, just_before), Some(TaskState::Finished(_))));
        assert!(tasks.find(other, id, finished).is_none());
        assert_eq!(tasks.remove_expired(just_before), 0);
        // It counts as expired before the reaper removes it.
        assert!(tasks.find(one, id, finished + RETENTION).is_none());
        assert_eq!(tasks.counts(), (0, 1));
        assert_eq!(tasks.remove_expired(finished + RETENTION), 1);
        assert_eq!(tasks.counts(), (0, 0));
    }

    #[test]
    fn the_quota_of_one_caller_leaves_room_for_others_and_time_frees_it() {
        let [one, other, ..] = callers();
        let tasks = Tasks::default();
        let now = Instant::now();
        let ids: Vec<_> = (0..MAX_TASKS_OF_CALLER).map(|_| tasks.create(one, 1, now).unwrap().0).collect();
        assert_eq!(tasks.create(one, 1, now).unwrap_err(), QuotaError::OfCaller);
        assert!(tasks.create(other, 1, now).is_ok());
        for id in ids {
            tasks.finish(id, CallResult::CancelledBeforeStart, now);
        }
        assert_eq!(tasks.create(one, 1, now).unwrap_err(), QuotaError::OfCaller);
        assert!(tasks.create(one, 1, now + RETENTION).is_ok());
    }

    #[test]
    fn bytes_count_as_well_as_tasks() {
        let [one, other, third, ..] = callers();
        let tasks = Tasks::default();
        let now = Instant::now();
        assert_eq!(tasks.create(one, MAX_BYTES_OF_CALLER + 1, now).unwrap_err(), QuotaError::OfCaller);
        let (id, _) = tasks.create(one, MAX_BYTES_OF_CALLER, now).unwrap();
        tasks.create(other, MAX_BYTES_OF_CALLER, now).unwrap();
        assert_eq!(tasks.create(third, 1, now).unwrap_err(), QuotaError::OfAll);
        // Bytes that were reserved for the result and not needed are free again.
        tasks.finish(id, CallResult::CancelledBeforeStart, now);
        assert!(tasks.create(third, 1, now).is_ok());
    }

    #[test]
    fn all_callers_together_have_a_quota() {
        let callers = callers();
        let tasks = Tasks::default();
        let now = Instant::now();
        for caller in &callers[..4] {
            for _ in 0..MAX_TASKS_OF_CALLER {
                tasks.create(*caller, 0, now).unwrap();
            }
        }
        assert_eq!(tasks.create(callers[4], 0, now).unwrap_err(), QuotaError::OfAll);
    }

    #[test]
    fn cancelling_reaches_the_task_and_its_end_reaches_waiters() {
        let [one, ..] = callers();
        let tasks = Tasks::default();
        let now = Instant::now();
        let (id, cancelled) = tasks.create(one, 0, now).unwrap();
        let ended = tasks.cancel(one, id).unwrap();
        assert!(*cancelled.borrow());
        assert!(!*ended.borrow());
        tasks.finish(id, CallResult::CancelledBeforeStart, now);
        assert!(*ended.borrow());
        // Cancelling again changes nothing.
        assert!(*tasks.cancel(one, id).unwrap().borrow());
    }
}
