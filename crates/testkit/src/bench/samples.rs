//! Times that were taken, and what is told of them.

use std::fmt;
use std::time::Duration;

/// Microseconds of one thing, done many times.
#[derive(Debug, Default)]
pub struct Samples(Vec<f64>);

/// What most took no longer than, in microseconds.
#[derive(Debug, Clone, Copy)]
pub struct Percentiles {
    /// Half of them.
    pub p50: f64,
    /// All but one in a hundred.
    pub p99: f64,
}

impl Samples {
    /// One more.
    pub fn add(&mut self, took: Duration) {
        self.push(took.as_secs_f64() * 1e6);
    }

    /// One more, of whatever else is measured often.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// What most of them were no larger than.
    pub fn percentiles(&self) -> Percentiles {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let place = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
            sorted.get(place).copied().unwrap_or(f64::NAN)
        };
        Percentiles { p50: at(50), p99: at(99) }
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p50 {:.0} µs, p99 {:.0} µs", self.p50, self.p99)
    }
}
