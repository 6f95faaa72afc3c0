//! Many connections, and the end of all of them.

use std::net::TcpStream;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::json;
use sympozium_testkit::{processes, skip, wait_until};

use crate::serve_http::Client;
use crate::serve_server::{LONG, Server, Setup, TOKENS};

const IDLE: u64 = 5000;

#[test]
fn health_answers_while_five_thousand_connections_are_idle() {
    let limit = getrlimit(Resource::Nofile);
    let needed = IDLE + 500;
    if limit.maximum.is_some_and(|maximum| maximum < needed) {
        skip!("5,500 open files");
    }
    let raised = Rlimit { current: Some(limit.current.unwrap_or(needed).max(needed)), maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).expect("it is allowed");
    let mut server = with_probes(&[]);
    let probes = server.listening("listening for probes");
    let mut idle: Vec<TcpStream> = Vec::new();
    for number in 0..IDLE {
        let mut client = Client::connect(server.address());
        if number % 2 == 0 {
            // Slow ones among them.
            client.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nA");
        }
        idle.push(client.into_stream());
        if number % 500 == 0 {
            let health = server.client().send("GET", "/healthz", &[], b"");
            assert_eq!((health.status, health.text()), (200, "ok"), "{number}");
        }
    }
    let health = Client::connect(probes).send("GET", "/healthz", &[], b"");
    assert_eq!((health.status, health.text()), (200, "ok"));
    assert_eq!(server.call("true", "").status, 200);
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", server.pid()));
    if let Ok(descriptors) = descriptors {
        assert!(descriptors.count() < 700, "more connections are kept than allowed");
    }
    drop(idle);
}

fn with_probes(arguments: &[&str]) -> Server {
    let setup = Setup::new().with(&["--probe-listen", "127.0.0.1:0"]);
    setup.with(arguments).start()
}

/// Asks the address of probes, which takes no connection of callers.
fn wait_until_one_runs(server: &mut Server) {
    let probes = server.listening("listening for probes");
    let mut client = Client::connect(probes);
    let runs = wait_until(LONG, || {
        let metrics = client.send("GET", "/metrics", &[], b"");
        metrics.text().contains("skill_sidecar_running 1\n")
    });
    assert!(runs);
}

