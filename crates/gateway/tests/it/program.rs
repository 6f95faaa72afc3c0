//! The program itself, with a plan as it is stored.

mod fair;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use sympozium_harness::credential::KEY_FILE;
use sympozium_harness::plan::{STORED_PLAN, stored_plan};
use sympozium_testkit::daemon::Daemon;
use sympozium_testkit::{command, wait_until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::dns::{Dns, everybody};
use crate::harness::{Behavior, Catcher, TIMEOUT, authorization, echoes, read_all, read_head, reason_of, run};
use crate::tls::{certificate, connector, hello};
use sympozium_ipc::credential::Credential;

const PROGRAM: &str = env!("CARGO_BIN_EXE_sympozium-gateway");
const HOST: &str = "tickets.example.com:443";

struct Program {
    daemon: Daemon,
    directory: tempfile::TempDir,
}

impl Program {
    /// Ports are fixed: the namespace is the test's own.
    fn start(dns: &Dns, more: &[&str]) -> Self {
        Self::start_at(dns, "127.0.0.1:3128", more)
    }

    fn start_at(dns: &Dns, listen: &str, more: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("plans")).expect("a directory");
        fs::write(at("plans/run.json"), STORED_PLAN).expect("a plan");
        fs::write(at("keys"), KEY_FILE).expect("keys");
        let mut program = command(PROGRAM);
        program
            .args(["serve", "--listen", listen, "--probe-listen=127.0.0.1:3129", "--canary=3130"])
            .arg(format!("--dns={}", dns.address))
            .arg("--plans")
            .arg(at("plans"))
            .arg("--key-file")
            .arg(at("keys"))
            .args(more);
        let daemon = Daemon::start(program, &at("log")).expect("it starts");
        daemon.wait_for_log("listening for probes");
        Self { daemon, directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What `sign` gives for a credential of the plan.
    fn credential(&self, name: &str) -> Credential {
        let signed = command(PROGRAM)
            .args(["sign", "--run", stored_plan().run.uid.as_str(), "--name", name, "--key-file"])
            .arg(self.path("keys"))
            .output()
            .expect("it starts");
        let url = String::from_utf8(signed.stdout).expect("text");
        let parts = url.trim().strip_prefix("http://").and_then(|it| it.strip_suffix("@127.0.0.1:3128"));
        let (user, password) = parts.and_then(|it| it.split_once(':')).expect("a URL");
        Credential { user: user.to_owned(), password: password.to_owned().into() }
    }

    async fn tunnel(&self, name: &str) -> (TcpStream, String) {
        let mut stream = TcpStream::connect("127.0.0.1:3128").await.expect("it listens");
        let authorization = authorization(&self.credential(name));
        let head = format!("CONNECT {HOST} HTTP/1.1\r\nHost: {HOST}\r\n{authorization}\r\n");
        stream.write_all(head.as_bytes()).await.expect("it reads");
        let answer = read_head(&mut stream).await;
        (stream, answer)
    }

    /// A tunnel through which something has come back.
    async fn busy_tunnel(&self) -> TcpStream {
        let (mut stream, answer) = self.tunnel("skill-tickets").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}{}", self.daemon.log());
        let first = hello(Some("tickets.example.com"), 9999);
        stream.write_all(&first).await.expect("it reads");
        let mut back = vec![0; first.len()];
        stream.read_exact(&mut back).await.expect("an echo");
        assert_eq!(back, first);
        stream
    }
}

#[test]
fn it_serves_the_plans_of_a_directory_until_they_are_gone() {
    run(it_serves_the_plans_of_a_directory_until_they_are_gone, async || {
        let dns = Dns::start(everybody).await;
        let catcher = Catcher::at(443, &Behavior::Echo);
        let mut program = Program::start(&dns, &[]);
        let mut canary = TcpStream::connect("127.0.0.1:3130").await.expect("it listens");
        assert!(read_all(&mut canary).await.starts_with(b"sympozium-gateway canary"));
        let mut probe = TcpStream::connect("127.0.0.1:3129").await.expect("it listens");
        probe.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("it reads");
        assert!(read_all(&mut probe).await.ends_with(b"\r\n\r\nok\n"));

        let mut tunnel = program.busy_tunnel().await;
        let (_, answer) = program.tunnel("model").await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert_eq!(catcher.caught().await, ["93.184.216.34"]);

        // E56: what is read again ends what is gone, and cuts it.
        fs::remove_file(program.path("plans/run.json")).expect("it was there");
        program.daemon.signal(Signal::HUP).expect("it lives");
        assert_eq!(read_all(&mut tunnel).await, b"");
        let (_, answer) = program.tunnel("skill-tickets").await;
        assert!(answer.starts_with("HTTP/1.1 407 "), "{answer}");
        fs::write(program.path("plans/run.json"), STORED_PLAN).expect("a plan");
        program.daemon.signal(Signal::HUP).expect("it lives");
        program.daemon.wait_for_log("a plan cannot be used");
        let (_, answer) = program.tunnel("skill-tickets").await;
        assert!(answer.starts_with("HTTP/1.1 407 "), "a run came back: {answer}");

        program.daemon.signal(Signal::TERM).expect("it lives");
        assert_eq!(program.daemon.wait().expect("it ends").code(), Some(0));
        let log = program.daemon.log();
        for words in ["\"allowed\"", "not-in-plan", "run-over", "tickets.example.com:443"] {
            assert!(log.contains(words), "no {words} in {log}");
        }
        // E55: nothing of it is secret.
        let password = program.credential("skill-tickets").password;
        assert!(!log.contains(password.as_str()) && !log.contains("5a5a5a"), "{log}");
    });
}

#[test]
fn e56_when_it_is_killed_connections_are_cut_and_nothing_else_answers() {
    run(e56_when_it_is_killed_connections_are_cut_and_nothing_else_answers, async || {
        let dns = Dns::start(everybody).await;
        let _catcher = Catcher::at(443, &Behavior::Echo);
        let program = Program::start(&dns, &[]);
        let mut tunnel = program.busy_tunnel().await;
        program.daemon.kill().expect("it ends");
        assert_eq!(read_all(&mut tunnel).await, b"");
        assert!(TcpStream::connect("127.0.0.1:3128").await.is_err());
    });
}

#[test]
fn e56_a_plan_that_cannot_be_read_any_more_ends_its_run() {
    run(e56_a_plan_that_cannot_be_read_any_more_ends_its_run, async || {
        let dns = Dns::start(everybody).await;
        let _catcher = Catcher::at(443, &Behavior::Echo);
        let program = Program::start(&dns, &[]);
        let mut tunnel = program.busy_tunnel().await;
        fs::write(program.path("plans/run.json"), &STORED_PLAN[..STORED_PLAN.len() / 2]).expect("half a plan");
        // Keys that cannot be read change nothing.
        fs::write(program.path("keys"), "nonsense").expect("written");
        program.daemon.signal(Signal::HUP).expect("it lives");
        assert_eq!(read_all(&mut tunnel).await, b"");
        program.daemon.wait_for_log("the keys cannot be used; those before stay in use");
        program.daemon.wait_for_log("a plan cannot be used");
    });
}

#[test]
fn it_ends_in_time_with_tunnels_open() {
    run(it_ends_in_time_with_tunnels_open, async || {
        let dns = Dns::start(everybody).await;
        let _catcher = Catcher::at(443, &Behavior::Echo);
        let mut program = Program::start(&dns, &[]);
        let mut tunnel = program.busy_tunnel().await;
        program.daemon.signal(Signal::TERM).expect("it lives");
        assert_eq!(read_all(&mut tunnel).await, b"");
        assert_eq!(program.daemon.wait().expect("it ends").code(), Some(0));
        assert!(program.daemon.log().contains("gateway-ending"), "{}", program.daemon.log());
    });
}

#[test]
fn it_serves_a_socket_in_the_file_system_and_forwards_to_it() {
    run(it_serves_a_socket_in_the_file_system_and_forwards_to_it, async || {
        let dns = Dns::start(everybody).await;
        let catcher = Catcher::at(443, &Behavior::Echo);
        let directory = tempfile::tempdir().expect("a directory");
        let place = format!("unix:{}", directory.path().join("socket").display());
        let program = Program::start_at(&dns, &place, &[]);
        let credential = program.credential("skill-tickets");
        let file = program.path("credential");
        let text = format!("{}:{}\n", credential.user, *credential.password);
        fs::write(&file, text).expect("written");
        let mut forward = command(PROGRAM)
            .args(["forward", "--to", &format!("8443={HOST}"), "--gateway", &place])
            .arg("--credential-file")
            .arg(&file)
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut stream = Err(std::io::ErrorKind::NotFound.into());
        tokio::task::block_in_place(|| {
            wait_until(TIMEOUT, || {
                stream = std::net::TcpStream::connect("127.0.0.1:8443");
                stream.is_ok()
            })
        });
        let stream = stream.expect("it listens");
        stream.set_nonblocking(true).expect("it can be");
        let mut stream = TcpStream::from_std(stream).expect("a stream");
        let first = hello(Some("tickets.example.com"), 9999);
        assert!(echoes(&mut stream, &first).await, "{}", program.daemon.log());
        assert_eq!(catcher.caught().await, ["93.184.216.34"]);
        let pid = i32::try_from(forward.id()).expect("a pid");
        kill_process(Pid::from_raw(pid).expect("a pid"), Signal::TERM).expect("it lives");
        assert_eq!(forward.wait().expect("it ends").code(), Some(0));
        assert_eq!(read_all(&mut stream).await, b"");
    });
}

#[test]
fn it_serves_tls() {
    run(it_serves_tls, async || {
        let dns = Dns::start(everybody).await;
        let _catcher = Catcher::at(443, &Behavior::Echo);
        let files = tempfile::tempdir().expect("a directory");
        let (root, _, certificate, key) = certificate(&["gateway.example"]);
        let place = |name: &str, text: &str| {
            let path = files.path().join(name);
            fs::write(&path, text).expect("written");
            path.display().to_string()
        };
        let (certificate, key) = (place("cert", &certificate), place("key", &key));
        let program = Program::start(&dns, &["--tls-cert", &certificate, "--tls-key", &key]);
        let stream = TcpStream::connect("127.0.0.1:3128").await.expect("it listens");
        let name = rustls::pki_types::ServerName::try_from("gateway.example").expect("a name");
        let mut stream = connector(root, true).connect(name, stream).await.expect("TLS");
        let authorization = authorization(&program.credential("skill-tickets"));
        let head = format!("CONNECT {HOST} HTTP/1.1\r\nHost: {HOST}\r\n{authorization}\r\n");
        let first = hello(Some("tickets.example.com"), 9999);
        // The first bytes of the tunnel may come with the head.
        stream.write_all(&[head.as_bytes(), &first].concat()).await.expect("it reads");
        stream.flush().await.expect("it reads");
        let expected = [&b"HTTP/1.1 200 Connection established\r\n\r\n"[..], &first].concat();
        let mut back = vec![0; expected.len()];
        let read = tokio::time::timeout(TIMEOUT, stream.read_exact(&mut back)).await;
        read.expect("in time").expect("an echo");
        assert_eq!(back, expected);
    });
}

#[test]
fn missing_settings_are_reported_with_a_hint() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    fs::write(at("keys"), KEY_FILE).expect("keys");
    let serve = |plans: &Path, keys: &Path| {
        let output = command(PROGRAM)
            .args(["serve", "--listen=127.0.0.1:0", "--dns=127.0.0.1:53", "--log-level=error"])
            .arg("--plans")
            .arg(plans)
            .arg("--key-file")
            .arg(keys)
            .output()
            .expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr).replace(&*directory.path().to_string_lossy(), "DIR");
        (output.status.code(), text)
    };
    assert_eq!(
        serve(&at("plans"), &at("none")),
        (Some(1), "error: reading DIR/none: No such file or directory (os error 2)\n".to_owned())
    );
    assert_eq!(
        serve(&at("plans"), &at("keys")),
        (
            Some(1),
            "error: listing DIR/plans: No such file or directory (os error 2)\n\
             hint: --plans is a directory with a file UID.json for each run\n"
                .to_owned()
        )
    );
    fs::write(at("bad"), "5a".repeat(32)).expect("keys");
    let (code, text) = serve(&at("plans"), &at("bad"));
    assert_eq!(code, Some(1));
    assert!(text.contains("line 1 is not an id") && !text.contains("5a5a"), "{text}");
    let help = command(PROGRAM).arg("--help").output().expect("it starts");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(help.contains("Examples:") && !help.contains("forward"), "{help}");
}

#[test]
fn one_address_cannot_take_all_the_room() {
    run(one_address_cannot_take_all_the_room, async || {
        let dns = Dns::start(everybody).await;
        let _program = Program::start(&dns, &["--max-connections-of-peer=3"]);
        let from = async |own: &str| {
            let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
            socket.bind(format!("{own}:0").parse().expect("an address")).expect("it is ours");
            let gateway = "127.0.0.1:3128".parse().expect("an address");
            socket.connect(gateway).await.expect("it listens")
        };
        // They send no credential; they only stay open.
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(from("10.0.0.1").await);
        }
        let refused = read_head(&mut from("10.0.0.1").await).await;
        assert_eq!(reason_of(&refused).as_deref(), Some("connections-of-peer"));
        let mut other = from("10.0.0.2").await;
        other.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("it reads");
        assert!(read_head(&mut other).await.starts_with("HTTP/1.1 407 "));
    });
}
