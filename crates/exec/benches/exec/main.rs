//! What isolation costs, against the raw system call in the same run: `make bench SUITE=exec`.
//!
//! A ratio is measured in alternating rounds, ours and the reference one after the other, and its median
//! counts: whatever else the machine does hits both.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measurement that cannot be made must stop, and its table is its output"
)]

mod reference;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use sympozium_exec::{Config, Executor, Floor, Layer, Profile, Request, StageProgram};
use sympozium_testkit::bench::raw::spawn;
use sympozium_testkit::bench::{Suite, Target, in_threads, median};
use sympozium_testkit::processes::{self, new_marker, with_marker};
use sympozium_testkit::{as_user, probe, static_build};

/// The helper stage as it ships: a static binary.
static STAGE: LazyLock<PathBuf> =
    LazyLock::new(|| static_build::shipped("exec-run").expect("the static stage can be built"));
/// Commands in one round of one side.
const ROUND: u32 = 200;
const ROUNDS: usize = 15;
/// The number of commands for growth and survivors.
const MANY: u32 = 10_000;

fn main() {
    let mut suite = Suite::new("exec");
    rates(&mut suite);
    host(&mut suite);
    growth(&mut suite);
    survivors(&mut suite);
    let path = suite.write().expect("the rows can be written");
    println!("wrote {}", path.display());
}

fn host_profile() -> Profile {
    if as_user::is_root() { Profile::HostRoot } else { Profile::HostUser }
}

fn config(profile: Profile) -> Config {
    let mut config = Config::new(profile);
    config.stage = StageProgram::At(STAGE.clone());
    config
}

fn bare() -> Executor {
    let mut config =
        config(Profile::Container).without_layers(Layer::ALL.into_iter().filter(|&it| it != Layer::Supervisor));
    config.floor = Floor::none();
    Executor::new(config).expect("an executor without layers")
}

fn container() -> Executor {
    Executor::new(config(Profile::Container)).expect("the container profile")
}

/// `count` commands by `threads` at once, and how long that took.
fn ours(executor: &Executor, threads: u32, count: u32) -> Duration {
    let request = Request::argv(["/bin/true"]);
    in_threads(threads, count, || {
        executor.run(&request, None).expect("an outcome");
    })
}

fn raw(threads: u32, count: u32) -> Duration {
    in_threads(threads, count, || spawn(c"/bin/true", &[]))
}

/// The rate of ours as a part of the raw rate.
fn rates(suite: &mut Suite) {
    for (name, executor, least) in [("no layers", bare(), 0.85), ("container profile", container(), 0.8)] {
        for threads in [1, 8] {
            ours(&executor, threads, ROUND);
            let ratios = (0..ROUNDS)
                .map(|_| {
                    let raw = raw(threads, ROUND);
                    raw.as_secs_f64() / ours(&executor, threads, ROUND).as_secs_f64()
                })
                .collect();
            suite.row(
                &format!("/bin/true, {name}, {threads} at once, against posix_spawn"),
                median(ratios),
                "of the raw rate",
                Target::AtLeast(least),
            );
        }
    }
}

fn host(suite: &mut Suite) {
    let request = Request::argv(["/bin/true"]);
    let make = || Executor::new(config(host_profile())).expect("a host sandbox");
    let bwrap = reference::Bwrap::with_the_same_binds();
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS * 3 {
        let started = Instant::now();
        let executor = make();
        executor.run(&request, None).expect("an outcome");
        let made = started.elapsed();
        drop(executor);
        let started = Instant::now();
        bwrap.run_true();
        ratios.push(made.as_secs_f64() / started.elapsed().as_secs_f64());
    }
    suite.row(
        "making a host sandbox and running one command, against bwrap --unshare-all",
        median(ratios),
        "of bwrap's time",
        Target::AtMost(0.6),
    );
    let executor = make();
    ours(&executor, 1, ROUND);
    let extra = (0..ROUNDS)
        .map(|_| {
            let raw = raw(1, ROUND).as_secs_f64();
            (ours(&executor, 1, ROUND).as_secs_f64() - raw) / f64::from(ROUND) * 1e3
        })
        .collect();
    suite.row("a further command in a live host sandbox, beyond posix_spawn", median(extra), "ms", Target::AtMost(0.2));
}

/// Memory of this process and of everything the executor started.
fn resident() -> f64 {
    let own = i32::try_from(std::process::id()).expect("a pid");
    let all = processes::tree_of(own);
    // The keeper and at least one worker: or the measure would be blind.
    assert!(all.len() > 2, "{all:?}");
    let bytes: u64 = all.into_iter().filter_map(processes::resident_bytes).sum();
    bytes as f64 / f64::from(1 << 20)
}

fn growth(suite: &mut Suite) {
    let executor = container();
    println!("resident at the start: {:.1} MiB", resident());
    let probe = probe::path().to_str().expect("a path in UTF-8");
    let flood = |bytes: &str| {
        let mut request = Request::argv([probe, "do", "flood", "stdout", bytes]);
        request.timeout = Duration::from_secs(300);
        executor.run(&request, None).expect("an outcome");
    };
    flood("10000000");
    let before = resident();
    flood("1073741824");
    suite.row(
        "1 GiB of output, growth of the executor and its helpers",
        resident() - before,
        "MiB",
        Target::AtMost(2.0),
    );
    ours(&executor, 8, 400);
    let before = resident();
    ours(&executor, 8, MANY);
    suite.row(
        "10,000 commands, growth of the executor and its helpers",
        resident() - before,
        "MiB",
        Target::AtMost(2.0),
    );
}

fn survivors(suite: &mut Suite) {
    let executor = container();
    let marker = new_marker();
    let probe = probe::path().to_str().expect("a path in UTF-8");
    let words = ["do", "--marker", &marker, "daemon", "600", "stay"];
    let mut request = Request::argv([probe].into_iter().chain(words));
    request.timeout = Duration::from_millis(5);
    request.grace = Duration::ZERO;
    in_threads(8, MANY, || {
        let outcome = executor.run(&request, None).expect("an outcome");
        assert!(outcome.timed_out, "{outcome:?}");
    });
    suite.row(
        "10,000 timed-out double-forking commands, survivors",
        with_marker(&marker).len() as f64,
        "processes",
        Target::AtMost(0.0),
    );
    let own = i32::try_from(std::process::id()).expect("a pid");
    let keepers = processes::children_of(own);
    let parents = keepers.iter().flat_map(|&keeper| {
        let mut all = processes::children_of(keeper);
        all.push(keeper);
        all
    });
    let zombies: usize = parents.map(|pid| processes::zombies_of(pid).len()).sum();
    suite.row("10,000 timed-out double-forking commands, zombies", zombies as f64, "processes", Target::AtMost(0.0));
}

/// Used by the reference for the same binds.
fn system_paths() -> Vec<&'static Path> {
    sympozium_exec::layout::system_paths().filter(|path| path.exists()).collect()
}
