//! A run is deleted or cancelled at any step, with and without a crash.

use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use sympozium_api::agent_run::Phase;
use sympozium_testkit::cases;
use sympozium_testkit::cluster::faults::Moment;
use sympozium_testkit::cluster::played::Play;
use sympozium_testkit::cluster::samples::{everything, plain};

use super::harness::Harness;
use super::run::{TestRun, WRITE_COUNT_SPREAD};

/// Cases of each matrix that `make test` runs.
const SAMPLE: usize = 5;

/// What becomes of the controller when somebody has changed their mind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    GoesOn,
    IsKilled,
}

async fn go_on(harness: &Harness, then: Then) {
    match then {
        // Its write is lost, and it has to try again.
        Then::GoesOn => harness.proxy.resume(),
        Then::IsKilled => harness.crash().await,
    }
}

/// The writes of a run like those that follow.
async fn learn(harness: &Harness, run: serde_json::Value) -> usize {
    harness.start_counting();
    let tried = TestRun::create(harness, run).await;
    let status = tried.wait_torn_down(harness).await;
    tried.assert_ended(harness, &status, Phase::Succeeded).await;
    harness.take_counted().len()
}

fn matrix(writes: usize) -> Vec<(usize, Then)> {
    let all = (1..=writes).flat_map(|number| [(number, Then::GoesOn), (number, Then::IsKilled)]);
    cases::sample(all.collect(), SAMPLE)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_at_any_step_a_run_leaves_nothing() {
    let Some(harness) = Harness::new("deleted").await else {
        return;
    };
    let writes = learn(&harness, everything("learn")).await;
    let mut missed = Vec::new();
    for (number, then) in matrix(writes) {
        harness.start_counting();
        harness.proxy.stop_at(number, Moment::Before);
        let name = format!("delete-{number}-{then:?}").to_lowercase();
        let tried = TestRun::create(&harness, everything(&name)).await;
        let stopped = harness.stopped(&tried).await;
        let at_once = DeleteParams::background();
        let deleted = tried.api().delete(&tried.name, &at_once).await;
        deleted.expect("the run is deleted");
        if stopped {
            go_on(&harness, then).await
        } else {
            missed.push(number)
        }
        tried.assert_deleted(&harness).await;
        let pods = harness.played.pods_of(&tried.uid);
        assert!(pods.seen.len() <= 1, "{pods:?}\n{}", harness.describe(&tried).await);
    }
    // The last steps of a run may fall together.
    assert!(missed.iter().all(|it| it + WRITE_COUNT_SPREAD > writes), "never came: {missed:?} of {writes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_at_any_step_a_run_is_cancelled_and_leaves_nothing() {
    let Some(harness) = Harness::new("cancelled").await else {
        return;
    };
    // How far a run comes whose agent never ends.
    harness.start_counting();
    harness.played.play("learn", Play::Works);
    let tried = TestRun::create(&harness, plain("learn")).await;
    tried.wait_running(&harness).await;
    let writes = harness.take_counted().len();
    cancel(&tried).await;
    let status = tried.wait_torn_down(&harness).await;
    tried.assert_ended(&harness, &status, Phase::Cancelled).await;

    for (number, then) in matrix(writes) {
        harness.start_counting();
        harness.proxy.stop_at(number, Moment::Before);
        let name = format!("cancel-{number}-{then:?}").to_lowercase();
        harness.played.play(&name, Play::Works);
        let tried = TestRun::create(&harness, plain(&name)).await;
        let has_stopped = harness.stopped_before_it_runs(&tried).await;
        cancel(&tried).await;
        // The last writes of a start may fall together; then it is stopped at one of the end.
        assert!(has_stopped || harness.stopped(&tried).await);
        go_on(&harness, then).await;
        let status = tried.wait_torn_down(&harness).await;
        tried.assert_ended(&harness, &status, Phase::Cancelled).await;
    }
}

async fn cancel(tried: &TestRun) {
    let patch = Patch::Merge(json!({ "spec": { "cancel": true } }));
    let done = tried.api().patch(&tried.name, &PatchParams::default(), &patch).await;
    done.expect("the run is cancelled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_was_torn_away_while_nobody_looked_is_swept_up() {
    let Some(harness) = Harness::new("torn").await else {
        return;
    };
    harness.start_counting();
    harness.played.play("torn", Play::Works);
    let tried = TestRun::create(&harness, everything("torn")).await;
    tried.wait_running(&harness).await;
    harness.kill();
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let stripped = tried.api().patch(&tried.name, &PatchParams::default(), &patch).await;
    stripped.expect("the finalizer is taken off");
    let deleted = tried.api().delete(&tried.name, &DeleteParams::background()).await;
    deleted.expect("the run is deleted");
    tried.wait_until("the run to be gone", &harness, |run| run.is_none()).await;
    // Nobody but the controller takes what is not in a namespace.
    let left = tried.remaining_objects().await;
    assert!(left.iter().any(|it| it.starts_with("ClusterRoleBinding ")), "{left:?}");
    harness.proxy.resume();
    harness.start().await;
    tried.assert_deleted(&harness).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finalizer_of_somebody_else_does_not_keep_the_controller_busy() {
    let Some(harness) = Harness::new("foreign").await else {
        return;
    };
    harness.start_counting();
    let mut run = plain("foreign");
    run["metadata"]["finalizers"] = json!(["example.com/mine"]);
    let tried = TestRun::create(&harness, run).await;
    tried
        .wait_until("our finalizer to be gone", &harness, |run| {
            let Some(run) = run else { return false };
            let status = run.status.as_ref();
            let checked = status.is_some_and(|it| it.revocation.is_some());
            checked && run.metadata.finalizers.as_deref() == Some(&["example.com/mine".to_owned()])
        })
        .await;
    // Another run from beginning to end: time in which a controller that is busy would show it.
    let other = TestRun::create(&harness, plain("other")).await;
    let status = other.wait_torn_down(&harness).await;
    other.assert_succeeded(&harness, &status, 0).await;
    let version = tried.get().await.and_then(|it| it.metadata.resource_version);
    let next = TestRun::create(&harness, plain("next")).await;
    let status = next.wait_torn_down(&harness).await;
    next.assert_succeeded(&harness, &status, 0).await;
    let now = tried.get().await.and_then(|it| it.metadata.resource_version);
    assert_eq!(version, now, "somebody keeps writing\n{}", harness.describe(&tried).await);

    let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let freed = tried.api().patch(&tried.name, &PatchParams::default(), &patch).await;
    freed.expect("the finalizer is taken off");
}
