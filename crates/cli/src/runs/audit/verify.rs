//! Verifies that the receipts of a run are those that it wrote: complete, in order, and nothing else.

use std::fmt;
use std::fs::File;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use sympozium_api::RunPlan;
use sympozium_api::names::Digest;
use sympozium_api::run_plan::MAX_BYTES;
use sympozium_api::text::printable;
use sympozium_gateway::run_api::local::files;
use sympozium_ipc::receipt::{ChainError, LineError, MAX_LINE_BYTES, Receipt, Verifier};

use super::super::arguments::VerifyArguments;
use super::super::bounded_lines::{BoundedLine, BoundedLines, open_regular};
use super::super::logs::read_report;
use super::{StoredReceipts, verified_line};
use crate::cluster::{self, Cluster};
use crate::failure::{FAILED, Failure};
use crate::output::print_stdout;
use sympozium_local::record::LocalRunRecord;
use sympozium_local::state::{RunDirectory, StateDirectory, read_bounded};

/// A verified chain of receipts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedChain {
    pub receipts: u64,
    pub head: Digest,
    /// Bytes after the last reported receipt, which a crash left there.
    pub unreported_bytes: u64,
    /// Whether the run is running, and will write more receipts.
    pub is_running: bool,
    /// Whether it is known that these are all receipts.
    pub is_complete: bool,
}

/// Called with each valid receipt, as text and parsed. Returns whether to continue.
pub type OnReceipt<'t> = dyn FnMut(&str, &Receipt) -> bool + 't;

/// The expected end of a chain, as far as it is known.
pub struct ExpectedEnd<'e> {
    /// The hash of the last line.
    pub head: Option<&'e Digest>,
    /// The number of lines.
    pub count: Option<u64>,
    /// Bytes of the file that count.
    pub bytes: u64,
}

impl fmt::Display for VerifiedChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.receipts {
            1 => write!(f, "1 receipt")?,
            count => write!(f, "{count} receipts")?,
        }
        write!(f, ", head {}", self.head)?;
        if !self.is_complete {
            write!(f, "; without --head, an end that was cut off would not show")?;
        }
        if self.is_running {
            write!(f, "; the run goes on, and this is what it has reported so far")?;
        } else if self.unreported_bytes > 0 {
            write!(f, "; {} bytes behind them were never reported, and do not count", self.unreported_bytes)?;
        }
        Ok(())
    }
}

/// `sympozium audit verify`.
pub fn run(arguments: &VerifyArguments) -> Result<ExitCode, Failure> {
    if let (Some(file), Some(plan)) = (&arguments.file, &arguments.plan) {
        let end = ExpectedEnd { head: arguments.head.as_ref(), count: arguments.count, bytes: u64::MAX };
        let name = printable(file.display().to_string());
        // Links and pipes are permitted: the user named the file.
        let opened = File::open(file).with_context(|| format!("cannot read {name}"));
        let checked = opened.and_then(|opened| verify_chain(opened, plan, &end, &mut |_, _| true));
        return print_verdicts([match checked {
            Ok(checked) => Ok(format!("ok: {name}: {checked}")),
            Err(error) => Err(broken_line(&name, &error)),
        }]);
    }
    if let Some(cluster) = Cluster::select(&arguments.cluster)? {
        let runs = match arguments.all {
            true => cluster::audit::reported_runs(&cluster)?,
            false => arguments.runs.clone(),
        };
        let which = match arguments.all {
            true => RunSelection::All,
            false => RunSelection::Named,
        };
        // One after the other, because the receipts of a run can be large.
        let mut code = ExitCode::SUCCESS;
        for run in &runs {
            if print_verdicts([verify_in_cluster(&cluster, which, run)?])? != ExitCode::SUCCESS {
                code = ExitCode::from(FAILED);
            }
        }
        return Ok(code);
    }
    let state = StateDirectory::open()?;
    let runs = match arguments.all {
        true => (state.list_runs()).map_err(|error| Failure::new(error, "see that the directory is readable"))?,
        false => {
            let found = arguments.runs.iter().map(|run| state.find_run(run));
            found.collect::<Result<_, _>>()?
        }
    };
    print_verdicts(runs.into_iter().map(|found| verify_stored(&StoredReceipts::local(found))))
}

/// Which runs are verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunSelection {
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
pub fn verify_in_cluster(cluster: &Cluster, which: RunSelection, run: &str) -> Result<Result<String, String>, Failure> {
    match (cluster::audit::read_receipts(cluster, run), which) {
        (Ok(kept), _) => Ok(verify_stored(&StoredReceipts::Cluster(Box::new(kept)))),
        (Err(failure), RunSelection::Named) => Err(failure),
        (Err(failure), RunSelection::All) => {
            Ok(Err(format!("not verified: {}: {}", printable(run), printable(failure.summary()))))
        }
    }
}

/// Verifies the stored receipts of a run. Returns a line for the user; `Err` if they do not hold.
fn verify_stored(kept: &StoredReceipts) -> Result<String, String> {
    let name = kept.display_name();
    match kept.verify(&mut |_, _| true) {
        Ok(checked) => Ok(verified_line(&name, &checked)),
        Err(error) => Err(broken_line(&name, &error)),
    }
}

