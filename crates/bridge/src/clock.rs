//! The run's clock. It is stopped while an approver is asked. The total time of waiting for approvers is limited as
//! well.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

#[derive(Debug)]
pub struct Clock {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    /// Working time that is left, as of `since`.
    work: Duration,
    /// Time for approvals that is left, as of `since`.
    waiting: Duration,
    /// When the clock was last started, stopped or read. `None` before the start.
    since: Option<Instant>,
    /// Number of pending questions.
    holders: u32,
}

/// The clock is stopped until this is dropped.
#[derive(Debug)]
pub struct ClockPause<'c>(&'c Clock);

impl Clock {
    /// A clock that is not started yet, with this much time to work, and this much to wait for approvers.
    pub fn new(work: Duration, waiting: Duration) -> Self {
        Self { state: Mutex::new(State { work, waiting, since: None, holders: 0 }), changed: Notify::new() }
    }

    /// Starts the clock. A second call has no effect.
    pub fn start(&self) {
        let mut state = self.state.lock();
        state.since.get_or_insert_with(Instant::now);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Stops the clock until the guard is dropped.
    pub fn pause(&self) -> ClockPause<'_> {
        let mut state = self.state.lock();
        state.update();
        state.holders += 1;
        drop(state);
        self.changed.notify_waiters();
        ClockPause(self)
    }

    /// How much longer the agent may work.
    pub fn work_time_left(&self) -> Duration {
        let mut state = self.state.lock();
        state.update();
        state.work
    }

    /// How much longer the run may wait for approvers, in total.
    pub fn approval_time_left(&self) -> Duration {
        let mut state = self.state.lock();
        state.update();
        state.waiting
    }

    /// Returns when no working time is left.
    pub async fn wait_expired(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Enabled before the state is read, so that no change is missed.
            changed.as_mut().enable();
            let end = self.state.lock().deadline();
            match end {
                Some(end) => tokio::select! {
                    () = sleep_until(end) => {
                        let mut state = self.state.lock();
                        state.update();
                        if state.holders == 0 && state.work.is_zero() {
                            return;
                        }
                    }
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }
}

impl State {
    /// Subtracts the time since the last update.
    fn update(&mut self) {
        let Some(since) = self.since else { return };
        let now = Instant::now();
        let passed = now.saturating_duration_since(since);
        let spent = match self.holders {
            0 => &mut self.work,
            _ => &mut self.waiting,
        };
        *spent = spent.saturating_sub(passed);
        self.since = Some(now);
    }

    fn deadline(&self) -> Option<Instant> {
        (self.holders == 0).then(|| Some(self.since? + self.work))?
    }
}

impl Drop for ClockPause<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.update();
        state.holders = state.holders.saturating_sub(1);
        drop(state);
        self.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    async fn has_run_out(clock: &Clock) -> bool {
        timeout(Duration::ZERO, clock.wait_expired()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_stands_still_while_a_call_waits() {
        let clock = Clock::new(10 * SECOND, 100 * SECOND);
        advance(50 * SECOND).await;
        assert!(!has_run_out(&clock).await, "it does not run before the start");
        clock.start();
        advance(9 * SECOND).await;
        let held = clock.pause();
        advance(60 * SECOND).await;
        assert!(!has_run_out(&clock).await);
        assert_eq!(clock.approval_time_left(), 40 * SECOND);
        let second = clock.pause();
        drop(held);
        advance(30 * SECOND).await;
        assert!(!has_run_out(&clock).await, "one still waits");
        drop(second);
        assert_eq!(clock.approval_time_left(), 10 * SECOND);
        assert!(!has_run_out(&clock).await);
        advance(SECOND).await;
        assert!(has_run_out(&clock).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_for_the_end_sees_every_change() {
        let clock = Clock::new(2 * SECOND, 100 * SECOND);
        let began = Instant::now();
        tokio::join!(clock.wait_expired(), async {
            clock.start();
            tokio::time::sleep(SECOND).await;
            let held = clock.pause();
            tokio::time::sleep(20 * SECOND).await;
            drop(held);
        });
        assert_eq!(began.elapsed().as_secs(), 22);
    }
}
