//! The server, in the process of the run.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use sympozium_exec::stage;
use sympozium_gateway::run_api::local::VoteOutcome;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{
    DRAIN_TIMEOUT, MAX_CONNECTIONS, MAX_REASON_CHARS, MAX_REPLY_BYTES, MAX_REQUEST_BYTES, REQUEST_TIMEOUT, Reply,
    Request, WRITE_TIMEOUT,
};
use crate::realise::RunHandle;
use sympozium_runs::EventReader;
use sympozium_runs::{Event, TimedEvent};

/// Ancestors of a process that are examined.
const MAX_ANCESTORS: usize = 1024;

/// Pause after a failed accept, such as when the system is out of descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Serves clients until every follower has received the run's last event, at most [`LAST_WORDS`] after it. Dropping the
/// future closes every connection.
pub async fn serve(listener: UnixListener, handle: Arc<RunHandle>) {
    let mut connections = JoinSet::new();
    let mut ended = std::pin::pin!(wait_for_end(handle.events.reader()));
    loop {
        tokio::select! {
            () = &mut ended => break,
            // Reap finished connections, to make room.
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if is_allowed_peer(&stream) => {
                    let is_full = connections.len() >= MAX_CONNECTIONS;
                    let _ = match is_full {
                        true => refuse_connection(&stream),
                        false => {
                            connections.spawn(handle_connection(stream, Arc::clone(&handle)));
                            Ok(())
                        }
                    };
                }
                Ok(_) => tracing::warn!("refused a connection to the control socket from another user or from a process of a run"),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections to the control socket");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            },
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(DRAIN_TIMEOUT, all).await;
}

/// Waits for the last event.
async fn wait_for_end(mut events: EventReader) {
    while !matches!(events.next().await.event, Event::Ended { .. }) {}
}

/// Whether the peer is the user of this process, or root, and not a process of any run. Such a process may have the same
/// user, and must not vote on questions.
fn is_allowed_peer(stream: &UnixStream) -> bool {
    let ours = rustix::process::geteuid().as_raw();
    let Ok(peer) = stream.peer_cred() else {
        return false;
    };
    [0, ours].contains(&peer.uid()) && peer.pid().is_some_and(|pid| !descends_from_run(pid))
}

/// Whether a process descends from this one, or from the sandbox stage of any other run, as every process of a run
/// does, whatever its state directory and release. A process that cannot be examined counts as one of a run.
pub(super) fn descends_from_run(pid: i32) -> bool {
    let us = std::process::id().cast_signed();
    if pid == us {
        return false;
    }
    let mut above = pid;
    for _ in 0..MAX_ANCESTORS {
        let Some(process) = ProcessStat::read(above) else {
            return true;
        };
        if process.is_stage || process.parent == us {
            return true;
        }
        match process.parent {
            0 | 1 => return false,
            parent => above = parent,
        }
    }
    true
}

/// What `/proc` shows of a process to every user.
struct ProcessStat {
    is_stage: bool,
    parent: i32,
}

impl ProcessStat {
    fn read(pid: i32) -> Option<Self> {
        // The name may contain any bytes.
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        // The name is in parentheses and may contain some: it ends at the last one.
        let (start, end) = (stat.iter().position(|it| *it == b'(')?, stat.iter().rposition(|it| *it == b')')?);
        let name = stat.get(start + 1..end)?;
        let rest = std::str::from_utf8(&stat[end + 1..]).ok()?;
        Some(Self {
            is_stage: name == stage::PROCESS_NAME.to_bytes(),
            parent: rest.split_ascii_whitespace().nth(1)?.parse().ok()?,
        })
    }
}

/// Refuses without waiting: the buffer of a new socket has room for the line.
fn refuse_connection(stream: &UnixStream) -> io::Result<()> {
    let why = format!("the run already has {MAX_CONNECTIONS} connections");
    stream.try_write(&to_json_line(&Reply::Refused { why })).map(|_| ())
}

/// Handles one connection, from its request to its last line.
async fn handle_connection(stream: UnixStream, handle: Arc<RunHandle>) {
    let (from, mut to) = stream.into_split();
    let mut from = BufReader::new(from);
    let reply = match read_request(&mut from).await {
        Ok(Request::Follow) => return stream_events(from, to, handle.events.reader()).await,
        Ok(request) => handle_request(&handle, request),
        Err(why) => Reply::Refused { why },
    };
    let _ = write_line(&mut to, &to_json_line(&reply)).await;
}

/// Reads the one line of a request.
async fn read_request(from: &mut BufReader<OwnedReadHalf>) -> Result<Request, String> {
    let mut bytes = Vec::new();
    let mut bounded = from.take(MAX_REQUEST_BYTES as u64);
    match timeout(REQUEST_TIMEOUT, bounded.read_until(b'\n', &mut bytes)).await {
        Err(_) => return Err("no request arrived in time".to_owned()),
        Ok(Err(_)) => return Err("the request could not be read".to_owned()),
        Ok(Ok(_)) => {}
    }
    if bytes.pop() != Some(b'\n') {
        return Err(match bytes.len() + 1 >= MAX_REQUEST_BYTES {
            true => format!("a request has at most {MAX_REQUEST_BYTES} bytes"),
            false => "a request ends with a line break".to_owned(),
        });
    }
    serde_json::from_slice(&bytes).map_err(|_| "not a valid request for this release".to_owned())
}

fn handle_request(handle: &RunHandle, request: Request) -> Reply {
    match request {
        Request::Questions => Reply::Questions { questions: handle.questions() },
        Request::Decide { reason: Some(reason), .. } if reason.chars().count() > MAX_REASON_CHARS => {
            Reply::Refused { why: format!("a reason has at most {MAX_REASON_CHARS} characters") }
        }
        Request::Decide { approval, action, says, reason } => {
            match handle.vote(&approval, &action, super::to_vote(says), reason.as_deref()) {
                Ok(VoteOutcome::Decided) => Reply::Counted { more: 0 },
                Ok(VoteOutcome::Pending(more)) => Reply::Counted { more },
                Err(error) => Reply::Refused { why: error.to_string() },
            }
        }
        Request::Stop { how } => {
            handle.stop(how.into());
            Reply::Stopping
        }
        Request::Follow => unreachable!("handle_connection streams events itself"),
    }
}

/// Writes every event until the last, or until the client is gone.
async fn stream_events(mut from: BufReader<OwnedReadHalf>, mut to: OwnedWriteHalf, mut events: EventReader) {
    // A follower sends nothing more: any input, or the end of it, ends the connection.
    let mut gone = [0; 1];
    let mut gone = std::pin::pin!(from.read(&mut gone));
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            _ = &mut gone => return,
        };
        let mut bytes = to_json_line(&*event);
        if bytes.len() > MAX_REPLY_BYTES {
            let text = format!("an event of {} bytes was omitted", bytes.len());
            bytes = to_json_line(&TimedEvent { at_ms: event.at_ms, event: Event::Warning { text } });
        }
        let is_last = matches!(event.event, Event::Ended { .. });
        if write_line(&mut to, &bytes).await.is_err() || is_last {
            return;
        }
    }
}

/// Formats a value as a line. Everything that is sent has a JSON form; if it had not, the client would fail to parse
/// the empty line.
fn to_json_line(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(value).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// Writes a line, within the time that a client has to read it.
async fn write_line(to: &mut OwnedWriteHalf, bytes: &[u8]) -> io::Result<()> {
    match timeout(WRITE_TIMEOUT, to.write_all(bytes)).await {
        Ok(written) => written,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}
