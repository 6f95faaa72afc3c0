//! Calls that nobody waits for: kept for their caller, and no longer than promised.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;
use uuid::Uuid;

use super::answer::Finished;
use super::tokens::Caller;

/// How long the result of a task is kept.
pub const KEPT: Duration = Duration::from_secs(60 * 60);
/// How often what has expired is thrown away.
pub const REAPER_PERIOD: Duration = Duration::from_secs(10 * 60);
/// Tasks of one caller, running, waiting and finished.
pub const MAX_TASKS_OF_CALLER: usize = 256;
/// Tasks of all callers.
pub const MAX_TASKS: usize = 1024;
/// Bytes of requests and results that are kept for one caller.
pub const MAX_BYTES_OF_CALLER: usize = 32 * 1024 * 1024;
/// Bytes of requests and results that are kept for all callers.
pub const MAX_BYTES: usize = 64 * 1024 * 1024;

/// All tasks.
#[derive(Debug, Default)]
pub struct Tasks {
    tasks: Mutex<HashMap<Uuid, Task>>,
}

#[derive(Debug)]
struct Task {
    caller: Caller,
    bytes: usize,
    finished: Option<(Arc<Finished>, Instant)>,
    /// True when it shall end.
    cancel: watch::Sender<bool>,
    /// True when it has ended.
    ended: watch::Sender<bool>,
}

/// What a caller gets to see of a task.
#[derive(Debug, Clone)]
pub enum State {
    /// It waits or runs.
    Pending,
    /// It is over.
    Finished(Arc<Finished>),
}

/// There are too many tasks, or they keep too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// Of this caller.
    #[error("you have too many tasks: at most {MAX_TASKS_OF_CALLER}, which keep at most {MAX_BYTES_OF_CALLER} bytes")]
    OfCaller,
    /// Of all callers.
    #[error("there are too many tasks")]
    OfAll,
}

impl Tasks {
    /// A new task of `caller`, which keeps at most `bytes`; with what says that it shall end.
    ///
    /// # Errors
    /// When there is no room for it.
    pub fn begin(
        &self,
        caller: Caller,
        bytes: usize,
        now: Instant,
    ) -> Result<(Uuid, watch::Receiver<bool>), QuotaError> {
        let mut tasks = self.tasks.lock();
        let mut usage = Usage::of(&tasks, caller);
        if usage.check(bytes).is_err() {
            reap(&mut tasks, now);
            usage = Usage::of(&tasks, caller);
        }
        usage.check(bytes)?;
        let id = Uuid::new_v4();
        let (cancel, cancelled) = watch::channel(false);
        let task = Task { caller, bytes, finished: None, cancel, ended: watch::Sender::new(false) };
        tasks.insert(id, task);
        Ok((id, cancelled))
    }

    /// The task is over.
    pub fn finish(&self, id: Uuid, finished: Finished, now: Instant) {
        if let Some(task) = self.tasks.lock().get_mut(&id) {
            task.bytes = finished.bytes();
            task.finished = Some((Arc::new(finished), now));
            task.ended.send_replace(true);
        }
    }

    /// Forgets a task that never became one.
    pub fn forget(&self, id: Uuid) {
        self.tasks.lock().remove(&id);
    }

    /// A task of this caller; nobody else's, and none that has expired.
    pub fn find(&self, caller: Caller, id: Uuid, now: Instant) -> Option<State> {
        let tasks = self.tasks.lock();
        let task = tasks.get(&id).filter(|task| task.caller == caller)?;
        match &task.finished {
            None => Some(State::Pending),
            Some((_, at)) if is_expired(*at, now) => None,
            Some((finished, _)) => Some(State::Finished(Arc::clone(finished))),
        }
    }

    /// Asks a task of this caller to end, and gives what tells when it has.
    pub fn cancel(&self, caller: Caller, id: Uuid) -> Option<watch::Receiver<bool>> {
        let tasks = self.tasks.lock();
        let task = tasks.get(&id).filter(|task| task.caller == caller)?;
        task.cancel.send_replace(true);
        Some(task.ended.subscribe())
    }

    /// Throws away what has expired; how many there were.
    pub fn reap(&self, now: Instant) -> usize {
        reap(&mut self.tasks.lock(), now)
    }

    /// How many wait or run, and how many are finished.
    pub fn counts(&self) -> (usize, usize) {
        let tasks = self.tasks.lock();
        let finished = tasks.values().filter(|task| task.finished.is_some()).count();
        (tasks.len() - finished, finished)
    }
}

