//! Whose a token is, from a run's pod to its end.

use std::time::{Duration, Instant};

use serde_json::json;
use sympozium_ipc::run_api::path;
use sympozium_testkit::wait_until;

use super::{AUDIENCE, ClusterHarness, blocking, probe, reported};
use crate::harness::TIMEOUT;

/// How a report is answered while the run is served, and how another run's token is.
const REFUSED: &str = "token";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_that_of_the_first_pod_of_a_run_and_of_nothing_else() {
    let Some(harness) = ClusterHarness::open("tokens") else {
        return;
    };
    let gateway = harness.gateway("gateway");
    let run = harness.run("one", |_| {});
    let bridge = harness.served(&gateway, &run).await;
    let mut reports = run.reports();
    assert_eq!(reported(&bridge, &reports.next(1)).await, Ok(1));

    let next = reports.next(1);
    let (other, other_uid) = harness.pod("other");
    let account = format!("--audience={AUDIENCE}");
    let account = harness.kubectl(&["create", "token", "default", &account]);
    for (what, token) in [
        ("of another pod", harness.token("default", (&other, &other_uid), AUDIENCE)),
        (
            "for another audience",
            harness.token(&run.account, (&run.pod, &run.pod_uid), "https://kubernetes.default.svc"),
        ),
        ("for no pod", account.trim().to_owned()),
        ("none", "nothing".to_owned()),
        ("forged", format!("{}x", harness.token_of(&run))),
    ] {
        let answer = harness.post_report(&gateway, &token, &next).await;
        assert_eq!(answer, Err(REFUSED.to_owned()), "{what}");
        assert!(!gateway.log().contains(&token) || token == "nothing", "{what}");
    }
    assert_eq!(reported(&bridge, &next).await, Ok(2));

    // A run that has a plan and no pod yet: the bridge may be the one, and comes again. That is so as soon as the run is
    // there, whether or not the watch has brought it.
    let waiting = harness.run_without_pod("two", |_| {});
    let token = harness.token_of(&waiting);
    let mut reports = waiting.reports();
    let first = reports.next(1);
    let deadline = Instant::now() + TIMEOUT;
    // Another reason is that the API server did not answer in time.
    while !gateway.log().contains("waits for its pod") {
        assert!(Instant::now() < deadline, "{}", gateway.log());
        let early = harness.bridge(&gateway, &token).await;
        assert_eq!(early.report(&first).await, Err("failed".to_owned()));
    }
    harness.has_pod(&waiting);
    let bridge = harness.served(&gateway, &waiting).await;
    assert_eq!(reported(&bridge, &first).await, Ok(1));
    let metrics = probe(&gateway, "/metrics").1;
    for line in [
        "token_reviews_total{outcome=\"good\"}",
        "token_reviews_total{outcome=\"bad\"}",
        "refusals_total{reason=\"credential-forged\"}",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    // Those of other tests are in the same cluster.
    let runs = metrics.lines().find_map(|it| it.strip_prefix("sympozium_gateway_runs "));
    let runs: Option<u64> = runs.and_then(|it| it.parse().ok());
    assert!(runs.is_some_and(|it| it >= 2), "{metrics}");

    // A pod that is gone: its token is good for as long as it is remembered here and at the API server, and no longer.
    harness.kubectl(&["delete", "pod", &waiting.pod, "--force", "--grace-period=0"]);
    let deadline = Instant::now() + 2 * TIMEOUT;
    loop {
        match bridge.report(&first).await {
            Err(code) if code == REFUSED => break,
            answer => assert!(Instant::now() < deadline, "{answer:?}"),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_over_is_cut_and_stays_over() {
    let Some(harness) = ClusterHarness::open("over") else {
        return;
    };
    let gateway = harness.gateway("gateway");
    for (name, how) in [("ended", 0), ("revoked", 1), ("deleted", 2)] {
        let run = harness.run(name, |_| {});
        let bridge = harness.served(&gateway, &run).await;
        let token = harness.token_of(&run);
        let mut reports = run.reports();
        assert_eq!(reported(&bridge, &reports.next(1)).await, Ok(1));
        let revoked = json!({ "revokedAt": "2026-01-01T00:00:00Z" });
        match how {
            0 => harness.set_status("agentrun", name, &json!({ "phase": "Failed" })),
            1 => harness.set_status("agentrun", name, &revoked),
            _ => drop(harness.kubectl(&["delete", "agentrun", name])),
        }
        let uid = run.plan.run.uid.as_str().to_owned();
        let over = |line: &str| line.contains("a run is over") && line.contains(&uid);
        let is_over = || gateway.log().lines().any(over);
        assert!(blocking(|| wait_until(TIMEOUT, is_over)), "{name}");
        let next = reports.next(1);
        let body = serde_json::to_vec(&next).expect("JSON");
        let cut = bridge.send(path::REPORTS, body).await;
        assert!(cut.is_err() || cut.is_ok_and(|it| it.0 == 401), "{name}");
        let again = harness.post_report(&gateway, &token, &next).await;
        assert_eq!(again, Err(REFUSED.to_owned()), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_served_by_the_plan_that_it_was_admitted_with() {
    let Some(harness) = ClusterHarness::open("plans") else {
        return;
    };
    let run = harness.run("one", |_| {});
    let first = harness.gateway("first");
    let mut reports = run.reports();
    let bridge = harness.served(&first, &run).await;
    assert_eq!(reported(&bridge, &reports.next(1)).await, Ok(1));
    drop(first);

    // A restart learns everything again.
    let second = harness.gateway("second");
    let bridge = harness.served(&second, &run).await;
    assert_eq!(reported(&bridge, &reports.next(1)).await, Ok(2));
    drop(second);

    // A user replaces the plan, and lets the run reach more.
    let mut other = run.plan.clone();
    other.approval.required += 1;
    let bytes = String::from_utf8(other.to_bytes().expect("JSON")).expect("text");
    let name = run.name("plan");
    harness.kubectl(&["delete", "configmap", &name]);
    harness.create(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name }, "data": { "plan.json": bytes },
    }));
    let third = harness.gateway("third");
    blocking(|| third.wait_for_log("the ConfigMap holds another plan"));
    let answer = harness.post_report(&third, &harness.token_of(&run), &reports.next(1)).await;
    assert_eq!(answer, Err(REFUSED.to_owned()));

    // A plan that comes late is asked for again.
    let late = harness.run_without_pod("late", |_| {});
    let plan = harness.get("configmap", &late.name("plan"));
    harness.kubectl(&["delete", "configmap", &late.name("plan")]);
    harness.has_pod(&late);
    blocking(|| third.wait_for_log("a plan is asked for again"));
    harness.create(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": late.name("plan") }, "data": plan["data"],
    }));
    let bridge = harness.served(&third, &late).await;
    assert_eq!(reported(&bridge, &late.reports().next(1)).await, Ok(1));
}
