//! An agent that wants the bridge's memory: the largest things that may be said, many at once, slowly, unread; floods of
//! frames; calls that are taken back while nothing can be reported. What is resident has a bound, whatever the agent does.

use std::fs;
use std::time::Duration;

use serde_json::json;
use sympozium_api::run_plan::Gate;
use sympozium_harness::executor::Executor;
use sympozium_harness::plan::tool;
use sympozium_harness::{POLL_INTERVAL, Response, RunHarness, TIMEOUT, WebServer};
use sympozium_ipc::door::{MAX_PROGRESS, MAX_TRANSCRIPT_CHUNK};
use sympozium_ipc::receipt::Event;
use sympozium_testkit::model_server::{Gate as Hold, Reply};
use sympozium_testkit::processes::memory;
use tokio::time::{sleep, timeout};

use super::hostile_agent_frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, MAX_FRAME, NONE, PING, SETTINGS, WINDOW_UPDATE,
    field, frame, head, reset,
};
use super::start;

/// What a bridge with the limits of an ordinary plan has resident at most, whatever its agent does: requests to the model
/// that wait or are read, unread pages, and the program itself.
const MAX_RESIDENT: u64 = 96 << 20;
const FRAMES_AT_ONCE: usize = 1_000;

/// The most that the bridge ever had resident.
fn most_resident(run: &RunHarness) -> u64 {
    memory(run.bridge.id()).expect("a process").peak
}

