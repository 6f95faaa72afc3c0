//! A command from its start to its very end.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use sympozium_exec::request::MAX_GRACE;
use sympozium_exec::{Cancel, Executor, Profile, Request, RunError, Termination};
use sympozium_testkit::processes::{self, new_marker, with_marker};
use sympozium_testkit::{as_user, growing};

use crate::sandbox::{
    STAGE, action, assert_gone, config, eventually, executor, host, probe_request, profiles, run, stage,
};

/// Long enough that a test which waits for it by mistake is noticed.
const FOREVER: &str = "600";
/// The timeout of a command that must not be ended by it, however slow the machine is.
const LONG: Duration = Duration::from_secs(600);

fn quick(mut request: Request) -> Request {
    request.timeout = Duration::from_millis(300);
    request.grace = Duration::from_millis(100);
    request
}

/// Others recognise by it what descends from a sandbox.
#[test]
fn what_is_above_a_command_has_the_name_of_the_stage() {
    let name = sympozium_exec::stage::PROCESS_NAME.to_str().unwrap();
    for profile in profiles() {
        let outcome = run(&executor(profile), &Request::shell("cat /proc/$PPID/comm"));
        assert_eq!(outcome.stdout.text(), format!("{name}\n"), "{profile}");
    }
    // And the worker's parent, which is where orphans go.
    let keeper = "cut -d' ' -f4 /proc/$PPID/stat | xargs -I{} cat /proc/{}/comm";
    let outcome = run(&executor(Profile::Container), &Request::shell(keeper));
    assert_eq!(outcome.stdout.text(), format!("{name}\n"));
}

#[test]
fn codes_signals_and_streams_come_back() {
    for profile in profiles() {
        let executor = executor(profile);
        let outcome = run(&executor, &Request::shell("echo out; echo err >&2; exit 7"));
        assert_eq!(
            (
                outcome.termination,
                outcome.stdout.text().as_ref(),
                outcome.stderr.text().as_ref(),
                outcome.timed_out,
                outcome.isolation.profile,
            ),
            (Termination::Exited(7), "out\n", "err\n", false, profile)
        );
        let outcome = run(&executor, &probe_request(profile, ["do", "raise", "11"]));
        assert_eq!(outcome.termination, Termination::Signaled(11));
        // By itself: not a timeout.
        let outcome = run(&executor, &Request::shell("exit 124"));
        assert_eq!((outcome.termination.exit_code(), outcome.timed_out), (124, false));
        assert!(outcome.usage.max_resident_bytes > 0);
    }
}

#[test]
fn stdin_and_output_flow_at_the_same_time() {
    for profile in profiles() {
        let executor = executor(profile);
        // More than the pipes hold, in both directions: a reader that waits for the writer would hang.
        let mut request = probe_request(profile, ["do", "echo-stdin"]);
        request.stdin = (0..3_000_000u32).map(|n| n.to_le_bytes()[0]).collect();
        request.output_bytes = 4_000_000;
        let outcome = run(&executor, &request);
        assert!(outcome.stdout.bytes == request.stdin, "{profile}");
        // A command that does not read is not an error.
        request.invocation = Request::argv(["true"]).invocation;
        assert_eq!(run(&executor, &request).termination, Termination::Exited(0));
    }
}

#[test]
fn a_deadline_holds_while_stdin_is_written() {
    let executor = executor(Profile::Container);
    let mut request = quick(probe_request(Profile::Container, ["do", "sleep", FOREVER]));
    request.stdin = vec![b'x'; 8_000_000];
    assert!(run(&executor, &request).timed_out);
}

#[test]
fn a_flood_is_cut_at_the_cap_and_costs_no_memory() {
    let executor = executor(Profile::Container);
    let flood = |bytes| {
        let mut request = probe_request(Profile::Container, ["do", "flood", "both", bytes]);
        request.timeout = LONG;
        request
    };
    run(&executor, &flood("1000000"));
    let own = i32::try_from(std::process::id()).expect("a pid");
    let before = processes::resident_bytes(own).expect("own memory");
    let outcome = run(&executor, &flood("100000000"));
    assert_eq!((outcome.stdout.bytes.len(), outcome.stdout.total_bytes), (51_200, 100_000_000));
    assert!(outcome.stdout.is_truncated() && outcome.stderr.is_truncated());
    let after = processes::resident_bytes(own).expect("own memory");
    // Other tests run in this process: the bound is loose here, and tight in the bench.
    assert!(after < before + 50_000_000, "{before} → {after}");
}

