//! `sympozium doctor`: how well commands can be isolated here, and what to fix.

mod diagnosis;
mod text;

#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use sympozium_exec::features::Features;

use crate::arguments::{DoctorArguments, OutputFormat};
use crate::failure::{FAILED, Failure};
use diagnosis::Diagnosis;

/// Looks at this machine and prints what it found to stdout.
pub fn run(arguments: &DoctorArguments) -> Result<ExitCode, Failure> {
    let diagnosis = Diagnosis::of(Features::get());
    print(&diagnosis, arguments.output)
        .context("cannot write the answer to stdout")
        .map_err(|error| Failure::new(error, "see that the output's disk is not full"))?;
    Ok(if diagnosis.is_healthy() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FAILED)
    })
}

fn print(diagnosis: &Diagnosis<'_>, format: OutputFormat) -> io::Result<()> {
    let answer = match format {
        OutputFormat::Text => text::render(diagnosis),
        OutputFormat::Json => serde_json::to_string_pretty(diagnosis)? + "\n",
    };
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(answer.as_bytes());
    match written.and_then(|()| stdout.flush()) {
        // `sympozium doctor | head` is not a failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
