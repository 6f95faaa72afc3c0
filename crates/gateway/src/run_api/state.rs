//! What is remembered of a run for as long as it is not over.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sympozium_ipc::run_api::MAX_REQUESTS;
use tokio::sync::{Semaphore, watch};

use super::MAX_BODIES_OF_RUN;
use super::questions::Asked;
use super::traits::Kept;
use crate::plans::Run;

/// One run, as far as it has come.
#[derive(Debug)]
pub(crate) struct RunState {
    /// Connections that are this run's.
    pub(super) connections: AtomicUsize,
    /// Requests that are under way.
    requests: AtomicUsize,
    /// Room for bodies that are being read or waited with.
    pub(super) bodies: Arc<Semaphore>,
    /// What was taken of its reports; nothing before whoever keeps them was asked. One report at a time.
    pub(super) reports: tokio::sync::Mutex<Option<Kept>>,
    /// Whether its last report was taken.
    ended: watch::Sender<bool>,
    questions: Mutex<HashMap<String, Asked>>,
    subruns: Mutex<Subruns>,
}

/// Runs below this one.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Subruns {
    /// Ever.
    pub(super) children: u32,
    /// Now.
    pub(super) running: u32,
}

impl Default for RunState {
    fn default() -> Self {
        Self {
            connections: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            bodies: Arc::new(Semaphore::new(MAX_BODIES_OF_RUN)),
            reports: tokio::sync::Mutex::default(),
            ended: watch::Sender::new(false),
            questions: Mutex::default(),
            subruns: Mutex::default(),
        }
    }
}

impl RunState {
    pub(super) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    pub(crate) fn set_ended(&self) {
        self.ended.send_replace(true);
    }

    /// Comes back when its last report was taken.
    pub(super) async fn ended(&self) {
        // The other end is ours, so it cannot be gone.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    // A panic elsewhere leaves each of them whole.
    pub(super) fn questions(&self) -> MutexGuard<'_, HashMap<String, Asked>> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn subruns(&self) -> MutexGuard<'_, Subruns> {
        self.subruns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is under way, counted.
#[derive(Debug)]
pub(super) struct Seat(Arc<Run>);

impl Seat {
    /// One more, unless there are as many as may be.
    pub(super) fn take(run: &Arc<Run>) -> Option<Self> {
        let more = |count: usize| (count < MAX_REQUESTS as usize).then_some(count + 1);
        let order = Ordering::Relaxed;
        let taken = run.state.requests.fetch_update(order, order, more);
        taken.is_ok().then(|| Self(Arc::clone(run)))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.state.requests.fetch_sub(1, Ordering::Relaxed);
    }
}
