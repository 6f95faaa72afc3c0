//! The control socket of a run: other processes of the same user vote on questions, follow the run and end it.
//!
//! A client writes one line of JSON, a [`Request`], and gets lines of JSON: one [`Reply`], or for [`Request::Follow`] a
//! [`TimedEvent`](sympozium_runs::TimedEvent) for each event from the first on, until the run ends. Only the run's own user and
//! root are served. A follower must keep its side open: closing it ends the connection. Everything is bounded: the
//! request in bytes and time, the connections in number; a reader that does not read is dropped.

mod client;
mod server;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sympozium_api::names::Digest;
use sympozium_gateway::run_api::local::Vote;
use tokio::net::UnixListener;

use crate::sockets;
use crate::state::RunDirectory;
use sympozium_runs::{Question, StopLevel, VoteChoice};

pub use client::{Client, EventStream};
pub use server::serve;

/// Bytes of a request, including its line break. The only long text in it is the reason for a denial.
pub const MAX_REQUEST_BYTES: usize = 16 << 10;
/// Characters of the reason for a vote, which the model reads.
pub const MAX_REASON_CHARS: usize = 1000;
/// Bytes of a line of a reply. An event holds at most one answer of a model, which is far below this.
pub const MAX_REPLY_BYTES: usize = 8 << 20;
/// Concurrent connections. Further ones are refused.
pub const MAX_CONNECTIONS: usize = 32;
/// Time for a client to send its request.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a client to make room for one line.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for followers to read the last events after the run has ended.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

const SOCKET_NAME: &str = "control.sock";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "request", deny_unknown_fields)]
pub enum Request {
    /// List the pending questions.
    Questions,
    /// Vote on one exact action.
    Decide {
        /// The question's name in the run.
        approval: String,
        /// The hash of the action that the approver was shown.
        action: Digest,
        says: VoteChoice,
        /// For the model to read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// Stream every event from the first on, one per line.
    Follow,
    /// End the run.
    Stop { how: StopMode },
}

/// How to end a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StopMode {
    /// The agent is asked to end, and gets its grace period.
    Gently,
    /// Everything is killed.
    Now,
}

/// The reply to every request but [`Request::Follow`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "reply")]
pub enum Reply {
    /// The pending questions.
    Questions { questions: Vec<Question> },
    /// The vote was counted.
    Counted {
        /// How many more approvals are needed. Zero: the question is decided.
        more: u32,
    },
    /// The run was asked to end.
    Stopping,
    /// The request was refused.
    Refused { why: String },
}

/// The vote as the run API counts it.
pub const fn to_vote(choice: VoteChoice) -> Vote {
    match choice {
        VoteChoice::Yes => Vote::Approve,
        VoteChoice::YesForTheRun => Vote::ApproveForRun,
        VoteChoice::No => Vote::Deny,
    }
}

impl From<StopMode> for StopLevel {
    fn from(how: StopMode) -> Self {
        match how {
            StopMode::Gently => Self::Gently,
            StopMode::Now => Self::Now,
        }
    }
}

/// Opens the control socket of a run that is starting. The caller holds the run's lock.
pub fn listen(directory: &RunDirectory) -> anyhow::Result<UnixListener> {
    sockets::listen(directory.path(), SOCKET_NAME)
}

/// The path of the socket. Valid while the descriptor is open.
fn socket_path(directory: &RunDirectory) -> rustix::io::Result<(OwnedFd, PathBuf)> {
    sockets::socket_path(directory.path(), SOCKET_NAME)
}
