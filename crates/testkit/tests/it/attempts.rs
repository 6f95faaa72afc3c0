//! Attempts with nothing around them work, and fail where something is.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use sympozium_testkit::probe::{self, Findings};
use sympozium_testkit::{as_user, command, processes, skip};

use crate::{attempt, run};

#[test]
fn files_can_be_used_unsandboxed() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let file = format!("{place}/file");
    std::fs::write(&file, "content").unwrap();
    let asked = [
        format!("read-file={file}"),
        format!("write-file={file}"),
        format!("write-file={place}"),
        format!("list-directory={place}"),
        "execute-file=/bin/true".to_owned(),
        format!("run-own-file={place}"),
        format!("follow-planted-link={file}"),
        format!("hard-link={file}"),
        format!("setuid-by-openat={place}"),
        format!("setuid-by-fchmodat2={place}"),
        format!("setuid-by-tmpfile={place}"),
        format!("fill-directory={place}:1M"),
        format!("make-files={place}:100"),
        format!("make-sparse-file={place}:1G"),
        format!("change-times={file}"),
        format!("change-times-by-high-pointer={file}"),
    ];
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    attempt(&asked).assert_possible(asked);
    // It cleans up, and what it opened for writing is as it was.
    let left: Vec<_> = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["file"]);
    assert_eq!(std::fs::read_to_string(file).unwrap(), "content");
}

#[test]
fn what_is_not_there_is_refused() {
    let asked = [
        "read-file=/no/such/file",
        "write-file=/no/such/file",
        "list-directory=/no/such",
        "execute-file=/no/such/program",
        "connect-socket-file=/no/such/socket",
        "abstract-connect=no-such-name",
        "signal=999999999",
        "sysv-shared-memory=123454321",
        "posix-queue=no-such-queue",
    ];
    attempt(&asked).assert_refused(asked);
}

#[test]
fn ipc_objects_can_be_made_unsandboxed() {
    let asked = ["make-shared-memory", "make-semaphores", "make-queue", "make-posix-queue", "use-ipc-object"];
    attempt(&asked).assert_possible(asked);
}

#[test]
fn loopback_is_reached_unsandboxed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = format!("tcp-connect={}", listener.local_addr().unwrap());
    let name = processes::new_marker();
    let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap());
    let hidden = format!("abstract-connect={name}");
    let asked = [tcp.as_str(), hidden.as_str(), "bind-tcp", "tcp-socket", "unix-socket"];
    attempt(&asked).assert_possible(asked);
}

#[test]
fn a_process_of_the_same_user_is_reached_unsandboxed() {
    let mut victim = command(probe::path()).args(["do", "sleep", "60"]).spawn().unwrap();
    let pid = victim.id();
    let gentle = ["signal", "signal-by-tgkill", "signal-by-pidfd", "proc-environ", "set-priority"]
        .map(|name| format!("{name}={pid}"));
    let kill = format!("kill-by-descriptor-owner={pid}");
    let asked: Vec<&str> = gentle.iter().map(String::as_str).chain([kill.as_str()]).collect();
    let findings = attempt(&asked);
    victim.kill().unwrap();
    victim.wait().unwrap();
    findings.assert_possible(asked);
}

#[test]
fn limits_are_measured() {
    let asked = ["allocate-memory=16", "make-processes=20", "open-files=100", "see-limits"];
    attempt(&asked).assert_possible(asked);
}

#[test]
fn an_unknown_attempt_is_an_error_and_nothing_runs() {
    let output = run("attempt", &["unix-socket", "no-such-attempt"]);
    assert_eq!(output.status.code(), Some(64));
    assert_eq!(output.stdout, b"");
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: unknown attempt"));
}

#[test]
fn an_ordinary_user_cannot_what_root_can() {
    as_user::run(|| {
        let asked =
            ["mount", "reboot", "raw-socket", "read-shadow", "set-hostname", "hold-capabilities", "become-root"];
        attempt(&asked).assert_refused(asked);
    });
}

#[test]
fn findings_differ_inside_a_sandbox() {
    // A sandbox that is not ours, to check the probe and not the product.
    let probe = probe::path().to_str().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = format!("tcp-connect={}", listener.local_addr().unwrap());
    let own = format!("signal={}", std::process::id());
    let asked = [
        tcp.as_str(),
        own.as_str(),
        "read-file=/etc/passwd",
        "write-file=/probe",
        "overwrite-own-program",
        "gain-by-exec",
        "mount",
        "see-interfaces",
        "route-outside",
        "open-init-root",
    ];
    let outside = attempt(&asked);
    let output = command("bwrap")
        .args(["--unshare-all", "--uid", "1000", "--gid", "1000", "--proc", "/proc", "--ro-bind"])
        .args([probe, "/probe", "/probe", "attempt"])
        .args(asked)
        .output();
    let output = match output {
        Ok(output) if output.status.success() => output,
        _ => skip!("bubblewrap does not work here"),
    };
    Findings::parse(&output.stdout).assert_refused(asked);
    outside.assert_possible([tcp.as_str(), own.as_str(), "read-file=/etc/passwd", "gain-by-exec"]);
}

#[test]
fn an_attempt_that_is_killed_does_not_stop_the_rest() {
    // The smallest filter that kills: load the number, compare, kill the process or allow.
    let number = u32::try_from(libc::SYS_sethostname).unwrap();
    let program: [(u16, u8, u8, u32); 4] =
        [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x8000_0000), (0x06, 0, 0, 0x7fff_0000)];
    let mut bytes = Vec::new();
    for (code, yes, no, value) in program {
        bytes.extend(code.to_ne_bytes());
        bytes.extend([yes, no]);
        bytes.extend(value.to_ne_bytes());
    }
    let directory = tempfile::tempdir().unwrap();
    let filter = directory.path().join("filter");
    std::fs::write(&filter, bytes).unwrap();
    let output = command("sh")
        .args(["-c", "exec bwrap --unshare-all --seccomp 9 --ro-bind \"$1\" /probe /probe attempt set-hostname unix-socket 9<\"$2\"", "sh"])
        .args([probe::path(), filter.as_path()])
        .output()
        .unwrap();
    if !output.status.success() {
        skip!("bubblewrap does not work here");
    }
    let findings = Findings::parse(&output.stdout);
    findings.assert_possible(["unix-socket"]);
    assert_eq!(findings.of("set-hostname").detail, "killed by SIGSYS");
}
