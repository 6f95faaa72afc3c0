//! However a run ends: it is reported, the skills are told last, and the bridge is gone.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use sympozium_ipc::door::{RefusalCode, SOCKET_NAME, path};
use sympozium_ipc::receipt::{Event, Outcome};
use sympozium_ipc::run_api::{AgentEnd, RUN_CREDENTIAL};
use sympozium_testkit::model_server::{Gate, Reply};
use sympozium_testkit::wait_until;
use tokio::net::UnixStream;

use super::agent::{Agent, TIMEOUT};
use super::harness::{KEY, PACKS, RunHarness, is_file, open_plan, signed};
use super::skills::Executor;

/// Seconds for a bridge that is told to end: half of them to settle, and most of the rest to report on a busy machine.
const TIME_TO_END: u64 = 20;

async fn wait_ended(world: &mut RunHarness) {
    assert_eq!(world.wait_exit().await, 0, "{}", world.log());
    for pack in PACKS {
        assert!(is_file(&world.volume(pack).join("done")), "{pack} was not told");
    }
    let ended = world.events().pop();
    assert!(matches!(ended, Some(Event::Ended { .. })), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_answer() {
    let mut world = RunHarness::start(|_| ()).await;
    let agent = world.agent().await;
    assert_eq!(agent.finish("42").await.status, 204);
    assert_eq!(agent.finish("43").await.status, 400, "only the first counts");
    drop(agent);
    wait_ended(&mut world).await;
    assert_eq!(world.ending(), AgentEnd::Answered { text: "42".to_owned() });
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_answer_of_an_agent_that_does_not_leave() {
    let mut world = RunHarness::start(|_| ()).await;
    let agent = world.agent().await;
    assert_eq!(agent.finish("42").await.status, 204);
    wait_ended(&mut world).await;
    assert_eq!(world.ending(), AgentEnd::Answered { text: "42".to_owned() });
    assert!(agent.post("/v1/progress", "{}").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_word() {
    let mut world = RunHarness::start(|_| ()).await;
    let agent = world.agent().await;
    let permit = agent.permit("read_file", json!({ "path": "/workspace/a" })).await.expect("a permit");
    agent.report(permit).await;
    agent.leave();
    wait_ended(&mut world).await;
    let AgentEnd::Crashed { known } = world.ending() else {
        panic!("{:?}", world.ending());
    };
    assert_eq!(known, "the agent left without a result; it had asked the model 0 times and called 1 tools");
}

#[tokio::test(flavor = "multi_thread")]
async fn because_the_agent_never_came() {
    let mut world = RunHarness::start(|plan| plan.deadlines.connect_seconds = 1).await;
    wait_ended(&mut world).await;
    assert_eq!(world.ending(), AgentEnd::NeverCame);
}

#[tokio::test(flavor = "multi_thread")]
async fn because_the_time_is_up_whatever_the_agent_does() {
    let mut world = RunHarness::start(|plan| plan.deadlines.run_seconds = 3).await;
    let agent = world.agent().await;
    let busy = async {
        while agent.post("/v1/progress", "{\"text\":\"a\"}").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    busy.await;
    wait_ended(&mut world).await;
    assert_eq!(world.ending(), AgentEnd::TimedOut);
}

#[tokio::test(flavor = "multi_thread")]
async fn because_the_bridge_is_told_to_with_a_command_under_way() {
    let mut world = RunHarness::start(|plan| plan.deadlines.grace_seconds = TIME_TO_END).await;
    let cluster = Executor::on(world.volume("cluster"), |_| None);
    let agent = world.agent().await;
    let call = agent.execute("cluster", "sleep 100");
    let stop = async {
        while cluster.seen().is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let pid = Pid::from_child(&world.bridge);
        kill_process(pid, Signal::TERM).expect("a signal");
    };
    let (answer, ()) = tokio::join!(call, stop);
    assert!(answer.is_err());
    wait_ended(&mut world).await;
    assert_eq!(world.ending(), AgentEnd::Stopped);
    let acted = world.events().into_iter().find_map(|it| match it {
        Event::Acted { outcome, .. } => Some(outcome),
        _ => None,
    });
    let why = "the run ended before it did".to_owned();
    assert_eq!(acted, Some(Outcome::Failed { why }));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_no_gateway_to_report_to() {
    let mut world = RunHarness::start(|_| ()).await;
    let agent = world.agent().await;
    world.gateway.shut_down();
    fs::remove_file(world.at("gateway.sock")).expect("a socket");
    let pid = Pid::from_child(&world.bridge);
    kill_process(pid, Signal::TERM).expect("a signal");
    assert_eq!(world.wait_exit().await, 1, "it says that something is missing");
    for pack in PACKS {
        assert!(is_file(&world.volume(pack).join("done")), "{pack} was not told");
    }
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_first_agent_is_served() {
    let mut world = RunHarness::start(|_| ()).await;
    let socket = world.at("door").join(SOCKET_NAME);
    let agent = world.agent().await;
    assert!(agent.post("/v1/progress", "{\"text\":\"here\"}").await.is_ok());
    assert!(!socket.exists());
    assert!(UnixStream::connect(&socket).await.is_err());
    agent.finish("").await;
    drop(agent);
    wait_ended(&mut world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn because_the_agent_asks_again_and_again_for_what_it_is_refused() {
    let mut world = RunHarness::start(|_| ()).await;
    let agent: Agent = world.agent().await;
    let mut refused = 0;
    while agent.post("/v1/nothing", "").await.is_ok() {
        refused += 1;
        assert!(refused < 5_000, "there is no limit");
    }
    wait_ended(&mut world).await;
    let AgentEnd::Crashed { known } = world.ending() else {
        panic!("{:?}", world.ending());
    };
    assert!(known.starts_with("the agent was cut off"), "{known}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_result_nothing_begins() {
    let mut world = RunHarness::start(|_| ()).await;
    let cluster = Executor::echo(world.volume("cluster"));
    let agent = world.agent().await;
    assert_eq!(agent.finish("42").await.status, 204);
    let call = agent.execute("cluster", "a").await.expect_err("it is over");
    let permit = agent.permit("read_file", json!({ "path": "/workspace/a" })).await.expect_err("it is over");
    let model = agent.post(path::MODEL, "{}").await.expect("an answer");
    assert_eq!((call.code, permit.code, model.status), (RefusalCode::Unavailable, RefusalCode::Unavailable, 502));
    drop(agent);
    wait_ended(&mut world).await;
    assert!(cluster.seen().is_empty() && world.model.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_answer_of_the_model_still_coming() {
    let mut world = RunHarness::start(|plan| plan.deadlines.grace_seconds = TIME_TO_END).await;
    let gate = Gate::new();
    world.model.push(Reply::pieces(["one", "two"]).gated(&gate));
    let agent = world.agent().await;
    let request = json!({
        "model": "test-model", "stream": true, "messages": [{ "role": "user", "content": "a" }],
    });
    let answer = agent.send(path::MODEL, request.to_string()).await;
    let _coming = answer.expect("an answer");
    kill_process(Pid::from_child(&world.bridge), Signal::TERM).expect("a signal");
    wait_ended(&mut world).await;
    let kinds: Vec<&str> = world
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
    let key = [("OPENAI_API_KEY", KEY)];
    let mut world = RunHarness::prepared(open_plan(), &key, |directory| {
        let unknown = signed("unknown", RUN_CREDENTIAL);
        fs::write(directory.join("input/token"), unknown).expect("a file");
    })
    .await;
    let refused = || world.log().contains("a report was not taken");
    assert!(tokio::task::block_in_place(|| wait_until(TIMEOUT, refused)));
    let agent = world.agent().await;
    let known = signed(world.plan.run.uid.as_str(), RUN_CREDENTIAL);
    fs::write(world.at("input/token"), known).expect("a file");
    assert_eq!(agent.finish("42").await.status, 204);
    drop(agent);
    wait_ended(&mut world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn because_the_gateway_has_ended_a_run_that_it_knew() {
    let mut world = RunHarness::start(|_| ()).await;
    let agent = world.agent().await;
    world.first_report().await;
    let ended = Instant::now();
    assert!(world.gateway.plans().end(world.plan.run.uid.as_str()));
    let _ = agent.post("/v1/progress", "{\"text\":\"here\"}").await;
    assert_eq!(world.wait_exit().await, 1, "{}", world.log());
    // Detecting that takes a minute, which is not waited for.
    let soon = Duration::from_secs(55);
    assert!(ended.elapsed() < soon, "{}", world.log());
}
