//! What the gateway costs: `make bench SUITE=gateway`. One function measures each row of `bench/rows/gateway.txt`.
//!
//! The gateway is the real program; client and server are threads of this one, over loopback. The ratio is measured in
//! alternating rounds, direct and through the tunnel one after the other, and its median counts.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measurement that cannot be made must stop, and its table is its output"
)]

use std::collections::VecDeque;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sympozium_harness::credential::{KEY_FILE, token};
use sympozium_harness::plan::{Public, credential, stored_plan};
use sympozium_testkit::bench::{Suite, Target, median};
use sympozium_testkit::{command, processes, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_sympozium-gateway");
const TUNNELS: usize = 1000;
const TRANSFER_BYTES: usize = 1 << 30;
const WRITE_BYTES: usize = 256 * 1024;
const ROUNDS: usize = 7;
const OPENED: usize = 500;
/// Addresses of loopback, each of which is a peer of its own to the gateway.
const HOSTILE: [Ipv4Addr; 4] = [
    Ipv4Addr::new(127, 0, 0, 2),
    Ipv4Addr::new(127, 0, 0, 3),
    Ipv4Addr::new(127, 0, 0, 4),
    Ipv4Addr::new(127, 0, 0, 5),
];
/// Connections that a hostile peer keeps open: three times as many as it may.
const HELD: usize = 48;
const HELD_FOR_A_START: u32 = 64;
const HOLD_PAUSE: Duration = Duration::from_millis(10);
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() {
    // Both ends of every tunnel are here.
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).expect("the limit can be raised");
    let mut suite = Suite::new("gateway");
    idle(&mut suite);
    transfer(&mut suite);
    hostile(&mut suite);
    let path = suite.write().expect("the rows can be written");
    println!("wrote {}", path.display());
}

/// Opens a thousand tunnels, each used once, and looks at the memory of the gateway's process.
fn idle(suite: &mut Suite) {
    let gateway = Gateway::start();
    let before = gateway.resident_mebibytes();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let target = listener.local_addr().expect("an address");
    let accepting = thread::spawn(move || {
        let accepted = (0..TUNNELS).map(|_| {
            let (mut stream, _) = listener.accept().expect("a tunnel");
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("its byte");
            stream.write_all(&byte).expect("it is read");
            stream
        });
        accepted.collect::<Vec<_>>()
    });
    let tunnels: Vec<_> = (0..TUNNELS)
        .map(|_| {
            let mut tunnel = gateway.tunnel(target);
            tunnel.write_all(b"x").expect("it reads");
            tunnel.read_exact(&mut [0]).expect("an echo");
            tunnel
        })
        .collect();
    let accepted = accepting.join().expect("all came");
    let resident = gateway.resident_mebibytes();
    println!(
        "{} tunnels: {resident:.1} MiB resident, {before:.1} before, {:.1} KiB each",
        tunnels.len(),
        (resident - before) * 1024.0 / TUNNELS as f64
    );
    drop((tunnels, accepted));
    suite.row("1,000 idle tunnels, resident memory of the gateway", resident, "MiB", Target::AtMost(20.0));
}

/// A gibibyte to a server that reads and throws it away, directly and through a tunnel.
fn transfer(suite: &mut Suite) {
    let gateway = Gateway::start();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let target = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut bytes = vec![0; WRITE_BYTES];
            let mut left = TRANSFER_BYTES;
            while left > 0 {
                left -= stream.read(&mut bytes).expect("all of it");
            }
            stream.write_all(b"!").expect("it is read");
        }
    });
    let send = |mut stream: TcpStream| {
        let bytes = vec![7; WRITE_BYTES];
        let started = Instant::now();
        for _ in 0..TRANSFER_BYTES / WRITE_BYTES {
            stream.write_all(&bytes).expect("it reads");
        }
        stream.read_exact(&mut [0]).expect("its end");
        started.elapsed().as_secs_f64()
    };
    let mut rates = (Vec::new(), Vec::new());
    let ratios: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let direct = send(TcpStream::connect(target).expect("it listens"));
            let through = send(gateway.tunnel(target));
            rates.0.push(1.0 / direct);
            rates.1.push(1.0 / through);
            direct / through
        })
        .collect();
    println!("GiB/s: {:.2} direct, {:.2} through a tunnel", median(rates.0), median(rates.1));
    println!("resident afterwards: {:.1} MiB", gateway.resident_mebibytes());
    suite.row("1 GiB through one tunnel, against direct", median(ratios), "of direct", Target::AtLeast(0.4));
}