fn reap(tasks: &mut HashMap<Uuid, Task>, now: Instant) -> usize {
    let before = tasks.len();
    tasks.retain(|_, task| !matches!(task.finished, Some((_, at)) if is_expired(at, now)));
    if tasks.is_empty() {
        tasks.shrink_to_fit();
    }
    before - tasks.len()
}

fn is_expired(finished: Instant, now: Instant) -> bool {
    now.saturating_duration_since(finished) >= KEPT
}

/// What tasks use: count and bytes, of the caller and of all.
#[derive(Debug, Default)]
struct Usage {
    of_caller: (usize, usize),
    of_all: (usize, usize),
}

impl Usage {
    fn of(tasks: &HashMap<Uuid, Task>, caller: Caller) -> Self {
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
            tokens.caller(token.as_bytes()).unwrap()
        })
    }

    fn is_pending(state: Option<State>) -> bool {
        matches!(state, Some(State::Pending))
    }

    #[test]
    fn a_task_is_its_callers_and_expires_an_hour_after_it_finished() {
        let [one, other, ..] = callers();
        let tasks = Tasks::default();
        let now = Instant::now();
        let (id, _) = tasks.begin(one, 10, now).unwrap();
        assert!(is_pending(tasks.find(one, id, now + 10 * KEPT)));
        assert!(tasks.find(other, id, now).is_none());
        assert!(tasks.find(one, Uuid::new_v4(), now).is_none());
        assert!(tasks.cancel(other, id).is_none());

        let finished = now + KEPT;
        tasks.finish(id, Finished::Failed("x".to_owned()), finished);
        let just_before = finished + KEPT - Duration::from_millis(1);
        assert!(matches!(tasks.find(one, id, just_before), Some(State::Finished(_))));
        assert!(tasks.find(other, id, finished).is_none());
        assert_eq!(tasks.reap(just_before), 0);
        // Expired at once, whether the reaper came or not.
        assert!(tasks.find(one, id, finished + KEPT).is_none());
        assert_eq!(tasks.counts(), (0, 1));
        assert_eq!(tasks.reap(finished + KEPT), 1);
        assert_eq!(tasks.counts(), (0, 0));
    }

    #[test]
    fn the_quota_of_one_caller_leaves_room_for_others_and_time_frees_it() {
        let [one, other, ..] = callers();
        let tasks = Tasks::default();
        let now = Instant::now();
        let ids: Vec<_> = (0..MAX_TASKS_OF_CALLER).map(|_| tasks.begin(one, 1, now).unwrap().0).collect();
        assert_eq!(tasks.begin(one, 1, now).unwrap_err(), QuotaError::OfCaller);
        assert!(tasks.begin(other, 1, now).is_ok());
        for id in ids {
            tasks.finish(id, Finished::NeverRan, now);
        }
        assert_eq!(tasks.begin(one, 1, now).unwrap_err(), QuotaError::OfCaller);
        assert!(tasks.begin(one, 1, now + KEPT).is_ok());
    }

    #[test]
    fn bytes_count_as_well_as_tasks() {
        let [one, other, third, ..] = callers();
        let tasks = Tasks::default();
        let now = Instant::now();
        assert_eq!(tasks.begin(one, MAX_BYTES_OF_CALLER + 1, now).unwrap_err(), QuotaError::OfCaller);
        let (id, _) = tasks.begin(one, MAX_BYTES_OF_CALLER, now).unwrap();
        tasks.begin(other, MAX_BYTES_OF_CALLER, now).unwrap();
        assert_eq!(tasks.begin(third, 1, now).unwrap_err(), QuotaError::OfAll);
        // What a task kept back for its result and did not need is free again.
        tasks.finish(id, Finished::NeverRan, now);
        assert!(tasks.begin(third, 1, now).is_ok());
    }

    #[test]
    fn all_callers_together_have_a_quota() {
        let callers = callers();
        let tasks = Tasks::default();
        let now = Instant::now();
        for caller in &callers[..4] {
            for _ in 0..MAX_TASKS_OF_CALLER {
                tasks.begin(*caller, 0, now).unwrap();
            }
        }
        assert_eq!(tasks.begin(callers[4], 0, now).unwrap_err(), QuotaError::OfAll);
    }

    #[test]
    fn a_wish_to_end_reaches_the_task_and_the_end_whoever_waits() {
        let [one, ..] = callers();
        let tasks = Tasks::default();
        let now = Instant::now();
        let (id, cancelled) = tasks.begin(one, 0, now).unwrap();
        let ended = tasks.cancel(one, id).unwrap();
        assert!(*cancelled.borrow());
        assert!(!*ended.borrow());
        tasks.finish(id, Finished::NeverRan, now);
        assert!(*ended.borrow());
        // Again changes nothing.
        assert!(*tasks.cancel(one, id).unwrap().borrow());
    }
}
