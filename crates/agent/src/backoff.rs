//! Delays between attempts: exponential, with jitter.

use std::time::Duration;

const INITIAL_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// The delay before the next attempt: `retry_after` or twice the last delay, with jitter. A `Retry-After` of zero
    /// still backs off.
    pub fn next_delay(&mut self, retry_after: Option<Duration>) -> Duration {
        self.next_with(retry_after, jitter())
    }

    fn next_with(&mut self, retry_after: Option<Duration>, jitter: f64) -> Duration {
        let doubled = INITIAL_DELAY.saturating_mul(1 << self.attempts.min(16));
        self.attempts += 1;
        match retry_after {
            // Never earlier than requested, and never immediately.
            Some(retry_after) => {
                let delay = retry_after.max(doubled.min(MAX_DELAY) / 2);
                delay.saturating_add(INITIAL_DELAY.mul_f64(jitter))
            }
            None => {
                let delay = doubled.min(MAX_DELAY);
                (delay / 2).saturating_add((delay / 2).mul_f64(jitter))
            }
        }
    }
}

/// From 0 up to 1. Without randomness the delay is the shortest; nothing secret depends on it.
fn jitter() -> f64 {
    let mut bytes = [0_u8; 4];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound_and_are_never_shorter_than_asked_for() {
        let attempts = |jitter| {
            let mut backoff = Backoff::default();
            let next_delay = || u64::try_from(backoff.next_with(None, jitter).as_millis());
            let attempts: Result<Vec<u64>, _> = std::iter::repeat_with(next_delay).take(8).collect();
            attempts.expect("small numbers")
        };
        assert_eq!(attempts(0.0), [250, 500, 1000, 2000, 4000, 8000, 15000, 15000]);
        assert_eq!(attempts(1.0), [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
        let retry_after = Duration::from_secs(9);
        let mut backoff = Backoff::default();
        assert!((0..100).all(|_| backoff.next_delay(Some(retry_after)) >= retry_after));
        // "Now" is no reason to try as fast as one can.
        let mut backoff = Backoff::default();
        let now = Some(Duration::ZERO);
        let attempts: Vec<Duration> = (0..3).map(|_| backoff.next_with(now, 0.0)).collect();
        assert_eq!(attempts, [250, 500, 1000].map(Duration::from_millis));
    }
}