/// Opens tunnels one after the other, in an idle gateway and while four hostile peers hold every connection that they get without
/// a credential, and keep asking for more.
fn hostile(suite: &mut Suite) {
    let gateway = Gateway::start();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let target = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut byte = [0];
            // A client that only checked whether the port is open has sent nothing.
            if stream.read_exact(&mut byte).is_ok() {
                let _ = stream.write_all(&byte);
            }
        }
    });
    let slowest = || {
        let mut seconds: Vec<f64> = (0..OPENED)
            .map(|_| {
                let started = Instant::now();
                let mut tunnel = gateway.tunnel(target);
                tunnel.write_all(b"x").expect("it reads");
                tunnel.read_exact(&mut [0]).expect("an echo");
                started.elapsed().as_secs_f64()
            })
            .collect();
        seconds.sort_by(f64::total_cmp);
        seconds[OPENED * 99 / 100]
    };
    slowest();
    let mut times = (Vec::new(), Vec::new());
    let ratios: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let idle = slowest();
            let stop = Arc::new(AtomicBool::new(false));
            let peers = HOSTILE.map(|peer| {
                let (stop, gateway) = (Arc::clone(&stop), gateway.address);
                thread::spawn(move || hold_connections(peer, gateway, &stop))
            });
            // As many as they get, and some that are refused.
            thread::sleep(HELD_FOR_A_START * HOLD_PAUSE);
            let under_attack = slowest();
            stop.store(true, Ordering::Relaxed);
            for peer in peers {
                peer.join().expect("it ends");
            }
            times.0.push(idle);
            times.1.push(under_attack);
            under_attack / idle
        })
        .collect();
    println!(
        "p99 of a tunnel: {:.2} ms idle, {:.2} ms with hostile peers",
        1e3 * median(times.0),
        1e3 * median(times.1)
    );
    suite.row(
        "4 peers hold all connections without a credential: p99 of opening a tunnel, against idle",
        median(ratios),
        "of idle",
        Target::AtMost(2.0),
    );
}

/// Holds more connections than it may, the newest in the place of the oldest, until it is told to stop.
fn hold_connections(own: Ipv4Addr, gateway: SocketAddr, stop: &AtomicBool) {
    let mut held = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        let family = AddressFamily::INET;
        let socket = socket(family, SocketType::STREAM, None).expect("a socket");
        bind(&socket, &SocketAddrV4::new(own, 0)).expect("an address of this machine");
        connect(&socket, &gateway).expect("it listens");
        held.push_back(TcpStream::from(socket));
        if held.len() > HELD {
            held.pop_front();
        }
        thread::sleep(HOLD_PAUSE);
    }
}

/// The program, with a plan that names this machine.
struct Gateway {
    child: Child,
    address: SocketAddr,
    authorization: String,
    _directory: tempfile::TempDir,
}

impl Gateway {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        let mut plan = stored_plan();
        plan.credentials = vec![credential("bench", Public::Closed, &["127.0.0.1"])];
        fs::create_dir(at("plans")).expect("a directory");
        let bytes = plan.to_bytes().expect("JSON");
        fs::write(at("plans/run.json"), bytes).expect("written");
        fs::write(at("keys"), KEY_FILE).expect("written");
        // A port that was free a moment ago.
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address");
        drop(free);
        let child = command(PROGRAM)
            .args(["serve", "--dns=127.0.0.1:53", "--log-level=error"])
            .args(["--allow-loopback", "--max-connections-of-run=2000", "--max-connections-of-credential=2000"])
            .arg(format!("--listen={address}"))
            .arg("--plans")
            .arg(at("plans"))
            .arg("--key-file")
            .arg(at("keys"))
            .stderr(Stdio::inherit())
            .spawn()
            .expect("it starts");
        assert!(wait_until(TIMEOUT, || TcpStream::connect(address).is_ok()));
        let pair = token(plan.run.uid.as_str(), "bench");
        Self {
            child,
            address,
            authorization: base64::engine::general_purpose::STANDARD.encode(pair),
            _directory: directory,
        }
    }

    fn tunnel(&self, target: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        let authorization = &self.authorization;
        let head = format!(
            "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {authorization}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        let mut answer = [0; 39];
        stream.read_exact(&mut answer).expect("an answer");
        assert!(answer.starts_with(b"HTTP/1.1 200 ") && answer.ends_with(b"\r\n\r\n"));
        stream
    }

    fn resident_mebibytes(&self) -> f64 {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        processes::mebibytes(processes::resident_bytes(pid).expect("it lives"))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