/// Prints the lines. The exit code is 0 if all hold.
fn print_verdicts(all: impl IntoIterator<Item = Result<String, String>>) -> Result<ExitCode, Failure> {
    let mut code = ExitCode::SUCCESS;
    for one in all {
        let text = one.unwrap_or_else(|broken| {
            code = ExitCode::from(FAILED);
            broken
        });
        print_stdout(&(text + "\n"))?;
    }
    Ok(code)
}

fn broken_line(name: &str, error: &anyhow::Error) -> String {
    format!("broken: {name}: {}", printable(format!("{error:#}")))
}

/// Verifies everything that is stored of a run, from its plan to the last hash that it reported. The error is the first
/// defect.
pub fn verify_run(
    directory: &RunDirectory,
    record: &LocalRunRecord,
    told: &mut OnReceipt<'_>,
) -> anyhow::Result<VerifiedChain> {
    let is_alive = directory.is_running();
    let plan = read_bounded(&directory.join("plan.json"), MAX_BYTES as u64)?;
    let plan = RunPlan::digest_of(&plan);
    if plan != record.plan {
        bail!("plan.json has digest {plan}, and run.json says {}", record.plan);
    }
    // Before the receipts: in a running run the report is replaced after the receipts that it covers are written.
    let path = directory.join(files::REPORT);
    if std::fs::symlink_metadata(&path).is_err() {
        if is_alive {
            return Ok(VerifiedChain {
                receipts: 0,
                head: plan,
                unreported_bytes: 0,
                is_running: is_alive,
                is_complete: true,
            });
        }
        bail!("there is no report.json: the run ended before it reported anything, or it was removed");
    }
    let report = read_report(directory)?;
    if report.run != record.uid {
        bail!("report.json is of another run");
    }
    if report.plan != plan {
        bail!("report.json is of a run with plan {}, and plan.json has digest {plan}", report.plan);
    }
    let end = ExpectedEnd { head: Some(&report.head), count: Some(report.receipts), bytes: report.receipts_bytes };
    let path = directory.join(files::RECEIPTS);
    if report.receipts_bytes == 0 && std::fs::symlink_metadata(&path).is_err() {
        let mut verifier = Verifier::new(plan);
        return check_end(&mut verifier, &end, 0).map(|checked| VerifiedChain { is_running: is_alive, ..checked });
    }
    let file = open_regular(&path)?;
    let length = file.metadata().context("cannot see receipts.jsonl")?.len();
    let checked = verify_chain(file, &plan, &end, told).context(files::RECEIPTS)?;
    Ok(VerifiedChain {
        unreported_bytes: length.saturating_sub(report.receipts_bytes),
        is_running: is_alive,
        ..checked
    })
}

/// Verifies the lines of a file one by one, in bounded memory.
fn verify_chain(
    file: File,
    plan: &Digest,
    end: &ExpectedEnd<'_>,
    told: &mut OnReceipt<'_>,
) -> anyhow::Result<VerifiedChain> {
    let mut lines = BoundedLines::new(file, end.bytes, MAX_LINE_BYTES);
    let mut verifier = Verifier::new(plan.clone());
    let mut number = 0;
    while let Some(line) = lines.next().context("cannot read the receipts")? {
        number += 1;
        let wrong = |problem| ChainError { line: number, problem };
        let bytes = match line {
            BoundedLine::Whole(bytes) => bytes,
            BoundedLine::Truncated(_, length) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                return Err(wrong(LineError::TooLong(length)).into());
            }
            BoundedLine::Unterminated(_) => bail!("line {number}: it has no end: something was cut off"),
        };
        let text = str::from_utf8(&bytes).map_err(|_| wrong(LineError::NotAReceipt))?;
        if !verify_line(&mut verifier, number, text, told)? {
            // The caller has seen enough.
            break;
        }
    }
    check_end(&mut verifier, end, number)
}

/// Verifies the next line of a chain, and passes it on. Returns whether to continue.
pub fn verify_line(
    verifier: &mut Verifier,
    number: usize,
    text: &str,
    told: &mut OnReceipt<'_>,
) -> anyhow::Result<bool> {
    let receipt = verifier.read(text).map_err(|problem| ChainError { line: number, problem })?;
    Ok(told(text, &receipt))
}

/// Checks the end of a chain.
pub fn check_end(verifier: &mut Verifier, end: &ExpectedEnd<'_>, lines: usize) -> anyhow::Result<VerifiedChain> {
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
        let problem = LineError::WrongHead { expected: expected.clone(), found: verifier.head().clone() };
        // Another cause can be that the last line was replaced.
        return Err(ChainError { line: lines.max(1), problem }.into());
    }
    Ok(VerifiedChain {
        receipts: found,
        head: verifier.head().clone(),
        unreported_bytes: 0,
        is_running: false,
        is_complete: end.head.is_some() || end.count.is_some(),
    })
}
