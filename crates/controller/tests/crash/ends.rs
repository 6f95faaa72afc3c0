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

async fn go_on(ground: &Harness, then: Then) {
    match then {
        // Its write is lost, and it has to try again.
        Then::GoesOn => ground.proxy.resume(),
        Then::IsKilled => ground.crash().await,
    }
}

/// The writes of a run like those that follow.
async fn learn(ground: &Harness, run: serde_json::Value) -> usize {
    ground.start_counting();
    let tried = TestRun::create(ground, run).await;
    let status = tried.wait_torn_down(ground).await;
    tried.assert_ended(ground, &status, Phase::Succeeded).await;
    ground.take_counted().len()
}

fn matrix(writes: usize) -> Vec<(usize, Then)> {
    let all = (1..=writes).flat_map(|number| [(number, Then::GoesOn), (number, Then::IsKilled)]);
    cases::sample(all.collect(), SAMPLE)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_at_any_step_a_run_leaves_nothing() {
    let Some(ground) = Harness::new("deleted").await else {
        return;
    };
    let writes = learn(&ground, everything("learn")).await;
    let mut missed = Vec::new();
    for (number, then) in matrix(writes) {
        ground.start_counting();
        ground.proxy.stop_at(number, Moment::Before);
        let name = format!("delete-{number}-{then:?}").to_lowercase();
        let tried = TestRun::create(&ground, everything(&name)).await;
        let stopped = ground.stopped(&tried).await;
        let at_once = DeleteParams::background();
        let deleted = tried.api().delete(&tried.name, &at_once).await;
        deleted.expect("the run is deleted");
        match stopped {
            true => go_on(&ground, then).await,
            false => missed.push(number),
        }
        tried.assert_deleted(&ground).await;
        let pods = ground.played.pods_of(&tried.uid);
        assert!(pods.seen.len() <= 1, "{pods:?}\n{}", ground.describe(&tried).await);
    }
    // The last steps of a run may fall together.
    assert!(missed.iter().all(|it| it + WRITE_COUNT_SPREAD > writes), "never came: {missed:?} of {writes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_at_any_step_a_run_is_cancelled_and_leaves_nothing() {
    let Some(ground) = Harness::new("cancelled").await else {
        return;
    };
    // How far a run comes whose agent never ends.
    ground.start_counting();
    ground.played.play("learn", Play::Works);
    let tried = TestRun::create(&ground, plain("learn")).await;
    tried.wait_running(&ground).await;
    let writes = ground.take_counted().len();
    cancel(&tried).await;
    let status = tried.wait_torn_down(&ground).await;
    tried.assert_ended(&ground, &status, Phase::Cancelled).await;

    for (number, then) in matrix(writes) {
        ground.start_counting();
        ground.proxy.stop_at(number, Moment::Before);
        let name = format!("cancel-{number}-{then:?}").to_lowercase();
        ground.played.play(&name, Play::Works);
        let tried = TestRun::create(&ground, plain(&name)).await;
        let has_stopped = ground.stopped_before_it_runs(&tried).await;
        cancel(&tried).await;
        // The last writes of a start may fall together; then it is stopped at one of the end.
        assert!(has_stopped || ground.stopped(&tried).await);
        go_on(&ground, then).await;
        let status = tried.wait_torn_down(&ground).await;
        tried.assert_ended(&ground, &status, Phase::Cancelled).await;
    }
}

async fn cancel(tried: &TestRun) {
    let patch = Patch::Merge(json!({ "spec": { "cancel": true } }));
    let done = tried.api().patch(&tried.name, &PatchParams::default(), &patch).await;
    done.expect("the run is cancelled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_was_torn_away_while_nobody_looked_is_swept_up() {
    let Some(ground) = Harness::new("torn").await else {
        return;
    };
    ground.start_counting();
    ground.played.play("torn", Play::Works);
    let tried = TestRun::create(&ground, everything("torn")).await;
    tried.wait_running(&ground).await;
    ground.kill();
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let stripped = tried.api().patch(&tried.name, &PatchParams::default(), &patch).await;
    stripped.expect("the finalizer is taken off");
    let deleted = tried.api().delete(&tried.name, &DeleteParams::background()).await;
    deleted.expect("the run is deleted");
    tried.wait_until("the run to be gone", &ground, |run| run.is_none()).await;
    // Nobody but the controller takes what is not in a namespace.
    let left = tried.remaining_objects().await;
    assert!(left.iter().any(|it| it.starts_with("ClusterRoleBinding ")), "{left:?}");
    ground.proxy.resume();
    ground.start().await;
    tried.assert_deleted(&ground).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finalizer_of_somebody_else_does_not_keep_the_controller_busy() {
    let Some(ground) = Harness::new("foreign").await else {
        return;
    };
    ground.start_counting();
    let mut run = plain("foreign");
    run["metadata"]["finalizers"] = json!(["example.com/mine"]);
    let tried = TestRun::create(&ground, run).await;
    tried
        .wait_until("our finalizer to be gone", &ground, |run| {
            let Some(run) = run else { return false };
            let status = run.status.as_ref();
            let checked = status.is_some_and(|it| it.revocation.is_some());
            checked && run.metadata.finalizers.as_deref() == Some(&["example.com/mine".to_owned()])
        })
        .await;
    // Another run from beginning to end: time in which a controller that is busy would show it.
    let other = TestRun::create(&ground, plain("other")).await;
    let status = other.wait_torn_down(&ground).await;
    other.assert_succeeded(&ground, &status, 0).await;
    let version = tried.get().await.and_then(|it| it.metadata.resource_version);
    let next = TestRun::create(&ground, plain("next")).await;
    let status = next.wait_torn_down(&ground).await;
    next.assert_succeeded(&ground, &status, 0).await;
    let now = tried.get().await.and_then(|it| it.metadata.resource_version);
    assert_eq!(version, now, "somebody keeps writing\n{}", ground.describe(&tried).await);

    let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let freed = tried.api().patch(&tried.name, &PatchParams::default(), &patch).await;
    freed.expect("the finalizer is taken off");
}
