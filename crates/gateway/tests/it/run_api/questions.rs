//! Questions: put once, answered once, about one exact action, and denied without an answer.

use std::time::Duration;

use sympozium_gateway::plans::RunFacts;
use sympozium_gateway::run_api::local::{NoApprover, Vote, VoteOutcome, VoteRefusal, VoteRequest, Voter};
use sympozium_gateway::run_api::{HandlerError, MAX_OPEN_QUESTIONS, MAX_QUESTIONS, Question};
use sympozium_ipc::run_api::ApprovalAnswer;
use tokio::task::JoinHandle;

use super::*;

impl RunApiHarness {
    fn decide(&self, name: &str, digit: &str, says: Vote) -> Result<VoteOutcome, VoteRefusal> {
        let by = Voter { name: "someone".to_owned(), groups: Vec::new(), is_author: true };
        self.desk.vote(&VoteRequest {
            run: UID,
            approval: name,
            action: &Digest::new(hash(digit)),
            vote: says,
            by: &by,
            reason: None,
        })
    }
}

/// Asks, in a task of its own.
fn ask(client: &Client, question: &Value) -> JoinHandle<(u16, Value)> {
    let (client, question) = (client.clone(), question.clone());
    tokio::spawn(async move { client.post(path::APPROVALS, &question).await })
}

