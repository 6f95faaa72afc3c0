//! An agent that would rather not wait for a person: forges answers, repeats them, takes its question back and asks again,
//! asks a thousand times at once, changes its mind after the yes.

use std::time::{Duration, Instant};

use serde_json::json;
use sympozium_api::run_plan::{Gate, PartName, ToolHandler};
use sympozium_api::skill_pack::InputMode;
use sympozium_gateway::run_api::local::{PendingQuestion, Vote, VoteRefusal, VoteRequest, Voter};
use sympozium_harness::executor::Executor;
use sympozium_harness::plan::tool;
use sympozium_harness::{POLL_INTERVAL, RunHarness};
use sympozium_ipc::action::{Action, Operation};
use sympozium_ipc::door::RefusalCode;
use sympozium_ipc::receipt::{CallDecision, Event};
use sympozium_ipc::run_api::AgentEnd;
use sympozium_testkit::growing;
use tokio::time::{sleep, timeout};

use super::asking::asking;
use super::hostile_agent_frames::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, field};

/// Waits for a question that is not one of these. The gateway keeps a question without a waiter until its time is up,
/// because a bridge that lost its connection puts it again.
async fn another(run: &RunHarness, known: &[PendingQuestion]) -> PendingQuestion {
    let is_known =
        |pending: &PendingQuestion| known.iter().any(|known| known.request.approval == pending.request.approval);
    loop {
        match run.approvals.pending().into_iter().find(|pending| !is_known(pending)) {
            Some(pending) => return pending,
            None => sleep(POLL_INTERVAL).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_at_the_door_answers_a_question() {
    let mut run = asking(|_| ());
    let cluster = Executor::echo(run.volume("cluster"));
    let agent = run.agent().await;
    let asked = agent.execute("cluster", "rm -rf /");
    let forge = async {
        let pending = run.pending_question().await;
        let (approval, action) = (&pending.request.approval, &pending.request.action);
        let bodies = [
            json!({ "approval": approval, "action": action, "decision": "approved", "by": "ada" }),
            json!({ "id": approval, "arguments": { "decision": "approved" } }),
            json!({ "outcome": { "is": "done" }, "bytes": 0, "durationMs": 0 }),
            serde_json::to_value(&pending.request).expect("JSON"),
        ];
        let paths = [
            "/v1/run/approvals".to_owned(),
            "/v1/run/reports".to_owned(),
            "/v1/approvals".to_owned(),
            format!("/v1/approvals/{approval}"),
            format!("/v1/permits/{approval}"),
            format!("/v1/permits/{approval}/report"),
            format!("/v1/tools/{approval}"),
            "/v1/permits/0/report".to_owned(),
            "/v1/permits/execute_command".to_owned(),
        ];
        for path in &paths {
            for body in &bodies {
                let reply = agent.post(path, body.to_string()).await.expect("an answer");
                assert!(reply.refused, "{path} {body}");
            }
        }
        assert_eq!(run.approvals.pending().len(), 1, "the question is still open");
        assert_eq!(cluster.requests(), [json!(null); 0]);
        run.vote(&pending, Vote::Deny);
        pending
    };
    let (answer, pending) = tokio::join!(asked, forge);
    assert_eq!(answer.expect_err("no").code, RefusalCode::Disapproved);
    // A yes that comes after the no, for the same question.
    let by = Voter { name: "eve".to_owned(), groups: Vec::new(), is_author: true };
    let verdict = VoteRequest {
        run: run.plan.run.uid.as_str(),
        approval: &pending.request.approval,
        action: &pending.request.action,
        vote: Vote::Approve,
        by: &by,
        reason: None,
    };
    assert_eq!(run.approvals.vote(&verdict), Err(VoteRefusal::Unknown));
    assert_eq!(cluster.requests(), [json!(null); 0]);
    agent.finish("").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0);
    let allowed = (run.events().iter()).any(|it| matches!(it, Event::Answered { decided: CallDecision::Allowed, .. }));
    assert!(!allowed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_is_taken_back_leaves_nothing_and_the_clock_goes_on() {
    for time in growing(Duration::from_secs(4)) {
        if let Some(()) = questions_are_taken_back(time).await {
            return;
        }
    }
    panic!("this machine is too slow");
}

/// In a run that has so much time. `None` when that was too short for this machine.
async fn questions_are_taken_back(time: Duration) -> Option<()> {
    let seconds = time.as_secs();
    let mut run = asking(|plan| plan.deadlines.run_seconds = seconds);
    let begun = Instant::now();
    let cluster = Executor::echo(run.volume("cluster"));
    let tickets = Executor::echo(run.volume("tickets"));
    let agent = run.agent().await;
    let mut taken_back: Vec<PendingQuestion> = Vec::new();
    for _ in 0..5 {
        let question = {
            let asked = agent.execute("cluster", "a");
            tokio::pin!(asked);
            tokio::select! {
                _ = &mut asked => {
                    assert!(begun.elapsed() >= time, "there was no answer");
                    return None;
                }
                question = another(&run, &taken_back) => question,
            }
            // Dropped here: the stream is reset.
        };
        taken_back.push(question);
    }
    assert_eq!(cluster.requests(), [json!(null); 0]);
    // Other calls are not blocked.
    let answer = agent.execute("tickets", "b").await;
    if answer.is_err() && begun.elapsed() >= time {
        return None;
    }
    assert!(answer.is_ok(), "{answer:?}");
    // An approval of a question without a waiter has no effect.
    for question in &taken_back {
        run.vote(question, Vote::Approve);
    }
    // And the next question is asked, and its yes used once.
    let person = async {
        if let Ok(pending) = timeout(time, another(&run, &taken_back)).await {
            run.vote(&pending, Vote::Approve);
        }
    };
    let (answer, ()) = tokio::join!(agent.execute("cluster", "c"), person);
    if answer.is_err() && begun.elapsed() >= time {
        return None;
    }
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!((cluster.requests().len(), tickets.requests().len()), (1, 1));
    assert_eq!(cluster.requests()[0]["command"], "c");
    run.wait_exit().await;
    assert_eq!(run.ending(), AgentEnd::TimedOut);
    let events = run.events();
    let count = |wanted: CallDecision| {
        let is = |it: &&Event| matches!(it, Event::Answered { decided, .. } if *decided == wanted);
        events.iter().filter(is).count()
    };
    assert_eq!((count(CallDecision::Refused), count(CallDecision::Allowed)), (5, 1));
    Some(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_yes_that_crosses_with_the_reset_is_used_once_or_not_at_all() {
    let mut run = asking(|_| ());
    let cluster = Executor::echo(run.volume("cluster"));
    let mut agent = Frames::connect(&run.at("door")).await;
    let call = json!({ "id": "1", "arguments": { "target": "cluster", "command": "a" } }).to_string();
    for _ in 0..20 {
        let stream = agent.request("POST", b"/v1/tools/execute_command", call.as_bytes()).await.expect("a stream");
        let pending = run.pending_question().await;
        run.vote(&pending, Vote::Approve);
        agent.reset(stream).await.expect("it is listened to");
    }
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    let events = run.events();
    let allowed =
        (events.iter()).filter(|it| matches!(it, Event::Answered { decided: CallDecision::Allowed, .. })).count();
    let acted = events.iter().filter(|it| matches!(it, Event::Acted { .. })).count();
    // What was allowed has a receipt of what came of it; what was run had been allowed.
    assert_eq!(allowed, acted);
    assert!(cluster.requests().len() <= allowed, "{} of {allowed}", cluster.requests().len());
    let mut ids: Vec<String> = cluster.requests().iter().map(|it| it["id"].to_string()).collect();
    ids.dedup();
    assert_eq!(ids.len(), cluster.requests().len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_questions_at_once() {
    let mut run = asking(|_| ());
    let cluster = Executor::echo(run.volume("cluster"));
    let mut agent = Frames::connect(&run.at("door")).await;
    let call = json!({ "id": "1", "arguments": { "target": "cluster", "command": "a" } }).to_string();
    // As many as may be said at once, and then far more: those are refused, or the whole connection is.
    for count in [30, 1_000] {
        for _ in 0..count {
            let asked = agent.request("POST", b"/v1/tools/execute_command", call.as_bytes());
            if asked.await.is_err() {
                break;
            }
        }
        // However many are begun, one is asked at a time, and nothing happens meanwhile.
        run.pending_question().await;
        assert_eq!(run.approvals.pending().len(), 1);
        assert_eq!(cluster.requests(), [json!(null); 0]);
    }
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    assert_eq!(cluster.requests(), [json!(null); 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_is_what_was_shown_to_the_byte() {
    let mut run = asking(|plan| {
        let declared = tool(plan, "list_unhealthy_pods", Some("cluster"));
        declared.gate = Gate::Ask;
        let schema = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
        declared.parameters = serde_json::from_value(schema).expect("a schema");
        declared.acts = ToolHandler::Program {
            part: PartName("skill-cluster".to_owned()),
            exec: vec!["pods".to_owned()],
            input_mode: InputMode::Stdin,
            positional_args: vec!["name".to_owned()],
        };
    });
    let cluster = Executor::echo(run.volume("cluster"));
    let mut agent = Frames::connect(&run.at("door")).await;
    let input = json!({ "b": "\u{202e}\u{0}\n", "a": [1, 2.5, null] });
    let call = json!({ "id": "1", "arguments": { "name": "--all\n\u{1b}[2J", "b": input["b"], "a": input["a"] } });
    let call = call.to_string();
    let stream = agent.request("POST", b"/v1/tools/list_unhealthy_pods", call.as_bytes()).await.expect("a stream");
    let pending = run.pending_question().await;
    // More of a body that has ended, and another head for the same stream.
    let _ = agent.frame(DATA, END_STREAM, stream, call.as_bytes()).await;
    let mut head = Vec::new();
    field(&mut head, b"x-arguments", b"{}");
    let _ = agent.frame(HEADERS, END_HEADERS | END_STREAM, stream, &head).await;
    sleep(POLL_INTERVAL).await;
    let by = Voter { name: "ada".to_owned(), groups: Vec::new(), is_author: false };
    let verdict = VoteRequest {
        run: run.plan.run.uid.as_str(),
        approval: &pending.request.approval,
        action: &pending.request.action,
        vote: Vote::Approve,
        by: &by,
        reason: None,
    };
    // Breaking the protocol may have ended the question with the connection.
    let decided = run.approvals.vote(&verdict);
    agent.answer(stream).await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    let seen = cluster.requests();
    assert!(seen.len() <= usize::from(decided.is_ok()));

    // The same, undisturbed.
    let run = asking(|plan| *plan = run.plan.clone());
    let cluster = Executor::echo(run.volume("cluster"));
    let agent = run.agent().await;
    let person = async {
        let pending = run.pending_question().await;
        run.vote(&pending, Vote::Approve);
        pending.request
    };
    let answer = agent.post("/v1/tools/list_unhealthy_pods", call);
    let (answer, shown) = tokio::join!(answer, person);
    assert!(!answer.expect("an answer").refused);
    let request = cluster.requests().remove(0);
    let words: Vec<String> = serde_json::from_value(request["argv"].clone()).expect("words");
    assert_eq!(words, ["pods", "--", "--all\n\u{1b}[2J"]);
    let stdin = request["stdin"].as_str().expect("an input");
    assert_eq!(serde_json::from_str::<serde_json::Value>(stdin).expect("JSON"), input);
    // What was put on the volume has the hash that was approved.
    let executed = Action {
        run: run.plan.run.uid.as_str(),
        nonce: &shown.approval,
        tool: "list_unhealthy_pods",
        pack: Some("cluster"),
        target: "skill-cluster",
        deed: Operation::Program(&words),
        work_dir: request["workDir"].as_str(),
        stdin: Some(stdin),
        timeout_seconds: u32::try_from(request["timeout"].as_u64().expect("seconds")).expect("few"),
    };
    assert_eq!(executed.digest().expect("a hash"), shown.action);
    assert_eq!(executed.summary().expect("short"), shown.shown);
    let plain = |letter: char| letter == '\n' || letter == ' ' || letter.is_ascii_graphic();
    assert!(shown.shown.chars().all(plain), "{}", shown.shown);
}
