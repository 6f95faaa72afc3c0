//! Clusters come and go: side by side, leased, broken, built by two at once.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use sympozium_testkit::cluster::{Tier, eventually};
use sympozium_testkit::command;

use crate::own::{Own, kube, possible, run};
use crate::processes::{find_process, first_process_of, kill, parent};

/// How long a cluster may take to end on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

#[test]
fn two_clusters_run_side_by_side_and_do_not_see_each_other() -> Result<()> {
    if !possible(Tier::ControlPlane)? {
        return Ok(());
    }
    let (left, right) = (Own::name("left"), Own::name("right"));
    left.up("control-plane")?;
    right.up("control-plane")?;
    assert!(left.kubectl(&["create", "namespace", "mine"])?.status.success());
    assert!(!right.kubectl(&["get", "namespace", "mine"])?.status.success());
    left.down()?;
    assert!(right.kubectl(&["get", "namespaces"])?.status.success(), "the other cluster went with this one");
    right.down()
}

#[test]
fn a_person_gets_kubectl_and_helm_that_work() -> Result<()> {
    if !possible(Tier::ControlPlane)? {
        return Ok(());
    }
    let own = Own::name("person");
    let lines = run(&["up", "--name", &own.0, "--tier", "control-plane"])?;
    let script = format!("{lines}\nkubectl get namespace default -o name && helm list -q && kubectl version");
    let output = command("sh").args(["-c", &script]).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.starts_with("namespace/default\n"), "{said}");
    assert!(said.contains("Server Version: v1.36"), "{said}");
    let status = run(&["status"])?;
    assert!(status.lines().any(|line| line.starts_with(&own.0) && line.contains("ready")), "{status}");
    assert!(run(&["logs", "--name", &own.0])?.lines().any(|name| name == "kube-apiserver"));
    assert!(run(&["logs", "--name", &own.0, "kube-apiserver"])?.contains("Serving securely"));
    own.down()
}

/// What a test run that was killed leaves.
#[test]
fn a_leased_cluster_ends_by_itself_without_a_holder() -> Result<()> {
    if !possible(Tier::ControlPlane)? {
        return Ok(());
    }
    let own = Own::name("leased");
    let lease = ["lease", "--name", &own.0, "--tier", "control-plane", "--idle-seconds", "1"];
    run(&lease)?;
    eventually("the cluster to end", PATIENCE, || Ok((!run(&["status"])?.contains(&own.0)).then_some(())))?;
    eventually("its first process to be gone", PATIENCE, || Ok(first_process_of(&own).is_none().then_some(())))
}

/// Half a cluster would make tests fail for the wrong reason.
#[test]
fn a_cluster_whose_component_dies_ends_as_a_whole() -> Result<()> {
    if !possible(Tier::ControlPlane)? {
        return Ok(());
    }
    let own = Own::name("broken");
    own.up("control-plane")?;
    let init = first_process_of(&own).context("the cluster has no first process")?;
    let manager =
        find_process(|pid, command| command.contains("/kube-controller-manager ") && parent(pid) == Some(init));
    kill(manager).context("no controller manager was found")?;
    eventually("the cluster to end", PATIENCE, || Ok((!run(&["status"])?.contains(&own.0)).then_some(())))
}

#[test]
fn two_builds_of_a_part_at_once_build_it_once() -> Result<()> {
    if !possible(Tier::Node)? {
        return Ok(());
    }
    let root = tempfile::tempdir()?;
    let build = || -> Result<_> {
        let mut command = kube(&["build", "--part", "runc"])?;
        command.env("SYMPOZIUM_KUBE_ROOT", root.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command.spawn()?)
    };
    let (first, second) = (build()?, build()?);
    let mut built = 0;
    for racer in [first, second] {
        let output = racer.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::ensure!(output.status.success(), "{said}");
        built += usize::from(said.contains(": built in "));
    }
    assert_eq!(built, 1);
    let parts = fs::read_dir(root.path().join("parts"))?.flatten();
    let folders: Vec<_> = parts.filter(|entry| entry.path().is_dir()).map(|entry| entry.path()).collect();
    assert_eq!(folders.len(), 1, "{folders:?}");
    assert!(folders[0].join("runc").is_file());
    Ok(())
}
