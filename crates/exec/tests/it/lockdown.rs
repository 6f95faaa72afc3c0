//! What a binary of ours cannot do any more once it has restricted itself. Each body runs as the user of the tests,
//! which is root in CI, and as an ordinary user.

use std::io::Write as _;
use std::net::TcpListener;
use std::process::{Output, Stdio};

use serde_json::{Value, json};
use sympozium_testkit::as_user;
use sympozium_testkit::probe::{self, Findings};

use crate::matrix::Host;
use crate::sandbox::{STAGE, stage};

/// Restricts a process as `lockdown` says and lets the probe try.
fn run(lockdown: &Value, attempts: &[&str]) -> Output {
    let argv: Vec<_> =
        [probe::path().to_str().expect("UTF-8"), "attempt"].into_iter().chain(attempts.iter().copied()).collect();
    let document = json!({"profile": "container", "argv": argv, "lockdown": lockdown});
    let mut child = sympozium_testkit::command(stage())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let written = stdin.write_all(document.to_string().as_bytes());
    written.expect("it reads");
    drop(stdin);
    child.wait_with_output().expect("an end")
}

/// As [`run`], of a process that could restrict itself: what it told, and what the probe found.
fn locked_down(lockdown: &Value, attempts: &[&str]) -> (Value, Findings) {
    let output = run(lockdown, attempts);
    let first = output.stdout.split(|&byte| byte == b'\n').next();
    let told = first.and_then(|line| serde_json::from_slice(line).ok());
    let told = told.unwrap_or_else(|| panic!("{output:?}"));
    (told, Findings::parse(&output.stdout))
}

/// What a kernel with all of it tells, but for the ABI.
fn all_live(told: &Value, listens_unbound: bool) -> Value {
    let abi = told["lockedDown"]["landlockAbi"].as_i64();
    assert!(abi >= Some(6), "{told}");
    json!({
        "lockedDown": {
            "landlockAbi": abi,
            "live": ["core-dumps", "memory", "privileges", "paths", "tcp-ports", "scopes", "calls"],
        },
        "nonDumpable": true,
        "threads": true,
        "listensUnbound": listens_unbound,
        "coreLimit": 0,
    })
}

/// Never possible, with TCP or without.
const NEVER_ALLOWED: &[&str] = &[
    "udp-socket",
    "bind-udp",
    "raw-socket",
    "raw-ipv6-socket",
    "icmp-socket",
    "mptcp-socket",
    "sctp-socket",
    "netlink-socket",
    "netlink-audit-socket",
    "vsock-socket",
    "packet-socket",
    "alg-socket",
    "bind-tcp",
    "io-uring",
    "bpf",
    "unshare-user",
    "clone-user",
    "clone3-user",
    "ptrace-me",
    "personality",
    "gain-by-exec",
    "read-file=/etc/passwd",
    "list-directory=/",
    "list-directory=/proc",
    "write-file=/tmp",
];

fn no_tcp() {
    let host = Host::new();
    let own = std::process::id();
    let probe = probe::path();
    let public = host.public();
    let workspace = tempfile::tempdir().expect("a directory");
    let workspace = workspace.path().to_str().expect("UTF-8");
    let refused = [
        "tcp-socket",
        "ipv6-socket",
        &host.tcp(),
        &host.abstract_socket(),
        &format!("read-file={}", host.secret()),
        &format!("write-file={public}"),
        &format!("signal={own}"),
        &format!("proc-mem={own}"),
        &format!("ptrace={own}"),
        &format!("make-device={workspace}"),
    ];
    let refused: Vec<&str> = refused.into_iter().chain(NEVER_ALLOWED.iter().copied()).collect();
    let possible = ["unix-socket", &format!("read-file={public}"), &format!("write-file={workspace}")];
    let attempts: Vec<&str> = refused.iter().copied().chain(possible).collect();
    let lockdown = json!({"readable": [probe, public], "writable": [workspace]});
    let (told, findings) = locked_down(&lockdown, &attempts);
    findings.assert_refused(refused);
    findings.assert_possible(possible);
    assert_eq!(told, all_live(&told, false));
}

#[test]
fn sockets_paths_signals_and_memory_are_gone() {
    no_tcp();
}

#[test]
fn sockets_paths_signals_and_memory_are_gone_for_an_ordinary_user() {
    as_user::run_with(&[(STAGE, &stage())], no_tcp);
}

/// Somebody who listens, and what a connection to them is called.
struct Service {
    port: u16,
    by_connect: String,
    /// Over a socket of IPv6, to the same place.
    by_mapped: String,
    by_send: String,
    by_mptcp: String,
    _listener: TcpListener,
}

impl Service {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        Self {
            port: address.port(),
            by_connect: format!("tcp-connect={address}"),
            by_mapped: format!("tcp-connect=[::ffff:127.0.0.1]:{}", address.port()),
            by_send: format!("tcp-connect-by-send={address}"),
            by_mptcp: format!("tcp-connect-by-mptcp={address}"),
            _listener: listener,
        }
    }
}