#[test]
fn bytes_that_are_no_text_are_marked() {
    let executor = executor(Profile::Container);
    let outcome = run(&executor, &probe_request(Profile::Container, ["do", "invalid-utf8"]));
    assert!(outcome.stdout.has_invalid_utf8());
    assert!(outcome.stdout.text().contains('\u{fffd}'));
}

#[test]
fn timeouts_end_the_whole_tree() {
    let behaviours: [&[&str]; 8] = [
        &["sleep", FOREVER],
        &["ignore-term", FOREVER],
        &["block-signals", FOREVER],
        &["stop", FOREVER],
        &["daemon", FOREVER, "stay"],
        &["hold-stdout", FOREVER, "stay"],
        &["pass-stdout", FOREVER, "stay"],
        &["subreaper", FOREVER, "stay"],
    ];
    for profile in profiles() {
        let executor = executor(profile);
        for behaviour in behaviours {
            let marker = new_marker();
            let request = quick(action(profile, &marker, behaviour.iter().copied()));
            let outcome = run(&executor, &request);
            assert!(outcome.timed_out, "{profile} {behaviour:?}: {outcome:?}");
            // At the moment the call returns, not some time later.
            assert_gone(&marker);
        }
    }
}

#[test]
fn a_command_that_obeys_term_is_not_killed() {
    for profile in profiles() {
        let executor = executor(profile);
        let script = "trap 'echo bye; exit 3' TERM; echo ready; sleep 600 & wait";
        let mut request = Request::shell(script);
        request.grace = MAX_GRACE;
        let ready = growing(Duration::from_millis(300)).find_map(|timeout| {
            request.timeout = timeout;
            let outcome = run(&executor, &request);
            outcome.stdout.text().starts_with("ready\n").then_some(outcome)
        });
        let outcome = ready.expect("in time");
        assert_eq!(
            (outcome.termination, outcome.timed_out, outcome.stdout.text().as_ref()),
            (Termination::Exited(3), true, "ready\nbye\n")
        );
    }
}

#[test]
fn what_outlives_the_command_is_killed_soon() {
    // A process that holds the output delays the result by the drain limit, and not more.
    let behaviours: [&[&str]; 6] = [
        &["daemon", FOREVER, "exit"],
        &["hold-stdout", FOREVER, "exit"],
        &["pass-stdout", FOREVER, "exit"],
        &["subreaper", FOREVER, "exit"],
        &["pid-hopper", "240", "exit"],
        &["fork-tree", "7", FOREVER, "exit"],
    ];
    for profile in profiles() {
        let executor = executor(profile);
        for behaviour in behaviours {
            let marker = new_marker();
            let mut request = action(profile, &marker, behaviour.iter().copied());
            // Shorter than any of them lives: waiting for one would be a timeout.
            request.timeout = Duration::from_secs(200);
            let outcome = run(&executor, &request);
            assert_gone(&marker);
            assert_eq!(outcome.termination, Termination::Exited(0), "{profile} {behaviour:?}");
            assert!(!outcome.timed_out, "{profile} {behaviour:?}: {outcome:?}");
            assert!(outcome.usage.killed_descendants > 0, "{profile} {behaviour:?}: {outcome:?}");
        }
    }
}

/// Many chains of fork-and-exit are never all in one listing of the processes.
#[test]
fn chains_that_outrun_a_listing_are_killed_too() {
    // gVisor has no Landlock, so no scope to kill in one step: there a listing has to do.
    for profile in [Profile::Container, host()] {
        let executor = executor(profile);
        let marker = new_marker();
        let mut request = action(profile, &marker, ["pid-hopper", "240", "stay", "48"]);
        // Short: they use up the machine's pids.
        request.timeout = Duration::from_millis(60);
        request.grace = Duration::ZERO;
        let outcome = run(&executor, &request);
        assert_gone(&marker);
        assert!(outcome.timed_out, "{profile} {outcome:?}");
        // Killed, and not waited for.
        assert!(outcome.duration < Duration::from_secs(120), "{profile} {outcome:?}");
    }
}

