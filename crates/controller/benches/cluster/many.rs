//! Many runs at once, and what a run writes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sympozium_testkit::bench::{Suite, Target};
use sympozium_testkit::cluster::faults::{Caller, Class, FaultProxy};
use sympozium_testkit::cluster::samples::plain;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::harness::Harness;
use crate::raw::Template;
use crate::run_observer::Milestone;
use crate::size;

/// Runs at once.
const RUNS: usize = 500;
/// Runs whose writes are counted.
const COUNTED: usize = 20;
/// As many as the controller works on at a time.
const AT_A_TIME: usize = 16;

/// Both rows for many runs at once.
pub async fn at_once(suite: &mut Suite, harness: &Harness, template: &Template) {
    let count = size("RUNS", RUNS);
    let (raw_made, raw_done) = raw(harness, template, count).await;
    let started = Instant::now();
    let mut creating = JoinSet::new();
    let places = Arc::new(Semaphore::new(AT_A_TIME));
    let runs = harness.runs();
    for number in 0..count {
        let (places, runs) = (Arc::clone(&places), runs.clone());
        creating.spawn(async move {
            let _place = places.acquire().await.expect("open");
            let run = serde_json::from_value(plain(&format!("many-{number}"))).expect("a run");
            let created = runs.create(&Default::default(), &run).await;
            created.expect("created").metadata.uid.unwrap_or_default()
        });
    }
    let uids = creating.join_all().await;
    let made = harness.sight.wait_all(Milestone::Job, &uids).await.duration_since(started);
    let done = harness.sight.wait_all(Milestone::TornDown, &uids).await;
    let done = done.duration_since(started);
    println!(
        "{count} runs: all Jobs after {:.2} s (raw {:.2} s), all revoked after {:.2} s (raw {:.2} s)",
        made.as_secs_f64(),
        raw_made.as_secs_f64(),
        done.as_secs_f64(),
        raw_done.as_secs_f64()
    );
    for (name, ours, raw) in [
        ("500 runs at once until all Jobs exist, throughput", made, raw_made),
        ("500 runs at once until all are revoked, throughput", done, raw_done),
    ] {
        let share = raw.as_secs_f64() / ours.as_secs_f64();
        suite.row(name, share, "of raw", Target::AtLeast(0.7));
    }
}

/// Makes so many copies, has their pods run, and deletes them: until all are made, and until all are deleted.
async fn raw(harness: &Harness, template: &Template, count: usize) -> (Duration, Duration) {
    let places = Arc::new(Semaphore::new(AT_A_TIME));
    let started = Instant::now();
    let mut making = JoinSet::new();
    for _ in 0..count {
        let (places, copy) = (Arc::clone(&places), template.copy());
        let ran = harness.played.ran(&copy.uid);
        making.spawn(async move {
            let place = places.acquire().await.expect("open");
            copy.make().await;
            let made = Instant::now();
            drop(place);
            ran.await;
            let _place = places.acquire().await.expect("open");
            copy.delete().await;
            (made, Instant::now())
        });
    }
    let times = making.join_all().await;
    let made = times.iter().map(|(made, _)| *made).max();
    let done = times.iter().map(|(_, done)| *done).max();
    let since = |time: Option<Instant>| time.map_or(Duration::MAX, |it| it - started);
    (since(made), since(done))
}

/// What a run writes, and how much of it was for nothing: counted by a proxy, which makes it slower and changes nothing else.
pub async fn writes(suite: &mut Suite, harness: &mut Harness) {
    let proxy = FaultProxy::start(&harness.cluster, Caller::Administrator).expect("a proxy");
    harness.kill();
    harness.start(&proxy.kubeconfig()).await;
    proxy.begin(|_, _| true);
    let mut uids = Vec::new();
    for number in 0..COUNTED {
        let uid = harness.create(plain(&format!("counted-{number}"))).await;
        harness.sight.wait_all(Milestone::TornDown, std::slice::from_ref(&uid)).await;
        uids.push(uid);
    }
    let all = proxy.writes();
    let of = |class: Class| all.iter().filter(|it| it.class == class).count();
    let each = |count: usize| count as f64 / uids.len() as f64;
    let refused = |write: &&sympozium_testkit::cluster::faults::Write| {
        write.class == Class::Object && write.status.is_none_or(|status| status >= 400)
    };
    for write in all.iter().filter(refused).take(10) {
        println!("for nothing: {write}");
    }
    let wasted = all.iter().filter(refused).count();
    println!(
        "writes of a run: {:.1} to objects, {:.1} Events, {:.1} reviews; for nothing: {:.1}",
        each(of(Class::Object)),
        each(of(Class::Event)),
        each(of(Class::Review)),
        each(wasted)
    );
    suite.row("API writes of a run that the API server refused", each(wasted), "", Target::AtMost(0.0));
    harness.kill();
    let straight = harness.cluster.kubeconfig().to_owned();
    harness.start(&straight).await;
}
