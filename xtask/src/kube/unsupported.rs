//! A machine that cannot hold a cluster is not an error of ours: it has its own exit code, which tests count as a skip.

use std::process::ExitCode;

/// The exit code that says "this machine lacks something"; the automake convention for a skipped test.
pub const EXIT_UNSUPPORTED: u8 = 77;

/// What the machine lacks, and what to do about it.
#[derive(Debug)]
pub struct Unsupported {
    feature: String,
    hint: String,
}

impl Unsupported {
    pub fn new(feature: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { feature: feature.into(), hint: hint.into() }
    }
}

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Tests read the feature from the first line.
        write!(f, "this machine lacks {}\nhint: {}", self.feature, self.hint)
    }
}

impl std::error::Error for Unsupported {}

pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<Unsupported>().is_some() { ExitCode::from(EXIT_UNSUPPORTED) } else { ExitCode::FAILURE }
}
