//! `SIGKILL` before and after every write of a run.

use serde_json::Value;
use sympozium_testkit::cases;
use sympozium_testkit::cluster::faults::Moment;
use sympozium_testkit::cluster::samples::{everything, with_retained_pod};

use super::harness::Harness;
use super::run::TestRun;

/// Runs of one kind, killed at every write.
struct Matrix {
    run: fn(&str) -> Value,
    /// Hooks that each of them has afterwards.
    hooks: usize,
    /// Such a run has at least so many writes: fewer would mean that the matrix misses most of it.
    fewest_writes: usize,
    /// Cases that `make test` tries.
    sample: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_before_or_after_any_write_a_run_ends_right_and_is_executed_once() {
    let matrix = Matrix { run: everything, hooks: 1, fewest_writes: 30, sample: 12 };
    matrix.try_on("kills").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_before_or_after_any_write_a_run_that_is_kept_ends_right_and_stays() {
    let matrix = Matrix { run: with_retained_pod, hooks: 0, fewest_writes: 20, sample: 4 };
    matrix.try_on("retained").await;
}

impl Matrix {
    async fn try_on(&self, label: &str) {
        let Some(harness) = Harness::new(label).await else {
            return;
        };
        // Without a fault, to learn what is written.
        harness.start_counting();
        let tried = TestRun::create(&harness, (self.run)("learn")).await;
        let status = tried.wait_torn_down(&harness).await;
        tried.assert_succeeded(&harness, &status, self.hooks).await;
        let writes = harness.take_counted();
        let listed: Vec<String> = writes.iter().map(ToString::to_string).collect();
        assert!(writes.len() >= self.fewest_writes, "{listed:#?}");

        let all: Vec<(usize, Moment)> =
            (1..=writes.len()).flat_map(|number| [(number, Moment::Before), (number, Moment::After)]).collect();
        let mut missed = Vec::new();
        for (number, moment) in cases::sample(all, self.sample) {
            harness.start_counting();
            harness.proxy.stop_at(number, moment);
            let name = format!("kill-{number}-{moment:?}").to_lowercase();
            let tried = TestRun::create(&harness, (self.run)(&name)).await;
            if harness.stopped(&tried).await {
                harness.crash().await;
            } else {
                missed.push((number, moment));
            }
            let status = tried.wait_torn_down(&harness).await;
            tried.assert_succeeded(&harness, &status, self.hooks).await;
        }
        // Two runs need not write alike to the last: the last steps may fall together. Most must be the same.
        assert!(missed.len() <= 4, "these writes never came: {missed:?}");
    }
}
