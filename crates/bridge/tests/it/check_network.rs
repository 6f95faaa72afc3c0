//! Networks that let everything through, nothing, or too much at first. Everything is on loopback.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdTcpListener, TcpStream as StdTcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, bind, getsockname, listen, shutdown, socket_with};
use rustix::process::{Pid, Signal, kill_process};
use sympozium_bridge::check_network::{CanaryAnswer, CheckNetwork, Enforcement, GatewayUnreachable, Verdict};
use sympozium_testkit::{command, growing, wait_until};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_ipc-bridge");
pub const TIMEOUT: Duration = Duration::from_secs(60);
const GREETING: &[u8] = b"sympozium-gateway canary: this pod is not held in by its NetworkPolicy\n";
/// For what never happens: it ends soon.
const SHORT: Duration = Duration::from_secs(1);
/// For a gateway that is reached once and then gone.
const GOES_AWAY: Duration = Duration::from_secs(5);

/// A listener, until it is dropped or stopped.
struct Service {
    address: SocketAddr,
    port: Closed,
    task: tokio::task::JoinHandle<()>,
}

impl Service {
    /// Does this with every connection.
    async fn new<F>(mut serve: impl FnMut(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let port = Closed::new();
        let listener = port.open();
        let address = port.address;
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
        Self { address, port, task }
    }

    /// Refuses connections from now on. Closing would not do: a process that another test is just starting has the
    /// socket, too, and afterwards another process could have the port.
    fn stop(&self) {
        shutdown(&self.port.socket, Shutdown::Read).expect("it listens");
    }

    async fn gateway() -> Self {
        Self::new(|stream| async move { drop(stream) }).await
    }

    async fn saying(text: &'static [u8]) -> Self {
        Self::new(move |mut stream| async move {
            let _ = stream.write_all(text).await;
        })
        .await
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A port that is ours and refuses connections until it is listened at.
struct Closed {
    socket: OwnedFd,
    address: SocketAddr,
}

impl Closed {
    fn new() -> Self {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
        let socket = socket.expect("a socket");
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        let address = getsockname(&socket).expect("an address");
        let address = address.try_into().expect("an internet address");
        Self { socket, address }
    }

    fn open(&self) -> TcpListener {
        listen(&self.socket, 16).expect("it listens");
        let listener = StdTcpListener::from(self.socket.try_clone().expect("a descriptor"));
        listener.set_nonblocking(true).expect("a socket");
        TcpListener::from_std(listener).expect("a listener")
    }
}

/// A verdict that is known as soon as there is an answer.
async fn check(gateway: SocketAddr, canary: SocketAddr) -> Result<Verdict, GatewayUnreachable> {
    check_for(gateway, canary, TIMEOUT).await
}

/// A verdict that takes all of the time: a short one, or as long as this machine needs to reach the gateway at all.
async fn check_to_the_end(gateway: SocketAddr, canary: SocketAddr) -> Result<Verdict, GatewayUnreachable> {
    for timeout in growing(SHORT) {
        if let Ok(verdict) = check_for(gateway, canary, timeout).await {
            return Ok(verdict);
        }
    }
    check_for(gateway, canary, SHORT).await
}

async fn check_for(gateway: SocketAddr, canary: SocketAddr, timeout: Duration) -> Result<Verdict, GatewayUnreachable> {
    let check = CheckNetwork { gateway, canary, enforcement: Enforcement::Required, timeout };
    check.run().await
}

#[tokio::test]
async fn a_canary_that_refuses_is_out_of_reach() {
    let (gateway, canary) = (Service::gateway().await, Closed::new());
    let verdict = check(gateway.address, canary.address).await;
    assert_eq!(verdict.expect("a verdict"), Verdict::Enforced);
}

/// As most networks enforce a policy: nothing comes back at all.
#[tokio::test]
async fn a_canary_behind_dropped_packets_is_out_of_reach() {
    let (gateway, canary) = (Service::gateway().await, Closed::new());
    listen(&canary.socket, 0).expect("it listens");
    // There is no accept: once the queue is full, the kernel drops further connections.
    let mut queue = Vec::new();
    let is_full = (0..16).any(|_| match StdTcpStream::connect_timeout(&canary.address, Duration::from_millis(200)) {
        Ok(stream) => {
            queue.push(stream);
            false
        }
        Err(_) => true,
    });
    assert!(is_full, "a queue of none has no end");
    let verdict = check(gateway.address, canary.address).await;
    assert_eq!(verdict.expect("a verdict"), Verdict::Enforced);
}

/// As where something on the way accepts everything, and hangs up on what is not allowed.
#[tokio::test]
async fn a_canary_that_hangs_up_without_a_word_is_out_of_reach() {
    let (gateway, canary) = (Service::gateway().await, Service::gateway().await);
    let verdict = check(gateway.address, canary.address).await;
    assert_eq!(verdict.expect("a verdict"), Verdict::Enforced);
}

#[tokio::test]
async fn whatever_comes_from_there_was_let_through() {
    let gateway = Service::gateway().await;
    let silent = Service::new(|stream| async move {
        let _stream = stream;
        std::future::pending().await
    });
    let canaries = [
        (Service::saying(GREETING).await, CanaryAnswer::Canary),
        (Service::saying(b"SSH-2.0-").await, CanaryAnswer::SomethingElse),
        (Service::saying(&GREETING[..10]).await, CanaryAnswer::SomethingElse),
        (Service::saying(&[b'x'; 4096]).await, CanaryAnswer::SomethingElse),
        (silent.await, CanaryAnswer::Nothing),
    ];
    let checks = canaries.map(|(canary, answer)| {
        let check = check_to_the_end(gateway.address, canary.address);
        (tokio::spawn(check), canary, answer)
    });
    for (check, _canary, answer) in checks {
        let verdict = check.await.expect("no panic").expect("a verdict");
        assert_eq!(verdict, Verdict::NotEnforced(answer));
    }
}

#[tokio::test]
async fn a_policy_that_comes_late_is_waited_for() {
    let gateway = Service::gateway().await;
    let (answered, has_answered) = oneshot::channel();
    let mut answered = Some(answered);
    let canary = Service::new(move |mut stream| {
        let answered = answered.take();
        async move {
            let _ = stream.write_all(GREETING).await;
            if let Some(answered) = answered {
                let _ = answered.send(());
            }
        }
    })
    .await;
    let checking = tokio::spawn(check_for(gateway.address, canary.address, TIMEOUT));
    has_answered.await.expect("the canary was asked");
    // The policy is there now.
    canary.stop();
    let verdict = checking.await.expect("no panic").expect("a verdict");
    assert_eq!(verdict, Verdict::Enforced);
}

#[tokio::test]
async fn a_gateway_that_never_answers_is_no_verdict() {
    let (gateway, canary) = (Closed::new(), Closed::new());
    let error = check_for(gateway.address, canary.address, SHORT).await;
    let error = error.expect_err("there is no peer");
    assert_eq!(error.gateway, gateway.address);
    assert_eq!(error.last.kind(), std::io::ErrorKind::ConnectionRefused);
}

/// A network that decides packets one after the other has decided those to the canary when it lets one through that was sent after them.
#[tokio::test]
async fn the_gateway_is_asked_after_the_canary() {
    // One listener for both: it accepts connections in the order in which they were begun.
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    let (gateway, canary) = (Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2));
    let check = check_for((gateway, port).into(), (canary, port).into(), SHORT);
    let accept = async {
        let mut asked = Vec::new();
        let mut streams = Vec::new();
        while asked.len() < 5 {
            let (stream, _) = listener.accept().await.expect("a connection");
            asked.push(stream.local_addr().expect("an address").ip());
            streams.push(stream);
        }
        // The canary's are kept open: one that hangs up would count as out of reach.
        (asked, streams)
    };
    let (verdict, (asked, _streams)) = tokio::join!(check, accept);
    assert_eq!(verdict.expect("a verdict"), Verdict::NotEnforced(CanaryAnswer::Nothing));
    // The first one waits for the gateway.
    assert_eq!(asked, [gateway, canary, canary, canary, gateway]);
}

/// A network that went away looks as if everything were refused.
#[tokio::test]
async fn a_gateway_that_goes_away_is_no_verdict() {
    let (asked, was_asked) = oneshot::channel();
    let mut asked = Some(asked);
    let gateway = Service::new(move |_| {
        let asked = asked.take();
        async move {
            if let Some(asked) = asked {
                let _ = asked.send(());
            }
        }
    })
    .await;
    // The canary hangs up, and not before the gateway is gone.
    let (gone, is_gone) = watch::channel(false);
    let canary = Service::new(move |stream| {
        let mut is_gone = is_gone.clone();
        async move {
            let _ = is_gone.wait_for(|gone| *gone).await;
            drop(stream);
        }
    })
    .await;
    let checking = tokio::spawn(check_for(gateway.address, canary.address, GOES_AWAY));
    was_asked.await.expect("the gateway was asked");
    gateway.stop();
    gone.send_replace(true);
    let checked = checking.await.expect("no panic");
    let error = checked.expect_err("there is no peer");
    assert_eq!(error.gateway, gateway.address);
    assert_eq!(error.last.kind(), std::io::ErrorKind::ConnectionRefused);
}

struct Program {
    child: Child,
    directory: tempfile::TempDir,
}

impl Program {
    /// In a container: the kubelet has made the file for last words.
    fn start(gateway: SocketAddr, canary: SocketAddr, more: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("termination-log"), "").expect("a file");
        Self::start_in(directory, gateway, canary, more)
    }

    fn start_in(directory: tempfile::TempDir, gateway: SocketAddr, canary: SocketAddr, more: &[&str]) -> Self {
        let log = fs::File::create(directory.path().join("log")).expect("a log");
        let told = directory.path().join("termination-log");
        let child = command(PROGRAM)
            .arg("check-network")
            .arg(format!("--gateway={gateway}"))
            .arg(format!("--canary={canary}"))
            .arg(format!("--termination-log={}", told.display()))
            .args(more)
            .stderr(Stdio::from(log))
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        Self { child, directory }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).expect("a file")
    }

