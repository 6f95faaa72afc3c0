//! The client: one connection per request.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::Deserialize;
use sympozium_api::names::Digest;
use sympozium_api::text::printable;

use super::{MAX_REPLY_BYTES, Reply, Request, StopMode, socket_path};
use crate::state::RunDirectory;
use sympozium_runs::{Event, Question, TimedEvent, VoteChoice, VoteResult};

/// Time for the run to accept the connection, and for each reply.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a running run.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

/// The events of a run, as they happen.
#[derive(Debug)]
pub struct EventStream {
    stream: BufReader<UnixStream>,
    has_ended: bool,
}

impl Client {
    /// Connects to the run with this directory. `None` if no process listens: the run has ended, or has not opened its
    /// socket yet.
    pub fn connect(directory: &RunDirectory) -> anyhow::Result<Option<Self>> {
        let reach = || -> rustix::io::Result<UnixStream> {
            let (_opened, path) = socket_path(directory)?;
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            // Before connecting: when the backlog is full, connect blocks too.
            set_socket_timeout(&socket, Timeout::Send, Some(TIMEOUT))?;
            set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
            connect(&socket, &SocketAddrUnix::new(path)?)?;
            Ok(socket.into())
        };
        match reach() {
            Ok(stream) => Ok(Some(Self { stream: BufReader::new(stream) })),
            Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(None),
            Err(error) => {
                Err(error).with_context(|| format!("cannot connect to {}", directory.control_socket().display()))
            }
        }
    }

    pub fn questions(self) -> anyhow::Result<Vec<Question>> {
        match self.request(&Request::Questions)? {
            Reply::Questions { questions } => Ok(questions),
            other => Err(unexpected_reply(other)),
        }
    }

    /// Votes on one exact action. After an error it is unknown whether the vote counts.
    pub fn vote(
        self,
        approval: &str,
        action: &Digest,
        says: VoteChoice,
        reason: Option<&str>,
    ) -> anyhow::Result<VoteResult> {
        let request = Request::Decide {
            approval: approval.to_owned(),
            action: action.clone(),
            says,
            reason: reason.map(str::to_owned),
        };
        match self.request(&request)? {
            Reply::Counted { more: 0 } => Ok(VoteResult::Decided),
            Reply::Counted { more } => Ok(VoteResult::MoreNeeded(more)),
            Reply::Refused { why } => Ok(VoteResult::Refused(why)),
            other => Err(unexpected_reply(other)),
        }
    }

    /// Asks the run to end. Returns before it has ended.
    pub fn stop(self, how: StopMode) -> anyhow::Result<()> {
        match self.request(&Request::Stop { how })? {
            Reply::Stopping => Ok(()),
            other => Err(unexpected_reply(other)),
        }
    }

    /// Streams every event from the first on.
    pub fn follow(mut self) -> anyhow::Result<EventStream> {
        self.send(&Request::Follow)?;
        // There may be no event for a long time. If the run dies, the kernel closes the connection.
        let stream = self.stream.get_ref();
        (stream.set_read_timeout(None)).context("cannot wait for the run")?;
        Ok(EventStream { stream: self.stream, has_ended: false })
    }

    fn request(mut self, request: &Request) -> anyhow::Result<Reply> {
        self.send(request)?;
        read_line(&mut self.stream)
            .context("the run does not respond")?
            .ok_or_else(|| anyhow!("the run ended before it responded"))
    }

    fn send(&mut self, request: &Request) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(request).context("cannot serialize the request as JSON")?;
        line.push(b'\n');
        let written = self.stream.get_mut().write_all(&line);
        match written {
            // The run has refused the connection and closed it; the reason can still be read.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other.context("cannot send the request to the run"),
        }
    }
}

impl Iterator for EventStream {
    type Item = anyhow::Result<TimedEvent>;

    /// Waits for the next event. `None` after the last one; an error if the run closed the connection without it.
    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let event = match read_event(&mut self.stream) {
            Ok(Some(event)) => Ok(event),
            Ok(None) => Err(anyhow!("the process of the run was killed")),
            Err(error) => Err(error),
        };
        let is_last = |event: &TimedEvent| matches!(event.event, Event::Ended { .. });
        self.has_ended = event.as_ref().map_or(true, is_last);
        Some(event)
    }
}

/// Reads an event, or the refusal that was sent instead.
fn read_event(stream: &mut BufReader<UnixStream>) -> anyhow::Result<Option<TimedEvent>> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Line {
        Event(Box<TimedEvent>),
        Reply(Reply),
    }
    match read_line(stream).context("following the run failed")? {
        Some(Line::Event(event)) => Ok(Some(*event)),
        Some(Line::Reply(reply)) => Err(unexpected_reply(reply)),
        None => Ok(None),
    }
}

/// Reads a line; `None` at the end of the stream.
fn read_line<T: for<'d> Deserialize<'d>>(stream: &mut BufReader<UnixStream>) -> anyhow::Result<Option<T>> {
    let mut line = Vec::new();
    let mut bounded = stream.take(MAX_REPLY_BYTES as u64 + 1);
    bounded.read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.len() > MAX_REPLY_BYTES {
        bail!("a line of the run's reply has more than {MAX_REPLY_BYTES} bytes");
    }
    let value = serde_json::from_slice(&line);
    Ok(Some(value.context("the reply of the run is invalid")?))
}

fn unexpected_reply(reply: Reply) -> anyhow::Error {
    match reply {
        Reply::Refused { why } => anyhow!("the run refused the request: {}", printable(&why)),
        _ => anyhow!("the reply of the run does not match the request"),
    }
}
