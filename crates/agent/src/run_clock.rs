//! The remaining time of the run. The bridge owns the clock, which stops while a person is asked, and reports the
//! remaining time with every response; in between, the agent counts.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The model must answer when this fraction of the run's time is left, within bounds.
const ENDING_FRACTION: u32 = 10;
const MIN_ENDING: Duration = Duration::from_secs(5);
const MAX_ENDING: Duration = Duration::from_secs(60);

/// Keeps the arithmetic in range, whatever a view says.
const MAX_RUN: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[derive(Debug)]
pub struct RunClock {
    total: Duration,
    deadline: Mutex<Instant>,
}

impl RunClock {
    pub fn new(total: Duration) -> Self {
        let total = total.min(MAX_RUN);
        Self { total, deadline: Mutex::new(Instant::now() + total) }
    }

    pub const fn total(&self) -> Duration {
        self.total
    }

    pub fn set_remaining(&self, remaining: Duration) {
        *self.deadline.lock() = Instant::now() + remaining.min(self.total);
    }

    pub fn deadline(&self) -> Instant {
        *self.deadline.lock()
    }

    pub fn remaining(&self) -> Duration {
        self.deadline().saturating_duration_since(Instant::now())
    }

    /// Whether only enough time is left to answer.
    pub fn is_nearly_over(&self) -> bool {
        let ending = (self.total / ENDING_FRACTION).clamp(MIN_ENDING, MAX_ENDING);
        // In a very short run, half of the time is for work.
        self.remaining() < ending.min(self.total / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_ends_when_a_tenth_is_left_and_follows_the_bridge() {
        for (total, working, ending) in [(1200, 1139, 1141), (100, 89, 91), (20, 14, 16), (4, 1, 3)] {
            let clock = RunClock::new(Duration::from_secs(total));
            tokio::time::advance(Duration::from_secs(working)).await;
            assert!(!clock.is_nearly_over(), "{total}");
            tokio::time::advance(Duration::from_secs(ending - working)).await;
            assert!(clock.is_nearly_over(), "{total}");
            // A person was asked meanwhile: none of that counted.
            clock.set_remaining(Duration::from_secs(total));
            assert!(!clock.is_nearly_over(), "{total}");
        }
    }
}
