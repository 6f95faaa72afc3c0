//! Real processes in real cgroups of this machine. Every group is removed again, also by a failing test.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::cgroup::hierarchies::Controller;
use crate::cgroup::owner::{self, Owner};
use crate::cgroup::teardown::members;
use crate::cgroup::{Cgroup, Hierarchies, Limits};
use crate::guarantee::Layer;

const DEADLINE: Duration = Duration::from_secs(60);

/// A group with `limits`, all of them live; otherwise the test is skipped with a message.
fn group(layout: &Hierarchies, limits: Limits) -> Option<Cgroup> {
    let (cgroup, _) = Cgroup::create_in(layout, &limits, "test", &|_| ()).unwrap();
    if let Some((layer, why)) = cgroup.not_applied().first() {
        eprintln!("not applied: {why}");
        sympozium_testkit::skips::record(&format!("no writable {layer}"));
        return None;
    }
    if !cgroup.is_live() {
        sympozium_testkit::skips::record("no writable cgroup");
        return None;
    }
    Some(cgroup)
}

/// Starts `script` inside `cgroup`: the shell waits for its first line until it has been moved.
fn start(cgroup: &Cgroup, script: &str) -> Child {
    #[expect(clippy::disallowed_methods, reason = "the executor is not what is tested here")]
    let mut child = Command::new("/bin/sh")
        .args(["-c", &format!("read -r go; {script}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    cgroup.add(Pid::from_child(&child)).unwrap();
    child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    child
}

fn wait(mut child: Child) -> ExitStatus {
    child.wait().unwrap()
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < DEADLINE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The value of `key` in a control file with one `key value` pair per line.
fn counter(cgroup: &Cgroup, controller: Controller, file: &str, key: &str) -> u64 {
    let text = fs::read_to_string(cgroup.limit_directories[&controller].join(file)).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.unwrap().trim().parse().unwrap()
}

fn population(cgroup: &Cgroup) -> usize {
    members(&cgroup.directories[0]).unwrap().len()
}

/// Removes the group and asserts that no directory is left.
fn remove(cgroup: Cgroup) {
    let directories = cgroup.directories.clone();
    cgroup.remove().unwrap();
    assert!(!directories.iter().any(|directory| directory.exists()));
}

#[test]
fn a_memory_hog_is_killed_by_the_kernel_and_counted() {
    let limits = Limits { memory_bytes: Some(32 << 20), ..Limits::default() };
    let Some(cgroup) = group(&Hierarchies::read().unwrap(), limits) else {
        return;
    };
    assert_eq!(cgroup.oom_kills(), 0);
    // tail must keep all of it, because there is no line end before the end.
    let status = wait(start(&cgroup, "head -c 256M /dev/zero | tail -n 1"));
    assert!(!status.success());
    // At least one: the kernel may have to kill another of them before the first has freed its memory.
    wait_for("the kernel's count", || cgroup.oom_kills() >= 1);
    cgroup.kill().unwrap();
    remove(cgroup);
}

#[test]
fn a_fork_bomb_stops_at_the_limit_and_all_of_it_is_killed() {
    const PIDS: u32 = 24;
    let limits = Limits { pids: Some(PIDS), ..Limits::default() };
    let Some(cgroup) = group(&Hierarchies::read().unwrap(), limits) else {
        return;
    };
    let bomb = start(&cgroup, "while :; do setsid sleep 1000 & done");
    wait_for("the limit to be hit", || counter(&cgroup, Controller::Pids, "pids.events", "max ") > 0);
    assert!(population(&cgroup) <= PIDS as usize);
    cgroup.kill().unwrap();
    assert_eq!(population(&cgroup), 0);
    wait(bomb);
    remove(cgroup);
}

#[test]
fn a_busy_loop_is_throttled() {
    let limits = Limits { cpu_millis: Some(100), ..Limits::default() };
    let Some(cgroup) = group(&Hierarchies::read().unwrap(), limits) else {
        return;
    };
    let loops = start(&cgroup, "while :; do :; done");
    wait_for("throttling", || counter(&cgroup, Controller::Cpu, "cpu.stat", "nr_throttled ") >= 2);
    cgroup.kill().unwrap();
    wait(loops);
    remove(cgroup);
}

#[test]
fn v2_limits_are_live() {
    let layout = Hierarchies::read().unwrap();
    let limits = Limits { memory_bytes: Some(64 << 20), pids: Some(32), cpu_millis: Some(500) };
    let (cgroup, applied) = Cgroup::create_in(&layout, &limits, "test", &|_| ()).unwrap();
    if applied.len() < 3 || !applied.values().all(|detail| detail.starts_with("v2: ")) {
        sympozium_testkit::skip!("no cgroup v2 controllers");
    }
    let directory = cgroup.v2_directory().unwrap();
    let read = |file: &str| fs::read_to_string(directory.join(file)).unwrap();
    assert_eq!(read("memory.max"), "67108864\n");
    assert_eq!(read("pids.max"), "32\n");
    assert_eq!(read("cpu.max"), "500000 1000000\n");
    remove(cgroup);
}

#[test]
fn cgroup_kill_ends_descendants_that_left_session_and_parent() {
    let layout = Hierarchies::read().unwrap();
    let Some(cgroup) = group(&layout, Limits::default()) else {
        return;
    };
    let kill_file = cgroup.v2_directory().map(|path| path.join("cgroup.kill"));
    if !kill_file.is_some_and(|file| file.exists()) {
        sympozium_testkit::skip!("no cgroup.kill");
    }
    let shell =
        start(&cgroup, "trap '' TERM HUP INT; (setsid sh -c 'trap \"\" TERM; sleep 1000 & sleep 1000' &) ; exit 0");
    assert!(wait(shell).success());
    wait_for("the orphans", || population(&cgroup) == 3);
    cgroup.kill().unwrap();
    assert_eq!(population(&cgroup), 0);
    remove(cgroup);
}

#[test]
fn without_cgroup_kill_a_tree_that_keeps_forking_is_ended_one_by_one() {
    let v1_only = Hierarchies { v2: None, ..Hierarchies::read().unwrap() };
    let limits = Limits { pids: Some(64), ..Limits::default() };
    let Some(cgroup) = group(&v1_only, limits) else {
        return;
    };
    let churn = "while :; do sleep 0 & wait; done";
    let trees: Vec<_> = (0..4).map(|_| start(&cgroup, churn)).collect();
    wait_for("the trees", || population(&cgroup) > 4);
    cgroup.kill().unwrap();
    assert_eq!(population(&cgroup), 0);
    for tree in trees {
        wait(tree);
    }
    let limit = fs::read_to_string(cgroup.limit_directories[&Controller::Pids].join("pids.max")).unwrap();
    assert_eq!(limit, "64\n", "the group can be used again");
    remove(cgroup);
}

#[test]
fn dropping_a_group_ends_it() {
    let limits = Limits { pids: Some(16), ..Limits::default() };
    let layout = Hierarchies::read().unwrap();
    let is_removed = (0..20).any(|_| {
        let Some(cgroup) = group(&layout, limits) else {
            return true;
        };
        let directories = cgroup.directories.clone();
        let sleeper = start(&cgroup, "sleep 1000 & sleep 1000");
        drop(cgroup);
        assert!(!wait(sleeper).success());
        let is_removed = !directories.iter().any(|directory| directory.exists());
        // A drop waits for a moment only, and a busy machine may bury the dead later than that: then the next shows it.
        for directory in &directories {
            crate::cgroup::teardown::remove(directory, DEADLINE).unwrap();
        }
        is_removed
    });
    assert!(is_removed);
}

#[test]
fn a_group_that_lives_is_not_removed() {
    let Some(cgroup) = group(&Hierarchies::read().unwrap(), Limits::default()) else {
        return;
    };
    let sleeper = start(&cgroup, "sleep 1000");
    let directory = cgroup.directories[0].clone();
    assert!(crate::cgroup::teardown::remove(&directory, Duration::ZERO).is_err());
    cgroup.kill().unwrap();
    wait(sleeper);
    remove(cgroup);
}

#[test]
fn a_helper_enters_by_descriptor() {
    let limits = Limits { pids: Some(16), ..Limits::default() };
    let Some(cgroup) = group(&Hierarchies::read().unwrap(), limits) else {
        return;
    };
    let mut doors = cgroup.open_procs_files().unwrap().into_iter().map(Stdio::from);
    let script = "echo 0 >&0; echo 0 >&1; exec sleep 1000";
    #[expect(clippy::disallowed_methods, reason = "the executor is not what is tested here")]
    let mut helper = Command::new("/bin/sh")
        .args(["-c", script])
        .stdin(doors.next().unwrap())
        .stdout(doors.next().unwrap_or_else(Stdio::null))
        .spawn()
        .unwrap();
    let helper_pid = Pid::from_child(&helper);
    wait_for("the helper to enter", || {
        cgroup.directories.iter().all(|directory| members(directory).unwrap().contains(&helper_pid))
    });
    cgroup.kill().unwrap();
    helper.wait().unwrap();
    remove(cgroup);
}

/// A directory that this test creates in the machine's tree.
struct Leftover(PathBuf);

impl Leftover {
    fn make(parent: &std::path::Path, name: &str) -> Self {
        let path = parent.join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_sweep_removes_what_dead_owners_left_and_nothing_else() {
    let layout = Hierarchies::read().unwrap();
    let Some(alive) = group(&layout, Limits::default()) else {
        return;
    };
    let here = alive.directories[0].parent().unwrap();
    let owner = Owner::current().unwrap();
    #[expect(clippy::disallowed_methods, reason = "the executor is not what is tested here")]
    let mut dead = Command::new("/bin/true").spawn().unwrap();
    let dead_pid = dead.id();
    dead.wait().unwrap();

    let name = owner.new_name("stale");
    let stale_name = name.replacen(&format!("-{}-", std::process::id()), &format!("-{dead_pid}-"), 1);
    let stale = Leftover::make(here, &stale_name);
    let foreign = Leftover::make(here, &format!("not-{stale_name}"));
    // One inside another cgroup than ours, as if the owner had lived elsewhere.
    let nested = Leftover::make(&foreign.0, &stale_name);

    // Another test process may sweep at the same time and be first.
    owner::sweep(&layout, owner);
    assert!(!stale.0.exists());
    assert!(!nested.0.exists());
    assert!(foreign.0.exists());
    assert!(alive.directories.iter().all(|directory| directory.exists()));
    drop(nested);
    remove(alive);
}

#[test]
fn every_limit_asked_for_is_applied_or_explained() {
    let limits = Limits { memory_bytes: Some(64 << 20), pids: Some(8), cpu_millis: Some(1) };
    let (cgroup, applied) = Cgroup::create(&limits, "test").unwrap();
    let mut layers: Vec<_> = applied.keys().copied().collect();
    layers.extend(cgroup.not_applied().iter().map(|(layer, _)| *layer));
    layers.sort();
    assert_eq!(layers, [Layer::CgroupMemory, Layer::CgroupPids, Layer::CgroupCpu]);
    if let Some(detail) = applied.get(&Layer::CgroupCpu) {
        assert!(detail.ends_with(" 10 millicores"), "{detail}");
    }
    remove(cgroup);
}
