//! The receipts of a run in a cluster: read from its RunRecords, and verified up to the head that the run reported last.

use anyhow::{Context as _, bail};
use sympozium_api::agent_run::RunReport;
use sympozium_api::names::Digest;
use sympozium_api::run_record::RecordKind;
use sympozium_api::text::printable;
use sympozium_api::{AgentRun, RunRecord};
use sympozium_ipc::receipt::Verifier;

use super::plan::{self, StoredPlan};
use super::records::{self, Records};
use super::{Cluster, list_runs, view, warn_truncated};
use crate::output::print_stderr;
use sympozium_runs::HintedError;
use sympozium_runs::receipts::{ExpectedEnd, OnReceipt, VerifiedChain, check_end, verify_line};
use sympozium_runs::{StoredReceipts, display_name};

/// What is stored of a run, as far as its receipts depend on it.
#[derive(Debug)]
pub struct ClusterReceipts {
    pub name: String,
    pub uid: String,
    /// The digest of the run's plan, which the first receipt is chained to. Immutable once it is set.
    pub plan: Option<Digest>,
    /// Whether the stored plan has this digest; the error says how it differs.
    pub plan_check: Result<(), String>,
    /// The run's last report.
    pub report: Option<RunReport>,
    /// Whether the run is not terminal yet.
    pub is_running: bool,
    pub records: Vec<RunRecord>,
}

/// Reads what `ClusterReceipts` holds from the cluster.
///
/// # Errors
///
/// When there is no such run, or it cannot be read.
pub fn read_receipts(cluster: &Cluster, run: &str) -> Result<ClusterReceipts, HintedError> {
    let connection = &cluster.connection;
    // The run first: records are written before the report that refers to them.
    let found = cluster.find(run)?;
    let status = view::status(&found.run);
    let (stored, records) = cluster.block_on(async {
        let stored = plan::read_stored_plan(connection, &found.run).await;
        let records = records::read(connection, &found.run, RecordKind::Receipts).await;
        (stored, records)
    });
    let Records { records, is_truncated: is_cut, .. } = records?;
    if is_cut {
        print_stderr("warning: the receipts exceed the read limit; the verification fails at the first one beyond it");
    }
    let stored = match stored {
        StoredPlan::Plan(_) | StoredPlan::NotPlanned => Ok(()),
        StoredPlan::Mismatch(why) => Err(why),
        StoredPlan::Deleted => {
            print_stderr("warning: the stored plan was deleted; the plan digest in the run's status is trusted");
            Ok(())
        }
        StoredPlan::Unreadable(_) => {
            print_stderr("warning: the stored plan cannot be read; the plan digest in the run's status is trusted");
            Ok(())
        }
    };
    Ok(ClusterReceipts {
        name: found.name,
        uid: found.uid,
        plan: status.plan_digest,
        plan_check: stored,
        report: status.report,
        is_running: view::run_end(&found.run).is_none(),
        records,
    })
}

/// The names of all runs that have reported.
///
/// # Errors
///
/// When they cannot be listed.
pub fn reported_runs(cluster: &Cluster) -> Result<Vec<String>, HintedError> {
    // Without a report there is nothing to verify.
    let reported = |run: AgentRun| {
        let status = run.status.as_ref();
        let has_report = status.is_some_and(|it| it.report.is_some());
        run.metadata.name.filter(|_| has_report)
    };
    let (names, has_more) = cluster.block_on(list_runs(&cluster.connection, reported))?;
    if has_more {
        warn_truncated();
    }
    Ok(names)
}

impl StoredReceipts for ClusterReceipts {
    fn display_name(&self) -> String {
        display_name(&self.name, &self.uid)
    }

    fn verify(&self, on_receipt: &mut OnReceipt<'_>) -> anyhow::Result<VerifiedChain> {
        if let Err(why) = &self.plan_check {
            bail!("the stored plan does not match the run's plan digest: {}", printable(why));
        }
        let Some(plan) = &self.plan else {
            bail!("the run was never planned, so it has no receipts");
        };
        let mut verifier = Verifier::new(plan.clone());
        let Some(report) = &self.report else {
            if !self.is_running {
                bail!("the run has no report: it ended before the first one, or the report was removed");
            }
            return self.verify_empty(&mut verifier);
        };
        let (Some(head), Some(count)) = (&report.receipts_head, report.receipts) else {
            bail!("the run's report has no number of receipts");
        };
        let end = ExpectedEnd { head: Some(head), count: Some(u64::try_from(count).unwrap_or(0)), bytes: u64::MAX };
        let mut number = 0;
        let mut unreported_bytes = 0;
        let mut is_wanted = true;
        for record in &self.records {
            let spec = &record.spec;
            if verifier.lines() < end.count.unwrap_or(0) && !is_contiguous(record, &verifier) {
                bail!("line {}: its RunRecord does not continue the chain of the one before", number + 1);
            }
            for line in &spec.lines {
                // Lines beyond the last report do not count: the report about them never arrived.
                if Some(verifier.lines()) == end.count {
                    unreported_bytes += line.len() as u64 + 1;
                    continue;
                }
                number += 1;
                is_wanted = is_wanted && verify_line(&mut verifier, number, line, on_receipt)?;
                if !is_wanted {
                    return finish_early(&mut verifier);
                }
            }
            if unreported_bytes == 0 && spec.head != *verifier.head() {
                bail!("line {number}: the head of its RunRecord is not the hash of its last line");
            }
        }
        let checked = check_end(&mut verifier, &end, number).context("RunRecords")?;
        Ok(VerifiedChain { unreported_bytes, is_running: self.is_running, ..checked })
    }
}

impl ClusterReceipts {
    fn verify_empty(&self, verifier: &mut Verifier) -> anyhow::Result<VerifiedChain> {
        let end = ExpectedEnd { head: None, count: Some(0), bytes: 0 };
        let checked = check_end(verifier, &end, 0)?;
        Ok(VerifiedChain { is_running: self.is_running, ..checked })
    }
}

/// For a caller that needs no more receipts.
fn finish_early(verifier: &mut Verifier) -> anyhow::Result<VerifiedChain> {
    let end = ExpectedEnd { head: None, count: None, bytes: 0 };
    check_end(verifier, &end, 0)
}

/// Whether a record claims the position in the chain that it has.
fn is_contiguous(record: &RunRecord, verifier: &Verifier) -> bool {
    let spec = &record.spec;
    let is_next = u64::try_from(spec.first_line).is_ok_and(|it| it == verifier.lines());
    let previous = spec.previous_head.as_ref();
    is_next && previous.is_none_or(|it| it == verifier.head())
}
