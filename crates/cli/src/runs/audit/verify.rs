//! Verifies that the receipts of a run are those that it wrote: complete, in order, and nothing else.

use std::fmt;
use std::fs::File;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use sympozium_api::RunPlan;
use sympozium_api::names::Digest;
use sympozium_api::run_plan::MAX_BYTES;
use sympozium_gateway::run_api::local::files;
use sympozium_ipc::receipt::{Broken, MAX_LINE_BYTES, Problem, Receipt, Verifier};

use super::super::arguments::VerifyArguments;
use super::super::bounded::{Line, Lines, open};
use super::super::logs::report;
use super::{Kept, said};
use crate::cluster::{self, Cluster};
use crate::failure::{FAILED, Failure};
use crate::local::record::RunRecord;
use crate::local::state::{RunDirectory, State, read_bounded};
use crate::manifests::problem::printable;
use crate::output::answer;

/// A verified chain of receipts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    pub receipts: u64,
    pub head: Digest,
    /// Bytes after the last reported receipt, which a crash left there.
    pub behind: u64,
    /// Whether the run is running, and will write more receipts.
    pub is_alive: bool,
    /// Whether it is known that these are all receipts.
    pub is_whole: bool,
}

/// Called with each valid receipt, as text and parsed. Returns whether to continue.
pub type Told<'t> = dyn FnMut(&str, &Receipt) -> bool + 't;

/// The expected end of a chain, as far as it is known.
pub struct End<'e> {
    /// The hash of the last line.
    pub head: Option<&'e Digest>,
    /// The number of lines.
    pub count: Option<u64>,
    /// Bytes of the file that count.
    pub bytes: u64,
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.receipts {
            1 => write!(f, "1 receipt")?,
            count => write!(f, "{count} receipts")?,
        }
        write!(f, ", head {}", self.head)?;
        if !self.is_whole {
            write!(f, "; without --head, an end that was cut off would not show")?;
        }
        if self.is_alive {
            write!(f, "; the run goes on, and this is what it has reported so far")?;
        } else if self.behind > 0 {
            write!(f, "; {} bytes behind them were never reported, and do not count", self.behind)?;
        }
        Ok(())
    }
}

/// `sympozium audit verify`.
pub fn run(arguments: &VerifyArguments) -> Result<ExitCode, Failure> {
    if let (Some(file), Some(plan)) = (&arguments.file, &arguments.plan) {
        let end = End { head: arguments.head.as_ref(), count: arguments.count, bytes: u64::MAX };
        let name = printable(&file.display().to_string());
        // Links and pipes are permitted: the user named the file.
        let opened = File::open(file).with_context(|| format!("cannot read {name}"));
        let checked = opened.and_then(|opened| chain(opened, plan, &end, &mut |_, _| true));
        return tell([match checked {
            Ok(checked) => Ok(format!("ok: {name}: {checked}")),
            Err(error) => Err(broken(&name, &error)),
        }]);
    }
    if let Some(cluster) = Cluster::chosen(&arguments.cluster)? {
        let runs = match arguments.all {
            true => cluster::audit::names(&cluster)?,
            false => arguments.runs.clone(),
        };
        let which = match arguments.all {
            true => Which::All,
            false => Which::Named,
        };
        // One after the other, because the receipts of a run can be large.
        let mut code = ExitCode::SUCCESS;
        for run in &runs {
            if tell([verdict_in(&cluster, which, run)?])? != ExitCode::SUCCESS {
                code = ExitCode::from(FAILED);
            }
        }
        return Ok(code);
    }
    let state = State::open()?;
    let runs = match arguments.all {
        true => (state.list()).map_err(|error| Failure::new(error, "see that the directory is readable"))?,
        false => {
            let found = arguments.runs.iter().map(|run| state.find(run));
            found.collect::<Result<_, _>>()?
        }
    };
    tell(runs.into_iter().map(|found| verdict(&Kept::here(found))))
}

/// Which runs are verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Those that the user named.
    Named,
    All,
}

/// Verifies the receipts that a cluster stores of a run. Returns a line for the user; `Err` if they do not hold.
///
/// # Errors
///
/// If a named run cannot be read. With [`Which::All`], where a run may have been deleted meanwhile, that is only a
/// line.
pub fn verdict_in(cluster: &Cluster, which: Which, run: &str) -> Result<Result<String, String>, Failure> {
    match (cluster::audit::kept(cluster, run), which) {
        (Ok(kept), _) => Ok(verdict(&Kept::Cluster(Box::new(kept)))),
        (Err(failure), Which::Named) => Err(failure),
        (Err(failure), Which::All) => {
            Ok(Err(format!("not verified: {}: {}", printable(run), printable(&failure.words()))))
        }
    }
}

/// Verifies the stored receipts of a run. Returns a line for the user; `Err` if they do not hold.
fn verdict(kept: &Kept) -> Result<String, String> {
    let name = kept.name();
    match kept.check(&mut |_, _| true) {
        Ok(checked) => Ok(said(&name, &checked)),
        Err(error) => Err(broken(&name, &error)),
    }
}

