//! How much time the run has left. The bridge keeps its clock, which stands still while a person is asked, and says with
//! every answer what is left; in between, the agent counts.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// What is left when it is time to come to an end: this part of the whole, within bounds.
const LAST_PART: u32 = 10;
const SHORTEST_END: Duration = Duration::from_secs(5);
const LONGEST_END: Duration = Duration::from_secs(60);

/// No run is longer: whatever a view says, a clock can count it.
const LONGEST_RUN: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The time of a run.
#[derive(Debug)]
pub struct Time {
    whole: Duration,
    end: Mutex<Instant>,
}

impl Time {
    /// A run that begins now and has this long.
    pub fn new(whole: Duration) -> Self {
        let whole = whole.min(LONGEST_RUN);
        Self { whole, end: Mutex::new(Instant::now() + whole) }
    }

    /// The whole of it.
    pub const fn whole(&self) -> Duration {
        self.whole
    }

    /// What the bridge says is left.
    pub fn set_left(&self, left: Duration) {
        *self.end.lock() = Instant::now() + left.min(self.whole);
    }

    /// When it is over, as far as is known.
    pub fn end(&self) -> Instant {
        *self.end.lock()
    }

    /// What is left.
    pub fn left(&self) -> Duration {
        self.end().saturating_duration_since(Instant::now())
    }

    /// Whether there is only time left to answer.
    pub fn is_ending(&self) -> bool {
        let end = (self.whole / LAST_PART).clamp(SHORTEST_END, LONGEST_END);
        // Of a very short run, half is for work.
        self.left() < end.min(self.whole / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_ends_when_a_tenth_is_left_and_follows_the_bridge() {
        for (whole, working, ending) in [(1200, 1139, 1141), (100, 89, 91), (20, 14, 16), (4, 1, 3)] {
            let time = Time::new(Duration::from_secs(whole));
            tokio::time::advance(Duration::from_secs(working)).await;
            assert!(!time.is_ending(), "{whole}");
            tokio::time::advance(Duration::from_secs(ending - working)).await;
            assert!(time.is_ending(), "{whole}");
            // A person was asked meanwhile: none of that counted.
            time.set_left(Duration::from_secs(whole));
            assert!(!time.is_ending(), "{whole}");
        }
    }
}
