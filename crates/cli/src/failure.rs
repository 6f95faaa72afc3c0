//! How the command says that it could not do what it was asked: `error: …`, then `hint: …`.

use std::io::{self, Write};
use std::process::ExitCode;

/// Exit code of a command that failed. Usage errors are 2; clap gives that by itself.
pub const FAILED: u8 = 1;

/// Exit code of a command that did its work and whose answer is no.
pub const DENIED: u8 = 3;

/// Exit code of a comparison that found more power than before.
pub const ADDED: u8 = 4;

/// An error, and the next thing to try.
#[derive(Debug)]
pub struct Failure {
    error: anyhow::Error,
    hint: &'static str,
}

impl Failure {
    /// `error`, with the next thing to try.
    pub fn new(error: anyhow::Error, hint: &'static str) -> Self {
        Self { error, hint }
    }

    /// Writes it to stderr, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        // When stderr is gone there is nobody left to tell.
        let _ = writeln!(
            io::stderr().lock(),
            "error: {:#}\nhint: {}",
            self.error,
            self.hint
        );
        ExitCode::from(FAILED)
    }
}
