//! Skills that exhaust resources: neither the server nor the next caller may be affected.
//!
//! In a container the pod limits memory, processes and processor time; on a machine the server's own sandbox does.

use serde_json::{Value, json};
use sympozium_testkit::processes;

use crate::serve_server::{Server, Setup};

/// A server in a sandbox of its own, whose skills are the programs of the system.
fn server() -> Server {
    let mut setup = Setup::new();
    if let Some(skills) = setup.arguments.last_mut() {
        "/usr/bin".clone_into(skills);
    }
    setup.with(&["--profile", "host-user"]).start()
}

/// Runs a line, and then makes sure that others are served as before.
fn run(server: &Server, line: &str) -> Value {
    // As a task, which has a longer timeout: exhausting a resource takes long on a busy machine.
    let body = json!({"args": ["-c", line], "timeout": 170}).to_string();
    let task = server.call("sh", &body).json();
    let result = server.finished(task["task_id"].as_str().expect("it is text"));
    assert_eq!(server.client().send("GET", "/healthz", &[], b"").text(), "ok");
    assert_eq!(server.call("true", "").json()["status"], "ok");
    result
}

/// Far more than are allowed, and far fewer than would harm the machine if none were refused.
#[test]
fn processes_are_bounded_and_none_is_left() {
    let server = server();
    let marker = processes::new_marker();
    let line = format!("i=0; while [ $i -lt 2000 ]; do sh -c 'sleep 300' {marker} & i=$((i+1)); done; echo all");
    let result = run(&server, &line);
    assert_ne!(result["stdout"], "all\n", "{result}");
    let stderr = result["stderr"].as_str().unwrap_or_default();
    assert!(stderr.contains("fork") || stderr.contains("Resource temporarily unavailable"), "{result}");
    assert_eq!(processes::with_marker(&marker), [0_i32; 0]);
}

#[test]
fn the_disk_of_a_skill_is_bounded_and_its_own() {
    let server = server();
    for directory in ["/tmp", "/dev/shm"] {
        let result = run(&server, &format!("head -c 1000000000 /dev/zero > {directory}/large || rm {directory}/large"));
        let stderr = result["stderr"].as_str().unwrap_or_default();
        assert!(stderr.contains("No space left on device"), "{directory}: {result}");
    }
    // A file that only looks large is not made at all, or costs nothing.
    let sparse = run(&server, "truncate -s 1000000000000 /tmp/sparse; du -k /tmp/sparse");
    let used = sparse["stdout"].as_str().unwrap_or_default();
    assert!(used.is_empty() || used.starts_with("0\t"), "{sparse}");
    let inodes = run(
        &server,
        "i=0; while [ $i -lt 70000 ] && true > /tmp/f$i; do i=$((i+1)); done 2>/dev/null; [ $i -lt 70000 ] && echo bounded",
    );
    assert_eq!(inodes["stdout"], "bounded\n", "{inodes}");
}

#[test]
fn a_busy_skill_does_not_block_other_calls() {
    let server = server();
    let body = json!({"args": ["-c", "while :; do :; done"], "timeout": 2}).to_string();
    std::thread::scope(|scope| {
        let loops: Vec<_> = (0..4).map(|_| scope.spawn(|| server.call("sh", &body).json())).collect();
        assert_eq!(server.call("true", "").json()["status"], "ok");
        for busy in loops {
            assert_eq!(busy.join().expect("an answer")["timed_out"], true);
        }
    });
}
