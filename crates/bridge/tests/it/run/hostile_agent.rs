//! An agent that does what it likes at the door: calls what is denied, breaks the protocol, stays for ever, claims what is
//! not so. It gets what the plan grants, and nothing else.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use sympozium_api::run_plan::Gate;
use sympozium_harness::executor::{Executor, requests, result, write_result};
use sympozium_harness::plan::tool;
use sympozium_harness::{Agent, POLL_INTERVAL, RunHarness};
use sympozium_ipc::door::{RefusalCode, ToolAnswer};
use sympozium_ipc::receipt::{Actor, CallDecision, Event, Outcome};
use sympozium_ipc::run_api::AgentEnd;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::sleep;

use super::calling::short;
use super::hostile_agent_frames::{DATA, Frames, NONE, socket};
use super::start;

/// Whether anything at all was done in a run.
fn acted(run: &RunHarness) -> bool {
    (run.events().iter()).any(|event| match event {
        Event::Acted { .. } => true,
        Event::Called { decided, .. } => *decided == CallDecision::Allowed,
        _ => false,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_tool_by_any_other_name() {
    let mut run = start(|plan| {
        for tool in &mut plan.tools {
            tool.gate = Gate::Deny;
        }
    });
    let cluster = Executor::echo(run.volume("cluster"));
    let mut agent = Frames::connect(&run.at("door")).await;
    let call = json!({ "id": "1", "arguments": { "url": "http://a.example/" } }).to_string();
    let paths: &[&[u8]] = &[
        b"/v1/tools/fetch_url",
        b"/v1/tools/FETCH_URL",
        b"/v1/tools/Fetch_Url",
        b"/v1/tools/fetch_url/",
        b"/v1/tools//fetch_url",
        b"//v1/tools/fetch_url",
        b"/v1//tools/fetch_url",
        b"/V1/tools/fetch_url",
        b"/v1/tools/./fetch_url",
        b"/v1/tools/../tools/fetch_url",
        b"/v1/permits/../tools/fetch_url",
        b"/v1/tools/%66etch_url",
        b"/v1/tools/fetch%5furl",
        b"/v1/tools/fetch_url%00",
        b"/v1/tools/fetch_url%20",
        b"/v1%2ftools%2ffetch_url",
        b"/v1/tools/fetch_url?",
        b"/v1/tools/fetch_url?gate=allow",
        b"/v1/tools/fetch_url#allowed",
        b"/v1/tools/fetch_url;gate=allow",
        b"http://bridge/v1/tools/fetch_url",
        b"https://user@bridge:1/v1/tools/fetch_url",
        b"v1/tools/fetch_url",
        b"*",
        b"",
        b"/v1/tools/web/fetch_url",
        b"/v1/tools/cluster/execute_command",
        b"/v1/permits/fetch_url",
        b"/v1/permits/fetch_url/report",
        b"/v1/tools/fetch_url/report",
        b"/v2/tools/fetch_url",
        b"/tools/fetch_url",
    ];
    for path in paths {
        let stream = agent
            .request("POST", path, call.as_bytes())
            .await
            .unwrap_or_else(|_| panic!("{}: {}", String::from_utf8_lossy(path), run.log()));
        let said = agent.answer(stream).await;
        let refused = said.is_empty() || said.starts_with(b"{\"code\":");
        assert!(refused, "{}: {}", String::from_utf8_lossy(path), String::from_utf8_lossy(&said));
    }
    for method in ["GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "post", "CONNECT", "X-CALL", "PRI"] {
        let stream = agent
            .request(method, b"/v1/tools/fetch_url", call.as_bytes())
            .await
            .unwrap_or_else(|_| panic!("{method}: {}", run.log()));
        let said = agent.answer(stream).await;
        let refused = said.is_empty() || said.starts_with(b"{\"code\":\"request\"");
        assert!(refused, "{method}: {}", String::from_utf8_lossy(&said));
    }
    assert!(!agent.is_gone(), "mistakes of a request are no mistakes of the connection");
    drop(agent);
    assert_eq!(run.wait_exit().await, 0);
    assert!(!acted(&run), "{:?}", run.events());
    assert_eq!(cluster.requests(), [json!(null); 0]);
    assert!(run.internet.resolved().is_empty() && run.internet.connected().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_say_two_things() {
    let mut run = start(|_| ());
    let cluster = Executor::echo(run.volume("cluster"));
    let agent = run.agent().await;
    for arguments in [
        r#"{"target":"cluster","command":"echo shown","command":"echo done"}"#,
        r#"{"target":"cluster","command":"echo same","command":"echo same"}"#,
        r#"{"target":"cluster","command":"echo shown","\u0063ommand":"echo done"}"#,
        r#"{"target":"cluster","command":"echo a","x":[{"y":1,"y":2}]}"#,
    ] {
        let body = format!(r#"{{"id":"1","arguments":{arguments}}}"#);
        let reply = agent.post("/v1/tools/execute_command", body).await.unwrap();
        let said = String::from_utf8_lossy(&reply.body).into_owned();
        assert_eq!(reply.status, 400, "{arguments}: {said}");
        assert!(said.contains("more than once"), "{arguments}: {said}");
    }
    assert_eq!(cluster.requests(), [json!(null); 0]);
    agent.finish("done").await;
    agent.leave();
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    assert!(!acted(&run), "{:?}", run.events());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_no_path_can_be() {
    let paths: &[&[u8]] = &[
        b"/v1/tools/fetch_url\0",
        b"/v1/tools/ fetch_url",
        b"/v1/tools/fetch_url\r\nsympozium-gate: allow",
        b"/v1/tools/fetch_url\xff",
        "/v1/tools/ｆetch_url".as_bytes(),
        "/v1/tools/fetch_url\u{200b}".as_bytes(),
        "/v1/tools/fet\u{441}h_url".as_bytes(),
    ];
    let call = json!({ "id": "1", "arguments": { "url": "http://a.example/" } }).to_string();
    for path in paths {
        // Refused, or the end of the connection and so of the run.
        let mut run = start(|plan| tool(plan, "fetch_url", None).gate = Gate::Deny);
        let mut agent = Frames::connect(&run.at("door")).await;
        let stream = agent.request("POST", path, call.as_bytes()).await;
        let said = agent.answer(stream.expect("a stream")).await;
        let refused = said.is_empty() || said.starts_with(b"{\"code\":");
        assert!(refused, "{}", String::from_utf8_lossy(&said));
        drop(agent);
        assert_eq!(run.wait_exit().await, 0, "{}", run.log());
        assert!(!acted(&run) && run.internet.resolved().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_no_http_2_ends_the_run_and_nothing_else() {
    let garbage = [
        &b"POST /v1/tools/fetch_url HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"[..],
        b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n",
        b"GET / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        &[0; 4096],
    ];
    for bytes in garbage {
        let mut run = start(|_| ());
        let mut agent = socket(&run.at("door")).await;
        let _ = agent.write_all(bytes).await;
        let mut said = Vec::new();
        // Closed by the bridge, not by the agent.
        let _ = agent.read_to_end(&mut said).await;
        assert!(!said.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&said));
        assert_eq!(run.wait_exit().await, 0, "{}", run.log());
        let told: Vec<String> = run.events().iter().map(short).collect();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(matches!(run.ending(), AgentEnd::Crashed { .. }), "{:?}", run.ending());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_client_keeps_the_bridge_alive() {
    // Comes and says nothing; says half of something; says the preface and nothing else.
    for bytes in [&b""[..], b"PRI * HT", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut run = start(|plan| plan.deadlines.run_seconds = 1);
        let mut agent = socket(&run.at("door")).await;
        let begun = Instant::now();
        let listened_to = agent.write_all(bytes).await.is_ok();
        // Only on a very slow machine it is over before.
        assert!(listened_to || begun.elapsed() >= Duration::from_millis(900));
        assert_eq!(run.wait_exit().await, 0, "{}", run.log());
        assert_eq!(run.ending(), AgentEnd::TimedOut);
    }
    // Has said all that it will ever say, and waits: that is how an agent leaves.
    let mut run = start(|_| ());
    let mut agent = Frames::connect(&run.at("door")).await;
    agent.half_close().await;
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    assert!(matches!(run.ending(), AgentEnd::Crashed { .. }), "{:?}", run.ending());
    // Holds a request open byte by byte, and does not read.
    let mut run = start(|plan| plan.deadlines.run_seconds = 3);
    let mut agent = Frames::deaf(&run.at("door")).await;
    let stream = agent.begin("POST", b"/v1/model").await.expect("a stream");
    while agent.frame(DATA, NONE, stream, b" ").await.is_ok() {
        sleep(POLL_INTERVAL).await;
    }
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    assert_eq!(run.ending(), AgentEnd::TimedOut);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_has_answered_and_does_not_read_on_is_left() {
    let mut run = start(|_| ());
    let _cluster = Executor::on(run.volume("cluster"), |_| Some(result(0, &"a".repeat(51_200))));
    let mut agent = Frames::deaf(&run.at("door")).await;
    let call = json!({ "id": "1", "arguments": { "target": "cluster", "command": "a" } }).to_string();
    for _ in 0..4 {
        agent.request("POST", b"/v1/tools/execute_command", call.as_bytes()).await.expect("a stream");
    }
    let answer = json!({ "is": "answer", "text": "42" }).to_string();
    agent.request("POST", b"/v1/result", answer.as_bytes()).await.expect("a stream");
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    assert_eq!(run.ending(), AgentEnd::Answered { text: "42".to_owned() });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_agent_is_not_served() {
    let mut run = start(|_| ());
    let door = run.at("door");
    let first = socket(&door).await;
    let second = UnixStream::connect(door.join(sympozium_ipc::door::SOCKET_NAME)).await;
    let first = Agent::from_stream(first).await;
    assert_eq!(first.post("/v1/progress", "{\"text\":\"here\"}").await.expect("an answer").status, 204);
    if let Ok(mut second) = second {
        let mut said = Vec::new();
        let _ = second.read_to_end(&mut said).await;
        assert_eq!(said, b"");
    }
    first.finish("").await;
    drop(first);
    assert_eq!(run.wait_exit().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_skill_does_is_not_the_agents_to_report() {
    let mut run = start(|_| ());
    let cluster = Executor::on(run.volume("cluster"), |request| {
        // Answered when the test has lied about it.
        (request["command"] == "second").then(|| result(0, ""))
    });
    let agent = run.agent().await;
    let call = agent.execute("cluster", "first");
    let lies = async {
        while cluster.requests().is_empty() {
            sleep(POLL_INTERVAL).await;
        }
        // The command under way is call 0; permits are numbered together with calls.
        for number in 0..8 {
            assert_eq!(agent.report(number).await.status, 400);
        }
        for number in ["00", "+0", "-1", "18446744073709551616", "0x0", "0 ", ""] {
            let path = format!("/v1/permits/{}/report", number.replace(' ', "%20"));
            let body = json!({ "outcome": { "is": "done" }, "bytes": 0, "durationMs": 0 });
            let reply = agent.post(&path, body.to_string()).await.expect("an answer");
            assert!(reply.refused, "{number}");
        }
        let (id, _) = requests(&run.volume("cluster")).remove(0);
        let truth = json!({ "exitCode": 7, "stdout": "", "stderr": "", "timedOut": false });
        write_result(&run.volume("cluster"), &id, &truth);
    };
    let (answer, ()) = tokio::join!(call, lies);
    assert!(matches!(answer, Ok(ToolAnswer::Command { exit_code: 7, .. })), "{answer:?}");
    agent.finish("").await;
    drop(agent);
    run.wait_exit().await;
    let told: Vec<(Actor, Outcome)> = (run.events().into_iter())
        .filter_map(|event| match event {
            Event::Acted { by, outcome, .. } => Some((by, outcome)),
            _ => None,
        })
        .collect();
    assert_eq!(told, [(Actor::Skill, Outcome::Exited { code: 7 })]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_bridge_leaves_a_chain_that_holds_and_has_no_end() {
    let mut run = start(|_| ());
    let _cluster = Executor::echo(run.volume("cluster"));
    let agent = run.agent().await;
    assert!(agent.execute("cluster", "a").await.is_ok());
    run.first_report().await;
    let is_reported = || run.events().len() == 3;
    while !is_reported() {
        sleep(POLL_INTERVAL).await;
    }
    kill_process(Pid::from_child(&run.bridge), Signal::KILL).expect("a signal");
    assert_eq!(run.wait_exit().await, -1);
    // Verified up to the reported head on the way.
    let told: Vec<String> = run.events().iter().map(short).collect();
    assert_eq!(told, ["started", "0 execute_command cluster Allow Allowed", "0 Skill Exited { code: 0 }"]);
    assert_eq!(run.report().ending, None);
    assert!(agent.post("/v1/progress", "{\"text\":\"a\"}").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_counted_also_without_a_waiting_caller() {
    let mut run = start(|plan| tool(plan, "fetch_url", None).gate = Gate::Deny);
    let mut agent = Frames::connect(&run.at("door")).await;
    let call = json!({ "id": "1", "arguments": { "url": "http://a.example/" } }).to_string();
    let mut sent = 0_u32;
    // Each is taken back when it has been read: no sooner, or the protocol's own bound ends this.
    let cut = async {
        loop {
            let Ok(stream) = agent.request("POST", b"/v1/tools/fetch_url", call.as_bytes()).await else {
                return;
            };
            let Ok(ping) = agent.request("POST", b"/v1/progress", b"{\"text\":\"a\"}").await else {
                return;
            };
            if agent.reset(stream).await.is_err() {
                return;
            }
            agent.answer(ping).await;
            if agent.is_gone() {
                return;
            }
            sent += 1;
            assert!(sent < 5_000, "there is no limit");
        }
    };
    cut.await;
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    let AgentEnd::Crashed { known } = run.ending() else {
        panic!("{:?}", run.ending());
    };
    assert!(known.starts_with("the agent was cut off"), "{known}");
    assert!(!acted(&run));
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_are_deep_huge_or_twice() {
    let run = start(|_| ());
    let cluster = Executor::echo(run.volume("cluster"));
    let agent = run.agent().await;
    let path = "/v1/tools/execute_command";
    let deep = |levels: usize| {
        let (open, close) = ("[".repeat(levels), "]".repeat(levels));
        format!("{{\"id\":\"1\",\"arguments\":{{\"target\":\"cluster\",\"command\":{open}{close}}}}}")
    };
    let fields = (0..50_000).map(|number| format!("\"{number}\":0")).collect::<Vec<_>>().join(",");
    let name = "a".repeat(1 << 20);
    for (body, code) in [
        (deep(100_000), RefusalCode::Request),
        (deep(127), RefusalCode::Request),
        (deep(40), RefusalCode::Arguments),
        (deep(1), RefusalCode::Arguments),
        ("[".repeat(1 << 20), RefusalCode::Request),
        (format!("{{\"{name}\":1}}"), RefusalCode::Request),
        (
            format!("{{\"id\":\"{}\",\"arguments\":{{}}}}", &name[..257]),
            RefusalCode::Request,
        ),
        (
            format!(
                "{{\"id\":\"1\",\"arguments\":{{\"{}\":1,\"command\":\"a\"}}}}",
                &name[..1 << 19]
            ),
            RefusalCode::Arguments,
        ),
        (
            format!("{{\"id\":\"1\",\"arguments\":{{{fields}}}}}"),
            RefusalCode::Arguments,
        ),
        (
            "{\"id\":\"1\",\"arguments\":{},\"arguments\":{}}".to_owned(),
            RefusalCode::Request,
        ),
        // A parser that reads the first and one that reads the last must not disagree.
        (
            "{\"id\":\"1\",\"arguments\":{\"target\":\"tickets\",\"command\":\"a\",\"target\":\"cluster\",\"command\":\"b\"}}".to_owned(),
            RefusalCode::Request,
        ),
        (
            "{\"id\":\"1\",\"arguments\":{},\"gate\":\"allow\"}".to_owned(),
            RefusalCode::Request,
        ),
        (String::new(), RefusalCode::Request),
        ("\u{feff}{}".to_owned(), RefusalCode::Request),
    ] {
        let reply = agent.post(path, body.clone()).await.expect("an answer");
        let refused: sympozium_ipc::door::Refusal =
            serde_json::from_slice(&reply.body).expect("a refusal");
        let start: String = body.chars().take(60).collect();
        assert_eq!(
            refused.code,
            code,
            "{start}: {}",
            refused.message.chars().take(200).collect::<String>()
        );
    }
    assert_eq!(cluster.requests(), [json!(null); 0]);
    // Said once it is done, so that the refusals above are for what was wrong with each.
    let once = "{\"id\":\"1\",\"arguments\":{\"target\":\"cluster\",\"command\":\"b\"}}";
    assert!(!agent.post(path, once).await.expect("an answer").refused);
    assert_eq!(cluster.requests()[0]["command"], "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transcript_and_an_answer_that_swell_still_leave_the_run() {
    let mut run = start(|_| ());
    let agent = run.agent().await;
    // One byte in a line is four in a report; a control character in the answer is six.
    let lines = "1\n".repeat(8_000);
    let mut kept = 0;
    for _ in 0..16 {
        kept += u32::from(agent.post("/v1/transcript", lines.clone()).await.expect("an answer").status == 204);
    }
    assert!(kept > 0);
    let quotes = format!("\"{}\"\n", "\\\"".repeat((255 << 10) / 2));
    agent.post("/v1/transcript", quotes.clone()).await.expect("an answer");
    agent.post("/v1/transcript", quotes).await.expect("an answer");
    let text = "\u{1}".repeat((256 << 10) - 16);
    assert_eq!(agent.finish(&text).await.status, 204);
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    assert!(matches!(run.ending(), AgentEnd::Answered { text: told } if told == text));
}
