//! Calls that need approval.

use std::fs;

use serde_json::json;
use sympozium_api::run_plan::{Gate, WireFormat};
use sympozium_gateway::run_api::local::Vote;
use sympozium_harness::executor::Executor;
use sympozium_harness::plan::tool;

use crate::harness::{Harness, calling};

fn asking(seconds: u64) -> Harness {
    let harness = Harness::with(WireFormat::OpenAi, |plan| {
        tool(plan, "execute_command", Some("cluster")).gate = Gate::Ask;
        tool(plan, "write_file", None).gate = Gate::Ask;
        plan.deadlines.approval_seconds = seconds;
    });
    let command = json!({ "command": "kubectl delete pod a", "target": "cluster" });
    harness.model.push(calling("execute_command", command));
    harness
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_runs_the_call_and_denial_is_an_error() {
    for (says, text) in
        [(Vote::Approve, "kubectl delete pod a"), (Vote::Deny, "Error: an approver was asked and denied it")]
    {
        let mut harness = asking(60);
        let cluster = Executor::echo(harness.volume("cluster"));
        harness.start(&[]);
        let pending = harness.pending_question().await;
        assert!(cluster.requests().is_empty(), "nothing happens before the answer");
        harness.vote(&pending, says);
        harness.wait_for_end().await.answer();
        assert_eq!(harness.last().result_texts(), [text]);
        assert_eq!(cluster.requests().len(), usize::from(says == Vote::Approve));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_without_votes_is_denied() {
    let mut harness = asking(1);
    let cluster = Executor::echo(harness.volume("cluster"));
    harness.run(&[]).await.answer();
    let text = harness.last().last();
    assert!(text.starts_with("Error: ") && text.contains("none answered in time"), "{text}");
    assert!(cluster.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_native_tool_waits_for_approval() {
    let mut harness = asking(60);
    // The command needs approval first.
    let _cluster = Executor::echo(harness.volume("cluster"));
    let path = harness.path("made");
    let write = json!({ "path": path, "content": "x" });
    harness.model.push(calling("write_file", write));
    harness.start(&[]);
    let pending = harness.pending_question().await;
    harness.vote(&pending, Vote::Approve);
    harness.requests(2).await;
    let pending = harness.pending_question().await;
    assert!(pending.request.shown.contains("write_file"));
    assert!(fs::metadata(&path).is_err());
    harness.vote(&pending, Vote::Approve);
    harness.wait_for_end().await.answer();
    assert_eq!(fs::read_to_string(path).expect("a file"), "x");
}
