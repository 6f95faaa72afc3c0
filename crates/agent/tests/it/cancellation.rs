//! SIGTERM ends the agent in every state: it reports, cancels calls in flight, and exits.

use std::fs;

use serde_json::json;
use sympozium_api::run_plan::{Gate as Gated, WireFormat};
use sympozium_harness::executor::Executor;
use sympozium_harness::plan::tool;
use sympozium_ipc::run_api::AgentEnd;
use sympozium_testkit::model_server::{Gate, ProviderError, Reply};
use sympozium_testkit::processes::is_alive;

use crate::harness::{Harness, calling, terminate};

const CANCELLED: &str = "the agent was asked to end before it had an answer";

/// Sends SIGTERM and checks the end.
async fn end(harness: &mut Harness, pid: i32) {
    terminate(pid);
    let end = harness.wait_for_end().await;
    assert_eq!(end.failure(), CANCELLED);
    assert!(!is_alive(pid));
    let last = harness.transcript().pop().expect("a line");
    assert_eq!((&last["kind"], &last["error"]), (&json!("end"), &json!(CANCELLED)));
}

#[tokio::test(flavor = "multi_thread")]
async fn while_it_waits_for_the_model() {
    let mut harness = Harness::new(WireFormat::OpenAi);
    harness.model.push(Reply::Silence);
    let pid = harness.start(&[]);
    harness.requests(1).await;
    end(&mut harness, pid).await;
    harness.model.wait_for_abandoned(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_middle_of_an_answer() {
    let mut harness = Harness::new(WireFormat::Anthropic);
    let gate = Gate::new();
    harness.model.push(Reply::pieces(["one", "two"]).gated(&gate));
    gate.release(1);
    let pid = harness.start(&[]);
    let (records, run) = (harness.records.clone(), harness.plan.run.uid.clone());
    harness
        .wait_until("progress is reported", || {
            let report = records.read_report(run.as_str()).ok().flatten();
            report.and_then(|it| it.progress).as_deref() == Some("one")
        })
        .await;
    end(&mut harness, pid).await;
    harness.model.wait_for_abandoned(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_command_runs() {
    let mut harness = Harness::new(WireFormat::OpenAi);
    let cluster = Executor::silent(harness.volume("cluster"));
    let command = json!({ "command": "sleep 100", "target": "cluster" });
    harness.model.push(calling("execute_command", command));
    let pid = harness.start(&[]);
    harness.wait_until("the skill has the request", || !cluster.requests().is_empty()).await;
    end(&mut harness, pid).await;
    let receipts = harness.receipt_lines();
    assert_eq!(receipts[1], "execute_command cluster Allowed");
    assert!(receipts[2].starts_with("Skill Failed") || receipts[2] == "Skill Cancelled", "{receipts:?}");
    let ended = format!("ended Failed {{ why: \"{CANCELLED}\" }}");
    assert_eq!(receipts[3..], [ended]);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_person_is_asked_about_a_permit() {
    let mut harness = Harness::with(WireFormat::OpenAi, |plan| {
        tool(plan, "write_file", None).gate = Gated::Ask;
    });
    let path = harness.path("a");
    let write = json!({ "path": path, "content": "x" });
    harness.model.push(calling("write_file", write));
    let pid = harness.start(&[]);
    harness.pending_question().await;
    end(&mut harness, pid).await;
    assert!(fs::metadata(path).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn while_it_waits_to_retry() {
    let mut harness = Harness::new(WireFormat::OpenAi);
    let busy = ProviderError::new(503, "Busy").retry_after("100");
    harness.model.set_default(busy);
    let pid = harness.start(&[]);
    harness.wait_until("it waits", || harness.agent_log().contains("trying again")).await;
    end(&mut harness, pid).await;
    assert_eq!(harness.model_requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_input_exists() {
    let mut harness = Harness::new(WireFormat::OpenAi);
    let pid = harness.start_without_input();
    harness.wait_until("it listens to signals", || catches_terminate(pid)).await;
    terminate(pid);
    assert_eq!(harness.wait_for_agent().await, Some(1));
    let log = harness.agent_log();
    assert!(log.contains("error: asked to end before there was a run\nhint: "), "{log}");
}

/// Whether a process handles SIGTERM.
fn catches_terminate(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|it| it.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
    // Signals are counted from one.
    caught.is_some_and(|it| it & (1 << 14) != 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_that_dies_is_the_end_of_the_agent() {
    let mut harness = Harness::new(WireFormat::OpenAi);
    let cluster = Executor::silent(harness.volume("cluster"));
    let command = json!({ "command": "sleep 100", "target": "cluster" });
    harness.model.push(calling("execute_command", command));
    let pid = harness.start(&[]);
    harness.wait_until("the skill has the request", || !cluster.requests().is_empty()).await;
    harness.bridge.kill().expect("a child");
    assert_eq!(harness.wait_for_agent().await, Some(1));
    assert!(!is_alive(pid));
    let log = harness.agent_log();
    assert!(log.contains("error: the bridge is gone"), "{log}");
    assert!(log.contains("hint: "), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_bridge_reports_and_the_agent_exits() {
    // The bridge reports within nine tenths of this, even on a busy machine.
    let mut harness = Harness::with(WireFormat::OpenAi, |plan| plan.deadlines.grace_seconds = 20);
    harness.model.push(Reply::Silence);
    harness.start(&[]);
    harness.requests(1).await;
    let bridge = i32::try_from(harness.bridge.id()).expect("a pid");
    terminate(bridge);
    let end = harness.wait_for_end().await;
    assert_eq!((end.code, end.ending), (Some(1), AgentEnd::Stopped));
    assert!(end.log.contains("error: the bridge is gone"), "{}", end.log);
}