#[test]
fn the_longest_idle_connection_is_closed_and_busy_ones_stay() {
    let mut server = with_probes(&["--max-connections", "2"]);
    let token = [("X-Skill-Token", TOKENS[0])];
    let mut busy = server.client();
    busy.begin("POST", "/skill/sleep", &token, br#"{"args": ["30"], "timeout": 30}"#);
    wait_until_one_runs(&mut server);
    let mut idle = server.client();
    assert_eq!(idle.send("GET", "/healthz", &[], b"").status, 200);
    let mut next = server.client();
    assert_eq!(next.send("GET", "/healthz", &[], b"").status, 200);
    assert!(idle.is_closed());
    // Its skill would have been ended with it.
    wait_until_one_runs(&mut server);
    busy.hang_up();
}

#[test]
fn when_all_are_busy_a_new_connection_is_refused() {
    let mut server = with_probes(&["--max-connections", "1"]);
    let mut busy = server.client();
    let token = [("X-Skill-Token", TOKENS[0])];
    busy.begin("POST", "/skill/sleep", &token, br#"{"args": ["30"]}"#);
    wait_until_one_runs(&mut server);
    let mut other = server.client();
    let answer = other.answer().expect("a response");
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
    assert!(other.is_closed());
    busy.hang_up();
}

#[test]
fn calls_beyond_the_queue_are_refused() {
    let setup = Setup::new().with(&["--max-concurrent", "1", "--max-connections", "512"]);
    let server = setup.start();
    let task = occupy_the_only_slot(&server);
    let token = [("X-Skill-Token", TOKENS[0])];
    let mut clients: Vec<_> = (0..300).map(|_| server.client()).collect();
    for client in &mut clients {
        client.begin("POST", "/skill/sleep", &token, br#"{"args": ["25"]}"#);
    }
    // 256 wait, so the last of 300 are answered at once; in which order they were read is not certain.
    let is_refused = |server: &Server| {
        let metrics = server.get("/metrics");
        metrics.text().contains("answers_total{code=\"503\"} 44\n")
    };
    assert!(wait_until(LONG, || is_refused(&server)), "{}", server.get("/metrics").text());
    let waiting = server.get("/metrics");
    assert!(waiting.text().contains("skill_sidecar_waiting 256\n"), "{}", waiting.text());
    // Disconnecting frees the places in the queue.
    for client in clients {
        client.hang_up();
    }
    let is_free = || server.get("/metrics").text().contains("skill_sidecar_waiting 0\n");
    assert!(wait_until(LONG, is_free));
    assert_eq!(server.ask("DELETE", &task, TOKENS[0]).status, 200);
    assert_eq!(server.call("true", "").status, 200);
}

/// Occupies the only slot with a task, for longer than any test takes; returns the task's path.
fn occupy_the_only_slot(server: &Server) -> String {
    let task = server.call("sleep", r#"{"args": ["300"], "timeout": 300}"#);
    assert_eq!(task.status, 202, "{task:?}");
    let runs = || server.get("/metrics").text().contains("skill_sidecar_running 1\n");
    assert!(wait_until(LONG, runs));
    format!("/task/{}", task.json()["task_id"].as_str().expect("it is text"))
}

#[test]
fn calls_in_flight_are_answered_at_shutdown() {
    let mut server = Server::start();
    let mut idle = server.client();
    assert_eq!(idle.send("GET", "/healthz", &[], b"").status, 200);
    let token = [("X-Skill-Token", TOKENS[0])];
    // It must be observed while it runs: for longer on a slow machine, and still within the server's grace period.
    let running = [1, 3, 8].into_iter().find_map(|seconds| {
        let mut busy = server.client();
        let body = format!(r#"{{"args": ["{seconds}"]}}"#);
        busy.begin("POST", "/skill/sleep", &token, body.as_bytes());
        let is_running = wait_until(Duration::from_secs(seconds), || {
            let metrics = server.get("/metrics");
            metrics.text().contains("skill_sidecar_running 1\n")
        });
        is_running.then_some(busy)
    });
    let mut busy = running.expect("it runs");
    server.signal(Signal::TERM);
    assert!(idle.is_closed());
    let answer = busy.answer().expect("it is answered");
    assert_eq!((answer.status, &answer.json()["status"]), (200, &json!("ok")));
    assert!(busy.is_closed());
    assert_eq!(server.ended().and_then(|status| status.code()), Some(0));
}

#[test]
fn calls_beyond_the_grace_period_are_cancelled_at_shutdown() {
    let mut server = Server::start();
    let token = [("X-Skill-Token", TOKENS[0])];
    // Unique on this machine, to find the processes.
    let [of_task, of_call] = [1, 2].map(|prefix| format!("{prefix}{:08}", std::process::id()));
    let body = format!(r#"{{"args": ["{of_task}"], "timeout": 300}}"#);
    assert_eq!(server.call("sleep", &body).status, 202);
    let mut busy = server.client();
    let body = format!(r#"{{"args": ["{of_call}"]}}"#);
    busy.begin("POST", "/skill/sleep", &token, body.as_bytes());
    assert!(wait_until(LONG, || { server.get("/metrics").text().contains("skill_sidecar_running 2\n") }));
    server.signal(Signal::INT);
    let answer = busy.answer().expect("it is answered");
    let result = answer.json();
    assert_eq!((answer.status, &result["cancelled"]), (200, &json!(true)));
    assert_eq!(server.ended().and_then(|status| status.code()), Some(0));
    for seconds in [of_task, of_call] {
        let left = processes::with_marker(&seconds);
        assert_eq!(left, [0_i32; 0], "sleep {seconds} is still there");
    }
}

#[test]
fn the_memory_of_all_bodies_is_bounded() {
    let setup = Setup::new().with(&["--max-concurrent", "1"]);
    let server = setup.start();
    let task = occupy_the_only_slot(&server);
    let token = [("X-Skill-Token", TOKENS[0])];
    let large = json!({ "args": ["25"], "stdin": "x".repeat(1_000_000) }).to_string();
    let mut clients: Vec<_> = (0..80).map(|_| server.client()).collect();
    for client in &mut clients {
        client.begin("POST", "/skill/sleep", &token, large.as_bytes());
    }
    // 67 of them fit in 64 MiB.
    let is_refused = || {
        let metrics = server.get("/metrics");
        metrics.text().contains("answers_total{code=\"503\"} 13\n")
    };
    assert!(wait_until(LONG, is_refused), "{}", server.get("/metrics").text());
    // Small ones still fit.
    let small = server.call("sleep", r#"{"args": ["x"], "timeout": 60}"#);
    assert_eq!(small.status, 202, "{small:?}");
    for client in clients {
        client.hang_up();
    }
    assert_eq!(server.ask("DELETE", &task, TOKENS[0]).status, 200);
    let freed = || server.call("true", &large.replace("\"25\"", "")).status == 200;
    assert!(wait_until(LONG, freed));
}
