//! From a run's creation to its Job, when nothing else is going on.

use std::time::{Duration, Instant};

use sympozium_testkit::bench::{Percentiles, Samples, Suite, Target, median};
use sympozium_testkit::cluster::samples::plain;

use crate::harness::Harness;
use crate::raw::Template;
use crate::run_observer::Milestone;
use crate::size;

/// Runs of each kind.
const ROUNDS: usize = 51;

/// The row for an idle cluster; gives the median.
pub async fn idle(suite: &mut Suite, harness: &Harness, template: &Template) -> f64 {
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    let mut ratios = Vec::new();
    one(harness, "warm").await;
    for round in 0..size("ROUNDS", ROUNDS) {
        let copy = template.copy();
        let started = Instant::now();
        copy.make().await;
        let raw = started.elapsed();
        copy.delete().await;
        let run = one(harness, &format!("idle-{round}")).await;
        theirs.add(raw);
        ours.add(run);
        ratios.push(run.as_secs_f64() / raw.as_secs_f64());
    }
    let (ours, theirs) = (ours.percentiles(), theirs.percentiles());
    println!("created until its Job: {ours}; raw: {theirs}");
    suite.row("a run created until its Job is there, idle, against raw", median(ratios), "x", Target::AtMost(1.5));
    ours.p50
}

/// The median of some more, in microseconds.
pub async fn further(harness: &Harness, label: &str) -> Percentiles {
    let mut samples = Samples::default();
    for round in 0..size("ROUNDS", ROUNDS) {
        samples.add(one(harness, &format!("{label}-{round}")).await);
    }
    samples.percentiles()
}

/// One run from its creation to its Job; then it ends, and only then this does.
async fn one(harness: &Harness, name: &str) -> Duration {
    let started = Instant::now();
    let uid = harness.create(plain(name)).await;
    let uids = [uid];
    let there = harness.sight.wait_all(Milestone::Job, &uids).await;
    harness.sight.wait_all(Milestone::TornDown, &uids).await;
    there.duration_since(started)
}