fn one_port() {
    let (gateway, other) = (Service::new(), Service::new());
    let host = Host::new();
    let refused = [
        &other.by_connect,
        &other.by_mapped,
        // Neither way is seen by Landlock's rules for TCP, whichever port it leads to.
        &gateway.by_send,
        &gateway.by_mptcp,
        &other.by_send,
        &other.by_mptcp,
        &format!("read-file={}", host.secret()),
        &host.abstract_socket(),
    ];
    let refused = refused.into_iter().map(String::as_str);
    let refused: Vec<&str> = refused.chain(NEVER_ALLOWED.iter().copied()).collect();
    let possible =
        [gateway.by_connect.as_str(), gateway.by_mapped.as_str(), "tcp-socket", "ipv6-socket", "unix-socket"];
    let attempts: Vec<&str> = refused.iter().copied().chain(possible).collect();
    let mut lockdown = json!({
        "readable": [probe::path()],
        "writable": [],
        "tcpConnect": [gateway.port],
    });
    let (told, findings) = locked_down(&lockdown, &attempts);
    findings.assert_refused(refused);
    findings.assert_possible(possible);
    assert_eq!(told, all_live(&told, true));

    // It was the port that was refused, not the service.
    lockdown["tcpConnect"] = json!([gateway.port, other.port]);
    let both = [gateway.by_connect.as_str(), other.by_connect.as_str()];
    locked_down(&lockdown, &both).1.assert_possible(both);
}

#[test]
fn tcp_leads_to_the_named_port_and_nowhere_else() {
    one_port();
}

#[test]
fn tcp_leads_to_the_named_port_and_nowhere_else_for_an_ordinary_user() {
    as_user::run_with(&[(STAGE, &stage())], one_port);
}

/// As in gVisor: what is left is applied and told, and nothing else is.
fn no_landlock() {
    let (gateway, other) = (Service::new(), Service::new());
    let still_refused = ["udp-socket", "io-uring", "gain-by-exec", "unshare-user"];
    // Documented as not refused.
    let lost = [other.by_connect.as_str(), "bind-tcp", "read-file=/etc/passwd"];
    let attempts: Vec<&str> = still_refused.into_iter().chain(lost).collect();
    let mut lockdown = json!({
        "readable": [probe::path()],
        "writable": [],
        "tcpConnect": [gateway.port],
        "available": true,
        "withoutLandlock": true,
    });
    let (told, findings) = locked_down(&lockdown, &attempts);
    findings.assert_refused(still_refused);
    findings.assert_possible(lost);
    let live = json!(["core-dumps", "memory", "privileges", "calls"]);
    let expected = json!({
        "lockedDown": {"landlockAbi": 0, "live": live},
        "nonDumpable": true,
        "threads": true,
        "listensUnbound": true,
        "coreLimit": 0,
    });
    assert_eq!(told, expected);

    // Without ports there is no TCP, with Landlock or without.
    lockdown["tcpConnect"] = json!([]);
    let no_socket = ["tcp-socket", "ipv6-socket", other.by_connect.as_str()];
    let (_, findings) = locked_down(&lockdown, &no_socket);
    findings.assert_refused(no_socket);

    // Whoever asked for everything does not go on.
    lockdown["available"] = json!(false);
    assert_not_started(&lockdown, "this kernel offers Landlock ABI 0");
}

#[test]
fn missing_landlock_is_reported() {
    no_landlock();
}

#[test]
fn missing_landlock_is_reported_to_an_ordinary_user() {
    as_user::run_with(&[(STAGE, &stage())], no_landlock);
}

/// Where there is all of it, "what is available" is all of it.
#[test]
fn all_that_is_available_is_everything_here() {
    let service = Service::new();
    let lockdown = json!({"readable": [probe::path()], "writable": [], "available": true});
    let refused = [service.by_connect.as_str(), "read-file=/etc/passwd"];
    let (told, findings) = locked_down(&lockdown, &refused);
    findings.assert_refused(refused);
    assert_eq!(told, all_live(&told, false));
}

/// Of the ways to be connected to, none is left, and connecting is as it was.
#[test]
fn nothing_new_is_listened_at() {
    let gateway = Service::new();
    let mut lockdown = json!({
        "readable": [probe::path()],
        "writable": [],
        "tcpConnect": [gateway.port],
    });
    let listening = ["abstract-bind"];
    let connecting = [gateway.by_connect.as_str(), "unix-socket"];
    let attempts: Vec<&str> = listening.into_iter().chain(connecting).collect();
    let (told, findings) = locked_down(&lockdown, &attempts);
    findings.assert_possible(attempts.iter().copied());
    assert_eq!(told, all_live(&told, true));

    lockdown["stopListening"] = json!(true);
    let (told, findings) = locked_down(&lockdown, &attempts);
    findings.assert_refused(listening);
    findings.assert_possible(connecting);
    assert_eq!(told, all_live(&told, false));

    // Also where no Landlock refuses ports.
    lockdown["available"] = json!(true);
    lockdown["withoutLandlock"] = json!(true);
    let (_, findings) = locked_down(&lockdown, &["bind-tcp"]);
    findings.assert_refused(["bind-tcp"]);
}

