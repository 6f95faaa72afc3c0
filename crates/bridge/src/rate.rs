//! Limits concurrent calls, calls per minute, and calls in total. The caller passes the time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

/// The limits of one tool, or of all tools together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateBounds {
    pub concurrent: u32,
    pub per_minute: u32,
    pub total: u64,
}

#[derive(Debug)]
pub struct RateLimiter {
    bounds: RateBounds,
    running: u32,
    total: u64,
    /// Starts within the last minute, the oldest first. Never more than `per_minute`.
    recent: VecDeque<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitExceeded {
    /// Too many calls are running.
    Concurrent,
    /// Too many calls in this minute. After this time there is room again.
    PerMinute(Duration),
    /// The total is used up.
    Total,
}

impl RateLimiter {
    pub fn new(bounds: RateBounds) -> Self {
        Self { bounds, running: 0, total: 0, recent: VecDeque::new() }
    }

    /// Checks whether one more call may start. Does not count it: several limiters must agree first.
    ///
    /// # Errors
    ///
    /// Returns the limit that is exceeded.
    pub fn check(&mut self, now: Instant) -> Result<(), LimitExceeded> {
        while let Some(oldest) = self.recent.front()
            && now.saturating_duration_since(*oldest) >= MINUTE
        {
            self.recent.pop_front();
        }
        if self.total >= self.bounds.total {
            return Err(LimitExceeded::Total);
        }
        if self.running >= self.bounds.concurrent {
            return Err(LimitExceeded::Concurrent);
        }
        match self.recent.front() {
            Some(oldest) if self.recent.len() >= self.bounds.per_minute as usize => {
                Err(LimitExceeded::PerMinute(MINUTE - now.saturating_duration_since(*oldest)))
            }
            None if self.bounds.per_minute == 0 => Err(LimitExceeded::Total),
            _ => Ok(()),
        }
    }

    /// Counts the start of a call.
    pub fn begin(&mut self, now: Instant) {
        self.running += 1;
        self.total += 1;
        self.recent.push_back(now);
    }

    /// Counts the end of a call.
    pub fn end(&mut self) {
        self.running = self.running.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The limits hold for all sequences of starts and ends.
        #[test]
        fn bounds_hold(
            concurrent in 0_u32..4,
            per_minute in 0_u32..6,
            total in 0_u64..20,
            steps in prop::collection::vec((0_u64..20_000, any::<bool>()), 0..200),
        ) {
            let mut now = Instant::now();
            let mut pace = RateLimiter::new(RateBounds { concurrent, per_minute, total });
            let mut started: Vec<Instant> = Vec::new();
            let mut running = 0_u32;
            for (after, begins) in steps {
                now += Duration::from_millis(after);
                if !begins {
                    if running > 0 {
                        running -= 1;
                        pace.end();
                    }
                    continue;
                }
                let recent = started.iter().filter(|start| now - **start < MINUTE).count();
                let room = started.len() < total as usize && running < concurrent && recent < per_minute as usize;
                let answer = pace.check(now);
                prop_assert_eq!(answer.is_ok(), room, "{:?}", answer);
                if let Err(LimitExceeded::PerMinute(wait)) = answer {
                    let later = started.iter().filter(|start| now + wait - **start < MINUTE).count();
                    prop_assert!(later < per_minute as usize);
                }
                if answer.is_ok() {
                    pace.begin(now);
                    started.push(now);
                    running += 1;
                }
            }
        }
    }
}
