//! The statements of the skill-sidecar page, one by one.

use serde_json::json;
use sympozium_testkit::{as_user, command, skip};

use crate::serve_server::{LONG, Server, Setup, TOKENS, binary, directory, script};

#[test]
fn a_skill_is_executed_and_its_result_has_four_fields() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    let server = Server::start();
    let body = json!({
        "args": ["arg1", "arg2"],
        "env": { "SKILL_FOO": "bar" },
        "stdin": "optional input",
        "timeout": 30
    });
    let answer = server.call("args", &body.to_string());
    assert_eq!(answer.status, 200);
    let start = r#"{"status":"ok","stdout":"[arg1]\n[arg2]\noptional input","stderr":"","exit_code":0,"#;
    assert!(answer.text().starts_with(start), "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
}

#[test]
fn any_executable_in_the_directory_is_a_skill_as_soon_as_it_is_there() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    let server = Server::start();
    assert_eq!(server.call("my-script.sh", "").status, 404);
    script(&server.setup.skills(), "my-script.sh", "echo \"$SKILL_FOO\" >&2; exit 7");
    let result = server.call("my-script.sh", r#"{"env": {"SKILL_FOO": "bar"}}"#);
    assert_eq!(result.status, 200);
    let result = result.json();
    assert_eq!(
        (&result["status"], &result["stderr"], &result["exit_code"]),
        (&json!("error"), &json!("bar\n"), &json!(7))
    );
    let listed = server.get("/skills").json();
    let names = ["args", "my-script.sh", "probe", "sleep", "true"];
    let names: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
    assert_eq!(listed, json!({ "skills": names }));
}

#[test]
fn health_is_ok_and_needs_no_token() {
    let server = Server::start();
    let answer = server.client().send("GET", "/healthz", &[], b"");
    assert_eq!((answer.status, answer.text()), (200, "ok"));
}

