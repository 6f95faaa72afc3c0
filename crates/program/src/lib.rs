//! What our programs that run for long have in common: how they fail, and how they log.
//!
//! A crate of its own, because programs do not depend on each other, and what is below all of them (`api`, `ipc`) knows
//! nothing of command lines. It must never hold what only one of them needs.

#![warn(missing_docs)]

mod failure;
mod log;

pub use failure::{Failure, chain};
pub use log::{LogArguments, LogFormat, LogLevel, start_logging};
