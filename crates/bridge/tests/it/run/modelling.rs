//! The model, as an agent at the door sees it.

use std::fs;
use sympozium_harness::{KEY, RunHarness};

use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use sympozium_ipc::door::{REFUSED_HEADER, path};
use sympozium_ipc::receipt::Event;
use sympozium_testkit::model_server::{Answer, Gate, Reply};

use super::{PROGRAM, open_plan, start};

fn request(stream: bool) -> String {
    json!({
        "model": "test-model", "stream": stream,
        "messages": [{ "role": "user", "content": "how are you?" }],
    })
    .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_goes_out_with_the_key_and_leaves_a_receipt() {
    let mut run = start(|_| ());
    run.model.push(Answer::text("well").usage(11, 3));
    let agent = run.agent().await;
    let reply = agent.post(path::MODEL, request(false)).await.expect("an answer");
    assert_eq!((reply.status, reply.refused), (200, false));
    let answer: Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(answer["choices"][0]["message"]["content"], "well");
    let seen = run.model.requests().remove(0);
    assert_eq!(seen.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
    assert_eq!(seen.path, "/v1/chat/completions");
    assert_eq!(seen.json(), serde_json::from_str::<Value>(&request(false)).expect("JSON"));
    agent.finish("").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0);
    let usage = run.report().usage;
    assert_eq!((usage.model_requests, usage.input_tokens, usage.output_tokens, usage.estimated), (1, 11, 3, false));
    let spent: Vec<_> = run
        .events()
        .into_iter()
        .filter_map(|event| match event {
            Event::Model { status, input_tokens, output_tokens, error, .. } => {
                Some((status, input_tokens, output_tokens, error))
            }
            _ => None,
        })
        .collect();
    assert_eq!(spent, [(Some(200), Some(11), Some(3), None)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_piece_of_a_stream_is_passed_on_before_the_next_is_there() {
    let run = start(|_| ());
    let gate = Gate::new();
    run.model.push(Reply::pieces(["one", "two", "three"]).gated(&gate));
    let agent = run.agent().await;
    let mut answer = agent.send(path::MODEL, request(true)).await.expect("an answer");
    let kind = answer.headers()["content-type"].to_str().expect("text");
    assert!(kind.starts_with("text/event-stream"), "{kind}");
    let mut seen = String::new();
    for piece in ["one", "two", "three"] {
        assert!(!seen.contains(piece), "{piece} came before it was sent");
        gate.release(1);
        while !seen.contains(piece) {
            let frame = answer.frame().await.expect("a piece").expect("whole");
            seen.push_str(std::str::from_utf8(frame.data_ref().expect("data")).expect("text"));
        }
    }
    gate.open();
    while let Some(frame) = answer.frame().await {
        seen.push_str(std::str::from_utf8(frame.expect("whole").data_ref().expect("data")).expect("text"));
    }
    assert!(seen.ends_with("data: [DONE]\n\n"), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_the_agent_gives_up_is_given_up_upstream_and_recorded() {
    let mut run = start(|_| ());
    let gate = Gate::new();
    run.model.push(Reply::pieces(["one", "two"]).gated(&gate));
    let agent = run.agent().await;
    let mut answer = agent.send(path::MODEL, request(true)).await.expect("an answer");
    gate.release(1);
    answer.frame().await.expect("a piece").expect("whole");
    drop(answer);
    while run.model.abandoned() == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    agent.finish("").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0);
    let error = run.events().into_iter().find_map(|event| match event {
        Event::Model { error, .. } => error,
        _ => None,
    });
    assert!(error.is_some(), "{:?}", run.events());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_acts_at_the_provider_is_refused_here() {
    let run = start(|_| ());
    let agent = run.agent().await;
    let mut with_search: Value = serde_json::from_str(&request(false)).expect("JSON");
    with_search["web_search_options"] = json!({});
    let answer = agent.send(path::MODEL, with_search.to_string()).await.expect("an answer");
    assert_eq!(answer.status(), 400);
    assert!(answer.headers().contains_key(REFUSED_HEADER));
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("web_search_options"));
    assert!(run.model.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scripted_model_needs_no_network_and_no_key() {
    let mut plan = open_plan();
    plan.model.provider = "scripted".to_owned();
    plan.model.endpoint = None;
    plan.model.keys.clear();
    plan.model.script = Some(sympozium_api::names::ObjectName::new("turns"));
    plan.credentials.retain(|credential| credential.name != "model");
    let setup = RunHarness::setup(plan);
    fs::create_dir(setup.at("script")).expect("a directory");
    fs::write(setup.at("script/turns.yaml"), "turns:\n  - say: hello\n    then: end\n").expect("a file");
    let mut run = setup.start(PROGRAM);
    let agent = run.agent().await;
    let reply = agent.post(path::MODEL, request(false)).await.expect("an answer");
    let answer: Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(answer["choices"][0]["message"]["content"], "hello");
    agent.finish("hello").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0);
    assert!(run.internet.resolved().is_empty() && run.model.requests().is_empty());
}
