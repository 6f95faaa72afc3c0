use serde_json::{Value, json};

use super::*;
use crate::cluster::fake_api::{self, FakeResponse, RequestCount};

const UID: &str = "3f2c1a90-77f4-4c62-9f0e-0123456789ab";
const ACCOUNT: &str = "a-run-with-a-lon-3f2c1a9077f44c629f0e0123456789ab-pod";
const PLAN_OF_RUN: &str = "/configmaps/a-run-with-a-lon-3f2c1a9077f44c629f0e0123456789ab-plan";
const RUN: &str = "/agentruns/a-run-with-a-long-name";

fn run(uid: &str, status: &Value) -> FakeResponse {
    let run = json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun",
        "metadata": { "name": "a-run-with-a-long-name", "namespace": "team", "uid": uid },
        "spec": {}, "status": status,
    });
    Some((200, run))
}

/// A cache whose watch has delivered nothing, and the cluster as it is.
async fn behind(of_run: impl Fn() -> FakeResponse + Send + Sync + 'static) -> (Arc<RunCache>, RequestCount) {
    let (client, count) = fake_api::serve(move |asked| {
        let plan = json!({ "run": { "name": "a-run-with-a-long-name" } });
        if asked.path.contains(PLAN_OF_RUN) {
            return Some((200, json!({ "data": { "plan.json": plan.to_string() } })));
        }
        if asked.path.contains(RUN) { of_run() } else { fake_api::not_found() }
    })
    .await;
    let runs = RunCache::new(client, Arc::default());
    runs.ready.send_replace(true);
    (runs, count)
}

async fn looked(status: Value) -> PodOwner {
    let (runs, _) = behind(move || run(UID, &status)).await;
    runs.look_up_owner("team", ACCOUNT, "pod").await
}

fn is_later(found: &PodOwner) -> bool {
    matches!(found, PodOwner::Undecided(_))
}

fn has_no_owner(found: &PodOwner) -> bool {
    matches!(found, PodOwner::NoRun(_))
}

#[test]
fn the_account_of_a_pod_names_its_run() {
    let stem = Stem::from_account(ACCOUNT).unwrap();
    assert_eq!((stem.uid.as_str(), stem.text.as_str()), (UID, "a-run-with-a-lon-3f2c1a9077f44c629f0e0123456789ab"));
    for account in [
        "",
        "default",
        "a-pod",
        "a-3f2c1a9077f44c629f0e0123456789ab",
        "3f2c1a9077f44c629f0e0123456789ab-pod",
        "a-3F2c1a9077f44c629f0e0123456789ab-pod",
        "a-3f2c1a9077f44c629f0e0123456789ab-pod-x",
    ] {
        assert_eq!(Stem::from_account(account), None, "{account}");
    }
}

#[tokio::test]
async fn a_run_that_the_watch_has_not_brought_is_not_refused() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let its_pod = "the run waits for its pod, and this may be it";
    let a_pod = "a run of the namespace waits for its pod, and this may be it";
    for (status, why) in [
        (json!(null), its_pod),
        (json!({ "phase": "Pending" }), its_pod),
        (json!({ "phase": "Pending", "planDigest": digest }), a_pod),
        (json!({ "phase": "Running", "planDigest": digest, "podUID": "pod" }), "the run's plan was not read yet"),
    ] {
        assert_eq!(looked(status).await, PodOwner::Undecided(why));
    }
}

#[tokio::test]
async fn a_run_that_is_over_or_has_another_pod_is_refused() {
    for status in [
        json!({ "phase": "Failed", "podUID": "pod" }),
        json!({ "phase": "Running", "podUID": "pod", "revokedAt": "2026-01-01T00:00:00Z" }),
        json!({ "phase": "Running", "podUID": "first" }),
    ] {
        let status_of_run = status.clone();
        let (runs, count) = behind(move || run(UID, &status_of_run)).await;
        for _ in 0..3 {
            let found = runs.look_up_owner("team", ACCOUNT, "pod").await;
            assert!(has_no_owner(&found), "{status}: {found:?}");
        }
        // The cached state is not requested again.
        assert_eq!(count.get(), 2, "{status}");
    }
}

#[tokio::test]
async fn a_pod_without_a_run_has_no_owner_and_a_failed_lookup_is_retried() {
    let other = "11111111-77f4-4c62-9f0e-0123456789ab";
    let (gone, _) = behind(fake_api::not_found).await;
    assert!(has_no_owner(&gone.look_up_owner("team", ACCOUNT, "pod").await));
    let (made_again, _) = behind(move || run(other, &json!({}))).await;
    assert!(has_no_owner(&made_again.look_up_owner("team", ACCOUNT, "pod").await));
    let (strange, count) = behind(fake_api::not_found).await;
    assert!(has_no_owner(&strange.look_up_owner("team", "default", "pod").await));
    assert_eq!(count.get(), 0);
    let (broken, _) = behind(|| Some((403, json!({})))).await;
    assert!(is_later(&broken.look_up_owner("team", ACCOUNT, "pod").await));
}

/// The lookup was answered before the run ended, and its result is read after the watch has delivered the end.
#[tokio::test]
async fn a_look_brings_nothing_back() {
    let (runs, _) = behind(fake_api::not_found).await;
    runs.sees(UID, json!({ "phase": "Failed" }));
    let Some((_, old)) = run(UID, &json!({ "phase": "Running", "podUID": "pod" })) else {
        unreachable!("it is there");
    };
    runs.observe(&serde_json::from_value(old).unwrap(), Origin::Lookup);
    assert!(runs.is_empty());
    assert!(has_no_owner(&runs.look_up_owner("team", ACCOUNT, "pod").await));
}
