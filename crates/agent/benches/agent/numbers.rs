//! Turns of long runs, and what is told of them.

use std::time::Duration;

use sympozium_testkit::bench::median;

use crate::neighbour::Heard;

/// Turns that stand for the one in their middle.
const WINDOW: usize = 8;

/// Microseconds that a turn took, counted from one: of each turn around it the median of all runs, and of those the mean.
pub fn around(turn: usize, runs: &[Heard], times: impl Fn(&Heard) -> Vec<Duration>) -> f64 {
    let runs: Vec<Vec<Duration>> = runs.iter().map(times).collect();
    let first = turn - WINDOW / 2;
    let of_turn = |index: usize| {
        let of_run = |times: &Vec<Duration>| times[index].as_secs_f64() * 1e6;
        median(runs.iter().map(of_run).collect())
    };
    (first..first + WINDOW).map(of_turn).sum::<f64>() / WINDOW as f64
}
