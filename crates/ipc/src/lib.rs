//! The protocols between the parts of a run; first of all the file protocol on a skill's `/ipc` volume, over which
//! commands are requested, claimed and answered.
//!
//! A requester writes `tools/exec-request-{id}.json`; one executor claims it by creating the directory
//! `tools/.claim-{id}`, runs it, and renames `tools/exec-result-{id}.json` into place; the requester reads the result
//! and removes all three. The file `done` beside `tools` tells executors to exit.
//!
//! Both sides share the volume with untrusted programs, so everything on it is hostile input: a name is one component
//! beneath a directory descriptor, no link is followed, no mount crossed, nothing is opened that could block, and every
//! file has a size limit and is parsed once. This crate never runs a command and never decides whether one may run.
//!
//! The protocols over sockets are here as well: [`door`] between agent and bridge, [`run_api`] between bridge and
//! gateway, with the [`receipt`]s that leave the run through it and the [`action`]s that approvers decide about;
//! [`credential`] identifies a part at the gateway; our HTTP/1.1 servers read the heads of messages with
//! [`strict_head`]; both sides of the door read the model's stream with [`sse`] and the arguments of a call with
//! [`unique_keys`].
//!
//! An executor that can verify the author of a request is given a key for it: [`auth`].
//!
//! Start reading at [`Inbox`] for the executor's side and at [`Requester`] for the other; [`message`] has the content
//! of the files, [`names`] their names, [`Volume`] reads and writes them. Nothing here is asynchronous: callers wait
//! for the descriptors that the types return.

#![warn(missing_docs)]

pub mod action;
pub mod auth;
mod beneath;
pub mod credential;
pub mod done;
pub mod door;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod hex;
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

pub use auth::{RequestKey, Signer, StartNonce, StartReport, Verifier, VerifyError};
pub use done::{DoneCheck, DoneWatch};
pub use id::RequestId;
pub use inbox::{AbandonedClaim, Arrival, Claim, Inbox, InboxError, InboxSettings};
pub use message::{ExecRequest, ExecResult, RequestError, ResultError, ResultMeta};
pub use requester::Requester;
pub use volume::{FileKind, Volume, VolumeError};
pub use watch::{PollReason, WatchMode};
