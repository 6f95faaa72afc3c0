//! The executor, its keeper or a worker is killed at any moment: nothing lives on.

use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::json;
use sympozium_exec::{Executor, Profile, Request, RunError};
use sympozium_testkit::processes::{self, new_marker, with_marker};
use sympozium_testkit::{cases, growing, probe};

use crate::sandbox::{action, assert_gone, eventually, exec_run, executor, probe_path, profiles, run};

/// Moments in `make test`; `make test-full` has [`ALL`].
const SAMPLE: usize = 8;
const ALL: u64 = 200;

/// An executor in a process of its own, whose command grows a tree and stays.
fn separate(profile: Profile, marker: &str) -> Child {
    let binds = if profile.is_host() {
        json!([{
            "source": probe::path(),
            "target": probe_path(profile),
            "access": "read-only",
        }])
    } else {
        json!([])
    };
    let document = json!({
        "profile": profile,
        "floor": [],
        "binds": binds,
        "argv": [
            probe_path(profile), "do", "--marker", marker, "fork-tree", "11", "600", "stay",
        ],
        "timeoutMillis": 600_000,
    });
    exec_run(&document, Stdio::null())
}

#[test]
fn the_executors_death_is_the_end_of_everything() {
    for profile in profiles() {
        let marker = new_marker();
        let mut child = separate(profile, &marker);
        eventually(|| with_marker(&marker).len() > 1);
        child.kill().expect("kill");
        child.wait().expect("wait");
        eventually(|| with_marker(&marker).is_empty());
    }
}

#[test]
fn an_executor_killed_while_it_starts_leaves_nothing() {
    // From before the stage exists until long after the tree stands.
    let moments: Vec<u64> = (0..ALL).map(|step| step * step * 4).collect();
    for profile in profiles() {
        for micros in cases::sample(moments.clone(), SAMPLE) {
            let marker = new_marker();
            let mut child = separate(profile, &marker);
            std::thread::sleep(Duration::from_micros(micros));
            let pid = i32::try_from(child.id()).expect("a pid");
            let stages = processes::children_of(pid);
            child.kill().expect("kill");
            child.wait().expect("wait");
            eventually(|| with_marker(&marker).is_empty() && stages.iter().all(|&stage| !processes::is_alive(stage)));
        }
    }
}

/// The keeper is our child, its children are the workers.
fn workers_of(marker: &str) -> Vec<i32> {
    let commands = with_marker(marker);
    let own = i32::try_from(std::process::id()).expect("a pid");
    processes::children_of(own)
        .into_iter()
        .flat_map(processes::children_of)
        .filter(|&worker| {
            let children = processes::children_of(worker);
            children.iter().any(|child| commands.contains(child))
        })
        .collect()
}

#[test]
fn a_killed_worker_is_reported_and_leaves_nothing() {
    for profile in profiles() {
        let executor = executor(profile);
        let marker = new_marker();
        let mut request = action(profile, &marker, ["fork-tree", "5", "600", "stay"]);
        request.timeout = Duration::from_secs(600);
        std::thread::scope(|scope| {
            let running = scope.spawn(|| executor.run(&request, None));
            eventually(|| with_marker(&marker).len() > 1);
            let workers = workers_of(&marker);
            assert_eq!(workers.len(), 1, "{profile}");
            kill(workers[0]);
            let answer = running.join().expect("no panic");
            assert!(matches!(answer, Err(RunError::SupervisorDied)), "{answer:?}");
        });
        assert_gone(&marker);
        // The executor goes on with a new worker.
        let outcome = run(&executor, &Request::argv(["echo", "on"]));
        assert_eq!(outcome.stdout.text(), "on\n");
    }
}

/// Where there are no Landlock scopes, a command can stop its worker, which then keeps no deadline.
#[test]
fn a_stopped_worker_is_ended_with_its_command() {
    let profile = Profile::Gvisor;
    let executor = executor(profile);
    // So that the keeper has another worker to spare.
    run(&executor, &Request::argv(["true"]));
    let marker = new_marker();
    let mut request = action(profile, &marker, ["stop-parent", "600"]);
    request.grace = Duration::ZERO;
    // A worker that keeps the deadline has not been stopped yet: the command needs more time.
    let answer = growing(Duration::from_millis(100)).find_map(|timeout| {
        request.timeout = timeout;
        let answer = executor.run(&request, None);
        let kept = matches!(&answer, Ok(outcome) if outcome.timed_out);
        (!kept).then_some(answer)
    });
    assert!(matches!(answer, Some(Err(RunError::ContactLost(_)))), "{answer:?}");
    assert_gone(&marker);
    let outcome = run(&executor, &Request::argv(["echo", "on"]));
    assert_eq!(outcome.stdout.text(), "on\n");
}