fn yes(name: &str) -> Value {
    json!({
        "approval": name, "action": hash("0"), "decision": "approved", "by": "someone", "forTheRun": false,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_says_yes_once_about_this_action() {
    let harness = RunApiHarness::new(|_| {});
    let client = harness.unix_client(&harness.socket()).await;
    let asked = ask(&client, &question("q"));
    harness.pending(1).await;
    let pending = harness.desk.pending();
    assert_eq!(pending[0].request.shown, "shell: ls");
    assert_eq!(pending[0].run.uid(), UID);
    assert_eq!(harness.decide("q", "1", Vote::Approve), Err(VoteRefusal::OtherAction));
    assert_eq!(harness.decide("p", "0", Vote::Approve), Err(VoteRefusal::Unknown));
    assert_eq!(harness.decide("q", "0", Vote::ApproveForRun), Err(VoteRefusal::RunScope));
    assert_eq!(harness.decide("q", "0", Vote::Approve), Ok(VoteOutcome::Decided));
    assert_eq!(harness.decide("q", "0", Vote::Approve), Err(VoteRefusal::Unknown));
    assert_eq!(asked.await.expect("an answer"), (200, yes("q")));
    // The answer was lost: it is the same one, and the question is not repeated.
    let mut shorter = question("q");
    shorter["waitSeconds"] = 1.into();
    assert_eq!(client.post(path::APPROVALS, &shorter).await, (200, yes("q")));
    assert_eq!(harness.desk.pending().len(), 0);
}

#[tokio::test]
async fn no_is_no_and_a_yes_for_the_run_is_one_where_the_plan_permits() {
    let harness = RunApiHarness::new(|plan| plan.approval.run_scope = true);
    let client = harness.client().await;
    for (name, says, decision, for_the_run) in [
        ("a", Vote::Deny, "denied", false),
        ("b", Vote::ApproveForRun, "approved", true),
        ("c", Vote::Approve, "approved", false),
    ] {
        let asked = ask(&client, &question(name));
        harness.pending(1).await;
        assert_eq!(harness.decide(name, "0", says), Ok(VoteOutcome::Decided));
        let (status, answer) = asked.await.expect("an answer");
        assert_eq!(status, 200);
        assert_eq!(answer["decision"], decision);
        assert_eq!(answer["forTheRun"], for_the_run);
    }
}

#[tokio::test]
async fn a_question_outlives_its_connection_and_is_the_same_again() {
    let harness = RunApiHarness::new(|_| {});
    let client = harness.client().await;
    let asked = ask(&client, &question("q"));
    harness.pending(1).await;
    asked.abort();
    drop(client);
    assert!(asked.await.is_err());
    assert_eq!(harness.desk.pending().len(), 1);

    let client = harness.client().await;
    // Under that name it is that question, whatever else it says.
    for (key, other) in [("action", hash("1").into()), ("shown", "shell: rm".into()), ("pack", "tickets".into())] {
        let mut another = question("q");
        another[key] = other;
        let (status, body) = client.post(path::APPROVALS, &another).await;
        assert_eq!((status, code(&body).as_str()), (400, "request"), "{key}");
    }
    let again = ask(&client, &question("q"));
    let twice = ask(&client, &question("q"));
    assert_eq!(harness.decide("q", "0", Vote::Approve), Ok(VoteOutcome::Decided));
    assert_eq!(again.await.expect("an answer"), (200, yes("q")));
    assert_eq!(twice.await.expect("an answer"), (200, yes("q")));
    let outcomes = harness.outcomes();
    let count = |word: &str| outcomes.iter().filter(|it| *it == word).count();
    assert_eq!((count("asked"), count("answered")), (1, 1));
}

#[tokio::test]
async fn an_answer_without_a_listener_is_stored_for_a_returning_bridge() {
    let harness = RunApiHarness::new(|_| {});
    let client = harness.client().await;
    let asked = ask(&client, &question("q"));
    harness.pending(1).await;
    asked.abort();
    drop(client);
    assert_eq!(harness.decide("q", "0", Vote::Approve), Ok(VoteOutcome::Decided));
    let client = harness.client().await;
    let answer = client.post(path::APPROVALS, &question("q")).await;
    assert_eq!(answer, (200, yes("q")));
}

#[tokio::test(start_paused = true)]
async fn a_question_without_an_answer_is_denied() {
    let harness = RunApiHarness::new(|plan| plan.deadlines.approval_seconds = 100);
    let client = harness.client().await;
    // The shorter of what is asked for and what the plan permits, from the first time on.
    for (name, wait, expected) in [("a", 30, 30), ("b", 9999, 100), ("c", 0, 0)] {
        let mut question = question(name);
        question["waitSeconds"] = wait.into();
        let started = tokio::time::Instant::now();
        let (status, answer) = client.post(path::APPROVALS, &question).await;
        let expired = json!({
            "approval": name, "action": hash("0"), "decision": "expired", "forTheRun": false,
        });
        assert_eq!((status, answer), (200, expired));
        assert_eq!(started.elapsed().as_secs(), expected, "{name}");
        assert_eq!(harness.desk.pending().len(), 0);
        assert_eq!(harness.decide(name, "0", Vote::Approve), Err(VoteRefusal::Unknown));
    }
    let started = tokio::time::Instant::now();
    let asked = ask(&client, &question("again"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    asked.abort();
    let (_, answer) = client.post(path::APPROVALS, &question("again")).await;
    assert_eq!(answer["decision"], "expired");
    assert_eq!(started.elapsed().as_secs(), 100);
}

#[tokio::test]
async fn when_the_run_is_over_waiting_questions_end() {
    let harness = RunApiHarness::new(|_| {});
    let client = harness.client().await;
    let asked = ask(&client, &question("q"));
    harness.pending(1).await;
    assert!(harness.gateway.plans().end(UID));
    let (status, body) = asked.await.expect("an answer");
    assert_eq!((status, code(&body).as_str()), (401, "token"));
    harness.pending(0).await;
    assert_eq!(harness.decide("q", "0", Vote::Approve), Err(VoteRefusal::Unknown));
    // And its connection ends.
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while !client.sender.is_closed() {
        assert!(tokio::time::Instant::now() < deadline, "it is still there");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn when_the_run_has_reported_its_end_no_question_is_asked() {
    let harness = RunApiHarness::new(|_| {});
    let client = harness.client().await;
    let asked = ask(&client, &question("q"));
    harness.pending(1).await;
    let last = harness.reports().last();
    assert_eq!(client.report(&last).await, Ok(1));
    let (status, answer) = asked.await.expect("an answer");
    assert_eq!((status, &answer["decision"]), (200, &json!("expired")));
    harness.pending(0).await;
}

#[tokio::test]
async fn a_person_is_asked_about_what_the_plan_asks_for_only() {
    let harness = RunApiHarness::new(|plan| plan.approval.approvers = Some(Vec::new()));
    let client = harness.client().await;
    for (tool, pack) in [
        // Allowed, denied, of another pack, not there.
        ("read_file", Value::Null),
        ("write_file", Value::Null),
        ("execute_command", Value::Null),
        ("execute_command", "other".into()),
        ("nothing", "cluster".into()),
    ] {
        let mut question = question("q");
        question["tool"] = tool.into();
        question["pack"] = pack;
        let (status, body) = client.post(path::APPROVALS, &question).await;
        assert_eq!((status, code(&body).as_str()), (403, "denied"), "{tool}");
    }
    // Without approvers no question is asked.
    let (status, answer) = client.post(path::APPROVALS, &question("q")).await;
    assert_eq!((status, &answer["decision"]), (200, &"denied".into()));
    assert_eq!(harness.desk.pending().len(), 0);
}

#[tokio::test]
async fn a_run_asks_so_many_questions_in_its_life() {
    let harness = RunApiHarness::new(|_| {});
    let gateway = gateway(NoApprover, harness.records(), NoScheduler);
    gateway.plans().add(&harness.plan).expect("a plan");
    let harness = RunApiHarness { gateway, ..harness };
    let client = harness.client().await;
    let reason = "no approver can be asked here, so the answer is no";
    for number in 0..MAX_QUESTIONS {
        let question = question(&number.to_string());
        let (status, answer) = client.post(path::APPROVALS, &question).await;
        assert_eq!((status, &answer["decision"]), (200, &"denied".into()));
        assert_eq!(answer["reason"], reason);
    }
    let (status, body) = client.post(path::APPROVALS, &question("more")).await;
    assert_eq!((status, code(&body).as_str()), (403, "denied"));
    // Those that were asked still have their answers.
    let (status, _) = client.post(path::APPROVALS, &question("0")).await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn the_number_of_waiting_questions_is_bounded() {
    let harness = RunApiHarness::new(|_| {});
    let client = harness.client().await;
    let asked: Vec<_> = (0..MAX_OPEN_QUESTIONS).map(|number| ask(&client, &question(&number.to_string()))).collect();
    harness.pending(MAX_OPEN_QUESTIONS).await;
    // As many requests as may be under way.
    let (status, body) = client.post(path::MESSAGES, &json!({})).await;
    assert_eq!((status, code(&body).as_str()), (429, "busy"));
    for asked in asked {
        asked.abort();
    }
    drop(client);
    let client = harness.client().await;
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        let (status, body) = client.post(path::APPROVALS, &question("more")).await;
        assert_eq!((status, code(&body).as_str()), (429, "busy"));
        if body["message"].as_str().is_some_and(|it| it.contains("wait for an answer")) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{body}");
    }
    assert_eq!(harness.decide("0", "0", Vote::Deny), Ok(VoteOutcome::Decided));
    let _asked = ask(&client, &question("more"));
    harness.pending(MAX_OPEN_QUESTIONS).await;
}

/// Answers about something else, fails, or panics, by the name of the question.
struct Wrong;

impl QuestionHandler for Wrong {
    async fn ask(&self, question: Question) -> Result<ApprovalAnswer, HandlerError> {
        let facts: &Arc<RunFacts> = &question.run;
        assert_eq!(facts.uid(), UID);
        match question.request.approval.as_str() {
            "other" => {
                let mut answer = approved(&question);
                answer.action = Digest::new(hash("1"));
                Ok(answer)
            }
            "unable" => Err(HandlerError::Unavailable("nobody".to_owned())),
            _ => panic!("a decider of the test"),
        }
    }
}

fn approved(question: &Question) -> ApprovalAnswer {
    serde_json::from_value(yes(&question.request.approval)).expect("an answer")
}

#[tokio::test]
async fn a_decider_that_errs_approves_nothing() {
    let harness = RunApiHarness::new(|_| {});
    let gateway = gateway(Wrong, harness.records(), NoScheduler);
    gateway.plans().add(&harness.plan).expect("a plan");
    let harness = RunApiHarness { gateway, ..harness };
    let client = harness.client().await;
    let (status, answer) = client.post(path::APPROVALS, &question("other")).await;
    assert_eq!((status, &answer["decision"]), (200, &"denied".into()));
    // The question was not asked, so it may be repeated.
    for (name, expected) in [
        ("unable", (501, "unavailable")),
        ("unable", (501, "unavailable")),
        ("panic", (503, "failed")),
        ("panic", (503, "failed")),
    ] {
        let (status, body) = client.post(path::APPROVALS, &question(name)).await;
        assert_eq!((status, code(&body).as_str()), expected, "{name}");
    }
}
