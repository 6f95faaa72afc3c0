//! How fast a cluster is there when everything is built: `make bench SUITE=kube`.

use std::process::{Output, Stdio};
use std::time::Instant;

use anyhow::{Result, ensure};
use sympozium_testkit::bench::{Suite, Target};
use sympozium_testkit::cluster::xtask;

/// The median of these counts.
const STARTS: usize = 5;
/// What we promise on two cores.
const NODE_SECONDS: f64 = 10.0;

fn main() -> Result<()> {
    let mut suite = Suite::new("kube");
    // The first one builds what is missing, which is not what is measured.
    start("node")?;
    let mut seconds = (0..STARTS).map(|_| start("node")).collect::<Result<Vec<f64>>>()?;
    seconds.sort_by(f64::total_cmp);
    suite.row("warm start of a node", seconds[STARTS / 2], "s", Target::AtMost(NODE_SECONDS));
    suite.write()?;
    Ok(())
}

/// Starts a cluster, ends it, and says how many seconds the start took.
fn start(tier: &str) -> Result<f64> {
    let name = format!("bench-{}", std::process::id());
    let started = Instant::now();
    let up = kube(&["up", "--name", &name, "--tier", tier, "--no-helm"])?;
    let seconds = started.elapsed().as_secs_f64();
    ensure!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    let down = kube(&["down", "--name", &name])?;
    ensure!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
    Ok(seconds)
}

fn kube(arguments: &[&str]) -> Result<Output> {
    let mut command = xtask()?;
    command.arg("kube").args(arguments).stdin(Stdio::null());
    Ok(command.output()?)
}