/// Nothing but the worker buries orphans, and their number is limited.
#[test]
fn orphans_are_reaped_while_the_command_runs() {
    for profile in profiles() {
        let executor = executor(profile);
        let mut request = probe_request(profile, ["do", "short-lived", "2000"]);
        request.timeout = LONG;
        let outcome = run(&executor, &request);
        assert_eq!(outcome.termination, Termination::Exited(0), "{profile}: {outcome:?}");
    }
}

#[test]
fn a_fork_bomb_does_not_affect_others() {
    let profile = host();
    let mut config = config(profile);
    config.layout.pids = 100;
    let bombed = Executor::new(config).expect("an executor");
    let neighbour = executor(profile);
    let marker = new_marker();
    let mut request = action(profile, &marker, ["fork-bomb", "2000", FOREVER]);
    request.timeout = LONG;
    request.grace = Duration::ZERO;
    let cancel = Cancel::new().expect("an eventfd");
    std::thread::scope(|scope| {
        let running = scope.spawn(|| bombed.run(&request, Some(&cancel)));
        eventually(|| with_marker(&marker).len() > 50);
        let outcome = run(&neighbour, &Request::argv(["echo", "here"]));
        assert_eq!(outcome.stdout.text(), "here\n");
        assert!(with_marker(&marker).len() <= 100);
        cancel.cancel();
        let outcome = running.join().expect("no panic").expect("an outcome");
        assert!(outcome.cancelled, "{outcome:?}");
    });
    assert_gone(&marker);
    // The sandbox itself is usable again.
    let outcome = run(&bombed, &Request::argv(["echo", "again"]));
    assert_eq!(outcome.stdout.text(), "again\n");
}

#[test]
fn output_of_a_straggler_is_kept() {
    for profile in profiles() {
        let executor = executor(profile);
        // As bash does it for `> >(tee log)`: the shell ends before the writer.
        let late = "(while kill -0 $$ 2>/dev/null; do :; done; echo late) & true";
        // A busy machine may let the limit pass before the writer's turn: it is killed then, and the next one may have it.
        let is_kept = (0..50).any(|_| {
            let outcome = run(&executor, &Request::shell(late));
            let in_time = outcome.usage.killed_descendants == 0;
            assert_eq!(outcome.stdout.text(), if in_time { "late\n" } else { "" });
            in_time
        });
        assert!(is_kept, "{profile}");
    }
}

#[test]
fn a_hundred_daemons_leave_no_zombie() {
    // In a process of its own: other tests have keepers, too.
    as_user::alone_with(&[(STAGE, &stage())], || {
        let executor = executor(Profile::Container);
        let own = i32::try_from(std::process::id()).expect("a pid");
        let marker = new_marker();
        for _ in 0..100 {
            let mut request = action(Profile::Container, &marker, ["daemon", FOREVER, "stay"]);
            request.timeout = Duration::from_millis(20);
            request.grace = Duration::ZERO;
            assert!(run(&executor, &request).timed_out);
        }
        assert_gone(&marker);
        let keepers = processes::children_of(own);
        assert_eq!(keepers.len(), 1);
        let mut parents = processes::children_of(keepers[0]);
        parents.push(keepers[0]);
        let zombies: Vec<_> = parents.into_iter().flat_map(processes::zombies_of).collect();
        assert!(zombies.is_empty(), "{zombies:?}");
    });
}

