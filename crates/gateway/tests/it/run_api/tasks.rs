//! What a run has others do: what its plan has, as often as it says.

use std::sync::Mutex;

use sympozium_api::run_plan::Gate;
use sympozium_gateway::plans::RunFacts;
use sympozium_gateway::run_api::HandlerError;
use sympozium_ipc::run_api::{
    MessageRequest, ScheduleRequest, SubrunResult, SubrunsAnswer, SubrunsRequest, TextAnswer,
};
use tokio::sync::Semaphore;

use super::*;

/// Does what it is asked when it is let.
#[derive(Clone)]
struct RecordingScheduler {
    seen: Arc<Mutex<Vec<String>>>,
    lets: Arc<Semaphore>,
}

impl RecordingScheduler {
    fn new() -> Self {
        Self { seen: Arc::default(), lets: Arc::new(Semaphore::new(0)) }
    }

    fn record(&self, what: String) {
        self.seen.lock().expect("not poisoned").push(what);
    }

    fn requests(&self) -> Vec<String> {
        self.seen.lock().expect("not poisoned").clone()
    }
}

/// Reports when no caller waits any more.
struct Dropped(RecordingScheduler);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.record("dropped".to_owned());
    }
}

impl Scheduler for RecordingScheduler {
    async fn schedule(&self, run: &Arc<RunFacts>, it: ScheduleRequest) -> Result<TextAnswer, HandlerError> {
        self.record(format!("{} {} {}", run.run.name, it.action, it.name));
        let text = "scheduled".to_owned();
        Ok(TextAnswer { text })
    }

    async fn message(&self, _: &Arc<RunFacts>, it: MessageRequest) -> Result<TextAnswer, HandlerError> {
        self.record(format!("{} {}", it.channel, it.text));
        let text = "sent".to_owned();
        Ok(TextAnswer { text })
    }

    async fn subruns(&self, _: &Arc<RunFacts>, it: SubrunsRequest) -> Result<SubrunsAnswer, HandlerError> {
        let dropped = Dropped(self.clone());
        self.record(format!("{} tasks", it.tasks.len()));
        match it.tasks[0].task.as_str() {
            "busy" => {
                std::mem::forget(dropped);
                return Err(HandlerError::Busy("not now".to_owned()));
            }
            "forget" => {
                std::mem::forget(dropped);
                let results = Vec::new();
                return Ok(SubrunsAnswer { results });
            }
            _ => {}
        }
        let _let = self.lets.acquire().await.expect("open");
        std::mem::forget(dropped);
        let result =
            |id: String| SubrunResult { response: Some(format!("answer of {id}")), run: None, error: None, id };
        let results = it.tasks.into_iter().map(|it| result(it.id)).collect();
        Ok(SubrunsAnswer { results })
    }
}

fn tasks(names: &[&str], task: &str, strategy: &str) -> Value {
    let task = |id: &&str| json!({ "id": id, "task": task });
    let tasks: Vec<Value> = names.iter().map(task).collect();
    json!({ "tasks": tasks, "strategy": strategy })
}

#[tokio::test]
async fn schedules_and_messages_reach_who_does_them() {
    let doing = RecordingScheduler::new();
    let harness = RunApiHarness::with_scheduler(|_| {}, doing.clone());
    let client = harness.client().await;
    let schedule = json!({ "name": "nightly", "action": "create", "schedule": "0 3 * * *", "task": "look" });
    let told = client.post(path::SCHEDULES, &schedule).await;
    assert_eq!(told, (200, json!({ "text": "scheduled" })));
    let message = json!({ "channel": "slack", "text": "hello" });
    let told = client.post(path::MESSAGES, &message).await;
    assert_eq!(told, (200, json!({ "text": "sent" })));
    assert_eq!(doing.requests(), ["why-is-checkout-slow create nightly", "slack hello"]);
}

#[tokio::test]
async fn actions_outside_the_plan_reach_no_scheduler() {
    let doing = RecordingScheduler::new();
    let harness = RunApiHarness::with_scheduler(
        |plan| {
            plan.tools.retain(|it| it.name != "schedule_task");
            for tool in &mut plan.tools {
                if tool.name == "send_channel_message" {
                    tool.gate = Gate::Deny;
                }
            }
            plan.subagents.levels = 0;
        },
        doing.clone(),
    );
    let client = harness.client().await;
    for (target, body) in [
        (path::SCHEDULES, json!({ "name": "a", "action": "create" })),
        (path::MESSAGES, json!({ "channel": "slack", "text": "hello" })),
        (path::SUBRUNS, tasks(&["a"], "do", "parallel")),
    ] {
        let (status, body) = client.post(target, &body).await;
        assert_eq!((status, code(&body).as_str()), (403, "denied"), "{target}");
    }
    assert_eq!(doing.requests(), [""; 0]);
}

