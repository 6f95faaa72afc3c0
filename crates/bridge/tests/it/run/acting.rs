//! What the bridge does itself, through the run API: messages, schedules, runs below.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sympozium_api::run_plan::Gate;
use sympozium_gateway::plans::RunFacts;
use sympozium_gateway::run_api::{HandlerError, Scheduler};
use sympozium_ipc::door::{RefusalCode, ToolAnswer};
use sympozium_ipc::run_api::{
    FailurePolicy, MessageRequest, ScheduleRequest, SubrunResult, SubrunsAnswer, SubrunsRequest, TextAnswer,
};

use super::calling::short;
use super::harness::{RunHarness, tool};

/// Does what it is asked, and remembers it. Clones are the same one.
#[derive(Clone, Default)]
pub struct RecordingScheduler(Arc<Mutex<Vec<Value>>>);

impl RecordingScheduler {
    /// What it was asked.
    pub fn requests(&self) -> Vec<Value> {
        self.0.lock().expect("not poisoned").clone()
    }

    fn record(&self, request: impl serde::Serialize) {
        let request = serde_json::to_value(request).expect("JSON");
        self.0.lock().expect("not poisoned").push(request);
    }
}

impl Scheduler for RecordingScheduler {
    async fn schedule(&self, _: &Arc<RunFacts>, it: ScheduleRequest) -> Result<TextAnswer, HandlerError> {
        self.record(it);
        let text = "scheduled".to_owned();
        Ok(TextAnswer { text })
    }

    async fn message(&self, _: &Arc<RunFacts>, it: MessageRequest) -> Result<TextAnswer, HandlerError> {
        if it.channel == "slack" {
            return Err(HandlerError::Unavailable("slack is not connected".to_owned()));
        }
        self.record(it);
        // More than the tool may answer.
        let text = "sent ".repeat(100_000);
        Ok(TextAnswer { text })
    }

    async fn subruns(&self, _: &Arc<RunFacts>, it: SubrunsRequest) -> Result<SubrunsAnswer, HandlerError> {
        assert_eq!(it.failure_policy, FailurePolicy::FailFast);
        let result = |id: &str| SubrunResult {
            id: id.to_owned(),
            run: Some("below".to_owned()),
            response: Some("42".to_owned()),
            error: None,
        };
        let results = it.tasks.iter().map(|task| result(&task.id)).collect();
        self.record(it);
        Ok(SubrunsAnswer { results })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_schedules_and_subruns_go_out_once_and_are_reported() {
    let mut world = RunHarness::start(|plan| {
        plan.subagents.levels = 1;
        plan.subagents.children = 2;
        plan.subagents.concurrent = 2;
    })
    .await;
    let agent = world.agent().await;
    let message = json!({ "channel": "discord", "text": "hello", "chatId": "7" });
    let Ok(ToolAnswer::Text { text }) = agent.call("send_channel_message", message.clone()).await else {
        panic!("{}", world.log());
    };
    let most = tool(&mut world.plan.clone(), "send_channel_message", None).limits.output_bytes;
    assert_eq!(text.len(), most as usize, "an answer has its bound");
    let refused = json!({ "channel": "slack", "text": "hello" });
    let refused = agent.call("send_channel_message", refused).await;
    let refused = refused.expect_err("no part does that");
    assert_eq!(refused.code, RefusalCode::Unavailable);
    assert!(refused.message.contains("slack is not connected"), "{}", refused.message);
    let schedule = json!({ "name": "daily", "action": "create", "schedule": "0 9 * * *", "task": "look" });
    let answer = agent.call("schedule_task", schedule.clone()).await;
    let text = "scheduled".to_owned();
    assert_eq!(answer, Ok(ToolAnswer::Text { text }));
    let below = json!({ "tasks": [{ "id": "a", "task": "look" }], "failurePolicy": "fail-fast" });
    let Ok(ToolAnswer::Text { text }) = agent.call("spawn_subagents", below).await else {
        panic!("{}", world.log());
    };
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(answer, json!({ "results": [{ "id": "a", "run": "below", "response": "42" }] }));
    agent.finish("").await;
    drop(agent);
    assert_eq!(world.wait_exit().await, 0);
    let below = json!({
        "tasks": [{ "id": "a", "task": "look" }], "strategy": "parallel", "failurePolicy": "fail-fast",
    });
    assert_eq!(world.doing.requests(), [message, schedule, below]);
    let told: Vec<String> = world.events().iter().map(short).collect();
    assert_eq!(told.iter().filter(|it| it.contains("Bridge")).count(), 4, "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_asked_about_goes_out_after_the_answer_and_not_before() {
    let world = RunHarness::start(|plan| {
        tool(plan, "send_channel_message", None).gate = Gate::Ask;
        plan.approval.approvers = None;
        plan.approval.required = 1;
    })
    .await;
    let agent = world.agent().await;
    let message = json!({ "channel": "discord", "text": "hello" });
    let call = agent.call("send_channel_message", message.clone());
    let person = async {
        let pending = world.asked().await;
        assert!(pending.request.shown.contains("\"text\":\"hello\""));
        assert!(world.doing.requests().is_empty());
        world.say(&pending, sympozium_gateway::run_api::local::Vote::Approve);
    };
    let (answer, ()) = tokio::join!(call, person);
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!(world.doing.requests(), [message]);
}
