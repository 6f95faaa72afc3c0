//! The `sympozium` command as a library; `main.rs` only calls [`main`]. Each command is a module of its own.

mod approvals;
mod arguments;
mod backend;
mod cancel;
mod cluster;
mod completions;
mod crds;
mod demo;
mod doctor;
mod explain;
mod failure;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod output;
mod page;
mod planning;
pub mod reference;
mod render;
mod run;
mod runs;
mod secret;
mod skill;
mod validate;
mod version;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};

pub fn main() -> ExitCode {
    // First: this process may be the sandbox stage of an executor.
    sympozium_exec::stage::enter_if_asked();
    // Or a part of a run on this machine.
    if let Some(code) = sympozium_local::parts::enter_if_asked() {
        return code;
    }
    let outcome = match Arguments::parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Runs(arguments) => runs::list(&arguments),
        Command::Show(arguments) => runs::show(&arguments),
        Command::Logs(arguments) => runs::logs(&arguments),
        Command::Audit(arguments) => runs::audit(&arguments),
        Command::Rm(arguments) => runs::rm(&arguments),
        Command::Cancel(arguments) => cancel::run(&arguments),
        Command::Prune(arguments) => runs::prune(&arguments),
        Command::Approvals(arguments) => approvals::list(&arguments),
        Command::Approve(arguments) => approvals::approve(&arguments),
        Command::Deny(arguments) => approvals::deny(&arguments),
        Command::Secret(arguments) => secret::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
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
