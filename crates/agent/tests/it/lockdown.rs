//! What can be done from inside of the agent, once it has restricted itself: nothing but what it is for. Each body runs as
//! whoever runs the tests, which is root in CI, and as the user that agents have in pods.
//!
//! Everything that is tried is open to everybody otherwise, so nothing but the restrictions can refuse it.

mod surroundings;

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

use self::surroundings::{FILES, Surroundings, Waiting, attempting, open_to_all, probe_of_all};
use crate::world::{World, call, terminate};

/// The user of every container in a run's pod.
const IN_A_POD: u32 = 1000;

/// From the thread that restricted itself, and from one that was started later.
fn from_both_threads(uid: Option<u32>) {
    let surroundings = Surroundings::new();
    let expected = surroundings.expected();
    let mut document = surroundings.kept();
    document["attempts"] = expected.keys().map(String::as_str).collect();
    let waiting = Waiting::new(uid, &surroundings, &document);
    let told = json!({ "firstThread": expected, "laterThread": expected, "dumpable": false });
    assert_eq!(waiting.told, told);
    for name in FILES {
        let content = fs::read_to_string(surroundings.at(name)).expect("it is there");
        assert_eq!(content, "x", "{name}");
    }
}

#[test]
fn nothing_is_possible_from_inside_but_what_it_is_for() {
    from_both_threads(None);
}

#[test]
fn nothing_is_possible_from_inside_but_what_it_is_for_as_the_user_of_pods() {
    from_both_threads(Some(IN_A_POD));
}

/// Where nothing is restricted, all of it is possible: the test above sees restrictions, and not a machine that has none of it.
#[test]
fn the_attempts_work_where_nothing_is_restricted() {
    let surroundings = Surroundings::new();
    let outside = surroundings.at("outside/file");
    assert!(fs::read(outside).is_ok() && fs::read_dir("/proc").is_ok());
    let address = surroundings.tcp.local_addr().expect("an address");
    assert!(std::net::TcpStream::connect(address).is_ok());
    let name = SocketAddr::from_abstract_name(&surroundings.abstract_name).expect("a name");
    assert!(std::os::unix::net::UnixStream::connect_addr(&name).is_ok());
}

