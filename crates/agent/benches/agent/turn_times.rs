//! Statistics of turns in long runs.

use std::time::Duration;

use sympozium_testkit::bench::median;

use crate::fake_bridge::Recording;

/// Turns that are averaged.
const WINDOW: usize = 8;

/// Microseconds of a turn, counted from one: the mean of the medians of the turns around it.
pub fn mean_around(turn: usize, runs: &[Recording], times: impl Fn(&Recording) -> Vec<Duration>) -> f64 {
    let runs: Vec<Vec<Duration>> = runs.iter().map(times).collect();
    let first = turn - WINDOW / 2;
    let of_turn = |index: usize| {
        let of_run = |times: &Vec<Duration>| times[index].as_secs_f64() * 1e6;
        median(runs.iter().map(of_run).collect())
    };
    (first..first + WINDOW).map(of_turn).sum::<f64>() / WINDOW as f64
}
