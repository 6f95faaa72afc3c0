//! What the sidecar adds to a command, against the raw system call in the same run: `make bench SUITE=sidecar`.
//!
//! A ratio is measured in alternating rounds, ours and the reference one after the other, and its median
//! counts: whatever else the machine does hits both.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measurement that cannot be made must stop, and its table is its output"
)]

mod files;
mod http;
mod sidecar;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use clap::Parser as _;
use files::Requester;
use http::Caller;
use sidecar::Sidecar;
use sympozium_exec::{Config, Floor, Layer};
use sympozium_sidecar::arguments::{Arguments, Command};
use sympozium_sidecar::serve;
use sympozium_testkit::bench::raw::spawn;
use sympozium_testkit::bench::{Suite, Target, in_threads, median};
use sympozium_testkit::{command, wait_until};

/// What callers show to the server.
const TOKEN: &str = "a-token-for-the-bench-only";
const ROUNDS: usize = 15;
/// Round trips in one round.
const ROUND: usize = 40;
/// Calls in one round.
const CALLS: u32 = 384;
/// The shell line that is requested over the volume.
const LINE: &str = "echo hi";
/// The number of requests for growth.
const MANY: u32 = 10_000;
/// The number of request files at once.
const FLOOD: usize = 100_000;

fn main() {
    // This program is also the server without layers, and the helper stage of that.
    sympozium_exec::stage::enter_if_asked();
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return serve_without_layers();
    }
    let mut suite = Suite::new("sidecar");
    size(&mut suite);
    rates(&mut suite);
    round_trips(&mut suite);
    idle(&mut suite);
    growth(&mut suite);
    let path = suite.write().expect("the rows can be written");
    println!("wrote {}", path.display());
}

/// The server, in which commands are supervised and nothing else.
fn serve_without_layers() {
    let Command::Serve(arguments) = Arguments::parse().command else {
        panic!("only `serve` can be without layers");
    };
    let bare = |config: Config| {
        let mut config = config.without_layers(Layer::ALL.into_iter().filter(|&layer| layer != Layer::Supervisor));
        config.floor = Floor::none();
        config
    };
    let served = serve::run_with(&arguments, bare);
    assert!(served.is_ok(), "{served:?}");
}

fn serve_arguments(address: SocketAddr) -> Vec<String> {
    let address = address.to_string();
    ["serve", "--listen", &address, "--skills-dir", "/usr/bin"].map(str::to_owned).to_vec()
}

/// A port that was free a moment ago.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address")
}

/// Starts `program` as a server, and waits until it answers.
fn start_server(program: &Path) -> (Sidecar, SocketAddr) {
    let address = free_address();
    let server = Sidecar::start_program(program, |_| serve_arguments(address));
    let answers = wait_until(Duration::from_secs(30), || TcpStream::connect(address).is_ok());
    assert!(answers, "the server does not start");
    (server, address)
}

/// The rate of calls as a part of the raw rate, at the same concurrency.
fn rates(suite: &mut Suite) {
    let own = std::env::current_exe().expect("this program");
    for (name, program, least) in
        [("no layers", own.as_path(), 0.75), ("container profile", sidecar::BINARY.as_path(), 0.65)]
    {
        let (server, address) = start_server(program);
        for connections in [1, 8, 64] {
            let callers = (0..connections).map(|_| Caller::new(address, TOKEN, "true"));
            let mut callers: Vec<_> = callers.collect();
            http::load(&mut callers, CALLS);
            let ratios = (0..ROUNDS)
                .map(|_| {
                    let raw = in_threads(connections, CALLS, || spawn(c"/usr/bin/true", &[]));
                    raw.as_secs_f64() / http::load(&mut callers, CALLS).as_secs_f64()
                })
                .collect();
            suite.row(
                &format!("POST /skill/true, {name}, {connections} connections, against posix_spawn"),
                median(ratios),
                "of the raw rate",
                Target::AtLeast(least),
            );
        }
        drop(server);
    }
}