/// What only a program of its own can try. The restrictions outlive the start of one.
fn by_the_probe(uid: Option<u32>) {
    let surroundings = Surroundings::new();
    let own = std::process::id();
    let workspace = surroundings.at("workspace");
    let more = [
        format!("ptrace={own}"),
        format!("proc-mem={own}"),
        format!("proc-environ={own}"),
        format!("signal={own}"),
        format!("read-memory={own}"),
        format!("write-memory={own}"),
        format!("steal-descriptor={own}"),
        format!("make-device={workspace}"),
        format!("write-file={}", surroundings.at("outside")),
        format!("tcp-connect={}", surroundings.tcp.local_addr().expect("one")),
    ];
    let refused: Vec<&str> = more.iter().map(String::as_str).chain(NEVER).collect();
    let possible = ["unix-socket", &format!("write-file={workspace}")];
    let mut document = surroundings.kept();
    let probe = probe_of_all(&surroundings.directory);
    let attempts = refused.iter().chain(&possible).copied();
    let words: Vec<&str> = [probe.as_str(), "attempt"].into_iter().chain(attempts).collect();
    document["become"] = json!(words);
    let mut child = attempting(uid, surroundings.directory.path())
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
fn no_call_of_the_kernel_leads_out() {
    by_the_probe(None);
}

#[test]
fn no_call_of_the_kernel_leads_out_for_the_user_of_pods() {
    by_the_probe(Some(IN_A_POD));
}

/// Root can look into every process, so this is about another process of the same user.
#[test]
fn a_process_of_the_same_user_cannot_look_into_it() {
    let surroundings = Surroundings::new();
    let probe = probe_of_all(&surroundings.directory);
    let look = |pid: u32, attempts: &[&str]| {
        let attempts = attempts.iter().map(|name| format!("{name}={pid}"));
        let attempts: Vec<String> = attempts.collect();
        let output = as_user::command(IN_A_POD, &probe).arg("attempt").args(&attempts).output();
        let output = output.expect("the probe runs");
        (Findings::parse(&output.stdout), attempts)
    };
    let agent = Waiting::new(Some(IN_A_POD), &surroundings, &surroundings.kept());
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

/// The agent itself, with one tool more than it has: what the model calls tries to get out.
async fn in_a_run(uid: Option<u32>) {
    let surroundings = Surroundings::new();
    let mut world = World::new(WireFormat::OpenAi).await;
    let notes = world.file("notes.txt", "x");
    let (input, below) = (world.at("agent/agent.json"), world.path("new"));
    let expected: Vec<(String, i32)> = [
        (format!("tcp={}", surroundings.tcp.local_addr().expect("one")), Errno::PERM),
        (format!("tcp={}", world.model.address()), Errno::PERM),
        ("udp=127.0.0.1:0".to_owned(), Errno::PERM),
        ("socket=2/3".to_owned(), Errno::PERM),
        ("socket=16/3".to_owned(), Errno::PERM),
        (format!("abstract={}", surroundings.abstract_name), Errno::PERM),
        (format!("signal={}", std::process::id()), Errno::PERM),
        ("execute=/bin/sh".to_owned(), Errno::PERM),
        ("read=/etc/passwd".to_owned(), Errno::ACCESS),
        ("read=/proc/self/environ".to_owned(), Errno::ACCESS),
        (format!("read={}", input.display()), Errno::ACCESS),
        (format!("read={}", world.at("input/token").display()), Errno::ACCESS),
        (format!("read={}", surroundings.at("outside/file")), Errno::ACCESS),
        (format!("create={}", surroundings.at("outside/new")), Errno::ACCESS),
    ]
    .map(|(attempt, errno)| (attempt, errno.raw_os_error()))
    .into_iter()
    .chain([(format!("read={notes}"), 0), (format!("create={below}"), 0)])
    .collect();
    for (attempt, _) in &expected {
        let calls = [call("read_file", json!({ "path": attempt }))];
        world.model.push(Answer::tools(calls));
    }
    world.model.push(Reply::text("Out of ideas."));
    let door = world.at("door");
    let is_open = || fs::read_dir(&door).is_ok_and(|mut it| it.next().is_some());
    world.until("there is a door", is_open).await;
    open_to_all(world.directory.path());
    let mut program = attempting(uid, surroundings.directory.path());
    program.arg("in-the-agent");
    world.start_in_its_place(program);
    let end = world.ended().await;
    assert_eq!(end.answer(), "Out of ideas.", "{}", end.log);
    let shown = world.last().shown();
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

/// The program that ships, while it waits for the model, as the kernel has it.
#[tokio::test(flavor = "multi_thread")]
async fn the_agent_that_ships_is_restricted() {
    let mut world = World::new(WireFormat::OpenAi).await;
    world.model.push(Reply::Silence);
    let pid = world.start(&[]);
    world.requests(1).await;
    let of = |name: &str| PathBuf::from(format!("/proc/{pid}")).join(name);
    let status = fs::read_to_string(of("status")).expect("a status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim).map(str::to_owned)
    };
    assert_eq!(field("NoNewPrivs:").as_deref(), Some("1"));
    assert_eq!(field("Seccomp:").as_deref(), Some("2"));
    let limits = fs::read_to_string(of("limits")).expect("limits");
    let core = limits.lines().find(|line| line.starts_with("Max core file size"));
    let core: Vec<&str> = core.expect("a limit").split_whitespace().collect();
    assert_eq!(core[4..6], ["0", "0"]);
    if as_user::is_root() {
        assert_only_unix_sockets(&of("fd"));
    } else {
        // It belongs to root, because it is not dumpable.
        assert!(fs::read_dir(of("fd")).is_err());
    }
    terminate(pid);
    world.ended().await;
}

/// Every socket among these descriptors is one that the kernel lists as a Unix socket, and there is one.
fn assert_only_unix_sockets(descriptors: &Path) {
    // Looked at more than once: the list is of the whole machine, and may miss a socket while others come and go.
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
