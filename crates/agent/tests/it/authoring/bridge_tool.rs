//! The bridge tool of the guide, `send_channel_message`, with a channel that is a file.

#[path = "../../../../../examples/tool-authoring/channel.rs"]
mod channel;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use sympozium_gateway::plans::RunFacts;
use sympozium_gateway::run_api::local::NoScheduler;
use sympozium_gateway::run_api::{HandlerError, Scheduler};
use sympozium_ipc::run_api::{MessageRequest, ScheduleRequest, SubrunsAnswer, SubrunsRequest, TextAnswer};
use sympozium_testkit::model_server::{Answer, Reply, ToolCall};

use super::run::{RUNNER, answer, call_lines, planned};
use crate::harness::Harness;
use channel::Outbox;

pub const PLAIN: &str = "\
apiVersion: sympozium.ai/v1alpha1
kind: Agent
metadata: {name: clerk}
spec: {agents: {default: {model: gpt-4o-mini}}, authRefs: [{provider: openai, secret: openai-key}]}
---
apiVersion: sympozium.ai/v1alpha1
kind: AgentRun
metadata: {name: tell-them}
spec: {agentRef: clerk, task: Tell them.}
";

const TOOL: &str = "send_channel_message";

fn sends(run: &Harness, channel: &str, text: &str) {
    let arguments = json!({ "channel": channel, "text": text });
    run.model.push(Answer::tools([ToolCall::new(TOOL, &arguments)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_goes_to_the_channel_that_is_connected() {
    let outbox = tempfile::tempdir().expect("a directory");
    let path = outbox.path().join("outbox.jsonl");
    let mut run = Harness::of(planned(PLAIN), Outbox { path: path.clone() });
    sends(&run, "slack", "The order is on its way.");
    sends(&run, "discord", "The order is on its way.");
    let later = json!({ "name": "daily", "action": "create", "schedule": "0 9 * * *", "task": "Look." });
    run.model.push(Answer::tools([ToolCall::new("schedule_task", &later)]));
    run.model.push(Reply::text("Told."));
    assert_eq!(answer(&mut run, RUNNER).await, "Told.");

    let text = fs::read_to_string(path).expect("an outbox");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let uid = run.plan.run.uid.as_str();
    let message = json!({ "run": uid, "agent": "clerk", "chat": null, "text": "The order is on its way." });
    assert_eq!(lines, [message]);
    assert_eq!(
        run.last().result_texts(),
        [
            "the message is on its way to slack",
            "Error: the gateway refuses: discord is not connected; slack is",
            "Error: the gateway refuses: tasks cannot be scheduled where this run is",
        ]
    );
    assert_eq!(
        call_lines(&run),
        [
            "send_channel_message - Allowed",
            "Bridge Done",
            "send_channel_message - Allowed",
            "Bridge Failed { why: \"the gateway refuses: discord is not connected; slack is\" }",
            "schedule_task - Allowed",
            "Bridge Failed { why: \"the gateway refuses: tasks cannot be scheduled where this run is\" }",
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_cannot_be_written_is_an_error() {
    let outbox = tempfile::tempdir().expect("a directory");
    let path = outbox.path().to_owned();
    let mut run = Harness::of(planned(PLAIN), Outbox { path });
    sends(&run, "slack", "hello");
    run.model.push(Reply::text("I could not tell them."));
    answer(&mut run, RUNNER).await;
    assert_eq!(run.last().result_texts(), ["Error: the gateway refuses: the message may not have gone out to slack"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_scheduler_a_message_is_an_error_and_never_success() {
    let mut run = Harness::of(planned(PLAIN), NoScheduler);
    sends(&run, "slack", "hello");
    run.model.push(Reply::text("Nobody can be told here."));
    answer(&mut run, RUNNER).await;
    assert!(run.model_requests()[0].tools().contains(&TOOL));
    assert_eq!(run.last().result_texts(), ["Error: the gateway refuses: no channel is connected where this run is"]);
    assert_eq!(
        call_lines(&run),
        [
            "send_channel_message - Allowed",
            "Bridge Failed { why: \"the gateway refuses: no channel is connected where this run is\" }",
        ]
    );
}

/// Busy at first, then successful once, then failing. Counts the messages.
struct FlakyScheduler(Arc<AtomicU32>);

impl Scheduler for FlakyScheduler {
    async fn message(&self, _: &Arc<RunFacts>, _: MessageRequest) -> Result<TextAnswer, HandlerError> {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0 => Err(HandlerError::Busy("too many messages at once".to_owned())),
            1 => Ok(TextAnswer { text: "sent after all".to_owned() }),
            _ => Err(HandlerError::Failed { message: "it may have been sent".to_owned(), cause: None }),
        }
    }

    async fn schedule(&self, run: &Arc<RunFacts>, request: ScheduleRequest) -> Result<TextAnswer, HandlerError> {
        NoScheduler.schedule(run, request).await
    }

    async fn subruns(&self, run: &Arc<RunFacts>, request: SubrunsRequest) -> Result<SubrunsAnswer, HandlerError> {
        NoScheduler.subruns(run, request).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_never_retried() {
    let calls = Arc::new(AtomicU32::new(0));
    let mut run = Harness::of(planned(PLAIN), FlakyScheduler(Arc::clone(&calls)));
    sends(&run, "slack", "first");
    sends(&run, "slack", "second");
    sends(&run, "slack", "third");
    run.model.push(Reply::text("Done."));
    answer(&mut run, RUNNER).await;
    assert_eq!(
        run.last().result_texts(),
        [
            "Error: the gateway refuses: too many messages at once",
            "sent after all",
            "Error: the gateway refuses: it may have been sent"
        ]
    );
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}
