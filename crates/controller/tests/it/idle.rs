//! What a controller does when there is nothing to do.

use std::time::Instant;

use serde_json::json;
use sympozium_controller::agents::COUNT_INTERVAL;
use sympozium_program::leader::RENEW_INTERVAL;
use sympozium_testkit::cluster::{Call, Exclusivity, Security};

use crate::harness::{Harness, wait_until_true};

/// For how many renewals of its Lease it is watched.
const RENEWALS: usize = 3;

#[test]
fn an_idle_controller_writes_its_lease_and_nothing_else() {
    let Some(harness) = Harness::new("idle", Exclusivity::exclusive()) else {
        return;
    };
    let Some(audit) = harness.cluster.audit() else {
        return;
    };
    let team = harness.cluster.namespace("team", Security::Restricted).expect("a namespace");
    let pack = json!({"apiVersion": "sympozium.ai/v1alpha1", "kind": "SkillPack", "metadata": {"name": "echo"},
        "spec": {"skills": [{"name": "say", "content": "x"}]}});
    let agent = json!({"apiVersion": "sympozium.ai/v1alpha1", "kind": "Agent", "metadata": {"name": "alice"},
        "spec": {"agents": {"default": {"model": "m"}}, "skills": [{"skillPackRef": "echo"}]}});
    team.create(&pack).expect("a pack");
    team.create(&agent).expect("an agent");
    let program = harness.start_leader();
    harness.wait_for(team.kubectl(), &["skillpack", "echo"], |it| it["status"]["phase"] == "Ready");
    harness.wait_for(team.kubectl(), &["agent", "alice"], |it| it["status"]["phase"] == "Running");
    program.wait_for_metric(r#"certificate_faults{secret="sympozium-gateway-keys"}"#, |it| it == 0.0);
    program.wait_for_metric(r#"foreign_objects{kind="NetworkPolicy"}"#, |_| true);

    // What is left of other tests is deleted meanwhile, which is work for any controller. One that stays for ever does no harm.
    let _ = wait_until_true(|| {
        let namespaces = harness.cluster.kubectl().json(&["get", "namespaces"]);
        namespaces.is_ok_and(|namespaces| {
            let mut all = namespaces["items"].as_array().into_iter().flatten();
            all.all(|it| it["metadata"]["deletionTimestamp"].is_null())
        })
    });

    let account = harness.account();
    let ours = |calls: Vec<Call>| -> Vec<Call> {
        let mut calls = calls;
        calls.retain(|call| call.impersonated.as_deref() == Some(account.as_str()));
        calls
    };
    // A probe that gets no processor for long is given up, and asked again.
    let metric = |name: &str| {
        let mut value = None;
        let told = wait_until_true(|| {
            value = program.metric(name);
            value.is_some()
        });
        assert!(told, "{name} is not told: {}", program.log());
        value
    };
    // What the last of the above still caused.
    let mark = audit.mark().expect("a log");
    let renewals = metric("lease_renewed_seconds");
    assert!(wait_until_true(|| program.metric("lease_renewed_seconds") > renewals));
    let _ = audit.since(mark).expect("a log");

    // A look that was put off comes soon: none is on its way when the counter has stood still for longer than that.
    let looks = || metric(r#"reconciles_total{kind="Agent"}"#);
    let (mut looked, mut since) = (looks(), Instant::now());
    assert!(wait_until_true(|| {
        // Before the counter is read: whatever time passes until it is read, it stood still for so long.
        let is_long = since.elapsed() > COUNT_INTERVAL * 2;
        let now = looks();
        let stood_still = now == looked;
        if !stood_still {
            (looked, since) = (now, Instant::now());
        }
        is_long && stood_still
    }));

    let begun = Instant::now();
    let mark = audit.mark().expect("a log");
    let (mut renewed, mut renewals) = (metric("lease_renewed_seconds"), 0);
    // The first may have been answered before the mark, and counted after it.
    assert!(wait_until_true(|| program.metric("lease_renewed_seconds") > renewed));
    renewed = metric("lease_renewed_seconds");
    assert!(wait_until_true(|| {
        let now = program.metric("lease_renewed_seconds");
        if now > renewed {
            (renewed, renewals) = (now, renewals + 1);
        }
        renewals >= RENEWALS
    }));
    let writes: Vec<Call> = ours(audit.since(mark).expect("a log"))
        .into_iter()
        .filter(|call| !matches!(call.verb.as_str(), "get" | "list" | "watch"))
        .collect();
    let (lease, other): (Vec<_>, Vec<_>) = writes
        .into_iter()
        .partition(|call| call.resource == "leases" && call.verb == "update" && call.name == "sympozium-controller");
    assert_eq!(other, []);
    assert!(lease.iter().all(|call| call.code == 200));
    // A starved machine is later, never sooner.
    let most = begun.elapsed().div_duration_f64(RENEW_INTERVAL) as usize + 1;
    assert!((RENEWALS..=most).contains(&lease.len()), "{}", lease.len());
    assert_eq!(looks(), looked);
}
