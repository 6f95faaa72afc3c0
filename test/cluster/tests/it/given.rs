//! A cluster that was started outside of the tests, named by `SYMPOZIUM_TEST_KUBECONFIG`.

use std::process::Stdio;

use anyhow::{Context as _, Result};
use sympozium_testkit::cluster::{Cluster, KUBECONFIG_VARIABLE, Tier, xtask};
use sympozium_testkit::command;

/// Runs tests of this very binary on such a cluster: they pass, but for the one that needs the audit log, which is
/// skipped and counted; and nothing of a node is asked of a cluster that has none.
#[test]
fn a_given_cluster_is_used_and_what_needs_its_internals_is_skipped() -> Result<()> {
    if std::env::var_os(KUBECONFIG_VARIABLE).is_some() || Cluster::shared(Tier::ControlPlane)?.is_none() {
        return Ok(());
    }
    let name = format!("given-{}", std::process::id());
    let kube = |arguments: &[&str]| -> Result<_> {
        let output = xtask()?
            .args(["kube", arguments[0], "--name", &name])
            .args(&arguments[1..])
            .stdin(Stdio::null())
            .output()?;
        Ok(output)
    };
    let up = kube(&["up", "--no-helm", "--tier", "control-plane"])?;
    let lines = String::from_utf8(up.stdout)?;
    let value = |variable: &str| {
        let prefix = format!("export {variable}=");
        lines.lines().find_map(|line| line.strip_prefix(&prefix)).with_context(|| format!("no {variable} in {lines:?}"))
    };
    let path = value("PATH")?.replace("$PATH", &std::env::var("PATH").unwrap_or_default());
    let folder = tempfile::tempdir()?;
    let list = folder.path().join("skips");
    let mut tests = command(std::env::current_exe()?);
    tests.args(["control_plane::", "network::services"]).env(KUBECONFIG_VARIABLE, value("KUBECONFIG")?);
    let output = tests.env("PATH", path).env("SYMPOZIUM_SKIPS_FILE", &list).env("CARGO_PKG_NAME", "it").output()?;
    kube(&["down"])?;

    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let recorded = std::fs::read_to_string(&list)?;
    let mut skipped: Vec<_> = recorded.lines().collect();
    skipped.sort_unstable();
    let expected = [
        "no audit log on the given cluster\tit/control_plane::the_audit_log_says_which_calls_were_made_by_whom",
        "the given cluster has no node\tit/network::services_and_the_api_server_are_reachable_by_service_address",
    ];
    assert_eq!(skipped, expected);
    Ok(())
}
