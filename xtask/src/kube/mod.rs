//! A real Kubernetes for our tests: built from released modules, started in namespaces of its own, gone with one kill.
//!
//! Start reading at [`up`], which starts a cluster by way of its [`keeper`], and [`init`], the first process inside.
//! `docs/test-cluster.md` says how to use it. Nothing here is part of the product.

mod build;
mod cache;
mod cgroups;
mod cli;
mod command;
mod components;
mod config;
mod dns;
mod end;
mod events;
mod files;
mod image;
mod init;
mod inspect;
mod keeper;
mod leaks;
mod lock;
mod namespaces;
mod network;
mod packages;
mod parts;
mod paths;
mod pki;
mod preflight;
mod prepare;
mod state;
mod times;
mod unsupported;
mod up;

use std::path::PathBuf;
use std::process::ExitCode;

pub use cli::Command;
pub use prepare::{Prepared, TEST_TIER, end_runs, prepare};
pub use times::{VARIABLE as TIMES_VARIABLE, table as times_table};

/// The `kubectl` of test clusters, built if it is missing.
pub fn kubectl() -> anyhow::Result<PathBuf> {
    let built = build::build(&paths::Root::find()?, &[&parts::KUBERNETES])?;
    let folder = built.into_iter().next().map(|part| part.folder);
    folder.map(|folder| folder.join("kubectl")).ok_or_else(|| anyhow::anyhow!("nothing was built"))
}

/// Runs a command and prints its result. The hint of an error, where there is one, is its last line.
pub fn main(command: Command) -> ExitCode {
    cli::run(command).unwrap_or_else(|error| {
        crate::output::note(&format!("error: {error:#}"));
        unsupported::exit_code(&error)
    })
}