    fn wait_for_log(&self, words: &str) {
        let there = wait_until(TIMEOUT, || self.read("log").contains(words));
        assert!(there, "no {words:?} in {}", self.read("log"));
    }

    /// Exit code, what it logged, and what the pod's status says.
    async fn end(self) -> (Option<i32>, String, String) {
        let Self { child, directory } = self;
        let waited = tokio::task::spawn_blocking(|| child.wait_with_output());
        let output: Output = waited.await.expect("no panic").expect("an end");
        assert_eq!(output.stdout, b"");
        let read = |name| fs::read_to_string(directory.path().join(name)).expect("a file");
        (output.status.code(), read("log"), read("termination-log"))
    }
}

#[tokio::test]
async fn an_enforced_policy_is_a_success() {
    let (gateway, canary) = (Service::gateway().await, Closed::new());
    let program = Program::start(gateway.address, canary.address, &["--required"]);
    let (code, log, told) = program.end().await;
    assert_eq!((code, told.as_str()), (Some(0), "enforced\n"), "{log}");
}

#[tokio::test]
async fn an_unenforced_policy_is_a_failure_where_it_is_required() {
    let (gateway, canary) = (Service::gateway().await, Service::saying(GREETING).await);
    let address = canary.address;
    let program = Program::start(gateway.address, address, &["--required", "--timeout=1"]);
    let (code, log, told) = program.end().await;
    let text = format!("the run's NetworkPolicy is not enforced: the gateway's canary answers ({address})");
    assert_eq!((code, told), (Some(1), format!("unenforced: {text}\n")));
    let ending = format!(
        "error: {text}\nhint: use a network plugin that enforces NetworkPolicies, or a policy whose isolation floor does not need the network\n"
    );
    assert!(log.ends_with(&ending), "{log}");
}

