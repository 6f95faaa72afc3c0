//! Client and server, and hostile clients.

mod peers;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use sympozium_gateway::run_api::local::{ApprovalQueue, VoteRefusal};
use sympozium_ipc::run_api::Usage;
use tokio::sync::oneshot;

use super::*;
use crate::realise::RunHandle;
use crate::state::StateDirectory;
use sympozium_runs::EventLog;
use sympozium_runs::{Event, TimedEvent};
use sympozium_runs::{RunEnd, VoteResult};

/// A run that is served on a runtime of its own, as by `sympozium run`.
struct Harness {
    directory: RunDirectory,
    handle: Arc<RunHandle>,
    thread: Option<std::thread::JoinHandle<()>>,
    drop_it: Option<oneshot::Sender<()>>,
    _state: tempfile::TempDir,
}

impl Harness {
    fn new() -> Self {
        Self::in_directory(Path::new("state"))
    }

    /// With a state directory of this name.
    fn in_directory(name: &Path) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let state = StateDirectory::open_at(temporary.path().join(name)).unwrap();
        let directory = state.run_directory("11111111-2222-4333-8444-555555555555");
        let lock = directory.create().unwrap();
        let events = EventLog::default();
        let handle = RunHandle::new("11111111-2222-4333-8444-555555555555".into(), ApprovalQueue::new(), events);
        let handle = Arc::new(handle);
        let (drop_it, dropped) = oneshot::channel();
        let (is_there, there) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let (directory, handle) = (directory.clone(), Arc::clone(&handle));
            move || {
                let _lock = lock;
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let listener = listen(&directory).unwrap();
                    is_there.send(()).unwrap();
                    tokio::select! {
                        () = serve(listener, handle) => {}
                        _ = dropped => {}
                    }
                });
            }
        });
        there.recv().unwrap();
        Self { directory, handle, thread: Some(thread), drop_it: Some(drop_it), _state: temporary }
    }

    fn client(&self) -> Client {
        Client::connect(&self.directory).unwrap().unwrap()
    }

    /// A raw connection.
    fn stream(&self) -> UnixStream {
        let (_opened, path) = socket_path(&self.directory).unwrap();
        UnixStream::connect(path).unwrap()
    }

    /// Sends bytes, and returns the whole reply.
    fn send_raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.stream();
        stream.write_all(bytes).unwrap();
        let mut received = String::new();
        stream.read_to_string(&mut received).unwrap();
        received
    }

    fn end(&self) -> Event {
        let ended = Event::Ended { outcome: RunEnd::Cancelled, usage: Usage::default(), leftovers: Vec::new() };
        self.handle.events.emit(ended.clone());
        ended
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        drop(self.drop_it.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn warning(text: &str) -> Event {
    Event::Warning { text: text.into() }
}

fn action() -> Digest {
    Digest::from(format!("sha256:{}", "0".repeat(64)).as_str())
}

#[test]
fn requests_are_answered() {
    let run = Harness::new();
    assert_eq!(run.client().questions().unwrap(), Vec::new());
    let decided = run.client().vote("a1", &action(), VoteChoice::Yes, None);
    let unknown = VoteRefusal::Unknown.to_string();
    assert_eq!(decided.unwrap(), VoteResult::Refused(unknown));
    run.client().stop(StopMode::Gently).unwrap();
}

#[test]
fn events_are_followed_from_the_first_to_the_last() {
    let run = Harness::new();
    run.handle.events.emit(warning("before"));
    let mut following = run.client().follow().unwrap();
    let mut next = || following.next().map(|it| it.unwrap().event);
    assert_eq!(next(), Some(warning("before")));
    run.handle.events.emit(warning("while"));
    assert_eq!(next(), Some(warning("while")));
    let ended = run.end();
    assert_eq!(next(), Some(ended));
    assert_eq!(next(), None);
}

#[test]
fn every_follower_gets_the_last_event_after_the_run_has_ended() {
    let mut run = Harness::new();
    let mut following: Vec<EventStream> = (0..8).map(|_| run.client().follow().unwrap()).collect();
    run.handle.events.emit(warning("one"));
    for reader in &mut following {
        assert_eq!(reader.next().unwrap().unwrap().event, warning("one"));
    }
    let ended = run.end();
    // The server returns by itself; by then every follower has the last event.
    run.thread.take().unwrap().join().unwrap();
    for mut reader in following {
        assert_eq!(reader.next().unwrap().unwrap().event, ended);
    }
    assert!(Client::connect(&run.directory).unwrap().is_none());
}

#[test]
fn a_killed_run_is_distinguished_from_an_ended_one() {
    let mut run = Harness::new();
    let mut following = run.client().follow().unwrap();
    run.handle.events.emit(warning("one"));
    assert_eq!(following.next().unwrap().unwrap().event, warning("one"));
    drop(run.drop_it.take());
    let error = following.next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the process of the run was killed");
    assert!(following.next().is_none());
}

#[test]
fn the_path_of_the_directory_may_be_longer_than_a_socket_address() {
    let name = ["d".repeat(100), "e".repeat(100)].join("/");
    let run = Harness::in_directory(Path::new(&name));
    assert!(run.directory.control_socket().as_os_str().len() > 200);
    assert_eq!(run.client().questions().unwrap(), Vec::new());
    let mode = std::fs::metadata(run.directory.control_socket()).unwrap();
    assert_eq!(mode.permissions().mode() & 0o7777, 0o600);
}

#[test]
fn an_invalid_request_is_refused() {
    let run = Harness::new();
    let refused = |why: &str| format!("{}\n", json!({"reply": "refused", "why": why}));
    let not_understood = refused("not a valid request for this release");
    for line in [
        "\n",
        "{}\n",
        "questions\n",
        "{\"request\":\"everything\"}\n",
        "{\"request\":\"stop\",\"how\":\"never\"}\n",
        "{\"request\":\"stop\",\"how\":\"now\",\"also\":1}\n",
        "{\"request\":\"decide\",\"approval\":\"a\",\"says\":\"yes\"}\n",
        "\u{1b}[2J\n",
    ] {
        assert_eq!(run.send_raw(line.as_bytes()), not_understood, "{line:?}");
    }
    let deep = format!("{}\n", "[".repeat(MAX_REQUEST_BYTES - 1));
    assert_eq!(run.send_raw(deep.as_bytes()), not_understood);
    let reason = "x".repeat(MAX_REASON_CHARS + 1);
    let request = json!({"request": "decide", "approval": "a", "action": action(), "says": "no", "reason": reason});
    assert_eq!(run.send_raw(format!("{request}\n").as_bytes()), refused("a reason has at most 1000 characters"));
}

#[test]
fn an_endless_request_is_refused() {
    let run = Harness::new();
    let mut stream = run.stream();
    stream.write_all(&[b' '; MAX_REQUEST_BYTES]).unwrap();
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    let why = format!("a request has at most {MAX_REQUEST_BYTES} bytes");
    assert_eq!(line, format!("{}\n", json!({"reply": "refused", "why": why})));

    let mut stream = run.stream();
    stream.write_all(b"{\"request\":\"questions\"}").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    let why = "a request ends with a line break";
    assert_eq!(line, format!("{}\n", json!({"reply": "refused", "why": why})));
}

#[test]
fn connections_are_limited() {
    let run = Harness::new();
    run.handle.events.emit(warning("one"));
    let mut following: Vec<EventStream> = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut reader = run.client().follow().unwrap();
        // It is being served, not just queued in the backlog.
        assert_eq!(reader.next().unwrap().unwrap().event, warning("one"));
        following.push(reader);
    }
    let error = run.client().questions().unwrap_err();
    assert_eq!(error.to_string(), "the run refused the request: the run already has 32 connections");
    let mut refused = run.client().follow().unwrap();
    let error = refused.next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the run refused the request: the run already has 32 connections");
    following.pop();
    let deadline = Duration::from_secs(60);
    let room = || run.client().questions().is_ok();
    assert!(sympozium_testkit::wait_until(deadline, room));
}

#[tokio::test(start_paused = true)]
async fn silent_clients_are_refused_and_slow_readers_are_dropped() {
    let temporary = tempfile::tempdir().unwrap();
    let state = StateDirectory::open_at(temporary.path().join("state")).unwrap();
    let directory = state.run_directory("11111111-2222-4333-8444-555555555555");
    let _lock = directory.create().unwrap();
    let events = EventLog::default();
    let handle = RunHandle::new("u".into(), ApprovalQueue::new(), events.clone());
    let listener = listen(&directory).unwrap();
    let server = tokio::spawn(serve(listener, Arc::new(handle)));

    let (_opened, path) = socket_path(&directory).unwrap();
    let mut silent = tokio::net::UnixStream::connect(&path).await.unwrap();
    let mut received = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut silent, &mut received).await.unwrap();
    let why = "no request arrived in time";
    assert_eq!(received, format!("{}\n", json!({"reply": "refused", "why": why})));

    let mut deaf = tokio::net::UnixStream::connect(&path).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut deaf, b"{\"request\":\"follow\"}\n").await.unwrap();
    // More than a socket buffers.
    for _ in 0..64 {
        events.emit(warning(&"x".repeat(64 << 10)));
    }
    tokio::time::sleep(WRITE_TIMEOUT * 2).await;
    let mut bytes = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut deaf, &mut bytes).await.unwrap();
    assert!(bytes.len() < 64 * (64 << 10), "{}", bytes.len());
    events.emit(Event::Ended { outcome: RunEnd::TimedOut, usage: Usage::default(), leftovers: Vec::new() });
    server.await.unwrap();
}

