//! How a number is taken.

use std::time::{Duration, Instant};

/// The middle value.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// `count` times `work`, by `threads` at once, and how long that took.
pub fn in_threads(threads: u32, count: u32, work: impl Fn() + Sync) -> Duration {
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..count / threads {
                    work();
                }
            });
        }
    });
    started.elapsed()
}
