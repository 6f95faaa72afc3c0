//! What a process can do after it restricted itself as the agent: only what it needs. Each test runs as the user of the
//! tests, which is root in CI, and as the user of agents in pods. Everything that is attempted is permitted otherwise,
//! so only the restrictions can refuse it.

mod environment;

use std::fs;
use std::io::Write as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::io::Errno;
use serde_json::json;
use sympozium_api::run_plan::WireFormat;
use sympozium_testkit::model_server::{Answer, Reply};
use sympozium_testkit::probe::Findings;
use sympozium_testkit::{as_user, wait_until};

use self::environment::{Environment, FILES, RestrictedProcess, attempts_command, make_accessible, readable_probe};
use crate::harness::{Harness, call, terminate};

/// The user of containers in a run's pod.
const IN_A_POD: u32 = 1000;

/// Attempts by the thread that restricted itself, and by a later one.
fn from_both_threads(uid: Option<u32>) {
    let environment = Environment::new();
    let expected = environment.expected();
    let mut document = environment.document();
    document["attempts"] = expected.keys().map(String::as_str).collect();
    let waiting = RestrictedProcess::new(uid, &environment, &document);
    let report = json!({ "firstThread": expected, "laterThread": expected, "dumpable": false });
    assert_eq!(waiting.report, report);
    for name in FILES {
        let content = fs::read_to_string(environment.at(name)).expect("it is there");
        assert_eq!(content, "x", "{name}");
    }
}

#[test]
fn the_restricted_process_can_do_only_what_it_needs() {
    from_both_threads(None);
}

#[test]
fn the_restricted_process_can_do_only_what_it_needs_as_the_user_of_pods() {
    from_both_threads(Some(IN_A_POD));
}

/// Without restrictions everything is possible: the test above does not pass because the machine lacks it.
#[test]
fn the_attempts_succeed_without_restrictions() {
    let environment = Environment::new();
    let outside = environment.at("outside/file");
    assert!(fs::read(outside).is_ok() && fs::read_dir("/proc").is_ok());
    let address = environment.tcp.local_addr().expect("an address");
    assert!(std::net::TcpStream::connect(address).is_ok());
    let name = SocketAddr::from_abstract_name(&environment.abstract_name).expect("a name");
    assert!(std::os::unix::net::UnixStream::connect_addr(&name).is_ok());
}

