//! The order in which a run is made and taken down. The matrix of kills shows that a crash leaves nothing in the end; this,
//! that in between nobody can do more than they should.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use sympozium_api::agent_run::condition;
use sympozium_api::labels;
use sympozium_testkit::cluster::faults::Write;
use sympozium_testkit::cluster::played::Play;
use sympozium_testkit::cluster::samples::plain;

use super::harness::Harness;
use super::run::TestRun;

/// The places of the writes that create or delete objects of these kinds.
fn places(writes: &[Write], method: &str, kinds: &[&str]) -> Vec<usize> {
    let is_of = |write: &Write| {
        let parts: Vec<&str> = write.path.split('/').collect();
        // A creation ends with the kind, a deletion with the name after it.
        let kind = match method {
            "POST" => parts.last(),
            _ => parts.iter().rev().nth(1),
        };
        write.method == method && kind.is_some_and(|kind| kinds.contains(kind))
    };
    let found = writes.iter().enumerate().filter(|(_, it)| is_of(it));
    found.map(|(place, _)| place).collect()
}

/// Every one of the first is before every one of the second, and there are some of both.
#[track_caller]
fn before(first: (&str, &[usize]), second: (&str, &[usize])) {
    let (last, next) = (first.1.iter().max(), second.1.iter().min());
    assert!(
        last.is_some() && next.is_some() && last < next,
        "{} at {:?} before {} at {:?}",
        first.0,
        first.1,
        second.0,
        second.1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_come_last_and_go_first() {
    let Some(harness) = Harness::new("order").await else {
        return;
    };
    harness.start_counting();
    harness.played.play("order", Play::Waits);
    let tried = TestRun::create(&harness, plain("order")).await;
    tried.wait_running(&harness).await;
    let made = harness.take_counted();
    let of = |kinds: &[&str]| places(&made, "POST", kinds);
    let bindings = of(&["rolebindings", "clusterrolebindings"]);
    for (name, kind) in [
        ("accounts", "serviceaccounts"),
        ("what holds the pod in", "networkpolicies"),
        ("roles", "roles"),
        ("roles of the cluster", "clusterroles"),
        ("the plan and what is mounted", "configmaps"),
        ("tokens", "secrets"),
    ] {
        before((name, &of(&[kind])), ("rights", &bindings));
    }
    before(("rights", &bindings), ("the Job", &of(&["jobs"])));

    // The pod has users of its own where every node can give it some, and the run says so.
    let pods: Api<Pod> = Api::namespaced(harness.client.clone(), harness.namespace.name());
    let selector = ListParams::default().labels(&format!("{}={}", labels::RUN_UID, tried.uid));
    let pods = pods.list(&selector).await.expect("listed").items;
    let host_users = pods[0].spec.as_ref().and_then(|it| it.host_users);
    assert_eq!(host_users, Some(false));
    tried
        .wait_until("the run to say where it runs", &harness, |run| {
            let status = run.and_then(|it| it.status.as_ref());
            let mut conditions = status.iter().flat_map(|it| &it.conditions);
            conditions.any(|it| it.type_ == condition::STARTED && it.message.contains("in a user namespace of its own"))
        })
        .await;

    harness.start_counting();
    harness.played.cue(&tried.uid, Play::Answers);
    let status = tried.wait_torn_down(&harness).await;
    tried.assert_succeeded(&harness, &status, 0).await;
    let removed = harness.take_counted();
    let of = |kinds: &[&str]| places(&removed, "DELETE", kinds);
    let bindings = of(&["rolebindings", "clusterrolebindings"]);
    // Not even the run's own status comes before.
    assert_eq!(bindings, (0..bindings.len()).collect::<Vec<_>>(), "{removed:?}");
    before(("rights", &bindings), ("tokens", &of(&["secrets"])));
    before(("the Job", &of(&["jobs"])), ("what holds the pod in", &of(&["networkpolicies"])));
}
