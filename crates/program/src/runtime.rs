//! The asynchronous runtime of a program.

use std::time::Duration;

use anyhow::Context as _;

use crate::failure::Failure;

/// Runs a program on a runtime with one thread per processor. Tasks that remain get `shutdown_timeout` to finish.
///
/// # Errors
///
/// When the runtime cannot be started, and those of the program.
pub fn run_multi_threaded(
    shutdown_timeout: Duration,
    program: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime cannot be started")?;
    let outcome = runtime.block_on(program);
    runtime.shutdown_timeout(shutdown_timeout);
    outcome
}