/// An idle worker, too, and the job may be larger than the socket holds.
#[test]
fn a_worker_that_does_not_read_its_job_is_given_up() {
    let profile = Profile::Gvisor;
    let executor = executor(profile);
    let marker = new_marker();
    let mut request = action(profile, &marker, ["sleep", "600"]);
    request.timeout = Duration::from_secs(600);
    let cancel = sympozium_exec::Cancel::new().expect("an eventfd");
    std::thread::scope(|scope| {
        // The only way to learn which worker is ours: it has our command.
        let running = scope.spawn(|| executor.run(&request, Some(&cancel)));
        eventually(|| workers_of(&marker).len() == 1);
        let worker = workers_of(&marker)[0];
        cancel.cancel();
        let _ = running.join().expect("no panic");
        signal(worker, rustix::process::Signal::STOP);
    });
    let argument = "x".repeat(100_000);
    let mut large = Request::argv(["true"].into_iter().chain([argument.as_str(); 9]));
    large.timeout = Duration::from_millis(100);
    let answer = executor.run(&large, None);
    assert!(matches!(answer, Err(RunError::ContactLost(_))), "{answer:?}");
}

/// The kernel kills commands first when memory runs out, and not the keeper they need.
#[test]
fn memory_is_taken_from_commands_first() {
    let score = |text: &str| text.trim().parse::<i32>().expect("a number");
    let own = score(&std::fs::read_to_string("/proc/self/oom_score_adj").expect("a file"));
    for profile in profiles() {
        let executor = executor(profile);
        let outcome = run(&executor, &Request::argv(["cat", "/proc/self/oom_score_adj"]));
        assert_eq!(score(&outcome.stdout.text()), (own + 300).min(1000), "{profile}");
        let keeper = "cat /proc/$(cut -d' ' -f4 /proc/$PPID/stat)/oom_score_adj";
        let outcome = run(&executor, &Request::shell(keeper));
        assert_eq!(score(&outcome.stdout.text()), own, "{profile}");
    }
}

#[test]
fn a_killed_keeper_is_reported_and_leaves_nothing() {
    let own = i32::try_from(std::process::id()).expect("a pid");
    // Kills the keeper while a command runs that has so much time. `None` when the time was over before.
    let kill_keeper_of = |profile: Profile, executor: &Executor, timeout: Duration| {
        let marker = new_marker();
        let mut request = action(profile, &marker, ["daemon", "600", "stay"]);
        request.timeout = timeout;
        let answer = std::thread::scope(|scope| {
            let running = scope.spawn(|| executor.run(&request, None));
            eventually(|| with_marker(&marker).len() > 1 || running.is_finished());
            let worker = *workers_of(&marker).first()?;
            let keeper = processes::children_of(own)
                .into_iter()
                .find(|&child| processes::children_of(child).contains(&worker))?;
            let in_time = !running.is_finished();
            kill(keeper);
            let answer = running.join().expect("no panic");
            in_time.then_some(answer)
        });
        assert_gone(&marker);
        answer
    };
    for profile in profiles() {
        if profile.is_host() {
            // Init of the pid namespace: everything died with it, long before the deadline.
            let executor = executor(profile);
            let answer = kill_keeper_of(profile, &executor, Duration::from_secs(600));
            assert!(matches!(answer, Some(Err(_))), "{answer:?}");
            let answer = executor.run(&Request::argv(["true"]), None);
            assert!(matches!(answer, Err(RunError::SandboxGone)), "{answer:?}");
        } else {
            // The worker does not need it, and keeps the deadline.
            let answer = growing(Duration::from_secs(1))
                .find_map(|timeout| kill_keeper_of(profile, &executor(profile), timeout));
            let outcome = answer.expect("in time").expect("an outcome");
            assert!(outcome.timed_out, "{outcome:?}");
        }
    }
}

fn kill(pid: i32) {
    signal(pid, rustix::process::Signal::KILL);
}

fn signal(pid: i32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("kill");
}
