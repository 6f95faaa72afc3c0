//! A network namespace of the test's own, in which every address leads to this machine, and what listens there.

use std::any::type_name;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use sympozium_gateway::events::{Event, EventKind, Reason};
use sympozium_gateway::plans::RunFacts;
use sympozium_gateway::resolve::Resolver;
use sympozium_gateway::run_api::local::{NoApprover, NoScheduler};
use sympozium_gateway::run_api::{HandlerError, ReportCursor, ReportStore};
use sympozium_gateway::{Gateway, Network, RunApi, Settings};
use sympozium_harness::credential::{keys, now, sign};
use sympozium_harness::plan::{Public, credential};
use sympozium_ipc::credential::Credential;
use sympozium_ipc::run_api::Report;
use sympozium_testkit::{command, skips, wait_until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::dns::{Answers, Dns};

/// Set for the test that runs in its namespace.
const INSIDE: &str = "SYMPOZIUM_TEST_INSIDE";
/// No test waits longer for anything.
pub const TIMEOUT: Duration = Duration::from_secs(90);
pub const RUN: &str = "0b9d2f1e-6f1c-4c57-9d0a-5a3a0f9f2a11";

/// Runs a test in a namespace of its own: this program again, with that one test.
pub fn run<F, T>(_: F, body: T)
where
    F: Copy,
    T: AsyncFnOnce(),
{
    let name = type_name::<F>();
    let name = name.split_once("::").expect("a path").1;
    if std::env::var_os(INSIDE).is_none() {
        return outside(name);
    }
    for words in ["link set lo up", "route add local 0.0.0.0/0 dev lo", "-6 route add local ::/0 dev lo"] {
        let ip = command("ip").args(words.split(' ')).status();
        assert!(ip.expect("ip starts").success(), "ip {words}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let test = async {
        let done = tokio::time::timeout(3 * TIMEOUT, body()).await;
        done.expect("the test ends");
    };
    runtime.expect("a runtime").block_on(test);
}

fn outside(name: &str) {
    let works = command("unshare").args(["--net", "--map-root-user", "ip", "link", "set", "lo", "up"]).output();
    if !works.is_ok_and(|it| it.status.success()) {
        return skips::record("no network namespaces, or no ip command");
    }
    let test = command("unshare")
        .args(["--net", "--map-root-user"])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", name, "--test-threads=1"])
        .env(INSIDE, "1")
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&test.stdout);
    let error = String::from_utf8_lossy(&test.stderr);
    assert!(test.status.success() && text.contains("1 passed"), "inside: {text}\n{error}");
}

/// Addresses that no test asks for, one of each family.
const MARKERS: [&str; 2] = ["127.9.9.9", "fd09:9::9"];

/// What a [`Catcher`] does with each connection.
#[derive(Clone)]
pub enum Behavior {
    /// Sends back what it receives.
    Echo,
    /// Sends this at once, and then back what it receives.
    Greet(&'static [u8]),
    /// Reads a request with its body, and answers by a function of it.
    Http(fn(&str) -> Vec<u8>),
}

/// Listens at a port of every address, and records who connected to which, and what was received.
#[derive(Clone)]
pub struct Catcher {
    port: u16,
    asked: Arc<AtomicUsize>,
    caught: Arc<Mutex<Vec<SocketAddr>>>,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Catcher {
    pub fn at(port: u16, behavior: &Behavior) -> Self {
        let catcher = Self { port, asked: Arc::default(), caught: Arc::default(), heard: Arc::default() };
        for address in [format!("0.0.0.0:{port}"), format!("[::]:{port}")] {
            let address: SocketAddr = address.parse().expect("an address");
            let listener = listen(address).expect("a listener");
            tokio::spawn(catcher.clone().accept(listener, behavior.clone()));
        }
        catcher
    }

    async fn accept(self, listener: TcpListener, behavior: Behavior) {
        while let Ok((stream, _)) = listener.accept().await {
            let at = stream.local_addr().expect("an address");
            self.caught.lock().expect("not poisoned").push(at);
            tokio::spawn(self.clone().serve(stream, behavior.clone()));
        }
    }

    async fn serve(self, mut stream: TcpStream, behavior: Behavior) -> io::Result<()> {
        if let Behavior::Greet(words) = behavior {
            stream.write_all(words).await?;
        }
        let mut bytes = vec![0; 64 * 1024];
        let mut request = Vec::new();
        loop {
            let count = stream.read(&mut bytes).await?;
            if count == 0 {
                return stream.shutdown().await;
            }
            let heard = &bytes[..count];
            self.heard.lock().expect("not poisoned").extend_from_slice(heard);
            match &behavior {
                Behavior::Echo | Behavior::Greet(_) => stream.write_all(heard).await?,
                Behavior::Http(answer) => {
                    request.extend_from_slice(heard);
                    let text = String::from_utf8_lossy(&request).into_owned();
                    if is_whole(&text) {
                        stream.write_all(&answer(&text)).await?;
                        stream.shutdown().await?;
                        return Ok(());
                    }
                }
            }
        }
    }

    /// The addresses at which a client connected before this call: connections are accepted in their order, so once
    /// our own have been, all before them have.
    pub async fn caught(&self) -> Vec<String> {
        let asked = 1 + self.asked.fetch_add(1, Ordering::Relaxed);
        for marker in MARKERS {
            let marker: IpAddr = marker.parse().expect("an address");
            let own = TcpStream::connect((marker, self.port)).await;
            drop(own.expect("it listens"));
        }
        let all = || -> Vec<String> {
            let caught = self.caught.lock().expect("not poisoned");
            caught.iter().map(|it| it.ip().to_string()).collect()
        };
        let is_marker = |it: &&String| MARKERS.contains(&it.as_str());
        let seen = || all().iter().filter(is_marker).count() == asked * MARKERS.len();
        assert!(tokio::task::block_in_place(|| wait_until(TIMEOUT, seen)));
        all().into_iter().filter(|it| !is_marker(&it)).collect()
    }

    pub fn heard(&self) -> String {
        String::from_utf8_lossy(&self.heard.lock().expect("not poisoned")).into_owned()
    }
}

/// Whether a request is there with its body.
fn is_whole(text: &str) -> bool {
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let head = head.to_ascii_lowercase();
    if head.contains("transfer-encoding: chunked") {
        return body.ends_with("0\r\n\r\n");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.is_none_or(|length| body.len() >= length.parse().expect("a number"))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        let socket = TcpSocket::new_v6()?;
        rustix::net::sockopt::set_ipv6_v6only(&socket, true)?;
        socket
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}

pub fn authorization(credential: &Credential) -> String {
    let pair = format!("{}:{}", credential.user, *credential.password);
    let encoded = base64::engine::general_purpose::STANDARD.encode(pair);
    format!("Proxy-Authorization: Basic {encoded}\r\n")
}

/// Stores nothing.
struct NoReports;

impl ReportStore for NoReports {
    async fn cursor(&self, _: &Arc<RunFacts>) -> Result<Option<ReportCursor>, HandlerError> {
        Err(HandlerError::Unavailable("nothing is stored".to_owned()))
    }

    async fn store(&self, _: &Arc<RunFacts>, _: Report, _: &ReportCursor) -> Result<(), HandlerError> {
        Err(HandlerError::Unavailable("nothing is stored".to_owned()))
    }
}

/// A gateway with one run, whose one credential is called `c`.
pub struct NetworkHarness {
    pub gateway: Arc<Gateway<Network>>,
    pub address: SocketAddr,
    pub dns: Dns,
}

impl NetworkHarness {
    pub async fn new(public: Public, hosts: &[&str], answers: Answers) -> Self {
        Self::with(Settings::default(), public, hosts, answers).await
    }

    pub async fn with(settings: Settings, public: Public, hosts: &[&str], answers: Answers) -> Self {
        let dns = Dns::start(answers).await;
        let resolver = Resolver::new(&[dns.address], Some("cluster.local")).expect("a resolver");
        let gateway = Gateway::new(keys(), settings, Network::new(resolver));
        // It changes nothing for the way out: every test here holds with it.
        let api = RunApi {
            authenticator: gateway.credentials(),
            question_handler: NoApprover,
            report_store: NoReports,
            scheduler: NoScheduler,
        };
        gateway.serve_run_api(api).expect("the first");
        let planned = [credential("c", public, hosts)];
        gateway.plans().add_credentials(RUN, &planned).expect("a plan");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address");
        let serving = Arc::clone(&gateway);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let gateway = Arc::clone(&serving);
                tokio::spawn(async move { gateway.serve(stream).await });
            }
        });
        Self { gateway, address, dns }
    }

    pub fn authorization(&self) -> String {
        authorization(&sign(RUN, "c", now() + 600))
    }

    /// Sends a head with the credential in it, and reads the head of the answer.
    pub async fn ask(&self, first_line: &str, host: &str) -> (TcpStream, String) {
        let credential = self.authorization();
        let head = format!("{first_line} HTTP/1.1\r\nHost: {host}\r\n{credential}\r\n");
        let mut stream = TcpStream::connect(self.address).await.expect("it listens");
        stream.write_all(head.as_bytes()).await.expect("it reads");
        let answer = read_head(&mut stream).await;
        (stream, answer)
    }

    /// A tunnel, or the reason for none.
    pub async fn tunnel(&self, target: &str) -> Result<TcpStream, String> {
        let (stream, answer) = self.ask(&format!("CONNECT {target}"), target).await;
        match reason_of(&answer) {
            None if answer.starts_with("HTTP/1.1 200 ") => Ok(stream),
            None => Err(answer),
            Some(reason) => Err(reason),
        }
    }

    /// The outcomes so far, in short.
    pub fn outcomes(&self) -> Vec<String> {
        let mut watcher = self.gateway.events().subscribe(1);
        let mut outcomes = Vec::new();
        while let Some(Ok(event)) = watcher.try_next() {
            outcomes.push(short(&event));
        }
        outcomes
    }

    /// Waits until an event of this outcome is there.
    pub async fn wait_for(&self, outcome: &str) {
        let waited =
            tokio::task::block_in_place(|| wait_until(TIMEOUT, || self.outcomes().iter().any(|it| it == outcome)));
        assert!(waited, "{outcome} is not among {:?}", self.outcomes());
    }
}

fn short(event: &Event) -> String {
    let word = |reason: &Reason| reason.as_str();
    match &event.outcome {
        EventKind::Allowed { rule, address } => format!("allowed {rule} {address}"),
        EventKind::Refused { reason, .. } => format!("refused {}", word(reason)),
        EventKind::Ended { reason, .. } => format!("ended {}", word(reason)),
        other => format!("{other:?}"),
    }
}

/// The reason that an answer of the gateway's own gives, if it is one.
pub fn reason_of(answer: &str) -> Option<String> {
    let line = answer.lines().find_map(|it| it.strip_prefix("Sympozium-Reason: "));
    line.map(str::to_owned)
}

/// Up to the empty line; what is there when the other side ends.
pub async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match tokio::time::timeout(TIMEOUT, stream.read_u8()).await {
            Ok(Ok(byte)) => head.push(byte),
            Ok(Err(_)) => break,
            Err(_) => panic!("no head in time: {:?}", String::from_utf8_lossy(&head)),
        }
    }
    String::from_utf8(head).expect("heads of ours are text")
}

/// What comes until the other side ends or breaks.
pub async fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let read = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut all)).await;
    let _ = read.expect("the other side ends");
    all
}

/// Sends something through and wants it back.
pub async fn echoes(stream: &mut TcpStream, words: &[u8]) -> bool {
    let mut back = vec![0; words.len()];
    let exchanged = async {
        stream.write_all(words).await?;
        stream.read_exact(&mut back).await
    };
    let done = tokio::time::timeout(TIMEOUT, exchanged).await;
    done.expect("an answer in time").is_ok() && back == words
}
