//! The project's own tooling, run as `cargo xtask <command>`.
//!
//! One module per command; `process` starts programs and `output` prints, for all of them.

mod bench;
mod check;
mod crds;
mod docs;
mod fuzz;
mod generated;
mod images;
mod install;
mod kube;
mod launch;
mod output;
mod process;
mod setup;
mod test;

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own tooling")]
enum Command {
    /// Install the Debian packages that building and testing need and this machine lacks.
    Setup,
    /// Run every check and test, in the order of the house style.
    Test(test::Arguments),
    /// After a small change: format, clippy of what changed, unit tests of that and of what is built on it.
    Quick,
    /// Check what the compiler does not: dependency edges, generated files, file sizes, links, forbidden words.
    Check,
    /// Write the parts of the documentation that are made from code.
    Docs,
    /// Write the definitions of our kinds to config/crds.
    Crds,
    /// Write the manifests of an installation to config/install.
    Install,
    /// Write everything that is made from code: `crds`, `install` and `docs`.
    Generate,
    /// Run the benches and compare each number with its target.
    Bench(bench::Arguments),
    /// Fuzz every target for a while (needs a nightly toolchain).
    Fuzz(fuzz::Arguments),
    /// Make the project's container images, as archives, without a container engine.
    Images(images::Arguments),
    /// A real Kubernetes for our tests, built from released modules.
    #[command(subcommand)]
    Kube(kube::Command),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Setup => setup::run(),
        Command::Test(arguments) => test::run(&arguments),
        Command::Quick => test::quick(),
        Command::Check => check::run(),
        Command::Docs => docs::run(),
        Command::Crds => crds::run(),
        Command::Install => install::run(),
        Command::Generate => crds::run().and_then(|()| install::run()).and_then(|()| docs::run()),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::Images(arguments) => images::run(&arguments),
        Command::Kube(command) => return kube::main(command),
    };
    output::exit_code(result)
}
