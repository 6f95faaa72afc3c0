//! Clusters come and go: side by side, killed at any moment, and nothing of them stays.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use sympozium_testkit::cluster::{Cluster, Tier, eventually, xtask};
use sympozium_testkit::command;

/// Runs everything, where the default is a sample.
const FULL_VARIABLE: &str = "SYMPOZIUM_TEST_FULL";
/// Chooses the moments of the kills; the one used is printed.
const SEED_VARIABLE: &str = "SYMPOZIUM_TEST_SEED";

fn kube(arguments: &[&str]) -> Command {
    let mut command = xtask();
    command.arg("kube").args(arguments).stdin(Stdio::null());
    command
}

/// Runs to the end, successfully.
fn run(arguments: &[&str]) -> Result<String> {
    let output = kube(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(
        output.status.success(),
        "kube {}: {said}",
        arguments.join(" ")
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A cluster of this test's own, ended with it.
struct Own(String);

impl Own {
    fn name(label: &str) -> Self {
        Self(format!("{label}-{}", std::process::id()))
    }

    fn up(&self, tier: &str) -> Result<String> {
        run(&["up", "--no-helm", "--name", &self.0, "--tier", tier])
    }

    fn down(&self) -> Result<()> {
        run(&["down", "--name", &self.0]).map(drop)
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<Output> {
        Ok(kube(&[&["exec", "--name", &self.0, "--", "kubectl"], arguments].concat()).output()?)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.down();
    }
}

/// Whether this machine can run a tier; a `false` is recorded as a skip.
fn possible(tier: Tier) -> Result<bool> {
    if std::env::var_os(sympozium_testkit::cluster::KUBECONFIG_VARIABLE).is_some() {
        sympozium_testkit::skips::record("no cluster of our own to start and end");
        return Ok(false);
    }
    Ok(Cluster::shared(tier)?.is_some())
}

#[test]
fn two_clusters_run_side_by_side_and_do_not_see_each_other() -> Result<()> {
    if !possible(Tier::ControlPlane)? {
        return Ok(());
    }
    let (left, right) = (Own::name("left"), Own::name("right"));
    left.up("control-plane")?;
    right.up("control-plane")?;
    assert!(
        left.kubectl(&["create", "namespace", "mine"])?
            .status
            .success()
    );
    assert!(
        !right
            .kubectl(&["get", "namespace", "mine"])?
            .status
            .success()
    );
    left.down()?;
    assert!(
        right.kubectl(&["get", "namespaces"])?.status.success(),
        "the other cluster went with this one"
    );
    right.down()
}

#[test]
fn a_person_gets_kubectl_and_helm_that_work() -> Result<()> {
    if !possible(Tier::ControlPlane)? {
        return Ok(());
    }
    let own = Own::name("person");
    let lines = run(&["up", "--name", &own.0, "--tier", "control-plane"])?;
    let script = format!(
        "{lines}\nkubectl get namespace default -o name && helm list -q && kubectl version"
    );
    let output = command("sh").args(["-c", &script]).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.starts_with("namespace/default\n"), "{said}");
    assert!(said.contains("Server Version: v1.36"), "{said}");
    let status = run(&["status"])?;
    assert!(
        status
            .lines()
            .any(|line| line.starts_with(&own.0) && line.contains("ready")),
        "{status}"
    );
    assert!(
        run(&["logs", "--name", &own.0])?
            .lines()
            .any(|name| name == "kube-apiserver")
    );
    assert!(run(&["logs", "--name", &own.0, "kube-apiserver"])?.contains("Serving securely"));
    own.down()
}

/// What a test run that was killed leaves.
#[test]
fn a_leased_cluster_ends_by_itself_when_nobody_holds_it() -> Result<()> {
    if !possible(Tier::ControlPlane)? {
        return Ok(());
    }
    let own = Own::name("leased");
    let lease = [
        "lease",
        "--name",
        &own.0,
        "--tier",
        "control-plane",
        "--idle-seconds",
        "1",
    ];
    run(&lease)?;
    eventually("the cluster to end", Duration::from_secs(30), || {
        Ok((!run(&["status"])?.contains(&own.0)).then_some(()))
    })?;
    assert_eq!(first_process_of(&own), None);
    Ok(())
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
    let manager = find_process(|pid, command| {
        command.contains("/kube-controller-manager ") && parent(pid) == Some(init)
    });
    kill(manager).context("no controller manager was found")?;
    eventually("the cluster to end", Duration::from_secs(30), || {
        Ok((!run(&["status"])?.contains(&own.0)).then_some(()))
    })
}

#[test]
fn two_builds_of_a_part_at_once_build_it_once() -> Result<()> {
    if !possible(Tier::Node)? {
        return Ok(());
    }
    let root = tempfile::tempdir()?;
    let build = || {
        let mut command = kube(&["build", "--part", "runc"]);
        command.env("SYMPOZIUM_KUBE_ROOT", root.path());
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
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
    let folders: Vec<_> = parts
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.path())
        .collect();
    assert_eq!(folders.len(), 1, "{folders:?}");
    assert!(folders[0].join("runc").is_file());
    Ok(())
}

/// The promise of the harness. In full: 20 cycles, 5 of them killed; else a sample of 4, 2 of them killed.
#[test]
fn nothing_stays_after_many_cycles_some_of_them_killed() -> Result<()> {
    if !possible(Tier::Node)? {
        return Ok(());
    }
    let (cycles, kill_every) = if std::env::var_os(FULL_VARIABLE).is_some() {
        (20, 4)
    } else {
        (4, 2)
    };
    let mut random = Random::new()?;
    let before = Listing::take()?;
    let own = Own::name("cycle");
    for cycle in 1..=cycles {
        let tier = if cycle % 2 == 0 {
            "node"
        } else {
            "control-plane"
        };
        if cycle % kill_every == 0 {
            kill_one(&own, tier, &mut random).with_context(|| format!("cycle {cycle}"))?;
        } else {
            own.up(tier).with_context(|| format!("cycle {cycle}"))?;
            if tier == "node" {
                use_node(&own).with_context(|| format!("cycle {cycle}"))?;
            }
            own.down().with_context(|| format!("cycle {cycle}"))?;
        }
    }
    // The last one was killed, and nobody came after it but this.
    own.down()?;
    let left = kube(&["leaks"]).output()?;
    assert!(
        left.status.success(),
        "left behind:\n{}",
        String::from_utf8_lossy(&left.stdout)
    );
    assert_eq!(before.new_in(&Listing::take()?), Vec::<String>::new());
    Ok(())
}

/// Runs a pod, so that there are containers, cgroups, mounts, interfaces and rules to be removed.
fn use_node(own: &Own) -> Result<()> {
    let run = [
        "run",
        "idle",
        "--image=sympozium.test/pause:1",
        "--image-pull-policy=Never",
    ];
    anyhow::ensure!(own.kubectl(&run)?.status.success(), "the pod was refused");
    let wait = own.kubectl(&["wait", "pod/idle", "--for=condition=Ready", "--timeout=60s"])?;
    anyhow::ensure!(
        wait.status.success(),
        "no pod: {}",
        String::from_utf8_lossy(&wait.stderr)
    );
    Ok(())
}

/// Starts a cluster and kills one of the processes that it hangs on, at a random moment of its start or just after.
fn kill_one(own: &Own, tier: &str, random: &mut Random) -> Result<()> {
    let moment = Duration::from_millis(random.below(7000));
    let mut owner = kube(&["up", "--no-helm", "--name", &own.0, "--tier", tier])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    std::thread::sleep(moment);
    let victim = random.below(3);
    let killed = match victim {
        0 => owner.kill().map(|()| "the owner").ok(),
        1 => kill(keeper_of(own)).map(|()| "the keeper"),
        _ => kill(first_process_of(own)).map(|()| "the first process"),
    };
    eprintln!(
        "after {moment:?} killed {}",
        killed.unwrap_or("nobody: it was not there")
    );
    finish(&mut owner)
}

/// The owner of a cluster that was killed under it must notice, not hang.
fn finish(owner: &mut Child) -> Result<()> {
    let done = eventually("the owner to end", Duration::from_secs(60), || {
        Ok(owner.try_wait()?)
    });
    if done.is_err() {
        let _ = owner.kill();
    }
    done.map(drop)
}

fn kill(pid: Option<u32>) -> Option<()> {
    let pid = pid?.to_string();
    command("kill")
        .args(["-KILL", &pid])
        .status()
        .ok()
        .filter(std::process::ExitStatus::success)
        .map(drop)
}

fn first_process_of(own: &Own) -> Option<u32> {
    find_process(|_, command| {
        command.contains(" kube init ")
            && command.trim_end().ends_with(&own.0)
            && !command.starts_with("unshare")
    })
}

/// The keeper is told the cluster's name on its input; it is the parent of the parent of the first process.
fn keeper_of(own: &Own) -> Option<u32> {
    let unshare = parent(first_process_of(own)?)?;
    parent(unshare)
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

fn find_process(wanted: impl Fn(u32, &str) -> bool) -> Option<u32> {
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let command = fs::read(entry.path().join("cmdline")).ok()?;
        wanted(pid, &String::from_utf8_lossy(&command).replace('\0', " ")).then_some(pid)
    })
}

/// Names in the folders where Kubernetes leaves things when it is not kept from it, and the machine's packet rules.
struct Listing(BTreeSet<String>);

impl Listing {
    fn take() -> Result<Self> {
        let mut names = BTreeSet::new();
        for folder in [
            "/opt",
            "/usr/libexec",
            "/var/lib",
            "/var/log",
            "/var/lib/cni",
            "/etc",
            "/run",
            "/run/netns",
            "/run/lock",
        ] {
            for entry in fs::read_dir(folder).into_iter().flatten() {
                let path: PathBuf = entry.with_context(|| format!("listing {folder}"))?.path();
                // Other clusters of this test run hold theirs.
                if !path.starts_with(Path::new("/run/lock"))
                    || !path.display().to_string().contains("sympozium-kube-")
                {
                    names.insert(path.display().to_string());
                }
            }
        }
        // The kubelet would change these for the whole machine.
        for setting in [
            "vm/overcommit_memory",
            "vm/panic_on_oom",
            "kernel/panic",
            "kernel/panic_on_oops",
        ] {
            let value = fs::read_to_string(format!("/proc/sys/{setting}"))?;
            names.insert(format!("{setting} = {}", value.trim()));
        }
        let rules = command("nft").args(["list", "ruleset"]).output()?;
        names.extend(
            String::from_utf8_lossy(&rules.stdout)
                .lines()
                .map(|line| format!("rule {line}")),
        );
        Ok(Self(names))
    }

    fn new_in(&self, later: &Self) -> Vec<String> {
        later.0.difference(&self.0).cloned().collect()
    }
}

/// Small and seeded: a failure can be repeated (xorshift64).
struct Random(u64);

impl Random {
    fn new() -> Result<Self> {
        let seed = match std::env::var(SEED_VARIABLE) {
            Ok(text) => text
                .parse()
                .with_context(|| format!("{SEED_VARIABLE} is no number"))?,
            Err(_) => std::time::UNIX_EPOCH.elapsed()?.as_nanos() as u64 | 1,
        };
        eprintln!("{SEED_VARIABLE}={seed}");
        if seed == 0 {
            bail!("{SEED_VARIABLE} must not be 0");
        }
        Ok(Self(seed))
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
