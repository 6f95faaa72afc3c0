//! Verifies reports: each follows from the one before, and so does every receipt in it.

use std::sync::Arc;

use sympozium_api::digest::digest;
use sympozium_ipc::receipt::{Receipt, Verifier};
use sympozium_ipc::run_api::{ApiRefusal, ApiRefusalCode, Noted, Report};
use tokio::time::timeout;

use super::request::refuse;
use super::state::Seat;
use super::traits::{Kept, Reporter, Unable};
use super::{Room, Service, WORK_DEADLINE, run_is_over};
use crate::events::{EndingKind, Outcome};
use crate::plans::Run;

/// The domain of a report's digest.
pub const DOMAIN: &str = "sympozium.ai/report/v1";

/// Maximum number of attempts to store a report, if another gateway accepts reports of the same run.
const MAX_ATTEMPTS: u32 = 3;

/// How a report relates to the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// The last report again: its answer was lost.
    Again,
    Next {
        /// The cursor after this report.
        kept: Kept,
        receipts: Vec<Receipt>,
    },
}

/// Verifies a report against the cursor. Pure.
///
/// # Errors
///
/// Returns a refusal if it does not follow.
pub(crate) fn step(kept: &Kept, report: &Report) -> Result<Step, ApiRefusal> {
    let broken = |message: String| refuse(ApiRefusalCode::Chain, message);
    let own = digest(DOMAIN, report).map_err(|_| {
        let message = "the report has numbers in it that cannot be written down";
        refuse(ApiRefusalCode::Request, message)
    })?;
    if report.number.checked_add(1) == Some(kept.reports) && kept.last.as_ref() == Some(&own) {
        return Ok(Step::Again);
    }
    if kept.has_ended() {
        return Err(broken("the run has reported how it ended".to_owned()));
    }
    if report.number != kept.reports {
        let (expected, found) = (kept.reports, report.number);
        let message = format!("this is report {found}, and {expected} was expected");
        return Err(broken(message));
    }
    if report.first_receipt != kept.receipts {
        let (expected, found) = (kept.receipts, report.first_receipt);
        let message = format!("the first receipt is number {found}, and {expected} was expected");
        return Err(broken(message));
    }
    let mut verifier = Verifier::resume(kept.receipts, kept.head.clone());
    let mut receipts = Vec::with_capacity(report.receipts.len());
    for text in &report.receipts {
        let number = verifier.lines();
        let receipt = verifier.read(text);
        receipts.push(receipt.map_err(|problem| broken(format!("receipt {number}: {problem}")))?);
    }
    if *verifier.head() != report.head {
        let message = "the receipts do not lead to the hash that the report has for them";
        return Err(broken(message.to_owned()));
    }
    let kept = Kept {
        reports: kept.reports + 1,
        last: Some(own),
        receipts: verifier.lines(),
        head: verifier.head().clone(),
        phase: Some(report.phase),
    };
    Ok(Step::Next { kept, receipts })
}

impl<I, D, R: Reporter, S> Service<I, D, R, S>
where
    Self: Send + Sync + 'static,
{
    /// Stores a report, in a task of its own: a lost connection must not interrupt it.
    pub(super) async fn report(
        self: &Arc<Self>,
        connection: u64,
        run: &Arc<Run>,
        report: Report,
        room: (Seat, Option<Room>),
    ) -> Result<Noted, ApiRefusal> {
        let (service, run) = (Arc::clone(self), Arc::clone(run));
        let taking = tokio::spawn(async move {
            let taken = service.take(connection, &run, report).await;
            drop(room);
            taken
        });
        match timeout(WORK_DEADLINE, taking).await {
            Ok(Ok(taken)) => taken,
            Ok(Err(_)) => Err(refuse(ApiRefusalCode::Failed, "the report could not be kept")),
            Err(_) => Err(too_slow()),
        }
    }

    async fn take(&self, connection: u64, run: &Arc<Run>, report: Report) -> Result<Noted, ApiRefusal> {
        let facts = run.facts().ok_or_else(run_is_over)?;
        // Requests that wait behind one that hangs give up: they would hold the slots of all other requests.
        let locked = timeout(WORK_DEADLINE, run.state.reports.lock()).await;
        let mut known = locked.map_err(|_| too_slow())?;
        // It may have ended while this request waited for the previous one.
        if run.is_over() {
            return Err(run_is_over());
        }
        let (phase, ending) = (report.phase, report.ending.as_ref().map(EndingKind::of));
        let mut attempt = 0;
        let (before, kept, receipts) = loop {
            attempt += 1;
            let (before, is_fresh) = match known.take() {
                Some(kept) => (kept, false),
                None => {
                    let kept = self.api.reporter.kept(facts).await?;
                    let kept = kept.unwrap_or_else(|| Kept::nothing(facts.plan.clone()));
                    (kept, true)
                }
            };
            if before.has_ended() {
                run.state.set_ended();
            }
            let (kept, receipts) = match step(&before, &report) {
                Ok(Step::Next { kept, receipts }) => (kept, receipts),
                Ok(Step::Again) => {
                    let receipts = before.receipts;
                    *known = Some(before);
                    return Ok(Noted { receipts });
                }
                // It may follow from what another gateway has accepted.
                Err(_) if !is_fresh && attempt < MAX_ATTEMPTS => continue,
                Err(refusal) => {
                    *known = Some(before);
                    return Err(refusal);
                }
            };
            match self.api.reporter.take(facts, report.clone(), &kept).await {
                Ok(()) => break (before, kept, receipts),
                Err(Unable::Overtaken) if attempt < MAX_ATTEMPTS => {}
                Err(Unable::Overtaken) => return Err(Unable::Overtaken.into()),
                Err(unable) => {
                    *known = Some(before);
                    return Err(unable.into());
                }
            }
        };
        let tell = |outcome| self.tell(connection, run.uid(), outcome);
        for receipt in receipts {
            tell(Outcome::Receipt { receipt: Box::new(receipt) });
        }
        if before.phase != Some(phase) {
            tell(Outcome::Phase { phase });
        }
        let count = kept.receipts;
        *known = Some(kept);
        if let Some(ending) = ending {
            run.state.set_ended();
            tell(Outcome::RunEnded { ending });
        }
        Ok(Noted { receipts: count })
    }
}

fn too_slow() -> ApiRefusal {
    let message = "the report could not be kept in time";
    refuse(ApiRefusalCode::Failed, message)
}

#[cfg(test)]
mod tests;
