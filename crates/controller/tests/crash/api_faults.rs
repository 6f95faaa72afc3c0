//! An API server that refuses, forgets to answer, cuts watches, or is away for a while; and a gateway that says nothing.

use std::time::Duration;

use sympozium_api::agent_run::Phase;
use sympozium_testkit::cases;
use sympozium_testkit::cluster::faults::{Fault, Moment, Refusal, Sprinkle};
use sympozium_testkit::cluster::played::Play;
use sympozium_testkit::cluster::samples::everything;

use super::harness::Harness;
use super::run::{TIMEOUT, TestRun, WRITE_COUNT_SPREAD};

/// Seeds of bad weather that `make test` and the whole matrix try.
const SEEDS: usize = 2;
const ALL_SEEDS: usize = 20;
/// Writes whose fault `make test` tries, of all.
const SAMPLE: usize = 6;

const FAULTS: [Fault; 6] = [
    Fault::Refuse(Refusal::Conflict),
    Fault::Refuse(Refusal::TooManyRequests { retry_after_seconds: 1 }),
    Fault::Refuse(Refusal::InternalError),
    Fault::Refuse(Refusal::Timeout),
    Fault::LoseAnswer,
    Fault::Cut,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_write_may_fail_once() {
    let Some(harness) = Harness::new("fails").await else {
        return;
    };
    harness.start_counting();
    let tried = TestRun::create(&harness, everything("learn")).await;
    let status = tried.wait_torn_down(&harness).await;
    tried.assert_succeeded(&harness, &status, 1).await;
    let writes = harness.take_counted().len();
    // Every write in two ways, and every way at a third of the writes.
    let all: Vec<(usize, Fault)> = (1..=writes)
        .flat_map(|number| {
            let here = move |(place, _): &(usize, Fault)| (number + place) % 3 == 0;
            let faults = FAULTS.into_iter().enumerate().filter(here);
            faults.map(move |(_, fault)| (number, fault))
        })
        .collect();
    let mut missed = Vec::new();
    for (place, (number, fault)) in cases::sample(all, SAMPLE).into_iter().enumerate() {
        harness.start_counting();
        harness.proxy.spoil(number, fault);
        let tried = TestRun::create(&harness, everything(&format!("fault-{place}"))).await;
        let status = tried.wait_torn_down(&harness).await;
        println!("write {number}: {fault:?}");
        tried.assert_succeeded(&harness, &status, 1).await;
        if harness.proxy.spoilt() == 0 {
            missed.push(number);
        }
    }
    // The last steps of a run may fall together.
    assert!(missed.iter().all(|it| it + WRITE_COUNT_SPREAD > writes), "never came: {missed:?} of {writes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_is_never_answered_is_given_up_and_made_again() {
    let Some(harness) = Harness::new("unanswered").await else {
        return;
    };
    harness.start_counting();
    let tried = TestRun::create(&harness, everything("learn")).await;
    let status = tried.wait_torn_down(&harness).await;
    tried.assert_succeeded(&harness, &status, 1).await;
    let learned = harness.take_counted().len();
    // Each costs half a minute: every third. The last may fall together.
    let writes = (1..learned - 2).step_by(3).collect();
    for number in cases::sample(writes, 1) {
        harness.start_counting();
        // Longer than anybody here waits for anything.
        harness.proxy.spoil(number, Fault::Hang(2 * TIMEOUT));
        let tried = TestRun::create(&harness, everything(&format!("unanswered-{number}"))).await;
        let status = tried.wait_torn_down(&harness).await;
        assert!(
            harness.proxy.spoilt() == 1 || number + WRITE_COUNT_SPREAD > learned,
            "write {number} of {learned} never came"
        );
        tried.assert_succeeded(&harness, &status, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_weather_does_not_change_how_runs_end() {
    let Some(harness) = Harness::new("weather").await else {
        return;
    };
    let count = if cases::is_full() { ALL_SEEDS } else { SEEDS };
    for turn in 0..count as u64 {
        let seed = cases::seed().wrapping_mul(1000).wrapping_add(turn);
        println!("seed {seed}");
        harness.start_counting();
        harness.proxy.sprinkle(Some(Sprinkle { seed, writes_percent: 15, reads_percent: 5, faults: FAULTS.to_vec() }));
        let tried = TestRun::create(&harness, everything(&format!("weather-{turn}"))).await;
        let status = tried.wait_torn_down(&harness).await;
        assert!(harness.proxy.spoilt() > 0, "nothing was spoilt");
        harness.proxy.sprinkle(None);
        tried.assert_succeeded(&harness, &status, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_that_are_cut_all_the_time_only_make_it_slower() {
    let Some(harness) = Harness::new("cut").await else {
        return;
    };
    harness.start_counting();
    harness.proxy.cut_watches_after(Some(Duration::from_millis(200)));
    let tried = TestRun::create(&harness, everything("cut")).await;
    let status = tried.wait_torn_down(&harness).await;
    assert!(harness.proxy.cuts() > 0);
    harness.proxy.cut_watches_after(None);
    tried.assert_succeeded(&harness, &status, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_is_restarted_is_waited_for() {
    let Some(harness) = Harness::new("restarted").await else {
        return;
    };
    harness.start_counting();
    let tried = TestRun::create(&harness, everything("learn")).await;
    tried.wait_torn_down(&harness).await;
    let writes = harness.take_counted().len();
    // Shorter than a Lease is held, and longer: then the controller ends, and somebody starts it again.
    let mut outages = vec![Duration::from_secs(5)];
    if cases::is_full() {
        outages.push(Duration::from_secs(14));
    }
    for (place, outage) in outages.into_iter().enumerate() {
        harness.start_counting();
        let number = (writes / 3) * (place + 1);
        harness.proxy.stop_at(number, Moment::Before);
        let tried = TestRun::create(&harness, everything(&format!("outage-{place}"))).await;
        assert!(harness.stopped(&tried).await);
        assert!(harness.proxy.go_away());
        harness.proxy.resume();
        tokio::time::sleep(outage).await;
        assert!(harness.proxy.come_back());
        // One that lost the Lease meanwhile has ended, or is about to, and is started again.
        let status = tried.wait_torn_down(&harness).await;
        tried.assert_succeeded(&harness, &status, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_bridge_was_killed_fails_and_loses_its_rights() {
    let Some(harness) = Harness::new("silent").await else {
        return;
    };
    harness.start_counting();
    harness.played.play("silent", Play::LosesBridge);
    let tried = TestRun::create(&harness, everything("silent")).await;
    let status = tried.wait_torn_down(&harness).await;
    tried.assert_ended(&harness, &status, Phase::Failed).await;
    let error = status.error.unwrap_or_default();
    assert!(error.contains("bridge"), "{error}");
}