#[tokio::test]
async fn a_missing_scheduler_is_reported() {
    let harness = RunApiHarness::new(|_| {});
    let client = harness.client().await;
    for (target, body) in [
        (path::SCHEDULES, json!({ "name": "a", "action": "create" })),
        (path::MESSAGES, json!({ "channel": "slack", "text": "hello" })),
        (path::SUBRUNS, tasks(&["a"], "do", "parallel")),
    ] {
        let (status, body) = client.post(target, &body).await;
        assert_eq!((status, code(&body).as_str()), (501, "unavailable"));
        let message = body["message"].as_str().expect("a sentence");
        assert!(message.ends_with("where this run is"), "{message}");
    }
}

#[tokio::test]
async fn runs_below_are_counted_for_life_and_at_a_time() {
    let doing = RecordingScheduler::new();
    let harness = RunApiHarness::with_scheduler(
        |plan| {
            plan.subagents.children = 6;
            plan.subagents.concurrent = 3;
        },
        doing.clone(),
    );
    let client = harness.client().await;
    let busy = |(status, body): (u16, Value)| (status, code(&body));
    let post = async |body: Value| busy(client.post(path::SUBRUNS, &body).await);
    let four = tasks(&["a", "b", "c", "d"], "do", "parallel");
    assert_eq!(post(four).await, (429, "busy".to_owned()));
    let seven = tasks(&["a", "b", "c", "d", "e", "f", "g"], "do", "sequential");
    assert_eq!(post(seven).await, (403, "denied".to_owned()));
    // What was not begun is not counted; what has an unknown outcome is.
    let turned_away = tasks(&["a", "b", "c"], "busy", "parallel");
    for _ in 0..3 {
        assert_eq!(post(turned_away.clone()).await, (429, "busy".to_owned()));
    }
    let forgotten = tasks(&["a"], "forget", "parallel");
    assert_eq!(post(forgotten).await, (503, "failed".to_owned()));

    let three = tasks(&["a", "b", "c"], "do", "parallel");
    let going = {
        let client = client.clone();
        tokio::spawn(async move { client.post(path::SUBRUNS, &three).await })
    };
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while !doing.requests().contains(&"3 tasks".to_owned()) || doing.requests().len() < 5 {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", doing.requests());
        tokio::task::yield_now().await;
    }
    let one = tasks(&["d"], "do", "parallel");
    assert_eq!(post(one.clone()).await, (429, "busy".to_owned()));
    doing.lets.add_permits(1);
    let (status, answer) = going.await.expect("an answer");
    let result = |id: &str| json!({ "id": id, "response": format!("answer of {id}") });
    let expected = json!({ "results": [result("a"), result("b"), result("c")] });
    assert_eq!((status, answer), (200, expected));
    // Four of six: one after the other takes one place at a time.
    let two = tasks(&["d", "e"], "do", "sequential");
    let (status, _) = client.post(path::SUBRUNS, &two).await;
    assert_eq!(status, 200);
    assert_eq!(post(one).await, (403, "denied".to_owned()));
}

#[tokio::test]
async fn without_a_waiter_subruns_are_cancelled() {
    let doing = RecordingScheduler::new();
    let harness = RunApiHarness::with_scheduler(|_| {}, doing.clone());
    let seen = async |count: usize| {
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        while doing.requests().len() < count {
            assert!(tokio::time::Instant::now() < deadline, "{:?}", doing.requests());
            tokio::task::yield_now().await;
        }
    };
    let client = harness.client().await;
    let asking = {
        let client = client.clone();
        tokio::spawn(async move {
            let tasks = tasks(&["a"], "do", "parallel");
            client.post(path::SUBRUNS, &tasks).await
        })
    };
    seen(1).await;
    asking.abort();
    seen(2).await;
    let asking = tokio::spawn(async move {
        let tasks = tasks(&["a"], "do", "parallel");
        client.post(path::SUBRUNS, &tasks).await
    });
    seen(3).await;
    assert!(harness.gateway.plans().end(UID));
    let (status, body) = asking.await.expect("an answer");
    assert_eq!((status, code(&body).as_str()), (401, "token"));
    assert_eq!(doing.requests(), ["1 tasks", "dropped", "1 tasks", "dropped"]);
}