#[test]
fn only_skill_variables_are_accepted() {
    let server = Server::start();
    for name in ["PATH", "GH_TOKEN", "LD_PRELOAD", "SKILLX", "skill_x"] {
        let answer = server.call("true", &json!({ "env": { name: "x" } }).to_string());
        assert_eq!(answer.status, 400, "{name}");
        assert!(answer.error().starts_with("env: "), "{answer:?}");
    }
    let answer = server.call("true", r#"{"env": {"SKILL_X": "x"}}"#);
    assert_eq!(answer.status, 200);
}

#[test]
fn more_than_thirty_seconds_give_a_task_that_is_polled() {
    let server = Server::start();
    let answer = server.call("true", r#"{"timeout": 31}"#);
    assert_eq!(answer.status, 202);
    let pending = answer.json();
    let id = pending["task_id"].as_str().expect("it is text").to_owned();
    assert_eq!(pending, json!({ "status": "pending", "task_id": id }));
    // A UUID of version 4.
    let groups: Vec<usize> = id.split('-').map(str::len).collect();
    assert_eq!((groups, &id[14..15]), (vec![8, 4, 4, 4, 12], "4"));
    assert!(matches!(&id[19..20], "8" | "9" | "a" | "b"), "{id}");
    let result = server.finished(&id);
    assert_eq!((&result["status"], &result["exit_code"]), (&json!("ok"), &json!(0)));
}

#[test]
fn timeouts_have_a_default_a_maximum_and_no_zero() {
    let server = Server::start();
    for (timeout, status) in [
        ("null", 200),
        ("1", 200),
        ("30", 200),
        ("31", 202),
        ("300", 202),
        ("301", 202),
        ("1000000000", 202),
        ("0", 400),
        ("-1", 400),
        ("1.5", 400),
        ("1e9", 400),
        ("\"30\"", 400),
        ("true", 400),
        ("99999999999999999999999", 400),
    ] {
        let answer = server.call("true", &format!("{{\"timeout\": {timeout}}}"));
        assert_eq!(answer.status, status, "{timeout}: {answer:?}");
        if status == 400 {
            assert!(answer.error().starts_with("timeout: "), "{answer:?}");
        }
    }
}

#[test]
fn a_skill_is_ended_at_its_timeout() {
    let server = Server::start();
    let answer = server.call("sleep", r#"{"args": ["300"], "timeout": 1}"#);
    assert_eq!(answer.status, 200);
    let result = answer.json();
    let fields = ["status", "stdout", "stderr", "exit_code", "timed_out"].map(|field| &result[field]);
    assert_eq!(fields, [&json!("error"), &json!(""), &json!("timeout"), &json!(-1), &json!(true)]);
}

#[test]
fn a_body_of_one_megabyte_is_the_most() {
    let server = Server::start();
    let body = |bytes: usize| {
        let frame = r#"{"stdin": ""}"#.len();
        format!("{{\"stdin\": \"{}\"}}", "x".repeat(bytes - frame))
    };
    assert_eq!(server.call("true", &body(1 << 20)).status, 200);
    let answer = server.call("true", &body((1 << 20) + 1));
    assert_eq!(answer.status, 413);
    assert_eq!(answer.error(), "the body exceeds 1048576 bytes");
}

#[test]
fn no_shell_sees_the_arguments() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    let server = Server::start();
    let words = ["$(id)", "; touch /tmp/x", "`id`", "a b", "--help", "-c", "*", "\n", ""];
    let result = server.call("args", &json!({ "args": words }).to_string()).json();
    let expected: String = words.iter().map(|word| format!("[{word}]\n")).collect();
    assert_eq!(result["stdout"], expected);
}

#[test]
fn callers_need_a_token() {
    let server = Server::start();
    let mut client = server.client();
    let paths = [("POST", "/skill/true"), ("GET", "/skills"), ("GET", "/task/x"), ("GET", "/metrics")];
    for (method, path) in paths {
        for headers in [
            &[][..],
            &[("X-Skill-Token", "")],
            &[("X-Skill-Token", "wrong")],
            &[("X-Skill-Token", "# callers")],
            &[("X-Skill-Token", &TOKENS[0][..5])],
            &[("X-Skill-Token", TOKENS[0]), ("X-Skill-Token", TOKENS[0])],
            &[("Authorization", TOKENS[0])],
        ] {
            let answer = client.send(method, path, headers, b"");
            assert_eq!((answer.status, answer.error()), (401, "unauthorized".to_owned()));
        }
    }
    for token in TOKENS {
        assert_eq!(server.call_as(token, "true", "").status, 200);
    }
}

#[test]
fn credentials_of_the_container_reach_the_skill_and_the_token_does_not() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    let setup = Setup::new().variable("GH_TOKEN", "credential");
    let server = setup.variable("SKILL_TOKEN", "token-of-a-variable").start();
    assert_eq!(server.call_as("token-of-a-variable", "true", "").status, 200);
    server.setup.script("env", "exec env");
    let output = server.call("env", r#"{"env": {"SKILL_A": "b"}}"#).json()["stdout"].to_string();
    assert!(output.contains("GH_TOKEN=credential"), "{output}");
    assert!(output.contains("SKILL_A=b"), "{output}");
    assert!(!output.contains("SKILL_TOKEN"), "{output}");
    assert!(!output.contains("SYMPOZIUM"), "{output}");
}

#[test]
fn the_default_address_is_not_exposed_outside_the_pod() {
    let directory = directory();
    let help = command(binary(directory.path())).args(["serve", "--help"]).output();
    let help = String::from_utf8(help.expect("it runs").stdout).expect("it is text");
    assert!(help.contains("[default: 127.0.0.1:8080]"), "{help}");
    assert!(help.contains("[default: /usr/local/bin]"), "{help}");
}

#[test]
fn curl_is_a_client() {
    let server = Server::start();
    let url = format!("http://{}/skill/true", server.address());
    let seconds = LONG.as_secs().to_string();
    let body = format!("{{\"stdin\": \"{}\"}}", "x".repeat(100_000));
    let token = format!("X-Skill-Token: {}", TOKENS[0]);
    let mut curl = command("curl");
    curl.args(["-sS", "-m", &seconds, "-w", "\n%{http_code} %{http_code}\n", "-H", &token]);
    let output = match curl
        .args(["-d", &body, &url, "--next", "-sS", "-H", &token])
        .args(["-H", "Transfer-Encoding: chunked", "-d", &body, &url])
        .output()
    {
        Ok(output) => output,
        Err(_) => skip!("curl"),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("\n200 200\n"), "{text}");
    assert_eq!(text.matches("\"status\":\"ok\"").count(), 2, "{text}");
}
