//! Clusters that a test starts and ends itself, as a person would.

use std::process::{Command, Output, Stdio};

use anyhow::Result;
use sympozium_testkit::cluster::{Cluster, KUBECONFIG_VARIABLE, Tier, xtask};
use sympozium_testkit::skips;

pub fn kube(arguments: &[&str]) -> Result<Command> {
    let mut command = xtask()?;
    command.arg("kube").args(arguments).stdin(Stdio::null());
    Ok(command)
}

/// Runs to the end, successfully.
pub fn run(arguments: &[&str]) -> Result<String> {
    let output = kube(arguments)?.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "kube {}: {said}", arguments.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A cluster of this test's own, ended with it.
pub struct Own(pub String);

impl Own {
    pub fn name(label: &str) -> Self {
        Self(format!("{label}-{}", std::process::id()))
    }

    pub fn up(&self, tier: &str) -> Result<String> {
        run(&["up", "--no-helm", "--name", &self.0, "--tier", tier])
    }

    pub fn down(&self) -> Result<()> {
        run(&["down", "--name", &self.0]).map(drop)
    }

    pub fn kubectl(&self, arguments: &[&str]) -> Result<Output> {
        Ok(kube(&[&["exec", "--name", &self.0, "--", "kubectl"], arguments].concat())?.output()?)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.down();
    }
}

/// Whether this machine can run a tier; a `false` is recorded as a skip.
pub fn possible(tier: Tier) -> Result<bool> {
    if std::env::var_os(KUBECONFIG_VARIABLE).is_some() {
        skips::record("no cluster of our own to start and end");
        return Ok(false);
    }
    Ok(Cluster::shared(tier)?.is_some())
}
