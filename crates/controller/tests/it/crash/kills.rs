//! `SIGKILL` before and after every write of a run.

use sympozium_testkit::cases;
use sympozium_testkit::cluster::faults::Moment;
use sympozium_testkit::cluster::samples::everything;

use super::ground::Ground;
use super::run::Tried;

/// Cases of the matrix that `make test` runs.
const SAMPLE: usize = 12;
/// A run with everything has at least so many writes: fewer would mean that the matrix misses most of a run.
const FEWEST_WRITES: usize = 30;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_before_or_after_any_write_a_run_ends_right_and_is_executed_once() {
    let Some(mut ground) = Ground::new("kills").await else {
        return;
    };
    // Without a fault, to learn what is written.
    ground.count();
    let tried = Tried::create(&ground, everything("learn")).await;
    let status = tried.settled(&ground).await;
    tried.succeeded(&ground, &status, 1).await;
    let writes = ground.counted();
    for write in &writes {
        println!("{write}");
    }
    assert!(writes.len() >= FEWEST_WRITES, "{} writes", writes.len());

    let all: Vec<(usize, Moment)> = (1..=writes.len())
        .flat_map(|number| [(number, Moment::Before), (number, Moment::After)])
        .collect();
    let mut missed = Vec::new();
    for (number, moment) in cases::sample(all, SAMPLE) {
        ground.count();
        ground.proxy.stop_at(number, moment);
        let name = format!("kill-{number}-{moment:?}").to_lowercase();
        let tried = Tried::create(&ground, everything(&name)).await;
        if ground.stopped(&tried).await {
            ground.crash().await;
        } else {
            missed.push((number, moment));
        }
        let status = tried.settled(&ground).await;
        tried.succeeded(&ground, &status, 1).await;
    }
    // Two runs need not write alike to the last: the last steps may fall together. Most must be the same.
    assert!(missed.len() <= 4, "these writes never came: {missed:?}");
}