/// What is kept twice is left, whichever of the two kept more.
fn narrowing() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    let (kept, other, never) = (at("kept"), at("other"), at("never"));
    let (inner, file) = (at("kept/inner"), at("never/file"));
    for path in [&kept, &other, &never, &inner] {
        std::fs::create_dir(path).expect("a directory");
    }
    std::fs::write(&file, "x").expect("a file");
    let probe = probe::path();
    let write = |path: &str| format!("write-file={path}");
    let list = |path: &str| format!("list-directory={path}");
    let outside = [
        list(&never),
        write(&never),
        format!("read-file={file}"),
        "read-file=/etc/passwd".to_owned(),
        "tcp-socket".to_owned(),
        "unshare-user".to_owned(),
    ];
    let paths = |readable: &[&str], writable: &[&str]| {
        let readable: Vec<&str> = readable.iter().copied().chain(probe.to_str()).collect();
        json!({"readable": readable, "writable": writable})
    };
    let mut lockdown = paths(&[&other, "/proc"], &[&kept]);

    // Each: what is narrowed to; what is left; what is gone besides what never was there.
    let everything = paths(&["/"], &["/"]);
    let first = paths(&["/proc"], &[&inner]);
    let cases = [
        (vec![], vec![write(&kept), write(&inner), list(&other)], vec![write(&other)]),
        // Nothing comes back: neither by asking for all, nor by asking for what was not kept.
        (vec![everything.clone()], vec![write(&kept), write(&inner), list(&other), list("/proc")], vec![write(&other)]),
        (
            vec![paths(&[&never, &other], &[&never, &other])],
            vec![list(&other)],
            vec![write(&other), write(&kept), list(&kept), list("/proc")],
        ),
        // Writing is taken from what stays readable.
        (vec![paths(&[&kept], &[])], vec![list(&kept), list(&inner)], vec![write(&kept), write(&inner), list(&other)]),
        (
            vec![first.clone(), everything],
            vec![write(&inner), list("/proc")],
            vec![write(&kept), list(&kept), list(&other)],
        ),
        (
            vec![first, paths(&[&inner, &kept], &[])],
            vec![list(&inner)],
            vec![write(&inner), list(&kept), list(&other), list("/proc")],
        ),
    ];
    for (narrowed, possible, refused) in cases {
        lockdown["narrowed"] = json!(narrowed);
        let possible: Vec<&str> = possible.iter().map(String::as_str).collect();
        let refused = refused.iter().chain(&outside).map(String::as_str);
        let refused: Vec<&str> = refused.collect();
        let attempts: Vec<&str> = possible.iter().chain(&refused).copied().collect();
        let (told, findings) = locked_down(&lockdown, &attempts);
        findings.assert_possible(possible);
        findings.assert_refused(refused);
        assert_eq!(told, all_live(&told, false));
    }
}

#[test]
fn narrowing_takes_and_never_gives() {
    narrowing();
}

#[test]
fn narrowing_takes_and_never_gives_for_an_ordinary_user() {
    as_user::run_with(&[(STAGE, &stage())], narrowing);
}

#[test]
fn a_process_that_cannot_be_narrowed_as_a_whole_is_not() {
    let mut lockdown = json!({
        "readable": ["/"],
        "writable": [],
        "narrowed": [{"readable": [probe::path()], "writable": []}],
        "narrowWithThread": true,
    });
    assert_not_started(&lockdown, "must come before the first thread");
    // Nor one whose threads cannot be counted.
    lockdown["narrowWithThread"] = json!(false);
    lockdown["readable"] = json!([probe::path()]);
    assert_not_started(&lockdown, "cannot count threads");
}

/// Not even what it may read, which Landlock lets it execute.
#[test]
fn no_program_is_executed_any_more() {
    let lockdown = json!({"readable": ["/"], "writable": [], "stopExecuting": true});
    let output = run(&lockdown, &["unix-socket"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("Operation not permitted"), "{output:?}");
    assert_eq!(Findings::parse(&output.stdout).iter().count(), 0);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_second_thread_is_noticed() {
    for available in [false, true] {
        let lockdown = json!({
            "readable": [probe::path()],
            "writable": [],
            "available": available,
            "withThread": true,
        });
        assert_not_started(&lockdown, "must come before the first thread");
    }
}

#[track_caller]
fn assert_not_started(lockdown: &Value, why: &str) {
    let output = run(lockdown, &["unix-socket"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains(why), "{output:?}");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]));
}