#[test]
fn a_stale_socket_is_replaced() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    let temporary = tempfile::tempdir().unwrap();
    let state = StateDirectory::open_at(temporary.path().join("state")).unwrap();
    let directory = state.run_directory("11111111-2222-4333-8444-555555555555");
    let _lock = directory.create().unwrap();
    assert!(Client::connect(&directory).unwrap().is_none());
    drop(listen(&directory).unwrap());
    assert!(directory.control_socket().exists());
    assert!(Client::connect(&directory).unwrap().is_none());
    let _listener = listen(&directory).unwrap();
    assert!(Client::connect(&directory).unwrap().is_some());
}

#[test]
fn every_event_survives_a_round_trip() {
    use sympozium_exec::guarantee::{Layer, Profile};
    let layers = [(Layer::Seccomp, "x".to_owned())].into_iter().collect();
    let timed = TimedEvent {
        at_ms: u64::MAX,
        event: Event::Isolated {
            part: "agent".into(),
            report: Box::new(sympozium_exec::IsolationReport::new(Profile::HostUser, layers)),
        },
    };
    let run = Harness::new();
    run.handle.events.emit(timed.event.clone());
    let mut following = run.client().follow().unwrap();
    assert_eq!(following.next().unwrap().unwrap().event, timed.event);
    let text = serde_json::to_string(&timed).unwrap();
    assert_eq!(serde_json::from_str::<TimedEvent>(&text).unwrap(), timed);
}

