//! Benchmarks of the agent: `make bench SUITE=agent`. One function measures each group of rows of
//! `bench/rows/agent.txt`. The agent is the shipped program in a process of its own. Bridge and model are one server in
//! this process that permits and answers at once, so only the agent and the transport are measured. The transport alone
//! is measured in the same run, by a client that only sends the requests.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measurement that cannot be made must stop, and its table is its output"
)]

mod bare_client;
mod fake_bridge;
mod harness;
mod process;
mod turn_times;

use std::time::{Duration, Instant};

use sympozium_testkit::bench::raw::spawn;
use sympozium_testkit::bench::{Samples, Suite, Target, median};
use sympozium_testkit::processes::mebibytes;
use tokio::runtime::Runtime;

use fake_bridge::Recording;
use harness::Harness;
use turn_times::mean_around;

/// Agents that are started, one after the other, and the turns of each.
const STARTS: usize = 41;
const FEW_TURNS: usize = 20;
/// Bytes of the file that they read in each turn.
const SMALL_FILE: usize = 4_000;
/// Long runs: their number, their turns, and the bytes of the file that is read in each turn.
const LONG_ROUNDS: usize = 11;
const LONG_TURNS: usize = 200;
const LARGE_FILE: usize = 50_000;
/// Turns that are compared. Old results are elided every few turns, so the cost of a turn is periodic: it is the mean
/// of eight turns, two periods, here turns 17 to 24 and the last eight.
const EARLY: usize = 20;
const LATE: usize = 196;
/// A budget so large that no result is elided.
const UNLIMITED_HISTORY: (&str, &str) = ("CONTEXT_HISTORY_BUDGET_BYTES", "1000000000");
/// The requirement: bytes beside the conversation, and how often that may be in memory.
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
    let harness = Harness::new(FEW_TURNS, SMALL_FILE);
    let (mut starts, mut spawns) = (Samples::default(), Samples::default());
    let (mut turns, mut first) = (Samples::default(), Samples::default());
    let (mut bare_client, mut resident) = (Samples::default(), Samples::default());
    // Warm up the machine's caches.
    let mut last = harness.run(runtime, &[]).1;
    harness.run_bare_client(runtime, &last);
    for _ in 0..STARTS {
        let (start, recording) = harness.run(runtime, &[]);
        starts.add(start.elapsed_until(&recording));
        let times = recording.turns();
        first.add(times[0]);
        times.iter().for_each(|time| turns.add(*time));
        resident.push(mebibytes(recording.requests[0].process.memory.resident));
        let times = harness.run_bare_client(runtime, &recording).turns();
        times.iter().for_each(|time| bare_client.add(*time));
        spawns.add(raw_spawn());
        last = recording;
    }
    let (times, bare_client) = (turns.percentiles(), bare_client.percentiles());
    println!("tool turn: {times}; the first of a run: {}", first.percentiles());
    println!(
        "the same exchanges of a bare client: {bare_client}; ratio of the medians {:.2}",
        times.p50 / bare_client.p50
    );
    println!("start to first request: {}; raw spawn of /bin/true: {}", starts.percentiles(), spawns.percentiles());
    println!("after start: {}", last.requests[0].process.memory);
    suite.row(
        "one tool turn (model answer, `read_file` of 4 KB, next request sent), p50",
        times.p50 / 1e3,
        "ms",
        Target::AtMost(1.0),
    );
    suite.row("start to first request sent, p50", starts.percentiles().p50 / 1e3, "ms", Target::AtMost(10.0));
    suite.row("resident after start", resident.percentiles().p50, "MiB", Target::AtMost(MEBIBYTES));
}

/// Many turns with large results: first with the default budget, then with room for all of them.
fn long_runs(suite: &mut Suite, runtime: &Runtime) {
    let harness = Harness::new(LONG_TURNS, LARGE_FILE);
    let usual = long_run(&harness, runtime, "usual room", &[]);
    long_run(&harness, runtime, "room for all", &[UNLIMITED_HISTORY]);
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

/// Cost of long runs.
struct Long {
    growth: f64,
    beyond_context: f64,
}

fn long_run(harness: &Harness, runtime: &Runtime, name: &str, variables: &[(&str, &str)]) -> Long {
    let (mut runs, mut bare_client) = (Vec::new(), Vec::new());
    for _ in 0..LONG_ROUNDS {
        let (_, recording) = harness.run(runtime, variables);
        bare_client.push(harness.run_bare_client(runtime, &recording));
        runs.push(recording);
    }
    let times = |runs: &[Recording]| [EARLY, LATE].map(|turn| mean_around(turn, runs, Recording::turns));
    let processor = [EARLY, LATE].map(|turn| mean_around(turn, &runs, Recording::processor_times));
    let ([early, late], [bare_early, bare_late]) = (times(&runs), times(&bare_client));
    let beyond =
        |recording: &Recording| mebibytes(recording.last().process.memory.resident) - TIMES * recording.context();
    let beyond_context = median(runs.iter().map(beyond).collect());
    let last = runs.last().expect("a run").last();
    println!(
        "{name}: around turn 20 {early:.0} µs, around turn 200 {late:.0} µs; processor {:.0} and {:.0} µs; bare client {bare_early:.0} and {bare_late:.0} µs, ratios {:.2} and {:.2}",
        processor[0],
        processor[1],
        early / bare_early,
        late / bare_late,
    );
    println!(
        "{name}: context {:.2} MiB after 200 turns; {}",
        runs.last().expect("a run").context(),
        last.process.memory
    );
    Long { growth: late / early, beyond_context }
}

fn raw_spawn() -> Duration {
    let started = Instant::now();
    spawn(c"/bin/true", &[]);
    started.elapsed()
}
