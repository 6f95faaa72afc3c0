//! What our long-running programs share: how they fail, and how they log.
//!
//! A crate of its own, because programs do not depend on each other, and the crates below all of them (`api`, `ipc`)
//! must not depend on a command-line parser. It must never contain what only one program needs.

mod failure;
mod log;

pub use failure::{Failure, error_chain};
pub use log::{LogArguments, LogFormat, LogLevel, start_logging};
