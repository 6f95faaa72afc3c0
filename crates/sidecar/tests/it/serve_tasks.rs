//! Tasks, repeated requests, and callers that disconnect.

use std::time::Duration;

use serde_json::{Value, json};
use sympozium_testkit::{as_user, processes, skip, wait_until};
use uuid::Uuid;

use crate::serve_server::{LONG, Server, TOKENS};

fn begin(server: &Server, body: &Value) -> String {
    let answer = server.call("probe", &body.to_string());
    assert_eq!(answer.status, 202, "{answer:?}");
    answer.json()["task_id"].as_str().expect("it is text").to_owned()
}

fn sleeping(marker: &str, action: &str) -> Value {
    json!({ "args": ["do", "--marker", marker, action, "300", "stay"], "timeout": 300 })
}

fn is_gone(marker: &str) -> bool {
    wait_until(LONG, || processes::with_marker(marker).is_empty())
}

#[test]
fn a_pending_task_says_so_and_can_be_cancelled_with_all_it_started() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    let server = Server::start();
    let marker = processes::new_marker();
    let id = begin(&server, &sleeping(&marker, "daemon"));
    let path = format!("/task/{id}");
    assert!(wait_until(LONG, || processes::with_marker(&marker).len() > 1));
    let pending = server.get(&path);
    assert_eq!((pending.status, pending.json()), (200, json!({ "status": "pending", "task_id": id })));

    let cancelled = server.ask("DELETE", &path, TOKENS[0]);
    assert_eq!(processes::with_marker(&marker), [0_i32; 0]);
    let result = cancelled.json();
    let fields = ["status", "exit_code", "cancelled"].map(|field| &result[field]);
    assert_eq!(cancelled.status, 200);
    assert_eq!(fields, [&json!("error"), &json!(-1), &json!(true)]);
    // Repeated, and by polling: the same.
    assert_eq!(server.ask("DELETE", &path, TOKENS[0]).body, cancelled.body);
    assert_eq!(server.get(&path).body, cancelled.body);
}

