//! Any process of a run is killed at any moment: the run ends, what is written about it is true, and nothing of it is left.

use std::fs;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sympozium_testkit::processes::{children_of, is_alive};
use sympozium_testkit::{cases, wait_until};

use super::{Home, PACK, Scenario, Who, call, eventually, leftovers, pack};

/// Moments in `make test`; `make test-full` has [`ALL`].
const SAMPLE: usize = 30;
const ALL: u64 = 200;
/// How long after its victim was first seen a case kills it, at most.
const SPREAD_MICROSECONDS: u64 = 600_000;
/// Cases at the same time.
const AT_ONCE: usize = 4;

/// Which process of a run is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `sympozium` itself.
    Program,
    /// The first process of the sandbox of agent, bridge or skill.
    Keeper,
    /// What starts and watches the part in it.
    Worker,
    Agent,
    Bridge,
    Sidecar,
    /// The two of the sandbox that the sidecar makes for its commands.
    InnerKeeper,
    InnerWorker,
    Command,
    Forwarder,
}

const KINDS: [Kind; 10] = [
    Kind::Program,
    Kind::Keeper,
    Kind::Worker,
    Kind::Agent,
    Kind::Bridge,
    Kind::Sidecar,
    Kind::InnerKeeper,
    Kind::InnerWorker,
    Kind::Command,
    Kind::Forwarder,
];

#[derive(Debug, Clone, Copy)]
struct Case {
    who: Who,
    kind: Kind,
    microseconds: u64,
    /// Which of several of the kind.
    which: u64,
}

/// Two commands that take a while, in a pack that may reach something, so that it has a forwarder.
fn scenario(seconds: &str) -> Scenario {
    let mut skill = pack(&["sleep"]);
    skill["sidecar"]["egress"] = json!([{"host": "example.com", "port": 443}]);
    let command = format!("sleep {seconds}");
    Scenario {
        turns: vec![call(PACK, &command), call(PACK, &command)],
        packs: vec![(PACK.to_owned(), skill)],
        others: vec![policy()],
        ..Scenario::commands(&[], &[])
    }
}

fn policy() -> Value {
    json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "SympoziumPolicy", "metadata": {"name": "policy"},
        "spec": {"networkPolicy": {"allowedEgress": [{"host": "example.com", "port": 443}]}},
    })
}

/// Every process of the run, with what it is.
fn processes_of(program: i32) -> Vec<(i32, Kind)> {
    let mut found = vec![(program, Kind::Program)];
    let mut level = vec![program];
    for depth in 1.. {
        level = level.into_iter().flat_map(children_of).collect();
        if level.is_empty() {
            return found;
        }
        found.extend(level.iter().map(|&pid| (pid, kind(pid, depth))));
    }
    found
}

fn kind(pid: i32, depth: usize) -> Kind {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let first = line.split(|&byte| byte == 0).next().unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    match (first.rsplit('/').next().unwrap_or_default(), depth) {
        ("agent-runner", _) => Kind::Agent,
        ("ipc-bridge", _) => Kind::Bridge,
        ("skill-sidecar", _) => Kind::Sidecar,
        ("gateway-forward", _) => Kind::Forwarder,
        (_, 1) => Kind::Keeper,
        (_, 2 | 3) => Kind::Worker,
        (_, 4) => Kind::InnerKeeper,
        (_, 5) => Kind::InnerWorker,
        _ => Kind::Command,
    }
}

#[test]
fn whoever_is_killed_the_run_ends_and_nothing_is_left() {
    let everybody = Who::all();
    let all: Vec<Case> = (0..ALL)
        .map(|number| {
            let dice = mixed(cases::seed(), number);
            Case {
                who: everybody[usize::try_from(dice % 7).unwrap() % everybody.len()],
                kind: KINDS[usize::try_from(number).unwrap() % KINDS.len()],
                microseconds: (dice >> 16) % SPREAD_MICROSECONDS,
                which: dice >> 48,
            }
        })
        .collect();
    let cases = cases::sample(all, SAMPLE);
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    killed(*case);
                }
            });
        }
    });
}

/// The same number for the same case, whatever is sampled.
fn mixed(seed: u64, number: u64) -> u64 {
    let mut mixed = (seed << 32 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn killed(case: Case) {
    let home = Home::new(case.who);
    let mut child = home.start(&scenario("0.3"));
    let program = i32::try_from(child.id()).unwrap();
    let victims = || {
        let mut all = processes_of(program);
        all.retain(|(_, kind)| *kind == case.kind);
        all
    };
    eventually("the victim was seen", || !victims().is_empty() || over(&mut child).is_some());
    std::thread::sleep(Duration::from_micros(case.microseconds));
    let before = processes_of(program);
    let victims = victims();
    let victim = victims.get(usize::try_from(case.which).unwrap() % victims.len().max(1)).map(|(pid, _)| *pid);
    if let Some(victim) = victim {
        let _ = kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL);
    }
    let mut status = None;
    let is_over = wait_until(super::PATIENCE, || {
        status = over(&mut child);
        status.is_some()
    });
    let said = || fs::read_to_string(home.at("stderr")).unwrap();
    if !is_over {
        let left = leftovers::of(&home);
        let _ = child.kill();
        panic!("{case:?}: the run does not end: {left:#?} {}", said());
    }
    let code = status.and_then(|it| it.code());
    // Nobody helps: what was there dies with whoever made it.
    eventually("everything of the run is dead", || {
        before.iter().all(|(pid, _)| !is_alive(*pid)) && leftovers::processes(&home).is_empty()
    });
    let runs = home.runs();
    let states: Vec<&str> = runs.iter().filter_map(|it| it["state"].as_str()).collect();
    let truth: &[&[&str]] = match (case.kind, code) {
        // It may have been killed before it wrote anything, and after it wrote everything.
        (Kind::Program, None) => &[&[], &["interrupted"], &["succeeded"]],
        (_, Some(0)) => &[&["succeeded"]],
        (_, Some(4)) => &[&["failed"]],
        // Whoever made a sandbox was killed while it was being made.
        (Kind::Keeper | Kind::Worker, Some(1)) => &[&["refused"]],
        _ => &[],
    };
    assert!(truth.contains(&states.as_slice()), "{case:?}: code {code:?}, {states:?}: {}", said());
    assert_eq!(leftovers::of(&home), Vec::<String>::new(), "{case:?}");
}

fn over(child: &mut Child) -> Option<ExitStatus> {
    child.try_wait().unwrap()
}

#[test]
fn nothing_outlives_the_program_that_is_killed() {
    super::as_everybody(|home| {
        let mut child = home.start(&scenario("600"));
        let program = i32::try_from(child.id()).unwrap();
        // One of each, except that there are as many keepers and workers as parts.
        eventually("every kind of process is there", || {
            let all = processes_of(program);
            (KINDS.iter()).all(|kind| all.iter().any(|(_, it)| it == kind))
        });
        let all = processes_of(program);
        child.kill().unwrap();
        child.wait().unwrap();
        eventually("everything is dead", || {
            all.iter().all(|(pid, _)| !is_alive(*pid)) && leftovers::processes(home).is_empty()
        });
        let states: Vec<Value> = home.runs().iter().map(|it| it["state"].clone()).collect();
        assert_eq!(states, [json!("interrupted")]);
        assert_eq!(leftovers::of(home), Vec::<String>::new());
    });
}