fn ipc_arguments(directory: &Path) -> Vec<String> {
    let path = |name: &str| directory.join(name).display().to_string();
    let arguments = ["ipc".into(), "--ipc-dir".into(), path("ipc"), "--workspace".into(), path("workspace")];
    arguments.to_vec()
}

fn size(suite: &mut Suite) {
    let bytes = std::fs::metadata(&*sidecar::BINARY).expect("the binary").len();
    suite.row("static stripped binary", bytes as f64 / 1e6, "MB", Target::AtMost(4.0));
}

/// The raw spawn of the same line, which bash runs in both cases where there is one.
fn raw_line() -> Duration {
    let started = Instant::now();
    spawn(c"/bin/bash", &[c"-c", c"echo hi"]);
    started.elapsed()
}

fn round_trips(suite: &mut Suite) {
    let sidecar = Sidecar::start(ipc_arguments);
    let mut requester = Requester::new(&sidecar.directory.path().join("ipc"));
    requester.execute(LINE);
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.extend((0..ROUND).map(|_| millis(requester.execute(LINE))));
        raw.extend((0..ROUND).map(|_| millis(raw_line())));
    }
    let (ours, raw) = (median(ours), median(raw));
    println!("round trip {ours:.3} ms, raw spawn {raw:.3} ms");
    suite.row(
        "IPC round trip of `echo hi`, p50, beyond raw spawn of the same shell line",
        ours - raw,
        "ms",
        Target::AtMost(1.0),
    );
    authenticated_round_trips(suite);
    let polling = polling_script();
    println!("round trip of the polling script {polling:.1} ms");
    suite.row(
        "IPC round trip of `echo hi`, p50, against the polling script",
        polling / ours,
        "times faster",
        Target::AtLeast(50.0),
    );
}

/// Rounds with and without a MAC, each after the other, so that both meet the same machine.
fn authenticated_round_trips(suite: &mut Suite) {
    let plain = Sidecar::start(ipc_arguments);
    let verifying = Sidecar::start(|directory| {
        let mut arguments = ipc_arguments(directory);
        arguments.push("--authenticated".to_owned());
        arguments
    });
    let mut without = Requester::new(&plain.directory.path().join("ipc"));
    let mut with = Requester::authenticated(&verifying.directory.path().join("ipc"));
    without.execute(LINE);
    with.execute(LINE);
    let (mut plain_times, mut signed_times) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for _ in 0..ROUND {
            plain_times.push(millis(without.execute(LINE)));
            signed_times.push(millis(with.execute(LINE)));
        }
    }
    let (plain_time, signed_time) = (median(plain_times), median(signed_times));
    println!("round trip without MAC {plain_time:.3} ms, with MAC {signed_time:.3} ms");
    suite.row(
        "IPC round trip of `echo hi` with a MAC, p50, beyond without",
        signed_time - plain_time,
        "ms",
        Target::AtMost(0.05),
    );
}

/// The p50 of the script that the guide to custom sidecars prints, on a volume of its own.
fn polling_script() -> f64 {
    let directory = tempfile::tempdir().expect("a directory");
    let ipc = directory.path().join("ipc");
    std::fs::create_dir_all(ipc.join("tools")).expect("a directory");
    let printed = include_str!("../../../ipc/tests/fixtures/seed-tool-executor.sh");
    let script = directory.path().join("tool-executor.sh");
    // The one change: it runs on a volume of its own instead of the machine's /ipc.
    std::fs::write(&script, printed.replace("/ipc", &ipc.display().to_string())).expect("a script");
    let mut child =
        command("bash").arg(&script).stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("the script starts");
    let mut requester = Requester::new(&ipc);
    let times = (0..ROUND).map(|_| millis(requester.execute(LINE))).collect();
    std::fs::write(ipc.join("done"), "done").expect("the end");
    child.wait().expect("the script ends");
    median(times)
}

