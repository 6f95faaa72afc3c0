//! Holding pieces of an answer back until the test lets them through.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Mutex, MutexGuard};

/// Lets the pieces of a reply through one by one, so that a test can show that nothing on the way keeps them back.
///
/// What is held: each piece of text, each piece of arguments, and the end of the answer (all events from the finish reason
/// on count as one). An answer that is not streamed is held as a whole. What opens a stream is never held. Clones are the
/// same gate, and several replies may wait at it.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Pieces that may pass and have not yet.
    released: u64,
    open: bool,
    waiting: Vec<Waker>,
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets so many more pieces through.
    pub fn release(&self, pieces: u64) {
        let mut state = self.0.lock();
        state.released = state.released.saturating_add(pieces);
        wake(state);
    }

    /// Lets everything through from now on.
    pub fn open(&self) {
        let mut state = self.0.lock();
        state.open = true;
        wake(state);
    }

    /// Passes with one piece.
    pub(super) fn poll_pass(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        if state.open {
            return Poll::Ready(());
        }
        if state.released > 0 {
            state.released -= 1;
            return Poll::Ready(());
        }
        if !state.waiting.iter().any(|it| it.will_wake(context.waker())) {
            state.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }
}

/// Wakes all who wait, outside the lock that they will take.
fn wake(mut state: MutexGuard<'_, State>) {
    let waiting = std::mem::take(&mut state.waiting);
    drop(state);
    for waker in waiting {
        waker.wake();
    }
}
