//! Verifies reports: each follows from the one before, and so does every receipt in it.

use std::sync::Arc;

use sympozium_api::digest::digest;
use sympozium_ipc::receipt::{Receipt, Verifier};
use sympozium_ipc::run_api::{AgentEnd, ApiRefusal, ApiRefusalCode, Report, ReportAck};
use tokio::time::timeout;

use super::request::refuse;
use super::state::RequestSlot;
use super::traits::{HandlerError, ReportCursor, ReportStore};
use super::{BodyReservation, HANDLER_TIMEOUT, Service, run_ended_refusal};
use crate::events::EventKind;
use crate::plans::Run;

/// The domain of a report's digest.
pub const REPORT_DOMAIN: &str = "sympozium.ai/report/v1";

/// Maximum number of attempts to store a report, if another gateway accepts reports of the same run.
const MAX_ATTEMPTS: u32 = 3;

/// How a report relates to the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReportStep {
    /// The last report again: its answer was lost.
    Duplicate,
    Next {
        /// The cursor after this report.
        cursor: ReportCursor,
        receipts: Vec<Receipt>,
    },
}

/// Verifies a report against the cursor. Pure.
///
/// # Errors
///
/// Returns a refusal if it does not follow.
pub(crate) fn check_report(cursor: &ReportCursor, report: &Report) -> Result<ReportStep, ApiRefusal> {
    let broken = |message: String| refuse(ApiRefusalCode::Chain, message);
    let own = digest(REPORT_DOMAIN, report).map_err(|_| {
        let message = "the report has numbers in it that cannot be written down";
        refuse(ApiRefusalCode::Request, message)
    })?;
    if report.number.checked_add(1) == Some(cursor.reports) && cursor.last.as_ref() == Some(&own) {
        return Ok(ReportStep::Duplicate);
    }
    if cursor.has_ended() {
        return Err(broken("the run has reported how it ended".to_owned()));
    }
    if report.number != cursor.reports {
        let (expected, found) = (cursor.reports, report.number);
        let message = format!("this is report {found}, and {expected} was expected");
        return Err(broken(message));
    }
    if report.first_receipt != cursor.receipts {
        let (expected, found) = (cursor.receipts, report.first_receipt);
        let message = format!("the first receipt is number {found}, and {expected} was expected");
        return Err(broken(message));
    }
    let mut verifier = Verifier::resume(cursor.receipts, cursor.head.clone());
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
    let cursor = ReportCursor {
        reports: cursor.reports + 1,
        last: Some(own),
        receipts: verifier.lines(),
        head: verifier.head().clone(),
        phase: Some(report.phase),
    };
    Ok(ReportStep::Next { cursor, receipts })
}

impl<I, D, R: ReportStore, S> Service<I, D, R, S>
where
    Self: Send + Sync + 'static,
{
    /// Stores a report, in a task of its own: a lost connection must not interrupt it.
    pub(super) async fn handle_report(
        self: &Arc<Self>,
        connection: u64,
        run: &Arc<Run>,
        report: Report,
        room: (RequestSlot, Option<BodyReservation>),
    ) -> Result<ReportAck, ApiRefusal> {
        let (service, run) = (Arc::clone(self), Arc::clone(run));
        let taking = tokio::spawn(async move {
            let taken = service.store_report(connection, &run, report).await;
            drop(room);
            taken
        });
        match timeout(HANDLER_TIMEOUT, taking).await {
            Ok(Ok(taken)) => taken,
            Ok(Err(_)) => Err(refuse(ApiRefusalCode::Failed, "the report could not be stored")),
            Err(_) => Err(timeout_refusal()),
        }
    }

    async fn store_report(&self, connection: u64, run: &Arc<Run>, report: Report) -> Result<ReportAck, ApiRefusal> {
        let facts = run.facts().ok_or_else(run_ended_refusal)?;
        // Requests that wait behind one that hangs give up: they would hold the slots of all other requests.
        let locked = timeout(HANDLER_TIMEOUT, run.state.reports.lock()).await;
        let mut known = locked.map_err(|_| timeout_refusal())?;
        // It may have ended while this request waited for the previous one.
        if run.has_ended() {
            return Err(run_ended_refusal());
        }
        let (phase, ending) = (report.phase, report.ending.as_ref().map(AgentEnd::kind));
        let mut attempt = 0;
        let (before, cursor, receipts) = loop {
            attempt += 1;
            let (before, is_fresh) = match known.take() {
                Some(cursor) => (cursor, false),
                None => {
                    let cursor = self.api.report_store.cursor(facts).await?;
                    let cursor = cursor.unwrap_or_else(|| ReportCursor::start(facts.plan.clone()));
                    (cursor, true)
                }
            };
            if before.has_ended() {
                run.state.set_ended();
            }
            let (cursor, receipts) = match check_report(&before, &report) {
                Ok(ReportStep::Next { cursor, receipts }) => (cursor, receipts),
                Ok(ReportStep::Duplicate) => {
                    let receipts = before.receipts;
                    *known = Some(before);
                    return Ok(ReportAck { receipts });
                }
                // It may follow from what another gateway has accepted.
                Err(_) if !is_fresh && attempt < MAX_ATTEMPTS => continue,
                Err(refusal) => {
                    *known = Some(before);
                    return Err(refusal);
                }
            };
            match self.api.report_store.store(facts, report.clone(), &cursor).await {
                Ok(()) => break (before, cursor, receipts),
                Err(HandlerError::Conflict) if attempt < MAX_ATTEMPTS => {}
                Err(HandlerError::Conflict) => return Err(HandlerError::Conflict.into()),
                Err(unable) => {
                    *known = Some(before);
                    return Err(unable.into());
                }
            }
        };
        let emit = |outcome| self.emit(connection, run.uid(), outcome);
        for receipt in receipts {
            emit(EventKind::Receipt { receipt: Box::new(receipt) });
        }
        if before.phase != Some(phase) {
            emit(EventKind::Phase { phase });
        }
        let count = cursor.receipts;
        *known = Some(cursor);
        if let Some(ending) = ending {
            run.state.set_ended();
            emit(EventKind::RunEnded { ending });
        }
        Ok(ReportAck { receipts: count })
    }
}

fn timeout_refusal() -> ApiRefusal {
    let message = "the report could not be stored in time";
    refuse(ApiRefusalCode::Failed, message)
}

#[cfg(test)]
mod tests;