fn idle(suite: &mut Suite) {
    let sidecar = Sidecar::start(ipc_arguments);
    Requester::new(&sidecar.directory.path().join("ipc")).execute(LINE);
    measure_idle(suite, "ipc", &sidecar);
    let (server, address) = start_server(&sidecar::BINARY);
    Caller::new(address, TOKEN, "true").call();
    measure_idle(suite, "serve", &server);
}

/// Idle means that even the threads that wait for more commands have gone, which takes them ten seconds.
fn measure_idle(suite: &mut Suite, name: &str, sidecar: &Sidecar) {
    std::thread::sleep(Duration::from_secs(12));
    let before = sidecar.sleeps();
    std::thread::sleep(Duration::from_secs(10));
    let wake_ups = sidecar.sleeps() - before;
    suite.row(&format!("{name}, idle for 10 s, wake-ups"), wake_ups as f64, "wake-ups", Target::AtMost(2.0));
    println!("{name}: resident with its helpers {:.2} MiB", sidecar.resident_of_all());
    suite.row(&format!("{name}, idle, resident"), sidecar.resident(), "MiB", Target::AtMost(4.0));
}

fn growth(suite: &mut Suite) {
    let sidecar = Sidecar::start(ipc_arguments);
    let ipc = sidecar.directory.path().join("ipc");
    let mut requester = Requester::new(&ipc);
    (0..200).for_each(|_| _ = requester.execute(LINE));
    let before = sidecar.resident_of_all();
    (0..MANY).for_each(|_| _ = requester.execute(LINE));
    suite.row(
        "ipc, after 10,000 requests, growth of the sidecar and its helpers",
        sidecar.resident_of_all() - before,
        "MiB",
        Target::AtMost(2.0),
    );
    flood(suite, &sidecar, &ipc.join("tools"));
    let (server, address) = start_server(&sidecar::BINARY);
    let mut callers: Vec<_> = (0..8).map(|_| Caller::new(address, TOKEN, "true")).collect();
    http::load(&mut callers, 400);
    let before = server.resident_of_all();
    http::load(&mut callers, MANY);
    suite.row(
        "serve, after 10,000 requests, growth of the sidecar and its helpers",
        server.resident_of_all() - before,
        "MiB",
        Target::AtMost(2.0),
    );
}

/// Many request files at once: each is answered, and what waits costs nothing.
fn flood(suite: &mut Suite, sidecar: &Sidecar, tools: &Path) {
    // What waits would be in the sidecar's own memory; its helpers are as many as commands run, and no more.
    put_requests(tools, "warm", 64);
    let warm = wait_until(Duration::from_secs(60), || answers(tools, "warm") == 64);
    assert!(warm, "the first requests were not answered");
    let before = sidecar.resident();
    put_requests(tools, "flood", FLOOD);
    let mut peak = before;
    let answered = wait_until(Duration::from_secs(1800), || {
        peak = peak.max(sidecar.resident());
        std::thread::sleep(Duration::from_secs(1));
        answers(tools, "flood") == FLOOD
    });
    assert!(answered, "the flood was not answered");
    suite.row("ipc, 100,000 request files at once, growth of the sidecar", peak - before, "MiB", Target::AtMost(2.0));
}

fn put_requests(tools: &Path, word: &str, count: usize) {
    for number in 0..count {
        let id = format!("{word}-{number}");
        let request = format!("{{\"id\":\"{id}\",\"argv\":[\"true\"]}}");
        let temporary = tools.join(".part.tmp");
        std::fs::write(&temporary, request).expect("a request");
        std::fs::rename(&temporary, tools.join(format!("exec-request-{id}.json"))).expect("a request");
    }
}

fn answers(tools: &Path, word: &str) -> usize {
    let prefix = format!("exec-result-{word}-");
    let entries = std::fs::read_dir(tools).expect("the directory").flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
