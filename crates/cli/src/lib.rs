//! The `sympozium` command, as a library: the program is `main.rs`, which only calls [`main`].
//!
//! Start reading at [`main`]; each command is a module of its own.

mod arguments;
mod built_in;
mod completions;
mod crds;
mod doctor;
mod explain;
mod failure;
pub mod fuzzing;
mod kinds;
mod manifests;
mod output;
mod page;
mod planning;
mod render;
mod skill;
mod validate;
mod version;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};

/// The program.
pub fn main() -> ExitCode {
    // First of all: this process may be the helper stage of an executor.
    sympozium_exec::stage::enter_if_asked();
    let outcome = match Arguments::parse().command {
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Validate(arguments) => validate::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Render(arguments) => render::run(&arguments),
        Command::Skill(arguments) => skill::run(&arguments),
        Command::Crds(arguments) => crds::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Version(arguments) => version::run(&arguments),
    };
    outcome.unwrap_or_else(|failure| failure.report())
}
