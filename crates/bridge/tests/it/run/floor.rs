//! A run whose plan has an isolation floor: results from below it end the run, and nothing of them reaches the agent.

use std::path::PathBuf;

use serde_json::{Value, json};
use sympozium_api::guarantee::Guarantee;
use sympozium_harness::RunHarness;
use sympozium_harness::executor::{Executor, announce_start, result};
use sympozium_ipc::door::ToolAnswer;
use sympozium_ipc::receipt::{Event, Outcome};
use sympozium_ipc::run_api::AgentEnd;

use super::hostile_skill::requested;
use super::{PROGRAM, open_plan};

/// The pack of the plan that has our executor, and the one whose image starts by itself.
const OURS: &str = "cluster";
const FOREIGN: &str = "tickets";
const SECRET: &str = "what the command printed";

/// Answers every request with a report of these guarantees.
fn executor(volume: PathBuf, guarantees: Option<Value>) -> Executor {
    Executor::on(volume, move |_| {
        let mut result = result(0, SECRET);
        if let Some(guarantees) = &guarantees {
            result["_meta"] = json!({ "isolation": { "profile": "container", "guarantees": guarantees } });
        }
        Some(result)
    })
}

fn start_with_floor(floor: &[Guarantee], platform: &str) -> RunHarness {
    let mut plan = open_plan();
    plan.isolation.floor = floor.to_vec();
    // Long enough for an executor that answers after the agent's last word.
    plan.deadlines.grace_seconds = 20;
    let platform = format!("--platform-holds={platform}");
    RunHarness::setup(plan).argument(&platform).start(PROGRAM)
}

fn outcomes(run: &RunHarness) -> Vec<Outcome> {
    let events = run.events().into_iter();
    let acted = events.filter_map(|event| match event {
        Event::Acted { outcome, .. } => Some(outcome),
        _ => None,
    });
    acted.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_below_the_floor_ends_the_run() {
    use Guarantee::{Filesystem, Kernel, Memory};
    let held = json!({ "filesystem": "enforced", "memory": "delegated" });
    for (floor, platform, reported, lacking) in [
        (vec![Filesystem], "none", Some(json!({ "filesystem": "not-held" })), "filesystem is \"not-held\""),
        (
            vec![Filesystem],
            "memory",
            Some(json!({ "filesystem": "delegated" })),
            "filesystem is delegated to a platform that does not hold it",
        ),
        (
            vec![Filesystem, Memory],
            "none",
            Some(held.clone()),
            "memory is delegated to a platform that does not hold it",
        ),
        (vec![Filesystem, Kernel], "filesystem,memory", Some(held), "kernel is not reported"),
        (vec![Memory], "memory", None, "memory is not reported"),
    ] {
        let mut run = start_with_floor(&floor, platform);
        let _executor = executor(run.volume(OURS), reported);
        let agent = run.agent().await;
        let answer = agent.execute(OURS, "cat /etc/passwd").await;
        let refused = answer.expect_err("nothing is passed on");
        assert!(!refused.message.contains(SECRET), "{}", refused.message);
        assert_eq!(run.wait_exit().await, 0, "{}", run.log());
        let why = format!("the executor of pack `{OURS}` is below the isolation floor of the run: {lacking}");
        let error = format!("the run was ended: {why}");
        assert_eq!(run.ending(), AgentEnd::Failed { error });
        assert_eq!(outcomes(&run), [Outcome::Failed { why }]);
        drop(agent);
    }
}

/// Before any command: an executor that starts below the floor gets no key, and the run ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_below_the_floor_ends_the_run_without_a_key() {
    let nonce = "0a".repeat(16);
    let mut run = start_with_floor(&[Guarantee::Filesystem], "memory");
    let agent = run.agent().await;
    let volume = run.volume(OURS);
    announce_start(&volume, &nonce, &json!({ "filesystem": "not-held" }));
    run.wait_until("the run is ended", || run.log().contains("the run is ended")).await;
    // A further start, which says that all is well, gets none either.
    announce_start(&volume, &"0b".repeat(16), &json!({ "filesystem": "enforced" }));
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    let error = format!(
        "the run was ended: the executor of pack `{OURS}` is below the isolation floor of the run: filesystem is \"not-held\""
    );
    assert_eq!(run.ending(), AgentEnd::Failed { error });
    assert!(!volume.join(".key").exists());
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_at_the_floor_gets_a_key() {
    let mut run = start_with_floor(&[Guarantee::Filesystem, Guarantee::Memory], "memory");
    let agent = run.agent().await;
    let volume = run.volume(OURS);
    let held = json!({ "filesystem": "enforced", "memory": "delegated" });
    announce_start(&volume, &"0a".repeat(16), &held);
    run.wait_until("a key is handed over", || volume.join(".key").exists()).await;
    agent.finish("done").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    let text = "done".to_owned();
    assert_eq!(run.ending(), AgentEnd::Answered { text });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_at_the_floor_is_passed_on() {
    use Guarantee::{Filesystem, Memory};
    let mut run = start_with_floor(&[Filesystem, Memory], "memory,cpu");
    let held = json!({ "filesystem": "enforced", "memory": "delegated", "kernel": "not-held" });
    let _executor = executor(run.volume(OURS), Some(held));
    let agent = run.agent().await;
    let answer = agent.execute(OURS, "true").await;
    let passed = matches!(&answer, Ok(ToolAnswer::Command { stdout, .. }) if stdout == SECRET);
    assert!(passed, "{answer:?}");
    agent.finish("done").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    let text = "done".to_owned();
    assert_eq!(run.ending(), AgentEnd::Answered { text });
}

/// Nothing attests for an image that starts itself; admission lets it into a run whose floor asks for a kernel alone.
#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_attests_nothing_is_not_asked_to() {
    let mut run = start_with_floor(&[Guarantee::Kernel], "none");
    let _executor = executor(run.volume(FOREIGN), None);
    let agent = run.agent().await;
    let answer = agent.execute(FOREIGN, "true").await;
    assert!(matches!(answer, Ok(ToolAnswer::Command { .. })), "{answer:?}");
    agent.finish("done").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    let text = "done".to_owned();
    assert_eq!(run.ending(), AgentEnd::Answered { text });
}

/// What the agent concludes from such a command is no answer of the run, even if it was quicker.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_does_not_hide_a_result_below_the_floor() {
    let mut run = start_with_floor(&[Guarantee::Filesystem], "none");
    let volume = run.volume(OURS);
    let agent = run.agent().await;
    let (answered, waiting) = tokio::join!(
        async {
            let answer = agent.execute(OURS, "true").await;
            answer.is_err()
        },
        async {
            requested(&volume, &["true"]).await;
            agent.finish("all is well").await;
            executor(volume.clone(), None)
        }
    );
    assert!(answered, "nothing is passed on");
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    drop(waiting);
    let ending = run.ending();
    assert!(matches!(ending, AgentEnd::Failed { .. }), "{ending:?}");
}
