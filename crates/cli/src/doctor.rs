//! `sympozium doctor`: the isolation that this machine supports, and what to fix.

mod diagnosis;
mod text;

#[cfg(test)]
mod tests;

use std::process::ExitCode;

use sympozium_exec::features::Features;

use crate::arguments::{DoctorArguments, OutputFormat};
use crate::failure::{FAILED, Failure};
use crate::output::{print_stdout, to_json};
use diagnosis::Diagnosis;

/// Probes this machine and prints the diagnosis to stdout.
pub fn run(arguments: &DoctorArguments) -> Result<ExitCode, Failure> {
    let diagnosis = Diagnosis::from_features(Features::get());
    let text = match arguments.output {
        OutputFormat::Text => text::render(&diagnosis),
        OutputFormat::Json => to_json(&diagnosis)?,
    };
    print_stdout(&text)?;
    Ok(if diagnosis.is_healthy() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}
