//! Kills any process of a run at any moment: the run ends, its record is correct, and nothing of it is left.

use std::fs;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sympozium_testkit::processes::{children_of, is_alive};
use sympozium_testkit::{cases, wait_until};

use super::{Home, PACK, Scenario, Who, call, eventually, leftovers, pack};

/// The number of cases in `make test`; `make test-full` has [`ALL`].
const SAMPLE: usize = 30;
const ALL: u64 = 200;
/// The maximum delay between the first sight of the victim and its kill.
const SPREAD_MICROSECONDS: u64 = 600_000;
/// The number of concurrent cases.
const AT_ONCE: usize = 4;

/// The process of a run that is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `sympozium` itself.
    Program,
    /// The init of the sandbox of agent, bridge or skill.
    Keeper,
    /// The process that starts and watches the part in it.
    Worker,
    Agent,
    Bridge,
    Sidecar,
    /// Both processes of the sandbox that the sidecar builds for its commands.
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
    /// The index among several processes of the kind.
    which: u64,
}

/// Two slow commands in a pack with egress, so that it has a forwarder.
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

/// Every process of the run, with its kind.
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
fn whichever_process_is_killed_the_run_ends_and_leaves_nothing() {
    let users = Who::all();
    let all: Vec<Case> = (0..ALL)
        .map(|number| {
            let dice = mixed(cases::seed(), number);
            Case {
                who: users[usize::try_from(dice % 7).unwrap() % users.len()],
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

/// Depends only on the case, not on the sample.
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
    eventually("the victim was seen", || !victims().is_empty() || exit_status(&mut child).is_some());
    std::thread::sleep(Duration::from_micros(case.microseconds));
    let before = processes_of(program);
    let victims = victims();
    let victim = victims.get(usize::try_from(case.which).unwrap() % victims.len().max(1)).map(|(pid, _)| *pid);
    if let Some(victim) = victim {
        let _ = kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL);
    }
    let mut status = None;
    let has_ended = wait_until(super::TIMEOUT, || {
        status = exit_status(&mut child);
        status.is_some()
    });
    let stderr = || fs::read_to_string(home.at("stderr")).unwrap();
    if !has_ended {
        let left = leftovers::of(&home);
        let _ = child.kill();
        panic!("{case:?}: the run does not end: {left:#?} {}", stderr());
    }
    let code = status.and_then(|it| it.code());
    // Without help: each process dies with its parent.
    eventually("every process of the run is dead", || {
        before.iter().all(|(pid, _)| !is_alive(*pid)) && leftovers::processes(&home).is_empty()
    });
    let runs = home.runs();
    let states: Vec<&str> = runs.iter().filter_map(|it| it["state"].as_str()).collect();
    let truth: &[&[&str]] = match (case.kind, code) {
        // The program may be killed before it writes the record, or after its last write.
        (Kind::Program, None) => &[&[], &["interrupted"], &["succeeded"]],
        (_, Some(0)) => &[&["succeeded"]],
        (_, Some(4)) => &[&["failed"]],
        // A process was killed while it built a sandbox.
        (Kind::Keeper | Kind::Worker, Some(1)) => &[&["refused"]],
        _ => &[],
    };
    assert!(truth.contains(&states.as_slice()), "{case:?}: code {code:?}, {states:?}: {}", stderr());
    assert_eq!(leftovers::of(&home), Vec::<String>::new(), "{case:?}");
}

fn exit_status(child: &mut Child) -> Option<ExitStatus> {
    child.try_wait().unwrap()
}

#[test]
fn nothing_outlives_a_killed_program() {
    super::for_each_user(|home| {
        let mut child = home.start(&scenario("600"));
        let program = i32::try_from(child.id()).unwrap();
        // One process of each kind, but a keeper and a worker for each part.
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
