//! `cargo xtask kube test`: build, start, try everything, end, and say what took how long.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::command::program;
use super::parts::{self, Tier};
use super::paths::{self, Root};
use super::unsupported::Unsupported;
use super::{build, end, leaks, preflight, times};

const PACKAGE: &str = "sympozium-cluster-tests";
/// Every tier in one cluster: the tests of the suite share it.
const TIER: Tier = Tier {
    node: true,
    gvisor: true,
    agent_sandbox: true,
};

/// Runs the harness's own suites. A test that fails makes this fail, and so does anything left behind.
pub fn run(root: &Root) -> Result<ExitCode> {
    let start = Instant::now();
    let times_file =
        tempfile::NamedTempFile::new().context("cannot create a file for the times")?;
    let outcome = run_steps(root, times_file.path());
    note(times_file.path(), "everything", start);
    eprintln!("\n{}", times::table(times_file.path()));
    outcome.map(|()| ExitCode::SUCCESS)
}

fn run_steps(root: &Root, times_file: &Path) -> Result<()> {
    let given = std::env::var_os("SYMPOZIUM_TEST_KUBECONFIG").is_some();
    let own = !given && prepare(root, times_file)?;
    let passed = test(times_file)?;
    if own {
        let start = Instant::now();
        end::down_of_run(root, &run_name())?;
        note(times_file, "tear-down", start);
        let left = leaks::list(root)?;
        if !left.is_empty() {
            bail!("left behind:\n{}", left.join("\n"));
        }
    }
    if !passed {
        bail!("not all tests of the cluster passed");
    }
    Ok(())
}

/// Builds what the tests need. On a machine that cannot run a cluster (`false`) they need nothing: they are skipped,
/// and say why.
fn prepare(root: &Root, times_file: &Path) -> Result<bool> {
    let start = Instant::now();
    match preflight::check(TIER) {
        Err(error) if error.downcast_ref::<Unsupported>().is_some() => {
            eprintln!("{error:#}");
            return Ok(false);
        }
        checked => checked?,
    }
    note(times_file, "packages and checks of the machine", start);
    let mut wanted = TIER.parts();
    wanted.push(&parts::HELM);
    for part in wanted {
        let start = Instant::now();
        build::build(root, &[part])?;
        note(times_file, &format!("part {}", part.name), start);
    }
    Ok(true)
}

fn test(times_file: &Path) -> Result<bool> {
    let start = Instant::now();
    let own = std::env::current_exe().context("cannot find this program")?;
    let mut cargo = program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(paths::workspace()).args([
        "test",
        "--locked",
        "--package",
        PACKAGE,
        "--test",
        "it",
    ]);
    cargo
        .env("SYMPOZIUM_XTASK", own)
        .env("SYMPOZIUM_TEST_TIER", TIER.to_string());
    cargo
        .env("SYMPOZIUM_TEST_RUN", run_name())
        .env(times::VARIABLE, times_file);
    let status = cargo.status().context("cannot start cargo test")?;
    note(times_file, "tests", start);
    Ok(status.success())
}

/// Makes the clusters of this run its own, so that ending them ends nobody else's.
fn run_name() -> String {
    format!("{}", std::process::id())
}

fn note(times_file: &Path, step: &str, start: Instant) {
    times::note_in(times_file, step, start.elapsed());
}
