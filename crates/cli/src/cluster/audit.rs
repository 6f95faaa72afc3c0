//! The receipts of a run in a cluster: read from its RunRecords, and verified up to the head that the run reported.

use anyhow::{Context as _, bail};
use sympozium_api::agent_run::RunReport;
use sympozium_api::names::Digest;
use sympozium_api::run_record::RecordKind;
use sympozium_api::{AgentRun, RunRecord};
use sympozium_ipc::receipt::Verifier;

use super::plan::{self, Stored};
use super::records::{self, Records};
use super::{Cluster, list, view, warn_of_more};
use crate::failure::Failure;
use crate::manifests::problem::printable;
use crate::output::note;
use crate::runs::audit::verify::{Checked, End, Told, finish, read_line};

/// What is stored of a run, as far as its receipts depend on it.
#[derive(Debug)]
pub struct Kept {
    pub name: String,
    pub uid: String,
    /// The digest of the run's plan, which the first receipt is chained to. Immutable once it is set.
    pub plan: Option<Digest>,
    /// Whether the stored plan has this digest; the error says how it differs.
    pub stored: Result<(), String>,
    /// The run's last report.
    pub report: Option<RunReport>,
    /// Whether the run is not terminal yet.
    pub is_alive: bool,
    pub records: Vec<RunRecord>,
}

/// Reads what `ClusterReceipts` holds from the cluster.
///
/// # Errors
///
/// When there is no such run, or it cannot be read.
pub fn kept(cluster: &Cluster, run: &str) -> Result<Kept, Failure> {
    let connection = &cluster.connection;
    // The run first: records are written before the report that refers to them.
    let found = cluster.find(run)?;
    let status = view::status(&found.run);
    let (stored, records) = cluster.wait(async {
        let stored = plan::stored(connection, &found.run).await;
        let records = records::read(connection, &found.run, RecordKind::Receipts).await;
        (stored, records)
    });
    let Records { records, is_cut, .. } = records?;
    if is_cut {
        note("warning: there are more receipts than are read at once; what is missing is told below");
    }
    let stored = match stored {
        Stored::Plan(_) | Stored::NotPlanned => Ok(()),
        Stored::Wrong(why) => Err(why),
        Stored::Gone => {
            note("warning: the stored plan is gone; its digest in the run's status is believed");
            Ok(())
        }
        Stored::Unreadable(_) => {
            note("warning: the stored plan cannot be read; its digest in the run's status is believed");
            Ok(())
        }
    };
    Ok(Kept {
        name: found.name,
        uid: found.uid,
        plan: status.plan_digest,
        stored,
        report: status.report,
        is_alive: view::outcome(&found.run).is_none(),
        records,
    })
}

/// The names of all runs that have reported.
///
/// # Errors
///
/// When they cannot be listed.
pub fn names(cluster: &Cluster) -> Result<Vec<String>, Failure> {
    // Without a report there is nothing to verify.
    let reported = |run: AgentRun| {
        let status = run.status.as_ref();
        let has_report = status.is_some_and(|it| it.report.is_some());
        run.metadata.name.filter(|_| has_report)
    };
    let (names, has_more) = cluster.wait(list(&cluster.connection, reported))?;
    if has_more {
        warn_of_more();
    }
    Ok(names)
}

impl Kept {
    /// Verifies that the receipts are those that the run wrote: all that it reported, and nothing else.
    ///
    /// # Errors
    ///
    /// With the first violation of the chain.
    pub fn check(&self, told: &mut Told<'_>) -> anyhow::Result<Checked> {
        if let Err(why) = &self.stored {
            bail!("the stored plan is not the run's: {}", printable(why));
        }
        let Some(plan) = &self.plan else {
            bail!("the run was never planned: it has done nothing, and there is nothing to verify");
        };
        let mut verifier = Verifier::new(plan.clone());
        let Some(report) = &self.report else {
            if !self.is_alive {
                bail!("the run ended before it reported anything, or its report was removed");
            }
            return self.nothing_yet(&mut verifier);
        };
        let (Some(head), Some(count)) = (&report.receipts_head, report.receipts) else {
            bail!("the run's report does not say how many receipts there are");
        };
        let end = End { head: Some(head), count: Some(u64::try_from(count).unwrap_or(0)), bytes: u64::MAX };
        let mut number = 0;
        let mut behind = 0;
        let mut is_wanted = true;
        for record in &self.records {
            let spec = &record.spec;
            if verifier.lines() < end.count.unwrap_or(0) && !follows(record, &verifier) {
                bail!("line {}: the record with it does not follow from the one before", number + 1);
            }
            for line in &spec.lines {
                // Lines beyond the last report do not count: their own report never came.
                if Some(verifier.lines()) == end.count {
                    behind += line.len() as u64 + 1;
                    continue;
                }
                number += 1;
                is_wanted = is_wanted && read_line(&mut verifier, number, line, told)?;
                if !is_wanted {
                    return finish_early(&mut verifier);
                }
            }
            if behind == 0 && spec.head != *verifier.head() {
                bail!("line {number}: the record with it has another head than its last line");
            }
        }
        let checked = finish(&mut verifier, &end, number).context("RunRecords")?;
        Ok(Checked { behind, is_alive: self.is_alive, ..checked })
    }

    fn nothing_yet(&self, verifier: &mut Verifier) -> anyhow::Result<Checked> {
        let end = End { head: None, count: Some(0), bytes: 0 };
        let checked = finish(verifier, &end, 0)?;
        Ok(Checked { is_alive: self.is_alive, ..checked })
    }
}

/// The caller has seen enough.
fn finish_early(verifier: &mut Verifier) -> anyhow::Result<Checked> {
    let end = End { head: None, count: None, bytes: 0 };
    finish(verifier, &end, 0)
}

/// Whether a record claims the position in the chain that it has.
fn follows(record: &RunRecord, verifier: &Verifier) -> bool {
    let spec = &record.spec;
    let is_there = u64::try_from(spec.first_line).is_ok_and(|it| it == verifier.lines());
    let previous = spec.previous_head.as_ref();
    is_there && previous.is_none_or(|it| it == verifier.head())
}
