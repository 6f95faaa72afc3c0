//! An agent that is told to end does so wherever it is: it says so, what was under way is taken back, and it is gone.

use std::fs;

use serde_json::json;
use sympozium_api::run_plan::{Gate as Gated, WireFormat};
use sympozium_ipc::run_api::AgentEnd;
use sympozium_testkit::model_server::{Gate, ProviderError, Reply};
use sympozium_testkit::processes::is_alive;

use crate::skills::Executor;
use crate::world::{World, calling, terminate, tool};

/// What is reported then.
const CANCELLED: &str = "the agent was asked to end before it had an answer";

/// Tells the agent to end, and looks at what is left.
async fn end(world: &mut World, pid: i32) {
    terminate(pid);
    let end = world.ended().await;
    assert_eq!(end.failure(), CANCELLED);
    assert!(!is_alive(pid));
    let last = world.transcript().pop().expect("a line");
    assert_eq!((&last["kind"], &last["error"]), (&json!("end"), &json!(CANCELLED)));
}

#[tokio::test(flavor = "multi_thread")]
async fn while_it_waits_for_the_model() {
    let mut world = World::new(WireFormat::OpenAi).await;
    world.model.push(Reply::Silence);
    let pid = world.start(&[]);
    world.requests(1).await;
    end(&mut world, pid).await;
    world.model.wait_for_abandoned(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_middle_of_an_answer() {
    let mut world = World::new(WireFormat::Anthropic).await;
    let gate = Gate::new();
    world.model.push(Reply::pieces(["one", "two"]).gated(&gate));
    gate.release(1);
    let pid = world.start(&[]);
    let (records, run) = (world.records.clone(), world.plan.run.uid.clone());
    world
        .until("it is seen", || {
            let report = records.read_report(run.as_str()).ok().flatten();
            report.and_then(|it| it.progress).as_deref() == Some("one")
        })
        .await;
    end(&mut world, pid).await;
    world.model.wait_for_abandoned(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_command_runs() {
    let mut world = World::new(WireFormat::OpenAi).await;
    let cluster = Executor::silent(world.volume("cluster"));
    let command = json!({ "command": "sleep 100", "target": "cluster" });
    world.model.push(calling("execute_command", command));
    let pid = world.start(&[]);
    world.until("it is asked", || !cluster.seen().is_empty()).await;
    end(&mut world, pid).await;
    let receipts = world.receipts();
    assert_eq!(receipts[1], "execute_command cluster Allowed");
    assert!(receipts[2].starts_with("Skill Failed") || receipts[2] == "Skill Cancelled", "{receipts:?}");
    let ended = format!("ended Failed {{ why: \"{CANCELLED}\" }}");
    assert_eq!(receipts[3..], [ended]);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_person_is_asked_about_a_permit() {
    let mut world = World::with(WireFormat::OpenAi, |plan| {
        tool(plan, "write_file", None).gate = Gated::Ask;
    })
    .await;
    let path = world.path("a");
    let write = json!({ "path": path, "content": "x" });
    world.model.push(calling("write_file", write));
    let pid = world.start(&[]);
    world.asked().await;
    end(&mut world, pid).await;
    assert!(fs::metadata(path).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn while_it_waits_to_try_again() {
    let mut world = World::new(WireFormat::OpenAi).await;
    let busy = ProviderError::new(503, "Busy").retry_after("100");
    world.model.set_default(busy);
    let pid = world.start(&[]);
    world.until("it waits", || world.log().contains("trying again")).await;
    end(&mut world, pid).await;
    assert_eq!(world.said().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn before_there_is_a_run() {
    let mut world = World::new(WireFormat::OpenAi).await;
    let pid = world.start_without_input();
    world.until("it listens to signals", || catches_terminate(pid)).await;
    terminate(pid);
    assert_eq!(world.agent_ended().await, Some(1));
    let log = world.log();
    assert!(log.contains("error: asked to end before there was a run\nhint: "), "{log}");
}

/// Whether a process has something to do when it is told to end.
fn catches_terminate(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|it| it.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
    // Signals count from one.
    caught.is_some_and(|it| it & (1 << 14) != 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_that_dies_is_the_end_of_the_agent() {
    let mut world = World::new(WireFormat::OpenAi).await;
    let cluster = Executor::silent(world.volume("cluster"));
    let command = json!({ "command": "sleep 100", "target": "cluster" });
    world.model.push(calling("execute_command", command));
    let pid = world.start(&[]);
    world.until("it is asked", || !cluster.seen().is_empty()).await;
    world.bridge.kill().expect("a child");
    assert_eq!(world.agent_ended().await, Some(1));
    assert!(!is_alive(pid));
    let log = world.log();
    assert!(log.contains("error: the bridge is gone"), "{log}");
    assert!(log.contains("hint: "), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_that_is_told_to_end_reports_and_the_agent_is_gone() {
    // It has nine tenths of this to report, on a busy machine too.
    let mut world = World::with(WireFormat::OpenAi, |plan| plan.deadlines.grace_seconds = 20).await;
    world.model.push(Reply::Silence);
    world.start(&[]);
    world.requests(1).await;
    let bridge = i32::try_from(world.bridge.id()).expect("a pid");
    terminate(bridge);
    let end = world.ended().await;
    assert_eq!((end.code, end.ending), (Some(1), AgentEnd::Stopped));
    assert!(end.log.contains("error: the bridge is gone"), "{}", end.log);
}
