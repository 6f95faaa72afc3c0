//! What tests need of a cluster before the first of them runs, and what must be gone after the last.

use anyhow::{Result, bail};

use super::parts::{self, Tier};
use super::paths::Root;
use super::unsupported::Unsupported;
use super::{build, cache, end, leaks, preflight};

/// Every tier in one cluster: the tests with pods share it.
pub const TEST_TIER: &str = "node+gvisor+agent-sandbox";

/// Names a kubeconfig: tests use that cluster instead of one of ours.
const GIVEN: &str = "SYMPOZIUM_TEST_KUBECONFIG";

/// How much of a cluster can be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    ControlPlane,
    Node,
}

/// Installs the packages and builds the parts that are missing, the control plane's first, and says when each stage is reached.
/// On a machine that can hold no cluster there is nothing to prepare: tests skip what needs one, and say why.
pub fn prepare(reached: impl Fn(Stage)) -> Result<()> {
    // A cluster that was given needs nothing of ours.
    if std::env::var_os(GIVEN).is_some() {
        reached(Stage::Node);
        return Ok(());
    }
    let root = Root::find()?;
    let tier: Tier = TEST_TIER.parse()?;
    match preflight::check(tier) {
        Err(error) if error.downcast_ref::<Unsupported>().is_some() => {
            crate::output::note(&format!("{error:#}"));
            reached(Stage::Node);
            return Ok(());
        }
        checked => checked?,
    }
    build::build(&root, &[&parts::KUBERNETES])?;
    reached(Stage::ControlPlane);
    let mut wanted = tier.parts();
    wanted.push(&parts::HELM);
    build::build(&root, &wanted)?;
    reached(Stage::Node);
    cache::shrink(&root)
}

/// Ends the clusters that the tests of these runs shared. Anything left behind is a failure.
pub fn end_runs(runs: &[String]) -> Result<()> {
    let root = Root::find()?;
    for run in runs {
        end::down_of_run(&root, run)?;
    }
    let left = leaks::list(&root)?;
    if !left.is_empty() {
        bail!("left behind:\n{}", left.join("\n"));
    }
    Ok(())
}
