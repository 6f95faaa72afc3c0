//! `sympozium completions`: shell completion scripts.

use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::arguments::{Arguments, CompletionsArguments};
use crate::failure::Failure;
use crate::output::print_stdout;

pub fn run(arguments: &CompletionsArguments) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    let mut command = Arguments::command();
    clap_complete::generate(arguments.shell, &mut command, "sympozium", &mut script);
    print_stdout(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
