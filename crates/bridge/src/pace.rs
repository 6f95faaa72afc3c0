//! How many at a time, how many in a minute, how many at all. Time comes in from outside.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What counts as a minute.
const MINUTE: Duration = Duration::from_secs(60);

/// The bounds of one tool, or of all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// At a time.
    pub concurrent: u32,
    /// In a minute.
    pub per_minute: u32,
    /// At all.
    pub total: u64,
}

/// What is going on, and what was.
#[derive(Debug)]
pub struct Pace {
    bounds: Bounds,
    running: u32,
    total: u64,
    /// Starts within the last minute, the oldest first: never more than `per_minute`.
    recent: VecDeque<Instant>,
}

/// Why not now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Too many are going on.
    Running,
    /// Too many in this minute; after this long there is room.
    For(Duration),
    /// There have been as many as there may be.
    Over,
}

impl Pace {
    /// With these bounds.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, running: 0, total: 0, recent: VecDeque::new() }
    }

    /// Whether one more may begin. Nothing is counted yet: several of these must agree first.
    ///
    /// # Errors
    ///
    /// With how long to wait.
    pub fn has_room(&mut self, now: Instant) -> Result<(), Wait> {
        while let Some(oldest) = self.recent.front()
            && now.saturating_duration_since(*oldest) >= MINUTE
        {
            self.recent.pop_front();
        }
        if self.total >= self.bounds.total {
            return Err(Wait::Over);
        }
        if self.running >= self.bounds.concurrent {
            return Err(Wait::Running);
        }
        match self.recent.front() {
            Some(oldest) if self.recent.len() >= self.bounds.per_minute as usize => {
                Err(Wait::For(MINUTE - now.saturating_duration_since(*oldest)))
            }
            None if self.bounds.per_minute == 0 => Err(Wait::Over),
            _ => Ok(()),
        }
    }

    /// One more begins.
    pub fn begin(&mut self, now: Instant) {
        self.running += 1;
        self.total += 1;
        self.recent.push_back(now);
    }

    /// One has ended.
    pub fn end(&mut self) {
        self.running = self.running.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is asked for and whenever it ends, the bounds hold.
        #[test]
        fn bounds_hold(
            concurrent in 0_u32..4,
            per_minute in 0_u32..6,
            total in 0_u64..20,
            steps in prop::collection::vec((0_u64..20_000, any::<bool>()), 0..200),
        ) {
            let mut now = Instant::now();
            let mut pace = Pace::new(Bounds { concurrent, per_minute, total });
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
                let recent = started.iter().filter(|it| now - **it < MINUTE).count();
                let room = started.len() < total as usize && running < concurrent && recent < per_minute as usize;
                let answer = pace.has_room(now);
                prop_assert_eq!(answer.is_ok(), room, "{:?}", answer);
                if let Err(Wait::For(wait)) = answer {
                    let later = started.iter().filter(|it| now + wait - **it < MINUTE).count();
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
