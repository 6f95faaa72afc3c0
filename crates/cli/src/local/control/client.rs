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

use super::super::event::{Event, Question, Timed};
use super::super::state::RunDirectory;
use super::{How, MAX_ANSWER, Reply, Request, Word, address};

/// Time for the run to accept the connection, and for each reply.
const DEADLINE: Duration = Duration::from_secs(10);

/// A connection to a running run.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

/// The effect of a vote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decided {
    /// The question is decided.
    Answered,
    /// This many more approvals are needed.
    More(u32),
    /// The vote is stored; how many are needed is not known here.
    Noted,
    /// The vote was not counted, and why.
    Refused(String),
}

/// The events of a run, as they happen.
#[derive(Debug)]
pub struct Following {
    stream: BufReader<UnixStream>,
    is_over: bool,
}

impl Client {
    /// Connects to the run with this directory. `None` if no process listens: the run has ended, or has not opened its
    /// socket yet.
    pub fn connect(directory: &RunDirectory) -> anyhow::Result<Option<Self>> {
        let reach = || -> rustix::io::Result<UnixStream> {
            let (_opened, path) = address(directory)?;
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            // Before connecting: when the backlog is full, connect blocks too.
            set_socket_timeout(&socket, Timeout::Send, Some(DEADLINE))?;
            set_socket_timeout(&socket, Timeout::Recv, Some(DEADLINE))?;
            connect(&socket, &SocketAddrUnix::new(path)?)?;
            Ok(socket.into())
        };
        match reach() {
            Ok(stream) => Ok(Some(Self { stream: BufReader::new(stream) })),
            Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot connect to {}", directory.control().display())),
        }
    }

    pub fn questions(self) -> anyhow::Result<Vec<Question>> {
        match self.ask(&Request::Questions)? {
            Reply::Questions { questions } => Ok(questions),
            other => Err(unexpected(other)),
        }
    }

    /// Votes on one exact action. After an error it is unknown whether the vote counts.
    pub fn decide(self, approval: &str, action: &Digest, says: Word, reason: Option<&str>) -> anyhow::Result<Decided> {
        let request = Request::Decide {
            approval: approval.to_owned(),
            action: action.clone(),
            says,
            reason: reason.map(str::to_owned),
        };
        match self.ask(&request)? {
            Reply::Counted { more: 0 } => Ok(Decided::Answered),
            Reply::Counted { more } => Ok(Decided::More(more)),
            Reply::Refused { why } => Ok(Decided::Refused(why)),
            other => Err(unexpected(other)),
        }
    }

    /// Asks the run to end. Returns before it has ended.
    pub fn stop(self, how: How) -> anyhow::Result<()> {
        match self.ask(&Request::Stop { how })? {
            Reply::Stopping => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Streams every event from the first on.
    pub fn follow(mut self) -> anyhow::Result<Following> {
        self.send(&Request::Follow)?;
        // There may be no event for a long time. If the run dies, the kernel closes the connection.
        let stream = self.stream.get_ref();
        (stream.set_read_timeout(None)).context("cannot wait for the run")?;
        Ok(Following { stream: self.stream, is_over: false })
    }

    fn ask(mut self, request: &Request) -> anyhow::Result<Reply> {
        self.send(request)?;
        read(&mut self.stream)
            .context("the run does not answer")?
            .ok_or_else(|| anyhow!("the run ended before it answered"))
    }

    fn send(&mut self, request: &Request) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(request).context("the request has no JSON")?;
        line.push(b'\n');
        let written = self.stream.get_mut().write_all(&line);
        match written {
            // The run has refused the connection and closed it; the reason can still be read.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other.context("the run does not listen"),
        }
    }
}

impl Iterator for Following {
    type Item = anyhow::Result<Timed>;

    /// Waits for the next event. `None` after the last one; an error if the run closed the connection without it.
    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let event = match read_or_refused(&mut self.stream) {
            Ok(Some(event)) => Ok(event),
            Ok(None) => Err(anyhow!("whoever ran it is gone without a word")),
            Err(error) => Err(error),
        };
        let is_last = |event: &Timed| matches!(event.event, Event::Ended { .. });
        self.is_over = event.as_ref().map_or(true, is_last);
        Some(event)
    }
}

/// Reads an event, or the refusal that was sent instead.
fn read_or_refused(stream: &mut BufReader<UnixStream>) -> anyhow::Result<Option<Timed>> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Line {
        Event(Box<Timed>),
        Reply(Reply),
    }
    match read(stream).context("the run cannot be followed any more")? {
        Some(Line::Event(event)) => Ok(Some(*event)),
        Some(Line::Reply(reply)) => Err(unexpected(reply)),
        None => Ok(None),
    }
}

/// Reads a line; `None` at the end of the stream.
fn read<T: for<'d> Deserialize<'d>>(stream: &mut BufReader<UnixStream>) -> anyhow::Result<Option<T>> {
    let mut line = Vec::new();
    let mut bounded = stream.take(MAX_ANSWER as u64 + 1);
    bounded.read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.len() > MAX_ANSWER {
        bail!("a line of it has more than {MAX_ANSWER} bytes");
    }
    let value = serde_json::from_slice(&line);
    Ok(Some(value.context("what it says is not understood")?))
}

fn unexpected(reply: Reply) -> anyhow::Error {
    match reply {
        Reply::Refused { why } => anyhow!("the run refuses: {}", crate::manifests::problem::printable(&why)),
        _ => anyhow!("the run answers something else than it was asked"),
    }
}