#[tokio::test]
async fn an_unenforced_policy_is_reported_where_it_is_not() {
    let (gateway, canary) = (Service::gateway().await, Service::saying(GREETING).await);
    let address = canary.address;
    let program = Program::start(gateway.address, address, &["--timeout=1"]);
    let (code, log, told) = program.end().await;
    let text = format!("unenforced: nothing holds this run's network in: the gateway's canary answers ({address})");
    assert_eq!((code, told), (Some(0), format!("{text}\n")));
    let last = log.lines().last().unwrap_or_default();
    assert!(last.contains("WARN") && last.contains(&text), "{log}");
}

#[tokio::test]
async fn a_gateway_that_starts_late_is_waited_for() {
    let (gateway, canary) = (Closed::new(), Closed::new());
    let program = Program::start(gateway.address, canary.address, &["--required"]);
    program.wait_for_log("waiting for the gateway");
    let _listener = gateway.open();
    let (code, log, told) = program.end().await;
    assert_eq!((code, told.as_str()), (Some(0), "enforced\n"), "{log}");
}

#[tokio::test]
async fn a_gateway_that_never_answers_is_a_failure() {
    let (gateway, canary) = (Closed::new(), Closed::new());
    let program = Program::start(gateway.address, canary.address, &["--timeout=1"]);
    let (code, log, told) = program.end().await;
    assert_eq!((code, told.as_str()), (Some(1), ""), "{log}");
    let error = format!("error: the gateway at {} did not answer in ", gateway.address);
    assert!(log.contains(&error) && log.contains("\nhint: is the gateway running"), "{log}");
}

#[tokio::test]
async fn a_signal_ends_the_check() {
    let (gateway, canary) = (Closed::new(), Closed::new());
    let program = Program::start(gateway.address, canary.address, &["--timeout=3600"]);
    program.wait_for_log("waiting for the gateway");
    let pid = i32::try_from(program.child.id()).expect("a pid");
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::TERM).expect("it lives");
    let (code, log, told) = program.end().await;
    assert_eq!((code, told.as_str()), (Some(1), ""), "{log}");
    assert!(log.contains("error: asked to end"), "{log}");
}

/// Where the container has no termination message file, none is created.
#[tokio::test]
async fn no_termination_message_is_written_without_a_file_for_it() {
    let (gateway, canary) = (Service::gateway().await, Closed::new());
    let directory = tempfile::tempdir().expect("a directory");
    let program = Program::start_in(directory, gateway.address, canary.address, &[]);
    let path = program.directory.path().join("termination-log");
    let Program { child, directory } = program;
    let waited = tokio::task::spawn_blocking(|| child.wait_with_output());
    let output = waited.await.expect("no panic").expect("an end");
    assert_eq!((output.status.code(), path.exists()), (Some(0), false));
    drop(directory);
}
