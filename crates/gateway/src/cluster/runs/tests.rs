use std::collections::BTreeMap;

use kube::core::ObjectMeta;
use serde_json::{Value, json};

use super::*;

fn partial_run(status: Value) -> PartialRun {
    seen_of("uid", "team", status)
}

fn seen_of(uid: &str, namespace: &str, status: Value) -> PartialRun {
    let run = json!({
        "metadata": { "name": "n", "namespace": namespace, "uid": uid },
        "spec": { "task": "a long text", "unknown": [1, 2] },
        "status": status,
    });
    serde_json::from_value(run).unwrap()
}

/// With a client that is never used: no test here has a plan to fetch.
fn runs() -> Arc<RunCache> {
    let config = kube::Config::new(http::Uri::from_static("http://127.0.0.1:9"));
    RunCache::new(Client::try_from(config).unwrap(), Arc::default())
}

impl RunCache {
    /// The watch delivers a run of namespace `team`.
    pub(in crate::cluster) fn sees(self: &Arc<Self>, uid: &str, status: Value) {
        self.observe(&seen_of(uid, "team", status), Origin::Watch);
    }

    /// The watch has delivered the whole list.
    pub(in crate::cluster) fn listed(&self) {
        self.ready.send_replace(true);
    }
}

#[test]
fn a_run_is_over_when_it_has_ended_is_revoked_or_goes() {
    for (status, over) in [
        (json!(null), false),
        (json!({}), false),
        (json!({ "phase": "Pending" }), false),
        (json!({ "phase": "PostRunning" }), false),
        (json!({ "phase": "Running", "report": { "finished": true } }), false),
        (json!({ "phase": "Succeeded" }), true),
        (json!({ "phase": "Cancelled" }), true),
        (json!({ "phase": "Running", "revokedAt": "2026-01-01T00:00:00Z" }), true),
        (json!({ "phase": "Levitating" }), true),
    ] {
        assert_eq!(end_reason(&partial_run(status.clone())).is_some(), over, "{status}");
    }
    let mut going = partial_run(json!({ "phase": "Running" }));
    going.metadata = ObjectMeta { deletion_timestamp: Some(now()), ..going.metadata };
    assert!(end_reason(&going).is_some());
}

#[tokio::test]
async fn nothing_is_kept_of_runs_that_are_over() {
    let runs = runs();
    for number in 0..10_000 {
        let uid = format!("u{number}");
        runs.sees(&uid, json!({ "phase": "Failed", "podUID": uid }));
    }
    assert!(runs.is_empty());
    runs.sees("uid", json!({ "phase": "Pending" }));
    assert_eq!(runs.len(), 1);
    runs.sees("uid", json!({ "phase": "Skipped" }));
    assert!(runs.is_empty() && runs.index.lock().pods.is_empty());
}

#[tokio::test]
async fn a_pod_belongs_to_a_run_a_waiting_run_or_none() {
    let runs = runs();
    let (digest, has_no_run) = (format!("sha256:{}", "0".repeat(64)), |found| matches!(found, PodOwner::NoRun(_)));
    let later = |found| matches!(found, PodOwner::Undecided(_));
    assert!(later(runs.pod_owner("team", "pod")));
    runs.ready.send_replace(true);
    assert_eq!(runs.pod_owner("team", "pod"), PodOwner::Unknown);
    runs.sees("uid", json!({ "phase": "Pending" }));
    assert_eq!(runs.pod_owner("team", "pod"), PodOwner::Unknown);
    runs.sees("uid", json!({ "phase": "Pending", "planDigest": digest }));
    assert!(later(runs.pod_owner("team", "pod")));
    assert_eq!(runs.pod_owner("another", "pod"), PodOwner::Unknown);
    runs.sees("uid", json!({ "phase": "Running", "planDigest": digest, "podUID": "pod" }));
    assert!(later(runs.pod_owner("team", "pod")));
    runs.set_plan_state("uid", PlanState::Served);
    assert_eq!(runs.pod_owner("team", "pod"), PodOwner::Run("uid".to_owned()));
    assert!(has_no_run(runs.pod_owner("another", "pod")));
    // Another pod of the run is not served.
    runs.sees("uid", json!({ "phase": "Running", "planDigest": digest, "podUID": "second" }));
    assert_eq!(runs.pod_owner("team", "second"), PodOwner::Unknown);
    assert_eq!(runs.pod_owner("team", "pod"), PodOwner::Run("uid".to_owned()));
    runs.set_plan_state("uid", PlanState::Mismatch);
    assert!(has_no_run(runs.pod_owner("team", "pod")));
    runs.sees("uid", json!({ "phase": "Succeeded" }));
    assert_eq!(runs.pod_owner("team", "pod"), PodOwner::Unknown);
}

#[tokio::test]
async fn who_created_a_run_is_known_where_it_was_recorded() {
    let runs = runs();
    let mut run = partial_run(json!({}));
    runs.observe(&run, Origin::Watch);
    assert_eq!(runs.author("uid"), None);
    let author = (annotation::CREATED_BY.to_owned(), "jo".to_owned());
    run.metadata.annotations = Some(BTreeMap::from([author]));
    runs.observe(&run, Origin::Watch);
    assert_eq!(runs.author("uid").as_deref(), Some("jo"));
    // No user has that name, so every approver would differ from the author.
    for empty in ["", " "] {
        let author = (annotation::CREATED_BY.to_owned(), empty.to_owned());
        run.metadata.annotations = Some(BTreeMap::from([author]));
        runs.observe(&run, Origin::Watch);
        assert_eq!(runs.author("uid"), None, "{empty:?}");
    }
}
