//! A person is asked: what they see, what a yes is good for, and what stands still meanwhile.

use std::time::{Duration, Instant};

use serde_json::json;
use sympozium_api::RunPlan;
use sympozium_api::run_plan::Gate;
use sympozium_gateway::run_api::local::{Vote, VoteRefusal, VoteRequest};
use sympozium_harness::RunHarness;
use sympozium_harness::executor::{Executor, result};
use sympozium_harness::plan::tool;
use sympozium_ipc::door::RefusalCode;
use sympozium_ipc::run_api::{AgentEnd, BridgePhase};
use sympozium_testkit::growing;
use tokio::time::{sleep, timeout};

use super::calling::short;
use super::start;

const MOMENT: Duration = Duration::from_millis(300);

/// Starts a run with a tool that needs approval.
pub fn asking(change: impl FnOnce(&mut RunPlan)) -> RunHarness {
    start(|plan| {
        tool(plan, "execute_command", Some("cluster")).gate = Gate::Ask;
        plan.approval.approvers = None;
        plan.approval.required = 1;
        change(plan);
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_yes_is_for_one_exact_action_and_is_used_once() {
    let mut run = asking(|_| ());
    let cluster = Executor::echo(run.volume("cluster"));
    let agent = run.agent().await;
    let line = "kubectl delete pod a\u{202e}b\nseconds: 1";
    let call = agent.execute("cluster", line);
    let person = async {
        let pending = run.pending_question().await;
        assert!(cluster.requests().is_empty(), "nothing happens before the answer");
        assert_eq!(
            pending.request.shown,
            "tool: execute_command of cluster\nin: skill-cluster\n\
             shell: kubectl delete pod a\\u{202e}b\\nseconds: 1\n\
             directory: /workspace, or / where there is none\nseconds: 30\n\
             Files in /workspace are not part of this: they may change before it runs."
        );
        run.vote(&pending, Vote::Approve);
        pending
    };
    let (answer, pending) = tokio::join!(call, person);
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!(cluster.requests()[0]["command"], line);
    // The same answer again has no effect.
    let by = sympozium_gateway::run_api::local::Voter { name: "eve".to_owned(), groups: Vec::new(), is_author: false };
    let again = VoteRequest {
        run: run.plan.run.uid.as_str(),
        approval: &pending.request.approval,
        action: &pending.request.action,
        vote: Vote::Approve,
        by: &by,
        reason: None,
    };
    assert_eq!(run.approvals.vote(&again), Err(VoteRefusal::Unknown));
    // The same call again is asked about again, under another hash.
    let call = agent.execute("cluster", line);
    let person = async {
        let second = run.pending_question().await;
        assert_ne!(second.request.action, pending.request.action);
        run.vote(&second, Vote::Deny);
    };
    let (answer, ()) = tokio::join!(call, person);
    assert_eq!(answer.expect_err("no").code, RefusalCode::Disapproved);
    assert_eq!(cluster.requests().len(), 1);
    agent.finish("").await;
    drop(agent);
    run.wait_exit().await;
    let told: Vec<String> = run.events().iter().map(short).collect();
    assert_eq!(
        told,
        [
            "started",
            "0 execute_command cluster Ask Waiting",
            "0 asked",
            "0 answered Allowed by ada",
            "0 Skill Exited { code: 0 }",
            "1 execute_command cluster Ask Waiting",
            "1 asked",
            "1 answered Denied by ada",
            "ended Done",
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_without_an_answer_is_denied() {
    let run = asking(|plan| plan.deadlines.approval_seconds = 1);
    let cluster = Executor::echo(run.volume("cluster"));
    let agent = run.agent().await;
    let refused = agent.execute("cluster", "a").await.expect_err("there is no answer");
    assert_eq!(refused.code, RefusalCode::Expired);
    assert!(cluster.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_person_is_asked_and_until_it_is_over_nothing_else_happens() {
    let run = asking(|_| ());
    let gate = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let cluster = {
        let gate = std::sync::Arc::clone(&gate);
        // Begins, and is over when the test says so.
        Executor::on(run.volume("cluster"), move |_| {
            while !gate.load(std::sync::atomic::Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Some(result(0, "done"))
        })
    };
    // So that the executor's thread ends when an assertion fails.
    let _opened = OpenedOnDrop(&gate);
    let tickets = Executor::echo(run.volume("tickets"));
    let agent = run.agent().await;
    let asked = agent.execute("cluster", "a");
    let others = async {
        let pending = run.pending_question().await;
        let command = agent.execute("tickets", "b");
        let permit = agent.permit("read_file", json!({ "path": "/workspace/a" }));
        tokio::pin!(command, permit);
        let nothing = timeout(MOMENT, async {
            tokio::select! { _ = &mut command => "command", _ = &mut permit => "permit" }
        });
        assert_eq!(nothing.await.ok(), None, "the call was executed while a person was asked");
        // Reports leave the run a moment after what they say.
        run.first_report().await;
        let waits = timeout(Duration::from_secs(60), async {
            while run.report().phase != BridgePhase::Waiting {
                sleep(Duration::from_millis(2)).await;
            }
        });
        assert!(waits.await.is_ok(), "{:?}", run.report());
        run.vote(&pending, Vote::Approve);
        while cluster.requests().is_empty() {
            sleep(Duration::from_millis(2)).await;
        }
        let nothing = timeout(MOMENT, async {
            tokio::select! { _ = &mut command => "command", _ = &mut permit => "permit" }
        });
        assert_eq!(nothing.await.ok(), None, "more was executed than was approved");
        assert!(tickets.requests().is_empty());
        gate.store(true, std::sync::atomic::Ordering::SeqCst);
        assert!(command.await.is_ok());
        assert!(permit.await.is_ok());
    };
    let (answer, ()) = tokio::join!(asked, others);
    assert!(answer.is_ok(), "{answer:?}");
}

/// A gate that a thread waits at, opened at the latest when the test is over.
struct OpenedOnDrop<'g>(&'g std::sync::atomic::AtomicBool);

impl Drop for OpenedOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clock_stands_still_while_a_person_is_asked() {
    // A machine that is too slow to ask and to act within the time of the run gets more of it.
    for time in growing(Duration::from_secs(2)) {
        let seconds = time.as_secs();
        let mut run = asking(|plan| plan.deadlines.run_seconds = seconds);
        let _cluster = Executor::echo(run.volume("cluster"));
        let mut worked = Instant::now();
        let agent = run.agent().await;
        let person = async {
            let pending = run.pending_question().await;
            let stood_still = Instant::now();
            // Longer than the run may take.
            sleep(time + Duration::from_secs(1)).await;
            worked += stood_still.elapsed();
            run.vote(&pending, Vote::Approve);
            std::future::pending::<()>().await;
        };
        // Where the run was over before a question was asked, none is.
        let answer = tokio::select! {
            answer = agent.execute("cluster", "a") => answer,
            () = person => unreachable!("a person waits for the end of the call"),
        };
        if answer.is_err() && worked.elapsed() >= time {
            continue;
        }
        assert!(answer.is_ok(), "{answer:?}");
        // And runs again afterwards.
        run.wait_exit().await;
        assert_eq!(run.ending(), AgentEnd::TimedOut);
        return;
    }
    panic!("this machine is too slow");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_waiting_together_has_an_end() {
    let run = asking(|plan| {
        plan.deadlines.waiting_seconds = 1;
        plan.deadlines.approval_seconds = 60;
    });
    let _cluster = Executor::echo(run.volume("cluster"));
    let agent = run.agent().await;
    for _ in 0..2 {
        let refused = agent.execute("cluster", "a").await.expect_err("there is no answer");
        assert_eq!(refused.code, RefusalCode::Expired);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_yes_for_the_run_is_for_the_identical_action_where_the_plan_permits_it() {
    let mut run = asking(|plan| plan.approval.run_scope = true);
    let cluster = Executor::echo(run.volume("cluster"));
    let agent = run.agent().await;
    let person = async {
        let pending = run.pending_question().await;
        run.vote(&pending, Vote::ApproveForRun);
    };
    let (answer, ()) = tokio::join!(agent.execute("cluster", "a"), person);
    assert!(answer.is_ok());
    assert!(agent.execute("cluster", "a").await.is_ok(), "the identical action");
    let person = async {
        let pending = run.pending_question().await;
        run.vote(&pending, Vote::Deny);
    };
    let (answer, ()) = tokio::join!(agent.execute("cluster", "a "), person);
    assert_eq!(answer.expect_err("another action").code, RefusalCode::Disapproved);
    assert_eq!(cluster.requests().len(), 2);
    agent.finish("").await;
    drop(agent);
    run.wait_exit().await;
    let answered: Vec<String> = run.events().iter().map(short).filter(|it| it.contains("answered")).collect();
    assert_eq!(answered, ["0 answered Allowed by ada", "1 answered Allowed by ada", "2 answered Denied by ada"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_too_long_to_read_is_not_asked() {
    let run = asking(|_| ());
    let cluster = Executor::echo(run.volume("cluster"));
    let agent = run.agent().await;
    let refused = agent.execute("cluster", &"a".repeat(5_000)).await.expect_err("too long");
    assert_eq!(refused.code, RefusalCode::Arguments);
    assert!(cluster.requests().is_empty() && run.approvals.pending().is_empty());
}
