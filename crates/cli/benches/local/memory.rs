//! What is in memory while a run with two skills waits for a command.

use std::collections::BTreeSet;
use std::fs;
use std::process::Child;
use std::time::Duration;

use sympozium_testkit::bench::{Suite, Target, median};
use sympozium_testkit::wait_until;

use super::Harness;

const ROUNDS: usize = 5;
/// How long the command may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// All processes of a run, each page counted once however many share it.
pub fn measure(suite: &mut Suite, harness: &Harness) {
    let manifests = harness.manifests("sleeping.yaml", &["sleep 30"]);
    let (mut resident, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut run = harness.command(&manifests).spawn().expect("it starts");
        let sleeps = || tree(&run).iter().any(|pid| is_sleep(*pid));
        assert!(wait_until(PATIENCE, sleeps), "the command of the run does not start");
        let tree = tree(&run);
        println!("{} processes, the command's own among them", tree.len());
        let ours = tree.iter().filter(|pid| !is_sleep(**pid));
        let (mut proportional, mut whole) = (0, 0);
        for pid in ours {
            proportional += kibibytes(*pid, "Pss:");
            whole += kibibytes(*pid, "Rss:");
        }
        resident.push(proportional as f64 / 1024.0);
        alone.push(whole as f64 / 1024.0);
        run.kill().expect("it is ours");
        run.wait().expect("it ends");
    }
    println!(
        "resident: {:.1} MiB; with shared pages counted for each process: {:.1} MiB",
        median(resident.clone()),
        median(alone)
    );
    suite.row(
        "resident memory of a run with two skills, all processes (pages that they share counted once)",
        median(resident),
        "MiB",
        Target::AtMost(40.0),
    );
}

/// A process and everything below it.
fn tree(root: &Child) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut pending = vec![root.id()];
    while let Some(pid) = pending.pop() {
        if !found.insert(pid) {
            continue;
        }
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            pending.extend(children.split_whitespace().filter_map(|it| it.parse::<u32>().ok()));
        }
    }
    found
}

fn is_sleep(pid: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim() == "sleep"
}

fn kibibytes(pid: u32, field: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|it| it.parse().ok()).unwrap_or(0)
}
