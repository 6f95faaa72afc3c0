//! What a binary of ours cannot do any more once it has restricted itself.

use std::process::Stdio;

use serde_json::json;
use sympozium_testkit::as_user;
use sympozium_testkit::probe::{self, Findings};

use crate::matrix::Host;
use crate::sandbox::{STAGE, exec_run, stage};

/// Restricts a process to `readable` and `writable` and lets the probe try.
fn locked_down(
    readable: &[&str],
    writable: &[&str],
    attempts: &[&str],
) -> (serde_json::Value, Findings) {
    let argv: Vec<_> = [probe::path().to_str().expect("UTF-8"), "attempt"]
        .into_iter()
        .chain(attempts.iter().copied())
        .collect();
    let document = json!({
        "profile": "container",
        "argv": argv,
        "lockdown": {"readable": readable, "writable": writable},
    });
    let output = exec_run(&document, Stdio::piped())
        .wait_with_output()
        .expect("an end");
    let first = output.stdout.split(|&byte| byte == b'\n').next();
    let told = first.and_then(|line| serde_json::from_slice(line).ok());
    let told = told.unwrap_or_else(|| panic!("{output:?}"));
    (told, Findings::parse(&output.stdout))
}

#[test]
fn sockets_paths_signals_and_memory_are_gone() {
    as_user::run_with(&[(STAGE, &stage())], || {
        let host = Host::new();
        let own = std::process::id();
        let probe = probe::path().to_str().expect("UTF-8");
        let public = host.public();
        let workspace = tempfile::tempdir().expect("a directory");
        let workspace = workspace.path().to_str().expect("UTF-8");
        let refused = [
            "tcp-socket",
            "udp-socket",
            "ipv6-socket",
            "raw-socket",
            "netlink-socket",
            "vsock-socket",
            "packet-socket",
            &host.tcp(),
            &host.abstract_socket(),
            &format!("read-file={}", host.secret()),
            "read-file=/etc/passwd",
            "list-directory=/",
            "write-file=/tmp",
            &format!("write-file={public}"),
            &format!("signal={own}"),
            &format!("proc-mem={own}"),
            &format!("ptrace={own}"),
            "gain-by-exec",
        ];
        let possible = [
            "unix-socket",
            &format!("read-file={public}"),
            &format!("write-file={workspace}"),
        ];
        let attempts: Vec<&str> = refused.into_iter().chain(possible).collect();
        let (told, findings) = locked_down(&[probe, &public], &[workspace], &attempts);
        findings.assert_refused(refused);
        findings.assert_possible(possible);
        assert_eq!(told["nonDumpable"], true, "{told}");
        assert!(
            told["lockedDown"]["landlockAbi"].as_i64() >= Some(6),
            "{told}"
        );
    });
}
