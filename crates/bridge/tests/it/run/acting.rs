//! What the bridge does itself, through the run API: messages, schedules, subruns.

use serde_json::{Value, json};
use sympozium_api::run_plan::Gate;
use sympozium_gateway::run_api::local::Vote;
use sympozium_harness::plan::tool;
use sympozium_harness::{RecordingScheduler, RunHarness};
use sympozium_ipc::door::{RefusalCode, ToolAnswer};

use super::calling::short;
use super::{PROGRAM, open_plan};

#[tokio::test(flavor = "multi_thread")]
async fn messages_schedules_and_subruns_go_out_once_and_are_reported() {
    let mut plan = open_plan();
    plan.subagents.levels = 1;
    plan.subagents.children = 2;
    plan.subagents.concurrent = 2;
    // More than the tool may answer.
    let scheduler = RecordingScheduler::default().with_message_answer("sent ".repeat(100_000));
    let mut run = RunHarness::setup(plan).scheduler(scheduler.clone()).start(PROGRAM);
    let agent = run.agent().await;
    let message = json!({ "channel": "discord", "text": "hello", "chatId": "7" });
    let Ok(ToolAnswer::Text { text }) = agent.call("send_channel_message", message.clone()).await else {
        panic!("{}", run.log());
    };
    let most = tool(&mut run.plan.clone(), "send_channel_message", None).limits.output_bytes;
    assert_eq!(text.len(), most as usize, "an answer has its bound");
    let refused = json!({ "channel": "slack", "text": "hello" });
    let refused = agent.call("send_channel_message", refused).await;
    let refused = refused.expect_err("no part does that");
    assert_eq!(refused.code, RefusalCode::Unavailable);
    assert!(refused.message.contains("slack is not connected"), "{}", refused.message);
    let schedule = json!({ "name": "daily", "action": "create", "schedule": "0 9 * * *", "task": "look" });
    let answer = agent.call("schedule_task", schedule.clone()).await;
    let text = "scheduled for later".to_owned();
    assert_eq!(answer, Ok(ToolAnswer::Text { text }));
    let below = json!({ "tasks": [{ "id": "a", "task": "look" }], "failurePolicy": "fail-fast" });
    let Ok(ToolAnswer::Text { text }) = agent.call("spawn_subagents", below).await else {
        panic!("{}", run.log());
    };
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(answer, json!({ "results": [{ "id": "a", "run": "below", "response": "forty-two" }] }));
    agent.finish("").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0);
    let below = json!({
        "tasks": [{ "id": "a", "task": "look" }], "strategy": "parallel", "failurePolicy": "fail-fast",
    });
    assert_eq!(scheduler.requests(), [message, schedule, below]);
    let events: Vec<String> = run.events().iter().map(short).collect();
    assert_eq!(events.iter().filter(|event| event.contains("Bridge")).count(), 4, "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_asked_about_goes_out_after_the_answer_and_not_before() {
    let mut plan = open_plan();
    tool(&mut plan, "send_channel_message", None).gate = Gate::Ask;
    plan.approval.approvers = None;
    plan.approval.required = 1;
    let scheduler = RecordingScheduler::default();
    let run = RunHarness::setup(plan).scheduler(scheduler.clone()).start(PROGRAM);
    let agent = run.agent().await;
    let message = json!({ "channel": "discord", "text": "hello" });
    let call = agent.call("send_channel_message", message.clone());
    let person = async {
        let pending = run.pending_question().await;
        assert!(pending.request.shown.contains("\"text\":\"hello\""));
        assert!(scheduler.requests().is_empty());
        run.vote(&pending, Vote::Approve);
    };
    let (answer, ()) = tokio::join!(call, person);
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!(scheduler.requests(), [message]);
}
