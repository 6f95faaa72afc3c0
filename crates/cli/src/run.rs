//! `sympozium run`: assemble, admit, plan, realise, stream, record, revoke.
//!
//! [`assemble`] builds the AgentRun from files and flags, for every backend. For one machine, [`prepare`] plans it and
//! [`local`] starts it; for a cluster, [`cluster::run`](crate::cluster::run) creates its objects. [`follow`] prints its
//! events and forwards votes to it.

mod answer;
pub mod arguments;
pub mod assemble;
pub mod console;
mod display;
pub mod follow;
pub mod local;
pub mod prepare;
mod prompt;
mod screen;
pub mod signals;
#[cfg(test)]
mod tests;
mod writer;

use std::process::ExitCode;

use crate::backend;
use crate::failure::Failure;
use arguments::RunArguments;

/// Runs what the arguments mean. The exit code is that of the run end.
pub fn run(arguments: &RunArguments) -> Result<ExitCode, Failure> {
    backend::open(&arguments.cluster)?.run(arguments)
}
