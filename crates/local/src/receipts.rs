//! The receipts of a run of this machine.

use std::fs::File;

use anyhow::{Context as _, bail};
use sympozium_api::RunPlan;
use sympozium_api::names::Digest;
use sympozium_api::run_plan::MAX_BYTES;
use sympozium_gateway::run_api::local::files;
use sympozium_ipc::receipt::{ChainError, LineError, MAX_LINE_BYTES, Verifier};
use sympozium_runs::receipts::{ExpectedEnd, OnReceipt, VerifiedChain, check_end, verify_line};
use sympozium_runs::{StoredReceipts, display_name};

use crate::bounded_lines::{BoundedLine, BoundedLines, open_regular};
use crate::logs::read_report;
use crate::record::LocalRunRecord;
use crate::state::{RunDirectory, read_bounded};

/// The stored receipts of a run, and what they are verified against.
#[derive(Debug)]
pub struct LocalReceipts {
    pub directory: RunDirectory,
    pub record: LocalRunRecord,
}

impl StoredReceipts for LocalReceipts {
    fn display_name(&self) -> String {
        display_name(&self.record.name, &self.record.uid)
    }

    fn verify(&self, on_receipt: &mut OnReceipt<'_>) -> anyhow::Result<VerifiedChain> {
        verify_run(&self.directory, &self.record, on_receipt)
    }
}

/// Verifies everything that is stored of a run, from its plan to the last hash that it reported. The error is the first
/// defect.
pub fn verify_run(
    directory: &RunDirectory,
    record: &LocalRunRecord,
    on_receipt: &mut OnReceipt<'_>,
) -> anyhow::Result<VerifiedChain> {
    let is_alive = directory.is_running();
    let plan = read_bounded(&directory.join("plan.json"), MAX_BYTES as u64)?;
    let plan = RunPlan::digest_of(&plan);
    if plan != record.plan {
        bail!("plan.json has digest {plan}, but run.json has {}", record.plan);
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
        bail!("there is no report.json: the run ended before its first report, or the file was removed");
    }
    let report = read_report(directory)?;
    if report.run != record.uid {
        bail!("report.json belongs to another run");
    }
    if report.plan != plan {
        bail!("report.json belongs to a run with plan {}, but plan.json has digest {plan}", report.plan);
    }
    let end = ExpectedEnd { head: Some(&report.head), count: Some(report.receipts), bytes: report.receipts_bytes };
    let path = directory.join(files::RECEIPTS);
    if report.receipts_bytes == 0 && std::fs::symlink_metadata(&path).is_err() {
        let mut verifier = Verifier::new(plan);
        return check_end(&mut verifier, &end, 0).map(|checked| VerifiedChain { is_running: is_alive, ..checked });
    }
    let file = open_regular(&path)?;
    let length = file.metadata().context("cannot read the length of receipts.jsonl")?.len();
    let checked = verify_chain(file, &plan, &end, on_receipt).context(files::RECEIPTS)?;
    Ok(VerifiedChain {
        unreported_bytes: length.saturating_sub(report.receipts_bytes),
        is_running: is_alive,
        ..checked
    })
}

/// Verifies the lines of a file one by one, in bounded memory.
pub fn verify_chain(
    file: File,
    plan: &Digest,
    end: &ExpectedEnd<'_>,
    on_receipt: &mut OnReceipt<'_>,
) -> anyhow::Result<VerifiedChain> {
    let mut lines = BoundedLines::new(file, end.bytes, MAX_LINE_BYTES);
    let mut verifier = Verifier::new(plan.clone());
    let mut number = 0;
    while let Some(line) = lines.next_line().context("cannot read the receipts")? {
        number += 1;
        let wrong = |problem| ChainError { line: number, problem };
        let bytes = match line {
            BoundedLine::Whole(bytes) => bytes,
            BoundedLine::Truncated(_, length) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                return Err(wrong(LineError::TooLong(length)).into());
            }
            BoundedLine::Unterminated(_) => bail!("line {number}: truncated: it has no line break"),
        };
        let text = str::from_utf8(&bytes).map_err(|_| wrong(LineError::NotAReceipt))?;
        if !verify_line(&mut verifier, number, text, on_receipt)? {
            // The caller needs no more receipts.
            break;
        }
    }
    check_end(&mut verifier, end, number)
}
