//! The state of an active run in the run API.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use sympozium_ipc::run_api::MAX_REQUESTS;
use tokio::sync::{Semaphore, watch};

use super::MAX_BODIES_OF_RUN;
use super::questions::AskedQuestion;
use super::traits::ReportCursor;
use crate::plans::Run;

#[derive(Debug)]
pub(crate) struct RunState {
    /// Open connections of this run.
    pub(super) connections: AtomicUsize,
    /// Requests in flight.
    requests: AtomicUsize,
    /// Slots for bodies in memory.
    pub(super) bodies: Arc<Semaphore>,
    /// The cursor of its reports; `None` before the store was asked. The lock admits one report at a time.
    pub(super) reports: tokio::sync::Mutex<Option<ReportCursor>>,
    /// Whether its last report was accepted.
    ended: watch::Sender<bool>,
    pub(super) questions: Mutex<HashMap<String, AskedQuestion>>,
    pub(super) subruns: Mutex<Subruns>,
}

/// Counts of the subruns of this run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Subruns {
    /// Started in total.
    pub(super) children: u32,
    /// Running now.
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

    /// Waits until the last report was accepted.
    pub(super) async fn wait_ended(&self) {
        // The sender lives in this struct, so this does not fail.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }
}

/// A request in flight, counted until it is dropped.
#[derive(Debug)]
pub(super) struct RequestSlot(Arc<Run>);

impl RequestSlot {
    /// `None` if the run has too many requests in flight.
    pub(super) fn acquire(run: &Arc<Run>) -> Option<Self> {
        let more = |count: usize| (count < MAX_REQUESTS as usize).then_some(count + 1);
        let order = Ordering::Relaxed;
        let taken = run.state.requests.fetch_update(order, order, more);
        taken.is_ok().then(|| Self(Arc::clone(run)))
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        self.0.state.requests.fetch_sub(1, Ordering::Relaxed);
    }
}
