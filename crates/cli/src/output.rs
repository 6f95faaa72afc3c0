//! Where answers go: data to stdout.

use std::io::{self, Write};

use anyhow::Context as _;
use serde::Serialize;

use crate::failure::Failure;

/// Writes an answer to stdout. A reader that has seen enough (`sympozium crds | head`) is not a failure.
pub fn answer(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    match written.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
    .context("cannot write the answer to stdout")
    .map_err(|error| Failure::new(error, "see that the output's disk is not full"))
}

/// A value as JSON for programs and people: indented, with a line break at its end.
pub fn json(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value)
        .context("cannot write the answer as JSON")
        .map_err(|error| Failure::new(error, "use `-o text`, and report this"))?;
    Ok(text + "\n")
}

/// Writes what is not data to stderr. When that is gone there is nobody left to tell.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
