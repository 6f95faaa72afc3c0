//! `fuzz`: coverage-guided fuzzing of every target in `fuzz/`, for a bounded time each, and what is retained of it.

mod corpus;
mod engine;
mod report;
mod targets;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use anyhow::bail;
use parking_lot::Mutex;

use self::engine::{Engine, Verdict};
use self::report::Report;
use self::targets::{TARGETS, Target};
use crate::output::{hinted, line, note};

#[derive(clap::Args)]
pub struct Arguments {
    /// How long to fuzz each target; without it, ten minutes where the bytes come from a run or the network, else two.
    #[arg(long)]
    seconds: Option<u64>,
    /// Only these targets; several with commas between them.
    #[arg(long, value_delimiter = ',')]
    target: Vec<String>,
    /// Run one target on this file alone, to reproduce what was found.
    #[arg(long, requires = "target")]
    input: Option<PathBuf>,
    /// How many targets to fuzz at once; without it, one for each core.
    #[arg(long)]
    jobs: Option<usize>,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let chosen = choose(&arguments.target)?;
    let engine = Engine::install()?;
    engine.build(&chosen)?;
    if let Some(input) = &arguments.input {
        return reproduce(&engine, &chosen, input);
    }
    let reports = fuzz_all(&engine, &chosen, arguments)?;
    line(&report::table(&reports));
    let found: Vec<&Report> = reports.iter().filter(|report| report.outcome.verdict != Verdict::Nothing).collect();
    if found.is_empty() {
        line(&format!("{} targets fuzzed, nothing found", reports.len()));
        return Ok(());
    }
    for report in &found {
        note(&report.how_to_reproduce());
    }
    bail!("fuzzing failed in {} of {} targets", found.len(), reports.len());
}

fn choose(names: &[String]) -> anyhow::Result<Vec<&'static Target>> {
    if names.is_empty() {
        return Ok(TARGETS.iter().collect());
    }
    let find = |name: &String| {
        TARGETS
            .iter()
            .find(|target| target.name == name)
            .ok_or_else(|| hinted(format!("there is no fuzz target {name}"), "they are in xtask/src/fuzz/targets.rs"))
    };
    names.iter().map(find).collect()
}

fn reproduce(engine: &Engine, chosen: &[&Target], input: &Path) -> anyhow::Result<()> {
    let [target] = chosen else {
        bail!("an input is for one target");
    };
    if engine.run_input(target.name, input)? {
        line("every property holds for this input")
    } else {
        bail!("{} fails on {}", target.name, input.display())
    }
    Ok(())
}

/// Fuzzes all that were chosen, several at once. A report for each, in the order of the table.
fn fuzz_all(engine: &Engine, chosen: &[&'static Target], arguments: &Arguments) -> anyhow::Result<Vec<Report>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = arguments.jobs.unwrap_or(cores).clamp(1, chosen.len());
    let queue: Mutex<VecDeque<_>> = Mutex::new(chosen.iter().copied().enumerate().collect());
    let next = || {
        let mut queue = queue.lock();
        queue.pop_front()
    };
    let work = || -> anyhow::Result<Vec<(usize, Report)>> {
        let mut done = Vec::new();
        while let Some((number, target)) = next() {
            let seconds = arguments.seconds.unwrap_or(target.source.seconds());
            let name = target.name;
            let of = format!("{} of {}", number + 1, chosen.len());
            note(&format!("{name}: fuzzing for {seconds} s ({of})"));
            let outcome = engine.fuzz(name, seconds)?;
            let minimised = corpus::minimise(engine, name)?;
            let report = Report { target, outcome, minimised };
            note(&report.progress());
            done.push((number, report));
        }
        Ok(done)
    };
    let mut reports = Vec::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            match worker.join() {
                Ok(done) => reports.extend(done?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        anyhow::Ok(())
    })?;
    reports.sort_by_key(|(number, _)| *number);
    Ok(reports.into_iter().map(|(_, report)| report).collect())
}