/// Prints the lines. The exit code is 0 if all hold.
fn tell(all: impl IntoIterator<Item = Result<String, String>>) -> Result<ExitCode, Failure> {
    let mut code = ExitCode::SUCCESS;
    for one in all {
        let text = one.unwrap_or_else(|broken| {
            code = ExitCode::from(FAILED);
            broken
        });
        answer(&(text + "\n"))?;
    }
    Ok(code)
}

fn broken(name: &str, error: &anyhow::Error) -> String {
    format!("broken: {name}: {}", printable(&format!("{error:#}")))
}

/// Verifies everything that is stored of a run, from its plan to the last hash that it reported. The error is the first
/// defect.
pub fn check(directory: &RunDirectory, record: &RunRecord, told: &mut Told<'_>) -> anyhow::Result<Checked> {
    let is_alive = directory.is_alive();
    let plan = read_bounded(&directory.at("plan.json"), MAX_BYTES as u64)?;
    let plan = RunPlan::digest_of(&plan);
    if plan != record.plan {
        bail!("plan.json has digest {plan}, and run.json says {}", record.plan);
    }
    // Before the receipts: in a running run the report is replaced after the receipts that it covers are written.
    let path = directory.at(files::REPORT);
    if std::fs::symlink_metadata(&path).is_err() {
        if is_alive {
            return Ok(Checked { receipts: 0, head: plan, behind: 0, is_alive, is_whole: true });
        }
        bail!("there is no report.json: the run ended before it reported anything, or it was removed");
    }
    let report = report(directory)?;
    if report.run != record.uid {
        bail!("report.json is of another run");
    }
    if report.plan != plan {
        bail!("report.json is of a run with plan {}, and plan.json has digest {plan}", report.plan);
    }
    let end = End { head: Some(&report.head), count: Some(report.receipts), bytes: report.receipts_bytes };
    let path = directory.at(files::RECEIPTS);
    if report.receipts_bytes == 0 && std::fs::symlink_metadata(&path).is_err() {
        let mut verifier = Verifier::new(plan);
        return finish(&mut verifier, &end, 0).map(|checked| Checked { is_alive, ..checked });
    }
    let file = open(&path)?;
    let length = file.metadata().context("cannot see receipts.jsonl")?.len();
    let checked = chain(file, &plan, &end, told).context(files::RECEIPTS)?;
    Ok(Checked { behind: length.saturating_sub(report.receipts_bytes), is_alive, ..checked })
}

/// Verifies the lines of a file one by one, in bounded memory.
fn chain(file: File, plan: &Digest, end: &End<'_>, told: &mut Told<'_>) -> anyhow::Result<Checked> {
    let mut lines = Lines::new(file, end.bytes, MAX_LINE_BYTES);
    let mut verifier = Verifier::new(plan.clone());
    let mut number = 0;
    while let Some(line) = lines.next().context("cannot read the receipts")? {
        number += 1;
        let wrong = |problem| Broken { line: number, problem };
        let bytes = match line {
            Line::Whole(bytes) => bytes,
            Line::Cut(_, length) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                return Err(wrong(Problem::Length(length)).into());
            }
            Line::Unfinished(_) => bail!("line {number}: it has no end: something was cut off"),
        };
        let text = str::from_utf8(&bytes).map_err(|_| wrong(Problem::Form))?;
        if !read_line(&mut verifier, number, text, told)? {
            // The caller has seen enough.
            break;
        }
    }
    finish(&mut verifier, end, number)
}

/// Verifies the next line of a chain, and passes it on. Returns whether to continue.
pub fn read_line(verifier: &mut Verifier, number: usize, text: &str, told: &mut Told<'_>) -> anyhow::Result<bool> {
    let receipt = verifier.read(text).map_err(|problem| Broken { line: number, problem })?;
    Ok(told(text, &receipt))
}

/// Checks the end of a chain.
pub fn finish(verifier: &mut Verifier, end: &End<'_>, lines: usize) -> anyhow::Result<Checked> {
    let found = verifier.lines();
    if let Some(expected) = end.count
        && expected != found
    {
        match expected > found {
            true => {
                bail!("line {}: it is missing: there are {found} receipts, and {expected} were reported", lines + 1)
            }
            false => bail!(
                "line {}: it is one too many: there are {found} receipts, and {expected} were reported",
                expected + 1
            ),
        }
    }
    if let Some(expected) = end.head
        && expected != verifier.head()
    {
        let problem = Problem::Head { expected: expected.clone(), found: verifier.head().clone() };
        // Another cause can be that the last line was replaced.
        return Err(Broken { line: lines.max(1), problem }.into());
    }
    Ok(Checked {
        receipts: found,
        head: verifier.head().clone(),
        behind: 0,
        is_alive: false,
        is_whole: end.head.is_some() || end.count.is_some(),
    })
}
