//! How long to wait before another try: longer each time, and never all at once.

use std::time::Duration;

/// The first wait, before chance.
const FIRST: Duration = Duration::from_millis(500);
/// The longest, where nobody asks for longer.
const LONGEST: Duration = Duration::from_secs(30);

/// Waits of one question.
#[derive(Debug, Default)]
pub struct Backoff {
    waits: u32,
}

impl Backoff {
    /// The next wait: what was asked for, or twice as long as before; and up to half of it again by chance.
    pub fn next(&mut self, wanted: Option<Duration>) -> Duration {
        self.after(wanted, chance())
    }

    fn after(&mut self, wanted: Option<Duration>, chance: f64) -> Duration {
        let doubled = FIRST.saturating_mul(1 << self.waits.min(16));
        self.waits += 1;
        match wanted {
            // Whoever asked is not asked again before then; and not at once, whatever they said.
            Some(wanted) => {
                let wait = wanted.max(doubled.min(LONGEST) / 2);
                wait.saturating_add(FIRST.mul_f64(chance))
            }
            None => {
                let wait = doubled.min(LONGEST);
                (wait / 2).saturating_add((wait / 2).mul_f64(chance))
            }
        }
    }
}

/// Something from 0 up to 1. Without randomness there is no chance, and the wait is the shortest: it is not for secrets.
fn chance() -> f64 {
    let mut bytes = [0_u8; 4];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound_and_are_never_shorter_than_asked_for() {
        let waits = |chance| {
            let mut backoff = Backoff::default();
            let next = || u64::try_from(backoff.after(None, chance).as_millis());
            let waits: Result<Vec<u64>, _> = std::iter::repeat_with(next).take(8).collect();
            waits.expect("small numbers")
        };
        assert_eq!(waits(0.0), [250, 500, 1000, 2000, 4000, 8000, 15000, 15000]);
        assert_eq!(waits(1.0), [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
        let wanted = Duration::from_secs(9);
        let mut backoff = Backoff::default();
        assert!((0..100).all(|_| backoff.next(Some(wanted)) >= wanted));
        // "Now" is no reason to try as fast as one can.
        let mut backoff = Backoff::default();
        let now = Some(Duration::ZERO);
        let waits: Vec<Duration> = (0..3).map(|_| backoff.after(now, 0.0)).collect();
        assert_eq!(waits, [250, 500, 1000].map(Duration::from_millis));
    }
}
