//! Times that were taken, and what is told of them.

use std::fmt;
use std::time::Duration;

pub use sympozium_testkit::bench::median as middle;

use crate::neighbour::Heard;

/// Turns that stand for the one in their middle.
const WINDOW: usize = 8;

/// Microseconds, or whatever else is measured often.
#[derive(Debug, Default)]
pub struct Samples(Vec<f64>);

/// What most were no larger than.
#[derive(Debug, Clone, Copy)]
pub struct Percentiles {
    pub p50: f64,
    pub p99: f64,
}

impl Samples {
    pub fn add(&mut self, took: Duration) {
        self.push(took.as_secs_f64() * 1e6);
    }

    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub fn percentiles(&self) -> Percentiles {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let place = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
            sorted.get(place).copied().unwrap_or(f64::NAN)
        };
        Percentiles {
            p50: at(50),
            p99: at(99),
        }
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p50 {:.0} µs, p99 {:.0} µs", self.p50, self.p99)
    }
}

/// Microseconds that a turn took, counted from one: of each turn around it the median of all runs, and of those the mean.
pub fn around(turn: usize, runs: &[Heard], times: impl Fn(&Heard) -> Vec<Duration>) -> f64 {
    let runs: Vec<Vec<Duration>> = runs.iter().map(times).collect();
    let first = turn - WINDOW / 2;
    let of_turn = |index: usize| {
        let of_run = |times: &Vec<Duration>| times[index].as_secs_f64() * 1e6;
        middle(runs.iter().map(of_run).collect())
    };
    (first..first + WINDOW).map(of_turn).sum::<f64>() / WINDOW as f64
}
