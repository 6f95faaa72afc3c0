//! The promise of the harness: whatever happens to a cluster, nothing of it stays.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use sympozium_testkit::cluster::{Tier, eventually};
use sympozium_testkit::{cases, command};

use crate::own::{Own, kube, possible};
use crate::processes::{first_process_of, keeper_of, kill, parent};

/// In full: 20 cycles, 5 of them killed; else a sample of 4, 2 of them killed.
#[test]
fn nothing_stays_after_many_cycles_some_of_them_killed() -> Result<()> {
    if !possible(Tier::Node)? {
        return Ok(());
    }
    let (cycles, kill_every) = if cases::is_full() { (20, 4) } else { (4, 2) };
    let mut random = Random::new();
    let before = Listing::take()?;
    let own = Own::name("cycle");
    for cycle in 1..=cycles {
        let tier = if cycle % 3 == 0 { "control-plane" } else { "node" };
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
    // The last one was killed, and only this process came after it.
    own.down()?;
    let left = kube(&["leaks"])?.output()?;
    assert!(left.status.success(), "left behind:\n{}", String::from_utf8_lossy(&left.stdout));
    assert_eq!(before.new_in(&Listing::take()?), Vec::<String>::new());
    Ok(())
}

/// Runs a pod, so that there are containers, cgroups, mounts, interfaces and rules to be removed.
fn use_node(own: &Own) -> Result<()> {
    let run = ["run", "idle", "--image=sympozium.test/pause:1", "--image-pull-policy=Never"];
    anyhow::ensure!(own.kubectl(&run)?.status.success(), "the pod was refused");
    let wait = own.kubectl(&["wait", "pod/idle", "--for=condition=Ready", "--timeout=180s"])?;
    anyhow::ensure!(wait.status.success(), "no pod: {}", String::from_utf8_lossy(&wait.stderr));
    Ok(())
}

/// Starts a cluster and kills one of the processes that it hangs on, at a random moment of its start or just after.
fn kill_one(own: &Own, tier: &str, random: &mut Random) -> Result<()> {
    let moment = Duration::from_millis(random.below(7000));
    let mut up = kube(&["up", "--no-helm", "--name", &own.0, "--tier", tier])?;
    let mut owner = up.stderr(Stdio::null()).stdout(Stdio::null()).spawn()?;
    std::thread::sleep(moment);
    let starting = owner.try_wait()?.is_none();
    let kill_owner = || starting.then(|| kill(Some(owner.id())).map(|()| "the owner")).flatten();
    let killed = match random.below(4) {
        0 => kill_owner(),
        1 => kill(keeper_of(own)).map(|()| "the keeper"),
        2 => kill(parent(first_process_of(own).unwrap_or_default())).map(|()| "unshare"),
        _ => kill(first_process_of(own)).map(|()| "the first process"),
    };
    // Very early there is only the owner, and late there is none.
    let last = || kill(first_process_of(own)).map(|()| "the first process, late");
    let killed = killed.or_else(kill_owner).or_else(last).context("there was no process to kill")?;
    eprintln!("after {moment:?} killed {killed}");
    finish(&mut owner)
}

/// The owner of a cluster that was killed under it must notice, not hang.
fn finish(owner: &mut Child) -> Result<()> {
    let done = eventually("the owner to end", Duration::from_secs(180), || Ok(owner.try_wait()?));
    if done.is_err() {
        let _ = owner.kill();
    }
    done.map(drop)
}

/// Names in the folders where Kubernetes leaves things when it is not kept from it, and the machine's packet rules.
struct Listing(BTreeSet<String>);

impl Listing {
    fn take() -> Result<Self> {
        let mut names = BTreeSet::new();
        for folder in
            ["/opt", "/usr/libexec", "/var/lib", "/var/log", "/var/lib/cni", "/etc", "/run", "/run/netns", "/run/lock"]
        {
            for entry in fs::read_dir(folder).into_iter().flatten() {
                let path: std::path::PathBuf = entry.with_context(|| format!("listing {folder}"))?.path();
                // Other clusters of this test run hold theirs.
                if !path.starts_with(Path::new("/run/lock")) || !path.display().to_string().contains("sympozium-kube-")
                {
                    names.insert(path.display().to_string());
                }
            }
        }
        // The kubelet would change these for the whole machine.
        for setting in ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"] {
            let value = fs::read_to_string(format!("/proc/sys/{setting}"))?;
            names.insert(format!("{setting} = {}", value.trim()));
        }
        let rules = command("nft").args(["list", "ruleset"]).output()?;
        names.extend(String::from_utf8_lossy(&rules.stdout).lines().map(|line| format!("rule {line}")));
        Ok(Self(names))
    }

    fn new_in(&self, later: &Self) -> Vec<String> {
        later.0.difference(&self.0).cloned().collect()
    }
}

/// Which moments and victims are chosen follows from the seed of the test run, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn new() -> Self {
        eprintln!("{}={}", cases::SEED, cases::seed());
        // Spread out: a small seed would begin with small numbers.
        Self(cases::seed().wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number below `end` (xorshift64).
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
