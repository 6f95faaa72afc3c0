//! How the command says that it could not do what it was asked: `error: …`, then `hint: …`.

use std::borrow::Cow;
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
    /// What was found on the way, as it is printed: every line that `validate` would have about it.
    findings: String,
    error: anyhow::Error,
    hint: Cow<'static, str>,
    code: u8,
}

impl Failure {
    /// `error`, with the next thing to try.
    pub fn new(error: anyhow::Error, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { findings: String::new(), error, hint: hint.into(), code: FAILED }
    }

    /// The same about the command line itself.
    pub fn usage(error: anyhow::Error, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { code: USAGE, ..Self::new(error, hint) }
    }

    /// The same for what a policy denies.
    pub fn denied(error: anyhow::Error, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { code: DENIED, ..Self::new(error, hint) }
    }

    /// With what was found on the way, which is printed before it.
    #[must_use]
    pub fn with_findings(self, findings: String) -> Self {
        Self { findings, ..self }
    }

    /// The same with another thing to try.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { hint: hint.into(), ..self }
    }

    /// What failed, for another message to say.
    pub fn words(&self) -> String {
        format!("{:#} ({})", self.error, self.hint)
    }

    /// Writes it to stderr, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        // When stderr is gone there is nobody left to tell.
        let _ = io::stderr().lock().write_all(self.text().as_bytes());
        ExitCode::from(self.code)
    }

    /// What is written to stderr.
    pub fn text(&self) -> String {
        let Self { findings, error, hint, .. } = self;
        let apart = match findings.is_empty() || findings.ends_with('\n') {
            true => "",
            false => "\n",
        };
        format!("{findings}{apart}error: {error:#}\nhint: {hint}\n")
    }

    /// The exit code.
    #[cfg(test)]
    pub const fn code(&self) -> u8 {
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_come_before_the_error_each_on_lines_of_its_own() {
        let failure = |findings: &str| Failure::denied(anyhow::anyhow!("no"), "ask").with_findings(findings.to_owned());
        assert_eq!(failure("").text(), "error: no\nhint: ask\n");
        assert_eq!(failure("a\n").text(), "a\nerror: no\nhint: ask\n");
        assert_eq!(failure("a").text(), "a\nerror: no\nhint: ask\n");
        assert_eq!(failure("").code(), DENIED);
        assert_eq!(Failure::new(anyhow::anyhow!("no"), "").code(), FAILED);
        assert_eq!(Failure::usage(anyhow::anyhow!("no"), "").code(), USAGE);
    }
}