fn assert_bounded(run: &RunHarness) {
    let most = most_resident(run);
    assert!(most < MAX_RESIDENT, "{} MiB resident", most >> 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_at_their_bound_and_one_over() {
    let run = start(|_| ());
    let agent = run.agent().await;
    let limits = &run.plan.limits;
    let arguments = run.plan.tools.iter().map(|it| it.limits.argument_bytes).max().expect("tools");
    for (path, most) in [
        ("/v1/progress", MAX_PROGRESS),
        ("/v1/transcript", MAX_TRANSCRIPT_CHUNK),
        ("/v1/permits/0/report", 4 << 10),
        ("/v1/tools/execute_command", arguments as usize + (4 << 10)),
        ("/v1/permits/read_file", arguments as usize + (4 << 10)),
        ("/v1/result", 6 * limits.result_bytes as usize),
        ("/v1/model", limits.model_request_bytes as usize),
    ] {
        let whole = agent.post(path, vec![b'x'; most]).await.expect("an answer");
        assert_eq!((whole.status, whole.refused), (400, true), "{path}");
        let over = agent.post(path, vec![b'x'; most + 1]).await;
        // The answer may be overtaken by the reset of the stream whose rest is not read.
        if let Ok(over) = over {
            assert_eq!((over.status, over.refused), (413, true), "{path}");
        }
    }
    assert_bounded(&run);
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_bodies_that_never_end() {
    let run = start(|_| ());
    let _cluster = Executor::echo(run.volume("cluster"));
    let mut agent = Frames::connect(&run.at("door")).await;
    // Once it has said how much it takes.
    let stream = agent.request("POST", b"/v1/progress", b"{\"text\":\"a\"}").await.expect("a stream");
    agent.answer(stream).await;
    let piece = vec![b' '; MAX_FRAME];
    let mut streams = Vec::new();
    for _ in 0..31 {
        let stream = agent.begin("POST", b"/v1/model").await.expect("a stream");
        agent.frame(DATA, NONE, stream, &piece).await.expect("it is listened to");
        streams.push(stream);
    }
    // Others are read meanwhile.
    let call = json!({ "id": "1", "arguments": { "target": "cluster", "command": "a" } }).to_string();
    let stream = agent.request("POST", b"/v1/tools/execute_command", call.as_bytes()).await.expect("a stream");
    let said = agent.answer(stream).await;
    assert!(said.starts_with(b"{\"is\":\"command\""), "{}", String::from_utf8_lossy(&said));
    // All of them for calls: those who read are all taken, until they are given back.
    for stream in streams.drain(..) {
        agent.reset(stream).await.expect("it is listened to");
        let stream = agent.begin("POST", b"/v1/tools/execute_command").await.expect("a stream");
        agent.frame(DATA, NONE, stream, b"{").await.expect("it is listened to");
    }
    assert!(!agent.is_gone());
    assert_bounded(&run);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_that_are_never_read() {
    let run = start(|plan| {
        tool(plan, "fetch_url", None).limits.per_minute = 1_000;
        for credential in &mut plan.credentials {
            credential.reach.public |= credential.name == "web";
        }
    });
    let page = "a".repeat(2 << 20);
    let site = WebServer::plain(move |_| Response::page(&page)).await;
    run.internet.host("a.example", 80, &site);
    let mut agent = Frames::deaf(&run.at("door")).await;
    let call = json!({ "id": "1", "arguments": { "url": "http://a.example/" } }).to_string();
    run.first_report().await;
    let is_settled = |line: &str| line.contains("\"kind\":\"acted\"") || line.contains("\"decided\":\"refused\"");
    let mut settled = 0;
    // Fewer than the streams that may be open: beyond those nothing is read at all.
    for _ in 0..30 {
        agent.request("POST", b"/v1/tools/fetch_url", call.as_bytes()).await.expect("a stream");
        let more = timeout(TIMEOUT, async {
            loop {
                let lines = run.lines_so_far();
                let now = lines.iter().filter(|it| is_settled(it)).count();
                if now > settled {
                    return now;
                }
                sleep(POLL_INTERVAL).await;
            }
        });
        settled = more.await.expect("it is fetched or refused");
    }
    // As many as may be under way are fetched; while they are unread, no more.
    let most = tool(&mut run.plan.clone(), "fetch_url", None).limits.concurrent as usize;
    assert_eq!((site.requests().len(), settled), (most, 30));
    assert_bounded(&run);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_requests_to_a_model_that_does_not_answer() {
    let run = start(|_| ());
    let hold = Hold::new();
    run.model.set_default(Reply::text("never").gated(&hold));
    let agent = std::sync::Arc::new(run.agent().await);
    let most = run.plan.limits.model_request_bytes as usize;
    let frame = json!({ "model": "test-model", "messages": [{ "role": "user", "content": "" }] }).to_string();
    let text = "a".repeat(most - frame.len());
    let body = frame.replace("\"content\":\"\"", &format!("\"content\":\"{text}\""));
    assert_eq!(body.len(), most);
    let body = bytes::Bytes::from(body);
    let mut asks = Vec::new();
    for _ in 0..8 {
        let (agent, body) = (std::sync::Arc::clone(&agent), body.clone());
        asks.push(tokio::spawn(async move {
            let _ = agent.send("/v1/model", body).await;
        }));
    }
    timeout(TIMEOUT, async {
        while run.model.request_count() < 1 {
            sleep(POLL_INTERVAL).await;
        }
    })
    .await
    .expect("a request");
    // As many as are let through at a time, and those behind them.
    let _ = timeout(Duration::from_secs(1), async {
        while run.model.request_count() < 4 {
            sleep(POLL_INTERVAL).await;
        }
    })
    .await;
    // Calls go on.
    assert!(agent.permit("read_file", json!({ "path": "/workspace/a" })).await.is_ok());
    asks.iter().for_each(tokio::task::JoinHandle::abort);
    assert_bounded(&run);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_taken_back_while_nothing_can_be_reported() {
    let mut run = start(|plan| tool(plan, "fetch_url", None).gate = Gate::Deny);
    let mut agent = Frames::connect(&run.at("door")).await;
    let denied = json!({ "id": "1", "arguments": { "url": "http://a.example/" } }).to_string();
    let stream = agent.request("POST", b"/v1/tools/fetch_url", denied.as_bytes()).await.expect("a stream");
    agent.answer(stream).await;
    // Reports are not stored from now on.
    let (kept, aside) = (run.at("records"), run.at("aside"));
    run.first_report().await;
    while run.events().len() < 2 {
        sleep(POLL_INTERVAL).await;
    }
    fs::rename(&kept, &aside).expect("aside");
    fs::write(&kept, "").expect("a file in its place");
    // As many as wait to leave.
    for _ in 0..520 {
        let stream = agent.request("POST", b"/v1/tools/fetch_url", denied.as_bytes()).await.expect("a stream");
        if timeout(Duration::from_millis(200), agent.answer(stream)).await.is_err() {
            agent.reset(stream).await.expect("it is listened to");
            break;
        }
    }
    let before = most_resident(&run);
    let call = format!("{{\"id\":\"1\",\"arguments\":{{\"command\":\"{}\"}}}}", "a".repeat(60_000));
    for _ in 0..2_000 {
        let Ok(stream) = agent.request("POST", b"/v1/tools/execute_command", call.as_bytes()).await else {
            break;
        };
        // Read by now: a stream is answered after those before it were.
        let Ok(ping) = agent.request("POST", b"/v1/progress", b"{\"text\":\"a\"}").await else {
            break;
        };
        agent.answer(ping).await;
        if agent.is_gone() || agent.reset(stream).await.is_err() {
            break;
        }
    }
    let grown = most_resident(&run) - before;
    assert!(grown < 16 << 20, "{} MiB more", grown >> 20);
    fs::remove_file(&kept).expect("the file");
    fs::rename(&aside, &kept).expect("back");
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    // All that happened is in the chain.
    assert!(matches!(run.events().last(), Some(Event::Ended { .. })));
}

/// Sends a flood until it is over or the bridge has had enough.
async fn flood(run: &mut RunHarness, name: &str, count: usize, mut make: impl FnMut(&mut Frames, usize) -> Vec<u8>) {
    let mut agent = Frames::connect(&run.at("door")).await;
    let mut number = 0;
    while number < count {
        let mut bytes = Vec::new();
        for _ in 0..FRAMES_AT_ONCE.min(count - number) {
            bytes.extend(make(&mut agent, number));
            number += 1;
        }
        if agent.write(&bytes).await.is_err() || agent.is_gone() {
            break;
        }
    }
    let most = most_resident(run);
    assert!(most < MAX_RESIDENT, "{name}: {} MiB resident", most >> 20);
    let call = agent.request("POST", b"/v1/progress", b"{\"text\":\"a\"}").await;
    let heard = match call {
        Ok(stream) => {
            agent.answer(stream).await;
            !agent.is_gone()
        }
        Err(_) => false,
    };
    drop(agent);
    // Listened to, or cut off; never hung.
    assert_eq!(run.wait_exit().await, 0, "{name} (heard: {heard}): {}", run.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_of_frames_that_ask_for_an_answer() {
    let mut run = start(|_| ());
    flood(&mut run, "pings", 100_000, |_, _| frame(PING, NONE, 0, b"12345678")).await;
    let mut run = start(|_| ());
    flood(&mut run, "settings", 50_000, |_, _| frame(SETTINGS, NONE, 0, &[0, 3, 0, 0, 0, 100])).await;
    let mut run = start(|_| ());
    flood(&mut run, "windows", 50_000, |_, _| frame(WINDOW_UPDATE, NONE, 0, &1_u32.to_be_bytes())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_of_streams() {
    let mut run = start(|_| ());
    flood(&mut run, "streams that are taken back", 100_000, |agent, _| {
        let stream = agent.stream();
        [frame(HEADERS, END_HEADERS, stream, &head("POST", b"/v1/model")), reset(stream)].concat()
    })
    .await;
    let mut run = start(|_| ());
    flood(&mut run, "streams that stay", 100_000, |agent, _| {
        let stream = agent.stream();
        frame(HEADERS, END_HEADERS, stream, &head("POST", b"/v1/model"))
    })
    .await;
    let mut run = start(|_| ());
    flood(&mut run, "requests that are refused", 100_000, |agent, _| {
        let stream = agent.stream();
        frame(HEADERS, END_HEADERS | END_STREAM, stream, &head("POST", b"/v1/nothing"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_of_heads_and_of_nothing() {
    let mut long = Vec::new();
    field(&mut long, b"x-long", &vec![b'a'; MAX_FRAME - 100]);
    let mut run = start(|_| ());
    // A head that never ends: 160 MiB of it.
    flood(&mut run, "continuations", 10_000, |agent, number| match number {
        0 => frame(HEADERS, NONE, agent.stream(), &head("POST", b"/v1/model")),
        _ => frame(CONTINUATION, NONE, 1, &long),
    })
    .await;
    let mut run = start(|_| ());
    flood(&mut run, "empty continuations", 100_000, |agent, number| match number {
        0 => frame(HEADERS, NONE, agent.stream(), &head("POST", b"/v1/model")),
        _ => frame(CONTINUATION, NONE, 1, b""),
    })
    .await;
    let mut run = start(|_| ());
    flood(&mut run, "long heads", 2_000, |agent, _| {
        let head = [&head("POST", b"/v1/model")[..], &long].concat();
        frame(HEADERS, END_HEADERS | END_STREAM, agent.stream(), &head[..head.len().min(MAX_FRAME)])
    })
    .await;
    let mut run = start(|_| ());
    flood(&mut run, "data of nothing", 100_000, |agent, number| match number {
        0 => frame(HEADERS, END_HEADERS, agent.stream(), &head("POST", b"/v1/model")),
        _ => frame(DATA, NONE, 1, b""),
    })
    .await;
}