#[test]
fn cancel_ends_the_command_and_is_no_timeout() {
    for profile in profiles() {
        let executor = executor(profile);
        let marker = new_marker();
        let cancel = Cancel::new().expect("an eventfd");
        let mut request = action(profile, &marker, ["daemon", FOREVER, "stay"]);
        request.timeout = LONG;
        request.grace = Duration::from_millis(50);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                eventually(|| !with_marker(&marker).is_empty());
                cancel.cancel();
            });
            let outcome = executor.run(&request, Some(&cancel)).expect("an outcome");
            assert!(outcome.cancelled && !outcome.timed_out);
        });
        assert_gone(&marker);
        // The wish stands: nothing else starts with it.
        assert!(matches!(executor.run(&Request::argv(["true"]), Some(&cancel)), Err(RunError::Cancelled)));
    }
}

#[test]
fn a_command_that_waits_for_a_worker_can_be_cancelled() {
    let mut config = config(Profile::Container);
    config.max_concurrent = 1;
    let executor = Executor::new(config).expect("an executor");
    let marker = new_marker();
    let first = Cancel::new().expect("an eventfd");
    let second = Cancel::new().expect("an eventfd");
    let mut request = action(Profile::Container, &marker, ["sleep", FOREVER]);
    request.timeout = LONG;
    std::thread::scope(|scope| {
        let running = scope.spawn(|| executor.run(&request, Some(&first)));
        eventually(|| !with_marker(&marker).is_empty());
        let waiting = scope.spawn(|| executor.run(&Request::argv(["true"]), Some(&second)));
        second.cancel();
        assert!(matches!(waiting.join().expect("no panic"), Err(RunError::Cancelled)));
        first.cancel();
        assert!(running.join().expect("no panic").expect("an outcome").cancelled);
    });
}

#[test]
fn commands_run_side_by_side_without_mixing() {
    for profile in profiles() {
        let executor = executor(profile);
        std::thread::scope(|scope| {
            for number in 0..16 {
                let executor = &executor;
                scope.spawn(move || {
                    for round in 0..5 {
                        let word = format!("{number}-{round}");
                        let outcome = run(executor, &Request::argv(["echo", &word]));
                        assert_eq!(outcome.stdout.text(), format!("{word}\n"));
                    }
                });
            }
        });
    }
}

#[test]
fn dropping_the_executor_ends_everything() {
    // In a process of its own: other tests have keepers, too.
    as_user::alone_with(&[(STAGE, &stage())], || {
        let own = i32::try_from(std::process::id()).expect("a pid");
        for profile in profiles() {
            let executor = executor(profile);
            let marker = new_marker();
            let request = action(profile, &marker, ["fork-tree", "3", FOREVER, "exit"]);
            run(&executor, &request);
            drop(executor);
            assert_gone(&marker);
            assert!(processes::children_of(own).is_empty());
            assert!(processes::zombies_of(own).is_empty());
        }
    });
}

#[test]
fn the_drain_limit_is_short() {
    let executor = executor(Profile::Container);
    let marker = new_marker();
    let started = Instant::now();
    let request = action(Profile::Container, &marker, ["hold-stdout", FOREVER, "exit"]);
    run(&executor, &request);
    // Not a measure of speed: the holder sleeps for ten minutes.
    assert!(started.elapsed() < Duration::from_secs(300));
}

#[test]
fn a_deleted_or_swapped_directory_is_used_as_it_was_opened() {
    let directory = tempfile::tempdir().expect("a directory");
    let work = directory.path().join("work");
    std::fs::create_dir(&work).expect("a directory");
    let inode = std::fs::metadata(&work).expect("metadata").ino();
    let executor = executor(Profile::Container);
    let script = "stat -c %i .; : > begun; until [ -e go ]; do sleep 0.01; done; stat -c %i .";
    let mut request = Request::shell(script);
    request.timeout = LONG;
    request.working_directory = Some(work.clone());
    std::thread::scope(|scope| {
        let running = scope.spawn(|| run(&executor, &request));
        eventually(|| work.join("begun").exists());
        let moved = directory.path().join("moved");
        std::fs::rename(&work, &moved).expect("a rename");
        std::os::unix::fs::symlink("/", &work).expect("a link");
        std::fs::write(moved.join("go"), "").expect("a file");
        let outcome = running.join().expect("no panic");
        assert_eq!(outcome.stdout.text(), format!("{inode}\n{inode}\n"));
    });
}
