//! A real Kubernetes for our tests: built from released modules, started in namespaces of its own, gone with one kill.
//!
//! Start reading at [`up`], which starts a cluster, and [`init`], the first process inside it. `docs/test-cluster.md`
//! says how to use it. Nothing here is part of the product.

mod build;
mod command;
mod lock;
mod packages;
mod parts;
mod paths;
mod unsupported;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

use parts::Tier;
use paths::Root;

#[derive(Subcommand)]
pub enum Command {
    /// Build the parts that a tier needs, once, into the cache
    Build {
        /// control-plane, or node with +gvisor and +agent-sandbox added
        #[arg(long, default_value = "node+gvisor+agent-sandbox")]
        tier: Tier,
        /// Also build Helm
        #[arg(long)]
        helm: bool,
    },
}

pub fn run(command: Command) -> Result<ExitCode> {
    let root = Root::find()?;
    match command {
        Command::Build { tier, helm } => {
            let mut parts = tier.parts();
            parts.extend(helm.then_some(&parts::HELM));
            for built in build::build(&root, &parts)? {
                let took = built.took.map_or_else(
                    || "cached".to_owned(),
                    |took| format!("{:.0} s", took.as_secs_f64()),
                );
                eprintln!("{:<18}{:<44}{took}", built.part.name, built.version);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a command and says what became of it. The hint of an error, where there is one, is its last line.
pub fn main(command: Command) -> ExitCode {
    run(command).unwrap_or_else(|error| {
        crate::output::note(&format!("error: {error:#}"));
        unsupported::exit_code(&error)
    })
}
