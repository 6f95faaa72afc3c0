//! How fast a node is there when everything is built. A binary of its own, because it measures: nothing else may run.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Result;
use sympozium_testkit::cluster::{KUBECONFIG_VARIABLE, xtask};
use sympozium_testkit::skips;

/// What we promise on two cores.
const LIMIT: Duration = Duration::from_secs(10);
/// The best of these counts: whatever else the machine does can only make it slower.
const ATTEMPTS: usize = 3;
const EXIT_UNSUPPORTED: i32 = 77;

#[test]
fn a_node_starts_in_time_when_everything_is_built() -> Result<()> {
    if std::env::var_os(KUBECONFIG_VARIABLE).is_some() {
        skips::record("no cluster of our own to start and end");
        return Ok(());
    }
    let name = format!("warm-{}", std::process::id());
    let kube = |command: &str, options: &[&str]| -> Result<_> {
        let mut xtask = xtask()?;
        xtask
            .args(["kube", command, "--name", &name])
            .args(options)
            .stdin(Stdio::null());
        Ok(xtask.output()?)
    };
    // The first one builds what is missing, which is not what is measured.
    let first = kube("up", &["--tier", "node", "--no-helm"])?;
    let said = String::from_utf8_lossy(&first.stderr).into_owned();
    if first.status.code() == Some(EXIT_UNSUPPORTED) {
        let missing = said
            .lines()
            .find_map(|line| Some(line.split_once("lacks ")?.1));
        skips::record(missing.unwrap_or("something a test cluster needs"));
        return Ok(());
    }
    anyhow::ensure!(first.status.success(), "{said}");
    kube("down", &[])?;
    let mut times = Vec::new();
    for _ in 0..ATTEMPTS {
        let start = Instant::now();
        let up = kube("up", &["--tier", "node", "--no-helm"])?;
        times.push(start.elapsed());
        anyhow::ensure!(
            up.status.success(),
            "{}",
            String::from_utf8_lossy(&up.stderr)
        );
        kube("down", &[])?;
        if times.iter().any(|took| *took < LIMIT) {
            break;
        }
    }
    assert!(
        times.iter().any(|took| *took < LIMIT),
        "warm starts of a node took {times:?}"
    );
    Ok(())
}
