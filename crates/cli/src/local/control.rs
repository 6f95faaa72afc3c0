//! The socket of a run: questions are answered, and the run followed and ended, from another process of the same user.
//!
//! Whoever connects writes one line of JSON, a [`Request`], and gets lines of JSON: one [`Reply`], or, for who follows, a
//! [`Timed`](super::event::Timed) for each event from the first on, until the run is over. Only the run's own user and root
//! are heard. Who follows keeps its own side open: closing it ends the connection. Everything is bounded: the request in bytes and time, the connections in number, and readers who do not read
//! are left behind.

mod client;
mod server;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sympozium_api::names::Digest;
use sympozium_gateway::run_api::local::Says;
use tokio::net::UnixListener;

use super::event::Question;
use super::realise::Stop;
use super::sockets;
use super::state::RunDirectory;

pub use client::{Client, Decided, Following};
pub use server::serve;

/// Bytes of a request, its line break among them. Its one long text is the reason for a no.
pub const MAX_REQUEST: usize = 16 << 10;
/// Characters of the reason for a decision: what a model is told has a bound.
pub const MAX_REASON: usize = 1000;
/// Bytes of a line of an answer. An event holds at most one answer of a model, which is far below this.
pub const MAX_ANSWER: usize = 8 << 20;
/// Connections at once. Further ones are told so and closed.
pub const MAX_CONNECTIONS: usize = 32;
/// How long a request may take to come.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(5);
/// How long a reader may take to make room for one line.
pub const WRITE_DEADLINE: Duration = Duration::from_secs(10);
/// How long those who follow have to read the last events once the run is over.
pub const LAST_WORDS: Duration = Duration::from_secs(2);

/// The socket's name in the directory of its run.
const NAME: &str = "control.sock";

/// What can be asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "request", deny_unknown_fields)]
pub enum Request {
    /// Which questions wait for a person.
    Questions,
    /// A person's word about one exact action.
    Decide {
        /// The question's name in the run.
        approval: String,
        /// The hash of what the person was shown.
        action: Digest,
        /// What they say.
        says: Word,
        /// Why, for the model to read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// Every event from the first on, as a line each.
    Follow,
    /// That the run ends.
    Stop {
        /// How.
        how: How,
    },
}

/// What a person says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Word {
    /// Yes, this once.
    Yes,
    /// Yes, to the identical action as often as the run repeats it.
    YesForTheRun,
    /// No.
    No,
}

/// How a run is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum How {
    /// The agent is told, and has its time to end.
    Gently,
    /// Everything is killed.
    Now,
}

/// What is said to a request, but for who follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "reply")]
pub enum Reply {
    /// The questions that wait.
    Questions {
        /// Each with what is shown.
        questions: Vec<Question>,
    },
    /// A person's word counts.
    Counted {
        /// How many more must say yes. Zero: the question is answered.
        more: u32,
    },
    /// The run was told to end.
    Stopping,
    /// It was not done.
    Refused {
        /// Why.
        why: String,
    },
}

impl From<Word> for Says {
    fn from(word: Word) -> Self {
        match word {
            Word::Yes => Self::Yes,
            Word::YesForTheRun => Self::YesForTheRun,
            Word::No => Self::No,
        }
    }
}

impl From<How> for Stop {
    fn from(how: How) -> Self {
        match how {
            How::Gently => Self::Gently,
            How::Now => Self::Now,
        }
    }
}

/// The socket of a run that begins. The caller holds the run's lock.
///
/// # Errors
///
/// When it cannot be made.
pub fn listen(directory: &RunDirectory) -> anyhow::Result<UnixListener> {
    sockets::listen(directory.path(), NAME)
}

/// Where it is. Good for as long as the descriptor is open.
fn address(directory: &RunDirectory) -> rustix::io::Result<(OwnedFd, PathBuf)> {
    sockets::address(directory.path(), NAME)
}
