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

/// What tests will find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prepared {
    /// The parts of a cluster of our own.
    Parts,
    /// Nothing of ours: a cluster was given, or this machine can hold none and tests skip what needs one.
    Nothing,
}

/// Installs the packages and builds the parts that are missing, the control plane's first, and says when these are there.
pub fn prepare(control_plane_built: impl FnOnce()) -> Result<Prepared> {
    if std::env::var_os(GIVEN).is_some() {
        return Ok(Prepared::Nothing);
    }
    let root = Root::find()?;
    let tier: Tier = TEST_TIER.parse()?;
    match preflight::check(tier) {
        Err(error) if error.downcast_ref::<Unsupported>().is_some() => {
            crate::output::note(&format!("{error:#}"));
            return Ok(Prepared::Nothing);
        }
        checked => checked?,
    }
    build::build(&root, &[&parts::KUBERNETES])?;
    control_plane_built();
    let mut wanted = tier.parts();
    wanted.push(&parts::HELM);
    build::build(&root, &wanted)?;
    cache::shrink(&root)?;
    Ok(Prepared::Parts)
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
