//! What the agent costs: `make bench SUITE=agent`. One function measures each group of rows of `bench/rows/agent.txt`.
//!
//! The agent is the program as it ships, in a process of its own. Bridge and model are one server in this process, which
//! permits and answers at once: what is measured is the agent alone, and the way to its neighbour and back. How short that
//! way can be is measured in the same run, by a client that says the same and does nothing else.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measurement that cannot be made must stop, and its table is its output"
)]

mod bare;
mod neighbour;
mod numbers;
mod process;
mod world;

use std::time::{Duration, Instant};

use sympozium_testkit::bench::raw::spawn;
use sympozium_testkit::bench::{Samples, Suite, Target, median};
use tokio::runtime::Runtime;

use neighbour::Heard;
use numbers::around;
use world::World;

/// Agents that are started, one after the other, and the turns of each.
const STARTS: usize = 41;
const FEW_TURNS: usize = 20;
/// Bytes of the file that they read in each of them.
const SMALL_FILE: usize = 4_000;
/// Agents that work for long, their turns, and the bytes of the file that they read in each.
const LONG_ROUNDS: usize = 11;
const LONG_TURNS: usize = 200;
const LARGE_FILE: usize = 50_000;
/// Turns that are compared. Old results are left out every few turns, so what one turn costs goes up and down: the cost
/// around a turn is the mean of eight, which are two such periods: here of turns 17 to 24, and of the last eight.
const EARLY: usize = 20;
const LATE: usize = 196;
/// So much room for results that none is ever left out.
const ALL_OF_IT: (&str, &str) = ("CONTEXT_HISTORY_BUDGET_BYTES", "1000000000");
/// The bytes beside the conversation, and how often that may be in memory.
const MEBIBYTES: f64 = 8.0;
const TIMES: f64 = 3.0;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut suite = Suite::new("agent");
    short_runs(&mut suite, &runtime);
    long_runs(&mut suite, &runtime);
    let path = suite.write().expect("the rows can be written");
    println!("wrote {}", path.display());
}

/// Starts, and turns with small results.
fn short_runs(suite: &mut Suite, runtime: &Runtime) {
    let world = World::new(FEW_TURNS, SMALL_FILE);
    let (mut starts, mut spawns) = (Samples::default(), Samples::default());
    let (mut turns, mut first) = (Samples::default(), Samples::default());
    let (mut bare, mut resident) = (Samples::default(), Samples::default());
    // The first of each is for the caches of the machine.
    let mut last = world.run(runtime, &[]).1;
    world.run_bare(runtime, &last);
    for _ in 0..STARTS {
        let (start, heard) = world.run(runtime, &[]);
        starts.add(start.elapsed_until(&heard));
        let taken = heard.turns();
        first.add(taken[0]);
        taken.iter().for_each(|it| turns.add(*it));
        resident.push(heard.requests[0].process.resident);
        let taken = world.run_bare(runtime, &heard).turns();
        taken.iter().for_each(|it| bare.add(*it));
        spawns.add(raw_spawn());
        last = heard;
    }
    let (taken, bare) = (turns.percentiles(), bare.percentiles());
    println!("tool turn: {taken}; the first of a run: {}", first.percentiles());
    println!("the same exchanges of a bare client: {bare}; ratio of the medians {:.2}", taken.p50 / bare.p50);
    println!("start to first request: {}; raw spawn of /bin/true: {}", starts.percentiles(), spawns.percentiles());
    println!("after start: {}", last.requests[0].process);
    suite.row(
        "one tool turn (model answer, `read_file` of 4 KB, next request sent), p50",
        taken.p50 / 1e3,
        "ms",
        Target::AtMost(1.0),
    );
    suite.row("start to first request sent, p50", starts.percentiles().p50 / 1e3, "ms", Target::AtMost(10.0));
    suite.row("resident after start", resident.percentiles().p50, "MiB", Target::AtMost(MEBIBYTES));
}

/// Many turns with large results: first as everybody runs it, then with room for all of it.
fn long_runs(suite: &mut Suite, runtime: &Runtime) {
    let world = World::new(LONG_TURNS, LARGE_FILE);
    let usual = long_run(&world, runtime, "usual room", &[]);
    long_run(&world, runtime, "room for all", &[ALL_OF_IT]);
    suite.row(
        "200 turns with results of 50 KB: cost of a turn at turn 200, as a multiple of turn 20",
        usual.growth,
        "x",
        Target::AtMost(2.0),
    );
    suite.row(
        "resident after 200 turns with results of 50 KB, beyond 3 x the context's bytes",
        usual.beyond_context,
        "MiB",
        Target::AtMost(MEBIBYTES),
    );
}

/// What long runs cost.
struct Long {
    growth: f64,
    beyond_context: f64,
}

fn long_run(world: &World, runtime: &Runtime, name: &str, variables: &[(&str, &str)]) -> Long {
    let (mut runs, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..LONG_ROUNDS {
        let (_, heard) = world.run(runtime, variables);
        bare.push(world.run_bare(runtime, &heard));
        runs.push(heard);
    }
    let times = |runs: &[Heard]| [EARLY, LATE].map(|turn| around(turn, runs, Heard::turns));
    let processor = [EARLY, LATE].map(|turn| around(turn, &runs, Heard::processor_times));
    let ([early, late], [bare_early, bare_late]) = (times(&runs), times(&bare));
    let beyond = |heard: &Heard| heard.last().process.resident - TIMES * heard.context();
    let beyond_context = median(runs.iter().map(beyond).collect());
    let last = runs.last().expect("a run").last();
    println!(
        "{name}: around turn 20 {early:.0} µs, around turn 200 {late:.0} µs; processor {:.0} and {:.0} µs; bare client {bare_early:.0} and {bare_late:.0} µs, ratios {:.2} and {:.2}",
        processor[0],
        processor[1],
        early / bare_early,
        late / bare_late,
    );
    println!("{name}: context {:.2} MiB after 200 turns; {}", runs.last().expect("a run").context(), last.process);
    Long { growth: late / early, beyond_context }
}

fn raw_spawn() -> Duration {
    let started = Instant::now();
    spawn(c"/bin/true", &[]);
    started.elapsed()
}
