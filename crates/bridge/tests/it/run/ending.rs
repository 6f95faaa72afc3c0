//! However a run ends: it is reported, the skills get `done` last, and the bridge is gone.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use sympozium_harness::credential::token;
use sympozium_harness::executor::Executor;
use sympozium_harness::plan::PACKS;
use sympozium_harness::{Agent, RunHarness};
use sympozium_ipc::door::{RefusalCode, SOCKET_NAME, path};
use sympozium_ipc::receipt::{Event, Outcome};
use sympozium_ipc::run_api::{AgentEnd, RUN_CREDENTIAL};
use sympozium_testkit::model_server::{Gate, Reply};
use tokio::net::UnixStream;

use super::{PROGRAM, open_plan, start};

/// Seconds for a bridge that is asked to end: half of them to finish calls, and most of the rest to report on a busy machine.
const TIME_TO_END: u64 = 20;

fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

async fn wait_ended(run: &mut RunHarness) {
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    for pack in PACKS {
        assert!(is_file(&run.volume(pack).join("done")), "{pack} did not get it");
    }
    let ended = run.events().pop();
    assert!(matches!(ended, Some(Event::Ended { .. })), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_answer() {
    let mut run = start(|_| ());
    let agent = run.agent().await;
    assert_eq!(agent.finish("42").await.status, 204);
    assert_eq!(agent.finish("43").await.status, 400, "only the first counts");
    drop(agent);
    wait_ended(&mut run).await;
    assert_eq!(run.ending(), AgentEnd::Answered { text: "42".to_owned() });
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_answer_of_an_agent_that_does_not_leave() {
    let mut run = start(|_| ());
    let agent = run.agent().await;
    assert_eq!(agent.finish("42").await.status, 204);
    wait_ended(&mut run).await;
    assert_eq!(run.ending(), AgentEnd::Answered { text: "42".to_owned() });
    assert!(agent.post("/v1/progress", "{}").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_word() {
    let mut run = start(|_| ());
    let agent = run.agent().await;
    let permit = agent.permit("read_file", json!({ "path": "/workspace/a" })).await.expect("a permit");
    agent.report(permit).await;
    agent.leave();
    wait_ended(&mut run).await;
    let AgentEnd::Crashed { known } = run.ending() else {
        panic!("{:?}", run.ending());
    };
    assert_eq!(known, "the agent left without a result; it had asked the model 0 times and called 1 tools");
}

#[tokio::test(flavor = "multi_thread")]
async fn because_the_agent_never_came() {
    let mut run = start(|plan| plan.deadlines.connect_seconds = 1);
    wait_ended(&mut run).await;
    assert_eq!(run.ending(), AgentEnd::NeverCame);
}

#[tokio::test(flavor = "multi_thread")]
async fn because_the_time_is_up_whatever_the_agent_does() {
    let mut run = start(|plan| plan.deadlines.run_seconds = 3);
    let agent = run.agent().await;
    let busy = async {
        while agent.post("/v1/progress", "{\"text\":\"a\"}").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    busy.await;
    wait_ended(&mut run).await;
    assert_eq!(run.ending(), AgentEnd::TimedOut);
}

#[tokio::test(flavor = "multi_thread")]
async fn because_the_bridge_is_told_to_with_a_command_under_way() {
    let mut run = start(|plan| plan.deadlines.grace_seconds = TIME_TO_END);
    let cluster = Executor::on(run.volume("cluster"), |_| None);
    let agent = run.agent().await;
    let call = agent.execute("cluster", "sleep 100");
    let stop = async {
        while cluster.requests().is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let pid = Pid::from_child(&run.bridge);
        kill_process(pid, Signal::TERM).expect("a signal");
    };
    let (answer, ()) = tokio::join!(call, stop);
    assert!(answer.is_err());
    wait_ended(&mut run).await;
    assert_eq!(run.ending(), AgentEnd::Stopped);
    let acted = run.events().into_iter().find_map(|it| match it {
        Event::Acted { outcome, .. } => Some(outcome),
        _ => None,
    });
    let why = "the run ended before it did".to_owned();
    assert_eq!(acted, Some(Outcome::Failed { why }));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_no_gateway_to_report_to() {
    let mut run = start(|_| ());
    let agent = run.agent().await;
    run.gateway.shut_down();
    fs::remove_file(run.at("gateway.sock")).expect("a socket");
    let pid = Pid::from_child(&run.bridge);
    kill_process(pid, Signal::TERM).expect("a signal");
    assert_eq!(run.wait_exit().await, 1, "it says that something is missing");
    for pack in PACKS {
        assert!(is_file(&run.volume(pack).join("done")), "{pack} did not get it");
    }
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_first_agent_is_served() {
    let mut run = start(|_| ());
    let socket = run.at("door").join(SOCKET_NAME);
    let agent = run.agent().await;
    assert!(agent.post("/v1/progress", "{\"text\":\"here\"}").await.is_ok());
    assert!(!socket.exists());
    assert!(UnixStream::connect(&socket).await.is_err());
    agent.finish("").await;
    drop(agent);
    wait_ended(&mut run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn because_the_agent_asks_again_and_again_for_what_it_is_refused() {
    let mut run = start(|_| ());
    let agent: Agent = run.agent().await;
    let mut refused = 0;
    while agent.post("/v1/nothing", "").await.is_ok() {
        refused += 1;
        assert!(refused < 5_000, "there is no limit");
    }
    wait_ended(&mut run).await;
    let AgentEnd::Crashed { known } = run.ending() else {
        panic!("{:?}", run.ending());
    };
    assert!(known.starts_with("the agent was cut off"), "{known}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_result_nothing_begins() {
    let mut run = start(|_| ());
    let cluster = Executor::echo(run.volume("cluster"));
    let agent = run.agent().await;
    assert_eq!(agent.finish("42").await.status, 204);
    let call = agent.execute("cluster", "a").await.expect_err("it is over");
    let permit = agent.permit("read_file", json!({ "path": "/workspace/a" })).await.expect_err("it is over");
    let model = agent.post(path::MODEL, "{}").await.expect("an answer");
    assert_eq!((call.code, permit.code, model.status), (RefusalCode::Unavailable, RefusalCode::Unavailable, 502));
    drop(agent);
    wait_ended(&mut run).await;
    assert!(cluster.requests().is_empty() && run.model.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_answer_of_the_model_still_coming() {
    let mut run = start(|plan| plan.deadlines.grace_seconds = TIME_TO_END);
    let gate = Gate::new();
    run.model.push(Reply::pieces(["one", "two"]).gated(&gate));
    let agent = run.agent().await;
    let request = json!({
        "model": "test-model", "stream": true, "messages": [{ "role": "user", "content": "a" }],
    });
    let answer = agent.send(path::MODEL, request.to_string()).await;
    let _coming = answer.expect("an answer");
    kill_process(Pid::from_child(&run.bridge), Signal::TERM).expect("a signal");
    wait_ended(&mut run).await;
    let kinds: Vec<&str> = run
        .events()
        .iter()
        .map(|event| match event {
            Event::Started { .. } => "started",
            Event::Model { .. } => "model",
            Event::Ended { .. } => "ended",
            _ => "other",
        })
        .collect();
    assert_eq!(kinds, ["started", "model", "ended"]);
}

/// The gateway may hear of a run after its bridge has begun to report.
#[tokio::test(flavor = "multi_thread")]
async fn not_because_the_gateway_does_not_know_the_run_yet() {
    let setup = RunHarness::setup(open_plan());
    fs::write(setup.at("input/token"), token("unknown", RUN_CREDENTIAL)).expect("a file");
    let mut run = setup.start(PROGRAM);
    run.wait_until("a report is refused", || run.log().contains("a report was not taken")).await;
    let agent = run.agent().await;
    let known = token(run.plan.run.uid.as_str(), RUN_CREDENTIAL);
    fs::write(run.at("input/token"), known).expect("a file");
    assert_eq!(agent.finish("42").await.status, 204);
    drop(agent);
    wait_ended(&mut run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn because_the_gateway_has_ended_a_run_that_it_knew() {
    let mut run = start(|_| ());
    let agent = run.agent().await;
    run.first_report().await;
    let ended = Instant::now();
    assert!(run.gateway.plans().end(run.plan.run.uid.as_str()));
    let _ = agent.post("/v1/progress", "{\"text\":\"here\"}").await;
    assert_eq!(run.wait_exit().await, 1, "{}", run.log());
    // Detecting that takes a minute, which is not waited for.
    let soon = Duration::from_secs(55);
    assert!(ended.elapsed() < soon, "{}", run.log());
}
