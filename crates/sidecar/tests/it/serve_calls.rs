//! What skills can do to the server, to each other, and to the reader of their result.

use serde_json::{Value, json};
use sympozium_testkit::probe::Findings;
use sympozium_testkit::{as_user, processes, skip, wait_until};

use crate::serve_server::{LONG, Server, Setup, TOKENS};

fn findings(result: &Value) -> Findings {
    Findings::parse(result["stdout"].as_str().expect("it is text").as_bytes())
}

#[test]
fn every_result_reports_what_isolation_was_live() {
    let server = Server::start();
    let result = server.call("true", "").json();
    assert_eq!(result["isolation"]["profile"], "container");
    for guarantee in ["filesystem", "processes", "syscalls"] {
        assert_eq!(result["isolation"]["guarantees"][guarantee], "enforced", "{guarantee}");
    }
}

#[test]
fn output_that_is_no_text_is_lossless() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    let server = Server::start();
    server.setup.script("bytes", r"printf 'a\377\000b'; printf 'text' >&2");
    let result = server.call("bytes", "").json();
    assert_eq!(result["stdout"], "a\u{fffd}\0b");
    assert_eq!(result["stdout_base64"], "Yf8AYg==");
    assert_eq!((&result["stderr"], result.get("stderr_base64")), (&json!("text"), None));
}

#[test]
fn truncated_output_is_marked() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    let server = Server::start();
    // Without an end, to both streams: ended by its timeout, and never kept.
    server.setup.script("yes", "yes & exec yes >&2");
    let before = processes::resident_bytes(server.pid()).expect("it lives");
    // Both have to write more than is kept before they are ended: for longer on a slow machine.
    let is_full = |text: &Value| text.as_str().is_some_and(|text| text.len() >= 51_200);
    let result = [2, 10, 30]
        .into_iter()
        .map(|timeout| server.call("yes", &json!({ "timeout": timeout }).to_string()).json())
        .find(|result| is_full(&result["stdout"]) && is_full(&result["stderr"]))
        .expect("in time");
    let after = processes::resident_bytes(server.pid()).expect("it lives");
    assert_eq!((&result["truncated"], &result["timed_out"]), (&json!(true), &json!(true)));
    for stream in ["stdout", "stderr"] {
        assert_eq!(result[stream].as_str().expect("it is text").len(), 51_200, "{stream}");
    }
    assert!(after < before + 16 * 1024 * 1024, "{before} bytes became {after}");
    let exact = server.probe(&["do", "flood", "stdout", "51200"]);
    assert_eq!(exact["truncated"], false);
}

#[test]
fn a_signal_is_reported() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    let server = Server::start();
    let result = server.probe(&["do", "raise", "15"]);
    let fields = ["status", "exit_code", "signal", "timed_out"].map(|field| &result[field]);
    assert_eq!(fields, [&json!("error"), &json!(143), &json!(15), &json!(false)]);
}

#[test]
fn input_counts_against_the_timeout() {
    let server = Server::start();
    let body = json!({ "args": ["300"], "stdin": "x".repeat(1_000_000), "timeout": 1 });
    let result = server.call("sleep", &body.to_string()).json();
    assert_eq!(result["timed_out"], true);
}

#[test]
fn daemons_do_not_outlive_their_call() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    let server = Server::start();
    let marker = processes::new_marker();
    for round in 0..100 {
        let result = server.probe(&["do", "--marker", &marker, "daemon", "300", "exit"]);
        assert_eq!(result["exit_code"], 0, "{round}");
        assert_eq!(processes::with_marker(&marker), [0_i32; 0], "{round}");
    }
    let body = json!({
        "args": ["do", "--marker", marker, "fork-tree", "7", "300", "stay"], "timeout": 1
    });
    assert_eq!(server.call("probe", &body.to_string()).json()["timed_out"], true);
    assert_eq!(processes::with_marker(&marker), [0_i32; 0]);
}

#[test]
fn a_grandchild_that_holds_the_output_is_not_waited_for() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    let server = Server::start();
    let marker = processes::new_marker();
    let result = server.probe(&["do", "--marker", &marker, "hold-stdout", "300", "exit"]);
    let fields = ["status", "exit_code", "timed_out"].map(|field| &result[field]);
    assert_eq!(fields, [&json!("ok"), &json!(0), &json!(false)]);
    assert_eq!(processes::with_marker(&marker), [0_i32; 0]);
}

#[test]
fn skills_cannot_read_the_server_or_its_token() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    let setup = Setup::new().variable("SKILL_TOKEN", "token-of-a-variable");
    let server = setup.start();
    let pid = server.pid();
    let mut attempts: Vec<String> = ["environ", "mem", "maps", "auxv", "root/etc/hostname"]
        .iter()
        .map(|file| format!("read-file=/proc/{pid}/{file}"))
        .collect();
    attempts.push(format!("read-file={}", server.setup.tokens().display()));
    let mut arguments = vec!["attempt"];
    arguments.extend(attempts.iter().map(String::as_str));
    let found = findings(&server.probe(&arguments));
    found.assert_refused(attempts.iter().map(String::as_str));
    // The token must not be inherited either.
    let dumps = server.probe(&["do", "print", "all"]);
    assert!(!dumps["stdout"].to_string().contains("token-of"), "{dumps}");
}

