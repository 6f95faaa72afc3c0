//! The `sympozium` command.

mod arguments;
mod doctor;
mod failure;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};

fn main() -> ExitCode {
    // First of all: this process may be the helper stage of an executor.
    sympozium_exec::stage::enter_if_asked();
    let outcome = match Arguments::parse().command {
        Command::Doctor(arguments) => doctor::run(&arguments),
    };
    outcome.unwrap_or_else(|failure| failure.report())
}
