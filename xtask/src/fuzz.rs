//! `fuzz`: coverage-guided fuzzing of every target in `fuzz/`, for a bounded time each.

use std::time::Duration;

use anyhow::bail;

use crate::launch::Role;
use crate::output::{hinted, line, note};
use crate::process::{
    Ended, Output, command, has_program, output, run as run_program, workspace_root,
};

#[derive(clap::Args)]
pub struct Arguments {
    /// How long to fuzz each target.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only this target.
    #[arg(long)]
    target: Option<String>,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if !workspace_root().join("fuzz/Cargo.toml").exists() {
        line("nothing to fuzz: there is no fuzz/Cargo.toml");
        return Ok(());
    }
    if !has_program("rustup")
        || output(command("rustup").args(["run", "nightly", "cargo", "--version"])).is_err()
    {
        return Err(hinted(
            "fuzzing needs a nightly toolchain, and there is none",
            "rustup toolchain install nightly; the same corpora run on stable in `make test`",
        ));
    }
    if !has_program("cargo-fuzz") {
        note("installing cargo-fuzz, which takes a few minutes");
        output(command("cargo").args(["install", "--locked", "--quiet", "cargo-fuzz"]))?;
    }
    let targets = match &arguments.target {
        Some(target) => vec![target.clone()],
        None => output(&mut cargo_fuzz(&["list"]))?
            .lines()
            .map(str::to_owned)
            .collect(),
    };
    let mut failed = Vec::new();
    for target in &targets {
        note(&format!("fuzzing {target} for {} s", arguments.seconds));
        let time = format!("-max_total_time={}", arguments.seconds);
        let fuzz = cargo_fuzz(&[
            "run",
            target,
            "--",
            &time,
            "-rss_limit_mb=2048",
            "-timeout=10",
        ]);
        // The first build compiles the standard library's checks too.
        let limit = Duration::from_secs(arguments.seconds) + Duration::from_secs(1200);
        if run_program(&fuzz, Role::Tool, limit, Output::Shown)?.ended != Ended::Well {
            failed.push(target.as_str());
        }
    }
    if !failed.is_empty() {
        bail!(
            "fuzzing found something in: {}; the inputs are in fuzz/artifacts",
            failed.join(", ")
        );
    }
    line(&format!("{} targets fuzzed, nothing found", targets.len()));
    Ok(())
}

/// By way of rustup, because the cargo that started us is the stable one and does not know `+nightly`.
fn cargo_fuzz(words: &[&str]) -> std::process::Command {
    let mut cargo = command("rustup");
    cargo
        .args(["run", "nightly", "cargo", "fuzz"])
        .args(words)
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO");
    cargo
}
