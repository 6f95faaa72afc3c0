//! The protocols between the parts of a run. First of all the file protocol on a skill's `/ipc` volume: how a command is
//! asked for, claimed and answered.
//!
//! A requester writes `tools/exec-request-{id}.json`; one executor wins it by making the directory
//! `tools/.claim-{id}`, runs it, and renames `tools/exec-result-{id}.json` into place; the requester reads the
//! result and removes all three. The file `done` beside `tools` tells executors to leave.
//!
//! Both sides share the volume with programs that nobody vouches for, so everything on it is hostile input: a
//! name is one component beneath a directory descriptor, no link is followed, no mount crossed, nothing is opened
//! that could block, and every file has a size limit and is parsed once. This crate never runs a command and
//! never decides whether one may run.
//!
//! What parts of ours say to each other over sockets is here as well: [`door`] between agent and bridge, [`run_api`]
//! between bridge and gateway, with the [`receipt`]s that leave the run through it and the [`action`]s that people decide
//! about; [`credential`] is how a part says at the gateway who it is, and [`strict_head`] is how our servers of HTTP/1.1
//! read the head of a message; [`sse`] is how both sides of the door read what a model streams,
//! and [`unique_keys`] how they read the arguments of a call.
//!
//! An executor that can verify who wrote a request is given a key for it: [`auth`].
//!
//! Start reading at [`Inbox`] for the executor's side and at [`Requester`] for the other; [`message`] has what the
//! files say, [`names`] what they are called, [`Volume`] how they are read and written. Nothing here is
//! asynchronous: callers wait for the descriptors that the types give out.

#![warn(missing_docs)]

pub mod action;
pub mod auth;
mod beneath;
pub mod credential;
pub mod done;
pub mod door;
#[doc(hidden)]
pub mod fuzzing;
pub mod id;
pub mod inbox;
pub mod message;
pub mod names;
pub mod receipt;
pub mod requester;
pub mod run_api;
pub mod sse;
pub mod strict_head;
pub mod unique_keys;
pub mod volume;
pub mod watch;

pub use auth::{RequestKey, Signer, StartNonce, StartReport, Unauthentic, Verifier};
pub use done::{DoneCheck, DoneWatch};
pub use id::RequestId;
pub use inbox::{Abandoned, Arrival, Claimed, Inbox, InboxError, InboxSettings};
pub use message::{ExecRequest, ExecResult, RequestProblem, ResultMeta, ResultProblem};
pub use requester::Requester;
pub use volume::{FileKind, Volume, VolumeError};
pub use watch::{PollReason, WatchMode};