#[test]
fn another_user_is_refused() {
    use rustix::process::{Uid, geteuid};
    if !geteuid().is_root() {
        sympozium_testkit::skip!("to be another user needs root");
    }
    let run = Harness::new();
    // Opens the permissions that would keep other users away before they reach the socket.
    let open = |path: &Path| {
        let mode = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(path, mode).unwrap();
    };
    let root = run._state.path();
    for path in [root, &root.join("state"), &root.join("state/runs")] {
        open(path);
    }
    open(run.directory.path());
    open(&run.directory.control_socket());
    let path = run.directory.control_socket();
    assert!(path.as_os_str().len() < 108);
    let received = std::thread::spawn(move || {
        // For this thread alone, which ends with the closure.
        rustix::thread::set_thread_uid(Uid::from_raw(65_534)).unwrap();
        let mut stream = UnixStream::connect(path).unwrap();
        // The server may have closed the connection before.
        let _ = stream.write_all(b"{\"request\":\"stop\",\"how\":\"now\"}\n");
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received);
        received
    });
    assert_eq!(received.join().unwrap(), b"");
    assert_eq!(run.client().questions().unwrap(), Vec::new());
}

#[test]
fn descendants_of_this_process_are_refused() {
    use super::server::descends_from_run;
    let us = std::process::id().cast_signed();
    let parent = rustix::process::getppid().unwrap().as_raw_pid();
    assert!(!descends_from_run(us) && !descends_from_run(parent) && !descends_from_run(1));
    // A child and a grandchild.
    let mut child = sympozium_testkit::command("sh")
        .args(["-c", "sleep 60 & echo $!; wait"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let grandchild: i32 = line.trim().parse().unwrap();
    assert!(descends_from_run(child.id().cast_signed()) && descends_from_run(grandchild));
    let grandchild = rustix::process::Pid::from_raw(grandchild).unwrap();
    rustix::process::kill_process(grandchild, rustix::process::Signal::KILL).unwrap();
    child.wait().unwrap();
    // A process that has exited cannot be examined.
    assert!(descends_from_run(child.id().cast_signed()));
}