#[test]
fn no_secret_is_logged() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    let server = Setup::new().with(&["--log-level", "debug"]).start();
    let body = json!({
        "args": ["argument-word"], "env": { "SKILL_A": "variable-word" }, "stdin": "input-word"
    });
    assert_eq!(server.call("args", &body.to_string()).status, 200);
    let wrong = [r#"{"args": "mistyped-word"}"#, r#"{"env": {"LD_named-word": "x"}}"#, r#"{"field-word": 1}"#];
    for body in wrong {
        assert_eq!(server.call("true", body).status, 400, "{body}");
    }
    assert_eq!(server.get("/nothing/path-word?query-word=1").status, 404);
    assert_eq!(server.call("true?query-word", "").status, 200);
    assert_eq!(server.call_as("wrong-token-word", "true", "").status, 401);
    let is_logged = || server.log().concat().contains("\"status\":401");
    assert!(wait_until(LONG, is_logged));
    let log = server.log().concat();
    assert!(!log.contains("-word"), "{log}");
    assert!(TOKENS.iter().all(|token| !log.contains(token)), "{log}");
}

#[test]
fn requests_have_ids_that_are_returned_and_logged() {
    let server = Server::start();
    let mut client = server.client();
    let given = client.send("GET", "/nothing", &[("X-Request-Id", "my-id-1")], b"");
    assert_eq!(given.header("x-request-id"), Some("my-id-1"));
    assert_eq!(given.json()["request_id"], "my-id-1");
    assert!(wait_until(LONG, || { server.log().concat().contains("\"request_id\":\"my-id-1\"") }));
    for odd in ["", "a b", &"x".repeat(129)] {
        let made = client.send("GET", "/healthz", &[("X-Request-Id", odd)], b"");
        assert_eq!(made.header("x-request-id").map(str::len), Some(36), "{odd:?}");
    }
}

#[test]
fn errors_for_other_methods_and_paths_name_the_valid_ones() {
    let server = Server::start();
    let mut client = server.client();
    let answer = client.send("PUT", "/skill/true", &[], b"x");
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
    assert!(answer.json()["hint"].is_string());
    let answer = server.client().send("GET", "/nothing", &[], b"");
    assert_eq!((answer.status, answer.error().as_str()), (404, "there is nothing at this path"));
}

#[test]
fn arguments_are_bounded() {
    let server = Server::start();
    for (args, message) in [
        (json!(["a\0b"]), "args: number 0 contains a NUL character"),
        (json!(vec!["x"; 100_000]), "args: more than 4095 arguments"),
        (json!(["x".repeat(200_000)]), "args: number 0 has more than 131071 bytes"),
    ] {
        let answer = server.call("true", &json!({ "args": args }).to_string());
        assert_eq!(answer.status, 400);
        assert!(answer.error().starts_with(message), "{answer:?}");
    }
    let huge = format!("{{\"args\": [\"{}\"]}}", "x".repeat(10_000_000));
    assert_eq!(server.call("true", &huge).status, 413);
}

#[test]
fn metrics_count_calls_by_skill_and_outcome() {
    let server = Server::start();
    assert_eq!(server.call("true", "").status, 200);
    assert_eq!(server.call("sleep", r#"{"args": ["x"]}"#).status, 200);
    assert_eq!(server.call("there-is-none", "").status, 404);
    assert_eq!(server.call_as("wrong", "true", "").status, 401);
    let metrics = server.get("/metrics");
    assert_eq!(metrics.header("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    for line in [
        "skill_sidecar_calls_total{skill=\"true\",outcome=\"ok\"} 1\n",
        "skill_sidecar_calls_total{skill=\"sleep\",outcome=\"error\"} 1\n",
        "skill_sidecar_calls_total{skill=\"other\",outcome=\"refused\"} 1\n",
        "skill_sidecar_unauthorized_total 1\n",
        "skill_sidecar_call_duration_seconds_count 2\n",
        "skill_sidecar_running 0\n",
    ] {
        assert!(metrics.text().contains(line), "{line}{}", metrics.text());
    }
    assert!(!metrics.text().contains("there-is-none"));
}

#[test]
fn neither_skills_nor_the_server_leave_a_core() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    let server = Server::start();
    server.setup.script("core", "ulimit -c; ulimit -Hc");
    assert_eq!(server.call("core", "").json()["stdout"], "0\n0\n");
    // proc(5): the files of a process that is not dumpable belong to root, not to the user that runs it.
    let owner = |file: &str| {
        use std::os::unix::fs::MetadataExt as _;
        let data = std::fs::metadata(format!("/proc/{}/{file}", server.pid()));
        data.expect("it lives").uid()
    };
    assert_eq!((owner("environ"), owner("mem")), (0, 0));
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid()));
    let uid = format!("Uid:\t{}\t", as_user::ORDINARY);
    assert!(status.expect("it lives").contains(&uid));
}

#[test]
fn answers_belong_to_their_requests() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    let server = Setup::new().with(&["--max-concurrent", "4"]).start();
    std::thread::scope(|scope| {
        for caller in 0..12 {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client();
                let token = [("X-Skill-Token", TOKENS[caller % 2])];
                for round in 0..15 {
                    let word = format!("{caller}-{round}");
                    let body = json!({ "args": [word], "stdin": "x".repeat(round * 1000) });
                    let body = body.to_string();
                    let answer = client.send("POST", "/skill/args", &token, body.as_bytes());
                    assert_eq!(answer.status, 200, "{answer:?}");
                    let expected = format!("[{word}]\n{}", "x".repeat(round * 1000));
                    assert_eq!(answer.json()["stdout"], expected);
                }
            });
        }
    });
}
