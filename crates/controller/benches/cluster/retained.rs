//! Runs that are over and kept: what they cost a controller that has nothing to do, or something.

use std::sync::Arc;
use std::time::Duration;

use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use sympozium_api::AgentRun;
use sympozium_testkit::bench::{Suite, Target};
use sympozium_testkit::cluster::faults::{Caller, Class, FaultProxy};
use sympozium_testkit::cluster::samples::plain;
use sympozium_testkit::processes::{mebibytes, memory};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::harness::Harness;
use crate::{latency, size};

const IDLE_RUNS: usize = 1_000;
const IDLE_SECONDS: usize = 30;
const RETAINED: usize = 10_000;
/// What `/proc` counts in; the same on every Linux that we run on (proc(5)).
const TICKS_PER_SECOND: f64 = 100.0;
/// Writers at a time.
const WRITERS: usize = 16;
/// How long a controller may take to look at what it was shown, before it counts as idle.
const SETTLE_TIME: Duration = Duration::from_secs(5);

/// Nothing to do, and a thousand finished runs.
pub async fn idle(suite: &mut Suite, harness: &mut Harness) {
    fill(harness, "idle", size("IDLE_RUNS", IDLE_RUNS)).await;
    let proxy = FaultProxy::start(&harness.cluster, Caller::Administrator).expect("a proxy");
    harness.kill();
    harness.start(&proxy.kubeconfig()).await;
    tokio::time::sleep(SETTLE_TIME).await;
    let pid = harness.controller().pid();
    let looks = reconciles(harness);
    proxy.begin(|_, _| true);
    let before = processor_seconds(pid);
    let time = Duration::from_secs(size("IDLE_SECONDS", IDLE_SECONDS) as u64);
    tokio::time::sleep(time).await;
    let used = processor_seconds(pid) - before;
    let all = proxy.writes();
    let written: Vec<_> = all.iter().filter(|it| it.class != Class::Lease).collect();
    for write in written.iter().take(10) {
        println!("while idle: {write}");
    }
    let looks = reconciles(harness) - looks;
    println!(
        "idle for {} s: {} writes, {} of the Lease; {looks} looks at objects; {:.0} ms of a processor",
        time.as_secs(),
        written.len(),
        all.len() - written.len(),
        used * 1e3
    );
    suite.row(
        "idle with 1,000 finished runs, 30 s, API writes but the Lease's",
        written.len() as f64,
        "",
        Target::AtMost(0.0),
    );
    suite.row("idle with 1,000 finished runs, 30 s, objects looked at", looks, "", Target::AtMost(0.0));
    suite.row(
        "idle with 1,000 finished runs, 30 s, share of a processor",
        used / time.as_secs_f64() * 100.0,
        "%",
        Target::AtMost(0.5),
    );
    harness.kill();
    let straight = harness.cluster.kubeconfig().to_owned();
    harness.start(&straight).await;
}

/// Ten thousand finished runs: memory, a new run's latency, and a restart.
pub async fn history(suite: &mut Suite, harness: &mut Harness, empty: f64) {
    let more = size("RETAINED", RETAINED).saturating_sub(size("IDLE_RUNS", IDLE_RUNS));
    fill(harness, "kept", more).await;
    let full = latency::further(harness, "full").await;
    println!("created until its Job: {full}; with none retained: p50 {empty:.0} µs");
    suite.row(
        "10,000 finished runs retained, a new run created until its Job is there, against none",
        full.p50 / empty,
        "x",
        Target::AtMost(1.2),
    );
    let grown = mebibytes(memory(harness.controller().pid()).expect("it lives").resident);
    harness.kill();
    let straight = harness.cluster.kubeconfig().to_owned();
    let ready = harness.start(&straight).await;
    suite.row("10,000 finished runs retained, restart until ready", ready.as_secs_f64(), "s", Target::AtMost(5.0));
    tokio::time::sleep(SETTLE_TIME).await;
    let fresh = mebibytes(memory(harness.controller().pid()).expect("it lives").resident);
    println!("resident: {grown:.1} MiB after they came one by one, {fresh:.1} MiB after a restart");
    suite.row("10,000 finished runs retained, controller memory", grown.max(fresh), "MiB", Target::AtMost(120.0));
}

/// Creates runs that are over. While they are, nobody must take them for new: so without the controller.
async fn fill(harness: &mut Harness, label: &str, count: usize) {
    harness.kill();
    let places = Arc::new(Semaphore::new(WRITERS));
    let mut writing = JoinSet::new();
    for number in 0..count {
        let (places, runs) = (Arc::clone(&places), harness.runs());
        let name = format!("{label}-kept-{number}");
        writing.spawn(async move {
            let _place = places.acquire().await.expect("open");
            let run: AgentRun = serde_json::from_value(plain(&name)).expect("a run");
            let created = runs.create(&PostParams::default(), &run).await;
            created.expect("created");
            let status = Patch::Merge(json!({ "status": finished_status() }));
            let written = runs.patch_status(&name, &PatchParams::default(), &status).await;
            written.expect("written");
        });
    }
    writing.join_all().await;
    let straight = harness.cluster.kubeconfig().to_owned();
    harness.start(&straight).await;
}

/// The status of a run of which nothing is left, with as much in it as an ordinary one has.
fn finished_status() -> Value {
    let time = "2026-01-01T00:00:00Z";
    let digest = format!("sha256:{}", "0".repeat(64));
    let condition = |kind: &str, status: &str| {
        json!({ "type": kind, "status": status, "reason": "Kept", "lastTransitionTime": time,
            "message": "no object of the run exists and its accounts have no access; verified by reading the objects and by access reviews" })
    };
    let grants: Vec<Value> = (0..14)
        .map(|number| {
            json!({ "kind": "Secret", "namespace": "kept", "name": format!("kept-00000000000040008000000000000000-word{number}"),
                "uid": format!("00000000-0000-4000-8000-{number:012}"), "skill": "powers", "role": "Other" })
        })
        .collect();
    json!({
        "phase": "Succeeded",
        "podName": "kept", "podUID": "00000000-0000-4000-8000-000000000000", "jobName": "kept",
        "startedAt": time, "completedAt": time, "grantedAt": time, "revokedAt": time,
        "planDigest": digest,
        "grants": grants,
        "result": "What was asked was done, and this is the answer to it. ".repeat(20),
        "report": { "reportedAt": time, "reports": 1, "finished": true, "ending": "answered",
            "result": "What was asked was done, and this is the answer to it. ".repeat(20) },
        "revocation": { "checkedAt": time },
        "conditions": [condition("Admitted", "True"), condition("Granted", "False"),
            condition("Started", "True"), condition("Revoked", "True")],
    })
}

/// How often the controller has looked at objects, of all kinds.
fn reconciles(harness: &Harness) -> f64 {
    let (_, text) = harness.controller().ask("/metrics").expect("it answers");
    let ours = |line: &&str| line.starts_with("sympozium_controller_reconciles_total");
    let values = text.lines().filter(ours);
    values.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

/// User and system time of a process.
fn processor_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    // After the name, which may have blanks in it.
    let rest = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let fields: Vec<f64> = rest.split(' ').filter_map(|it| it.parse().ok()).collect();
    // The state is not a number: user and system time are the 11th and 12th after it.
    (fields[10] + fields[11]) / TICKS_PER_SECOND
}
