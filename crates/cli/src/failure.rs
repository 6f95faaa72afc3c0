//! How the command says that it could not do what it was asked: `error: …`, then `hint: …`.

use std::io::{self, Write};
use std::process::ExitCode;

/// Exit code of a command that failed.
pub const FAILED: u8 = 1;

/// Exit code of a command line that was not understood. Clap gives it by itself; this is for what clap cannot see.
pub const USAGE: u8 = 2;

/// Exit code of a command that did its work and whose answer is no.
pub const DENIED: u8 = 3;

/// Exit code of a comparison that found more power than before.
pub const ADDED: u8 = 4;

/// An error, and the next thing to try.
#[derive(Debug)]
pub struct Failure {
    error: anyhow::Error,
    hint: &'static str,
    code: u8,
}

impl Failure {
    /// `error`, with the next thing to try.
    pub fn new(error: anyhow::Error, hint: &'static str) -> Self {
        Self {
            error,
            hint,
            code: FAILED,
        }
    }

    /// The same about the command line itself.
    pub fn usage(error: anyhow::Error, hint: &'static str) -> Self {
        Self {
            error,
            hint,
            code: USAGE,
        }
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
        ExitCode::from(self.code)
    }
}
