//! The error output of a program: `error: …`, then `hint: …`.

use std::error::Error;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// Exit code of a program that failed. For usage errors clap exits with 2.
const EXIT_FAILURE: u8 = 1;

/// An error, and a hint what to try next if we know one.
#[derive(Debug)]
pub struct Failure {
    error: anyhow::Error,
    hint: Option<String>,
}

impl Failure {
    pub fn new(error: impl Into<anyhow::Error>, hint: impl Into<String>) -> Self {
        Self::from(error.into()).or_hint(Some(hint.into()))
    }

    /// Adds a hint, unless there is one already.
    #[must_use]
    pub fn or_hint(self, hint: Option<String>) -> Self {
        Self { hint: self.hint.or(hint), ..self }
    }

    /// Prints the error to stderr, and returns the exit code.
    pub fn print(&self) -> ExitCode {
        let hint = (self.hint.iter()).map(|hint| format!("\nhint: {hint}"));
        let text = format!("error: {:#}{}", self.error, hint.collect::<String>());
        // If stderr is closed, there is no other output.
        let _ = writeln!(io::stderr().lock(), "{text}");
        ExitCode::from(EXIT_FAILURE)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self { error, hint: None }
    }
}

/// An error and its causes, in one line. A cause that the text ends with already is not repeated.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let message = cause.to_string();
        if !text.ends_with(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn causes_are_listed_once() {
        let error = anyhow!("refused").context("connecting: refused").context("sending");
        assert_eq!(error_chain(&*error), "sending: connecting: refused");
    }
}