/// Attempts that need a program. The restrictions survive its start.
fn by_the_probe(uid: Option<u32>) {
    let environment = Environment::new();
    let own = std::process::id();
    let workspace = environment.at("workspace");
    let more = [
        format!("ptrace={own}"),
        format!("proc-mem={own}"),
        format!("proc-environ={own}"),
        format!("signal={own}"),
        format!("read-memory={own}"),
        format!("write-memory={own}"),
        format!("steal-descriptor={own}"),
        format!("make-device={workspace}"),
        format!("write-file={}", environment.at("outside")),
        format!("tcp-connect={}", environment.tcp.local_addr().expect("one")),
    ];
    let refused: Vec<&str> = more.iter().map(String::as_str).chain(NEVER).collect();
    let possible = ["unix-socket", &format!("write-file={workspace}")];
    let mut document = environment.document();
    let probe = readable_probe(&environment.directory);
    let attempts = refused.iter().chain(&possible).copied();
    let words: Vec<&str> = [probe.as_str(), "attempt"].into_iter().chain(attempts).collect();
    document["become"] = json!(words);
    let mut child = attempts_command(uid, environment.directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    writeln!(stdin, "{document}").expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("an end");
    let findings = Findings::parse(&output.stdout);
    findings.assert_refused(refused.iter().copied());
    findings.assert_possible(possible);
}

const NEVER: [&str; 28] = [
    "tcp-socket",
    "ipv6-socket",
    "udp-socket",
    "bind-udp",
    "bind-tcp",
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
    "io-uring",
    "bpf",
    "unshare-user",
    "clone-user",
    "clone3-user",
    "ptrace-me",
    "personality",
    "gain-by-exec",
    "open-init-root",
    "open-run-inputs",
    "mount",
    "pivot-root",
    "open-by-handle",
];

#[test]
fn no_system_call_escapes() {
    by_the_probe(None);
}

#[test]
fn no_system_call_escapes_for_the_user_of_pods() {
    by_the_probe(Some(IN_A_POD));
}

/// Root can inspect every process, so this runs as another user.
#[test]
fn a_process_of_the_same_user_cannot_inspect_it() {
    let environment = Environment::new();
    let probe = readable_probe(&environment.directory);
    let look = |pid: u32, attempts: &[&str]| {
        let attempts = attempts.iter().map(|name| format!("{name}={pid}"));
        let attempts: Vec<String> = attempts.collect();
        let output = as_user::command(IN_A_POD, &probe).arg("attempt").args(&attempts).output();
        let output = output.expect("the probe runs");
        (Findings::parse(&output.stdout), attempts)
    };
    let agent = RestrictedProcess::new(Some(IN_A_POD), &environment, &environment.document());
    let closed = [
        "proc-environ",
        "proc-maps",
        "proc-mem",
        "proc-mem-write",
        "proc-fd",
        "ptrace",
        "read-memory",
        "write-memory",
        "steal-descriptor",
    ];
    let (findings, attempts) = look(agent.id(), &closed);
    findings.assert_refused(attempts.iter().map(String::as_str));

    let mut other = as_user::command(IN_A_POD, &probe).args(["do", "sleep", "60"]).spawn().expect("it starts");
    let (findings, attempts) = look(other.id(), &["proc-environ", "proc-maps", "proc-fd"]);
    let _ = other.kill();
    let _ = other.wait();
    findings.assert_possible(attempts.iter().map(String::as_str));
}

/// The agent with an additional tool that attempts to escape.
async fn in_a_run(uid: Option<u32>) {
    let environment = Environment::new();
    // Before the run: it may have to be built, and the bridge does not wait for an agent that long.
    let mut program = attempts_command(uid, environment.directory.path());
    program.arg("in-the-agent");
    let mut harness = Harness::new(WireFormat::OpenAi);
    let notes = harness.file("notes.txt", "x");
    let (input, below) = (harness.at("agent/agent.json"), harness.path("new"));
    let expected: Vec<(String, i32)> = [
        (format!("tcp={}", environment.tcp.local_addr().expect("one")), Errno::PERM),
        (format!("tcp={}", harness.model.address()), Errno::PERM),
        ("udp=127.0.0.1:0".to_owned(), Errno::PERM),
        ("socket=2/3".to_owned(), Errno::PERM),
        ("socket=16/3".to_owned(), Errno::PERM),
        (format!("abstract={}", environment.abstract_name), Errno::PERM),
        (format!("signal={}", std::process::id()), Errno::PERM),
        ("execute=/bin/sh".to_owned(), Errno::PERM),
        ("read=/etc/passwd".to_owned(), Errno::ACCESS),
        ("read=/proc/self/environ".to_owned(), Errno::ACCESS),
        (format!("read={}", input.display()), Errno::ACCESS),
        (format!("read={}", harness.at("input/token").display()), Errno::ACCESS),
        (format!("read={}", environment.at("outside/file")), Errno::ACCESS),
        (format!("create={}", environment.at("outside/new")), Errno::ACCESS),
    ]
    .map(|(attempt, errno)| (attempt, errno.raw_os_error()))
    .into_iter()
    .chain([(format!("read={notes}"), 0), (format!("create={below}"), 0)])
    .collect();
    for (attempt, _) in &expected {
        let calls = [call("read_file", json!({ "path": attempt }))];
        harness.model.push(Answer::tools(calls));
    }
    harness.model.push(Reply::text("Out of ideas."));
    let door = harness.at("door");
    let is_open = || fs::read_dir(&door).is_ok_and(|mut it| it.next().is_some());
    harness.wait_until("there is a door", is_open).await;
    make_accessible(harness.directory.path());
    harness.start_program(program);
    let end = harness.wait_for_end().await;
    assert_eq!(end.answer(), "Out of ideas.", "{}", end.log);
    let shown = harness.last().result_texts();
    let numbers: Vec<String> = expected.iter().map(|(_, it)| it.to_string()).collect();
    assert_eq!(shown, numbers, "{expected:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_in_the_agent_cannot_get_out() {
    in_a_run(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_in_the_agent_cannot_get_out_as_the_user_of_pods() {
    in_a_run(Some(IN_A_POD)).await;
}

/// The shipped program as the kernel sees it while it waits for the model.
#[tokio::test(flavor = "multi_thread")]
async fn the_agent_that_ships_is_restricted() {
    let mut harness = Harness::new(WireFormat::OpenAi);
    harness.model.push(Reply::Silence);
    let pid = harness.start(&[]);
    harness.requests(1).await;
    let proc_path = |name: &str| PathBuf::from(format!("/proc/{pid}")).join(name);
    let status = fs::read_to_string(proc_path("status")).expect("a status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim).map(str::to_owned)
    };
    assert_eq!(field("NoNewPrivs:").as_deref(), Some("1"));
    assert_eq!(field("Seccomp:").as_deref(), Some("2"));
    let limits = fs::read_to_string(proc_path("limits")).expect("limits");
    let core = limits.lines().find(|line| line.starts_with("Max core file size"));
    let core: Vec<&str> = core.expect("a limit").split_whitespace().collect();
    assert_eq!(core[4..6], ["0", "0"]);
    if as_user::is_root() {
        assert_only_unix_sockets(&proc_path("fd"));
    } else {
        // Owned by root, because the process is not dumpable.
        assert!(fs::read_dir(proc_path("fd")).is_err());
    }
    terminate(pid);
    harness.wait_for_end().await;
}

/// Every socket is a Unix socket, and there is one.
fn assert_only_unix_sockets(descriptors: &Path) {
    // Retried: `/proc/net/unix` may miss a socket while others come and go.
    let is_unix = |inode: &str| {
        wait_until(Duration::from_secs(10), || {
            let unix = fs::read_to_string("/proc/net/unix").expect("a list");
            unix.lines().any(|line| line.split_whitespace().nth(6) == Some(inode))
        })
    };
    let mut sockets = 0;
    for entry in fs::read_dir(descriptors).expect("descriptors") {
        let Ok(target) = fs::read_link(entry.expect("an entry").path()) else {
            continue;
        };
        let target = target.to_string_lossy().into_owned();
        if let Some(inode) = target.strip_prefix("socket:[") {
            sockets += 1;
            assert!(is_unix(inode.trim_end_matches(']')), "{target}");
        }
    }
    assert!(sockets > 0, "the door is one");
}