#[test]
fn a_task_that_waits_for_its_turn_can_be_cancelled_too() {
    let setup = crate::serve_server::Setup::new().with(&["--max-concurrent", "1"]);
    let server = setup.start();
    let ids: Vec<_> = (0..2)
        .map(|_| server.call("sleep", r#"{"args": ["300"], "timeout": 300}"#).json())
        .map(|task| task["task_id"].as_str().expect("it is text").to_owned())
        .collect();
    for id in ids.iter().rev() {
        let result = server.ask("DELETE", &format!("/task/{id}"), TOKENS[0]).json();
        assert_eq!(result["cancelled"], true, "{result}");
    }
}

#[test]
fn tasks_of_others_do_not_exist() {
    let server = Server::start();
    let task = server.call("sleep", r#"{"args": ["300"], "timeout": 300}"#).json();
    let id = task["task_id"].as_str().expect("it is text");
    let path = |id: &str| format!("/task/{id}");
    let request = |method: &str, id: &str, token: &str| {
        let answer = server.ask(method, &path(id), token);
        let mut error = answer.json();
        // It differs in each response.
        let request_id = error["request_id"].take();
        assert_eq!(request_id.as_str(), answer.header("x-request-id"));
        let headers: Vec<_> = (answer.headers.into_iter())
            .filter(|(name, _)| !matches!(name.as_str(), "x-request-id" | "date"))
            .collect();
        (answer.status, error, headers)
    };
    let unknown = request("GET", &Uuid::new_v4().to_string(), TOKENS[1]);
    assert_eq!(unknown.0, 404);
    for method in ["GET", "DELETE"] {
        for other in [
            id,
            "x",
            "..",
            &id.to_uppercase(),
            &id.replace('-', ""),
            "%00",
            &format!("{{{id}}}").replace(['{', '}'], "%7B"),
        ] {
            assert_eq!(request(method, other, TOKENS[1]), unknown, "{method} {other}");
        }
    }
    assert_eq!(server.get(&path(id)).json()["status"], "pending");
}

#[test]
fn too_many_tasks_are_refused_and_do_not_hurt_other_callers() {
    let setup = crate::serve_server::Setup::new().with(&["--max-concurrent", "1"]);
    let server = setup.start();
    let mut client = server.client();
    let mut call = |token: &str| {
        let body = br#"{"args": ["300"], "timeout": 300}"#;
        client.send("POST", "/skill/sleep", &[("X-Skill-Token", token)], body)
    };
    for number in 0..256 {
        assert_eq!(call(TOKENS[0]).status, 202, "{number}");
    }
    let refused = call(TOKENS[0]);
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("60")));
    assert!(refused.error().starts_with("you have too many tasks: at most 256"), "{refused:?}");
    assert_eq!(call(TOKENS[1]).status, 202);
    let metrics = server.get("/metrics");
    assert!(metrics.text().contains("skill_sidecar_tasks{state=\"pending\"} 257\n"), "{}", metrics.text());
}

#[test]
fn a_skill_that_cannot_run_is_an_error_at_once_and_no_task() {
    let server = Server::start();
    let answer = server.call("there-is-none", r#"{"timeout": 60}"#);
    assert_eq!(answer.status, 404, "{answer:?}");
    let metrics = server.get("/metrics");
    assert!(metrics.text().contains("skill_sidecar_tasks{state=\"pending\"} 0\n"));
}

#[test]
fn a_disconnected_caller_cancels_the_command() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    let server = Server::start();
    let marker = processes::new_marker();
    let mut client = server.client();
    let body = json!({ "args": ["do", "--marker", marker, "daemon", "300", "stay"] }).to_string();
    client.begin("POST", "/skill/probe", &[("X-Skill-Token", TOKENS[0])], body.as_bytes());
    assert!(wait_until(LONG, || processes::with_marker(&marker).len() > 1));
    client.hang_up();
    assert!(is_gone(&marker));
    let logged = || server.log().concat().contains("the caller disconnected");
    assert!(wait_until(LONG, logged));
}

#[test]
fn a_repeated_request_is_executed_once() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    let server = Server::start();
    server.setup.script("once", "head -c 16 /dev/urandom | od -An -tx1; sleep 1");
    let send = |key: &str, token: &str, body: &str| {
        let headers = [("X-Skill-Token", token), ("Idempotency-Key", key)];
        server.client().send("POST", "/skill/once", &headers, body.as_bytes())
    };
    // In flight: all of them get the response of the first.
    let answers: Vec<_> = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..4).map(|_| scope.spawn(|| send("key", TOKENS[0], "{}"))).collect();
        senders.into_iter().map(|sender| sender.join().expect("it is answered")).collect()
    });
    let first = &answers[0];
    assert_eq!(first.status, 200);
    for answer in &answers {
        assert_eq!(answer.body, first.body);
    }
    let replayed = answers.iter().filter(|answer| answer.header("idempotency-replayed") == Some("true"));
    assert_eq!(replayed.count(), 3);
    // Finished: the same response.
    let repeated = send("key", TOKENS[0], "{}");
    assert_eq!((&repeated.body, repeated.header("idempotency-replayed")), (&first.body, Some("true")));
    // Another request, and another caller.
    let conflict = send("key", TOKENS[0], r#"{"args": []}"#);
    assert_eq!(conflict.status, 422, "{conflict:?}");
    let other = send("key", TOKENS[1], "{}");
    assert_eq!((other.status, other.header("idempotency-replayed")), (200, None));
    assert_ne!(other.body, first.body);
    for key in ["", "a b", &"x".repeat(129)] {
        assert_eq!(send(key, TOKENS[0], "{}").status, 400, "{key:?}");
    }
}

#[test]
fn a_repeated_request_for_a_task_gives_the_same_task() {
    let server = Server::start();
    let send = || {
        let headers = [("X-Skill-Token", TOKENS[0]), ("Idempotency-Key", "key")];
        let body = br#"{"timeout": 60}"#;
        server.client().send("POST", "/skill/true", &headers, body)
    };
    let (one, two) = (send(), send());
    assert_eq!((one.status, two.status), (202, 202));
    assert_eq!(one.body, two.body);
}

#[test]
fn a_request_with_a_key_survives_the_disconnection_of_its_caller() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    let server = Server::start();
    // It must be observed while it runs: for longer on a slow machine.
    let observed = ["2", "8", "25"].into_iter().find_map(|seconds| {
        let marker = processes::new_marker();
        let headers = [("X-Skill-Token", TOKENS[0]), ("Idempotency-Key", &marker)];
        let body = json!({ "args": ["do", "--marker", marker, "sleep", seconds] }).to_string();
        let mut client = server.client();
        client.begin("POST", "/skill/probe", &headers, body.as_bytes());
        let time = Duration::from_secs(seconds.parse().expect("a number"));
        let is_running = wait_until(time, || !processes::with_marker(&marker).is_empty());
        client.hang_up();
        is_running.then_some((marker, body))
    });
    let (key, body) = observed.expect("it runs");
    let headers = [("X-Skill-Token", TOKENS[0]), ("Idempotency-Key", &key)];
    let answer = server.client().send("POST", "/skill/probe", &headers, body.as_bytes());
    assert_eq!(answer.header("idempotency-replayed"), Some("true"));
    let result = answer.json();
    assert_eq!((&result["status"], &result["exit_code"]), (&json!("ok"), &json!(0)));
}
