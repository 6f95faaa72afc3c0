//! The errors of commands, printed as `error: …` and `hint: …`.

use std::borrow::Cow;
use std::io::{self, Write};
use std::process::ExitCode;

use sympozium_manifests::validate::Conclusion;
use sympozium_runs::HintedError;

/// Exit code of a command that failed.
pub const FAILED: u8 = 1;

/// Exit code of an invalid command line. Clap uses it by itself; this is for what clap cannot check.
pub const USAGE: u8 = 2;

/// Exit code of a command that worked and found a denial.
pub const DENIED: u8 = 3;

/// Exit code of `explain --diff` if a run has more power.
pub const POWER_ADDED: u8 = 4;

/// The exit code of a command that validated manifests.
pub fn exit_code(conclusion: Conclusion) -> ExitCode {
    match conclusion {
        Conclusion::Passed => ExitCode::SUCCESS,
        Conclusion::Denied => ExitCode::from(DENIED),
        Conclusion::Invalid => ExitCode::from(FAILED),
    }
}

/// An error, and what to try next.
#[derive(Debug)]
pub struct Failure {
    /// Findings to print before the error, as `validate` prints them.
    findings: String,
    error: anyhow::Error,
    hint: Cow<'static, str>,
    code: u8,
}

impl Failure {
    pub fn new(error: anyhow::Error, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { findings: String::new(), error, hint: hint.into(), code: FAILED }
    }

    /// An error in the command line itself: exit code [`USAGE`].
    pub fn usage(error: anyhow::Error, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { code: USAGE, ..Self::new(error, hint) }
    }

    /// A denial by a policy: exit code [`DENIED`].
    pub fn denied(error: anyhow::Error, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { code: DENIED, ..Self::new(error, hint) }
    }

    /// Adds findings, which are printed before the error.
    #[must_use]
    pub fn with_findings(self, findings: String) -> Self {
        Self { findings, ..self }
    }

    /// Prints the failure to stderr and returns the exit code.
    pub fn report(&self) -> ExitCode {
        // If stderr is closed, the failure cannot be reported.
        let _ = io::stderr().lock().write_all(self.text().as_bytes());
        ExitCode::from(self.code)
    }

    /// What is printed to stderr.
    pub fn text(&self) -> String {
        let Self { findings, error, hint, .. } = self;
        let separator = match findings.is_empty() || findings.ends_with('\n') {
            true => "",
            false => "\n",
        };
        format!("{findings}{separator}error: {error:#}\nhint: {hint}\n")
    }

    #[cfg(test)]
    pub const fn code(&self) -> u8 {
        self.code
    }
}

impl From<HintedError> for Failure {
    fn from(HintedError { error, hint }: HintedError) -> Self {
        Self::new(error, hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_printed_before_the_error() {
        let failure = |findings: &str| Failure::denied(anyhow::anyhow!("no"), "ask").with_findings(findings.to_owned());
        assert_eq!(failure("").text(), "error: no\nhint: ask\n");
        assert_eq!(failure("a\n").text(), "a\nerror: no\nhint: ask\n");
        assert_eq!(failure("a").text(), "a\nerror: no\nhint: ask\n");
        assert_eq!(failure("").code(), DENIED);
        assert_eq!(Failure::new(anyhow::anyhow!("no"), "").code(), FAILED);
        assert_eq!(Failure::usage(anyhow::anyhow!("no"), "").code(), USAGE);
    }
}
