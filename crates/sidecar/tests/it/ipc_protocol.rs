//! `skill-sidecar ipc` against the cases of the file protocol, which it has in common with the shell executor.

use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::json;
use sympozium_testkit::ipc_cases::volume::PATIENCE;
use sympozium_testkit::ipc_cases::{Settings, Volume};
use sympozium_testkit::wait_until;

fn start(volume: &Volume) -> Command {
    let mut command = sympozium_testkit::command(env!("CARGO_BIN_EXE_skill-sidecar"));
    command.arg("ipc");
    command.arg("--ipc-dir").arg(&volume.ipc);
    command.arg("--workspace").arg(&volume.workspace);
    let settings = [
        ("--max-timeout", volume.settings.max_timeout),
        ("--max-concurrent", volume.settings.max_concurrent),
        ("--claim-lease", volume.settings.claim_lease),
    ];
    for (flag, value) in settings {
        if let Some(value) = value {
            command.args([flag, &value.to_string()]);
        }
    }
    command
}

sympozium_testkit::ipc_conformance!(start);

/// Refusals need no capacity; they must not delay signals.
#[test]
fn a_backlog_of_bad_requests_does_not_delay_a_signal() {
    const BACKLOG: usize = 20_000;
    let answered = |volume: &Volume| volume.listing().iter().filter(|name| name.starts_with("exec-result-")).count();
    // Repeated where the machine was so slow that most of them were answered before the signal.
    let in_time = (0..20).any(|_| {
        let volume = Volume::new(Settings::default());
        for number in 0..BACKLOG {
            volume.put_bytes(&format!("bad-{number}"), b"[]");
        }
        let mut executor = volume.start(&start);
        let has_begun = || volume.log().contains("request refused");
        assert!(wait_until(PATIENCE, has_begun), "nothing was refused");
        executor.signal(Signal::STOP);
        let before = answered(&volume);
        executor.signal(Signal::TERM);
        executor.signal(Signal::CONT);
        assert_eq!(executor.wait(), 0);
        if before > BACKLOG / 2 {
            return false;
        }
        assert!(answered(&volume) < BACKLOG, "the signal waited for all of them");
        true
    });
    assert!(in_time, "this machine is too slow");
}

/// The executor that marked a claim as expired may have died before it could answer.
#[test]
fn a_claim_that_another_executor_marked_as_expired_is_answered() {
    let volume = Volume::new(Settings { max_timeout: Some(1), claim_lease: Some(2), ..Settings::default() });
    for marker in [".claim-lost", ".lapsed-lost"] {
        std::fs::create_dir_all(volume.tools().join(marker)).expect("a marker");
    }
    volume.ask("lost", "echo ran >> log");
    let _executor = volume.start(&start);
    assert!(volume.outcome("lost").is_refusal("executor"));
    assert_eq!(volume.lines("log"), Vec::<String>::new());
}

/// A closed log pipe must neither lose a result nor end the executor.
#[test]
fn a_closed_log_pipe_does_no_harm() {
    let volume = Volume::new(Settings::default());
    let mut command = start(&volume);
    let mut child = command.env("SYMPOZIUM_SKILL_PACK", "Test-Pack").stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stderr.take());
    for id in ["1", "2"] {
        volume.ask(id, "echo hi");
        assert_eq!(volume.outcome(id).stdout, "hi\n");
    }
    volume.write_done();
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

fn probe(volume: &Volume, seconds: &str) -> Option<i32> {
    let mut command = sympozium_testkit::command(env!("CARGO_BIN_EXE_skill-sidecar"));
    command.args(["healthcheck", "--pack", "Test-Pack", "--timeout", seconds]).arg("--ipc-dir").arg(&volume.ipc);
    command.stderr(Stdio::null()).status().expect("it runs").code()
}

/// A full executor is not a dead one, and a dead one is not healthy.
#[test]
fn a_probe_is_answered_while_every_slot_is_busy_and_not_after_the_exit() {
    let volume = Volume::new(Settings { max_concurrent: Some(1), ..Settings::default() });
    // A directory with the name of the probe's file must not block probes.
    std::fs::create_dir(volume.ipc.join(".healthcheck-Test-Pack")).expect("a directory");
    let busy = json!({"id": "busy", "command": "until [ -e go ]; do sleep 0.05; done", "timeout": 100});
    volume.put("busy", &busy);
    let mut executor = volume.start(&start);
    assert!(wait_until(PATIENCE, || volume.claim("busy").exists()));
    assert_eq!(probe(&volume, "60"), Some(0));
    std::fs::write(volume.workspace.join("go"), "").expect("a file");
    assert_eq!(volume.outcome("busy").exit_code, 0);
    volume.write_done();
    assert_eq!(executor.wait(), 0);
    assert_eq!(probe(&volume, "1"), Some(1));
    assert!(!volume.ipc.join(".healthcheck-Test-Pack").exists());
}
