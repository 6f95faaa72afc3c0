//! Stores reports: receipts and transcript as immutable `RunRecord`s, the rest in the run's `status.report`.
//!
//! Records are written first, with names that follow from the run and the number of the segment. Then the status is
//! updated to count them, if it still is what it was before (a JSON patch with a `test`, which the API server applies
//! to the version that it changes). So two gateways cannot both accept the next report. A report that is sent again
//! after a crash between the two finds its own records, which must have the same lines.

mod calls;
mod segments;
mod status;

use std::collections::HashMap;
use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::json;
use sympozium_api::agent_run::RunReport;
use sympozium_api::labels::field_manager::GATEWAY;
use sympozium_api::names::Digest;
use sympozium_api::run_record::RecordKind;
use sympozium_api::{AgentRun, RunRecord, RunRecordSpec};
use sympozium_ipc::receipt::Receipt;
use sympozium_ipc::run_api::Report;
use sympozium_plan::render::names::object_name;
use sympozium_program::error_chain;
use tokio::time::timeout;

use self::calls::OpenCalls;
use self::segments::{Segment, SegmentPosition, TranscriptSegments};
use super::REQUEST_TIMEOUT;
use super::objects::{object_meta, run_reference};
use super::runs::{RunCache, now};
use crate::metrics::{Metrics, ReportResult};
use crate::plans::RunFacts;
use crate::run_api::{HandlerError, ReportCursor, ReportStore};
use crate::settings::MAX_RUNS;

/// Number of receipt records that are read again to find open calls, if another gateway accepted the last report.
pub const REPLAYED_RECORDS: i64 = 8;
/// Maximum number of segments of one kind: the range of the schema.
const MAX_SEGMENTS: i64 = 1_000_000;

/// Stores reports in the cluster. Clones share their state.
#[derive(Clone)]
pub struct ClusterReports {
    client: Client,
    runs: Arc<RunCache>,
    metrics: Arc<Metrics>,
    /// The state after the last report of each run. A missing one is read from the cluster.
    states: Arc<Mutex<HashMap<String, ReportState>>>,
}

/// What the status and the records of a run contain so far.
#[derive(Debug, Clone)]
struct ReportState {
    /// Without the answer, which is not needed here.
    report: Option<RunReport>,
    started_at: Option<Time>,
    calls: OpenCalls,
    /// Number of lines of the transcript, and the hash that covers them.
    transcript_lines: i64,
    transcript_head: Digest,
}

#[derive(Debug, thiserror::Error)]
enum StoreError {
    #[error("another gateway has taken reports meanwhile")]
    Conflict,
    #[error("there is no such run any more")]
    Gone,
    /// The API server rejected the request.
    #[error("{what}")]
    Rejected {
        what: &'static str,
        #[source]
        error: Box<kube::Error>,
    },
    #[error("{0}: the API server did not answer in time")]
    Timeout(&'static str),
    /// Another record has this name.
    #[error("the record {0} is there and has other lines, or is another run's")]
    Mismatch(String),
    /// A record that the status counts is missing.
    #[error("the record {0} is not there, or not what was written")]
    Missing(String),
    #[error("the run has {MAX_SEGMENTS} records, and more are not stored")]
    TooManySegments,
    #[error("it cannot be written down")]
    Serialize(#[source] Box<dyn Error + Send + Sync>),
}

impl From<StoreError> for HandlerError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict => Self::Conflict,
            cause => Self::Failed {
                message: "the report could not be stored".to_owned(),
                // In one line: the logger does not print nested causes.
                cause: Some(error_chain(&cause).into()),
            },
        }
    }
}

impl ClusterReports {
    pub fn new(client: Client, runs: Arc<RunCache>, metrics: Arc<Metrics>) -> Self {
        let known: Arc<Mutex<HashMap<String, ReportState>>> = Arc::default();
        // A run that ends without a last report would stay in the map.
        let of_all = Arc::clone(&known);
        runs.on_end(move |uid| drop(of_all.lock().remove(uid)));
        Self { client, runs, metrics, states: known }
    }

    async fn read_run(&self, run: &RunFacts) -> Result<AgentRun, StoreError> {
        let api: Api<AgentRun> = Api::namespaced(self.client.clone(), run.run.namespace.as_str());
        let found = with_timeout("reading the run", api.get_opt(run.run.name.as_str())).await?;
        found.filter(|object| object.uid().as_deref() == Some(run.uid())).ok_or(StoreError::Gone)
    }

    /// The state of a run after `reports` reports.
    async fn load_state(&self, run: &RunFacts, reports: u64) -> Result<ReportState, StoreError> {
        let count = |report: Option<&RunReport>| report.map_or(0, |report| report.reports);
        let is_it = |report: Option<&RunReport>| u64::try_from(count(report)) == Ok(reports);
        let known = self.states.lock().remove(run.uid());
        if let Some(known) = known.filter(|known| is_it(known.report.as_ref())) {
            return Ok(known);
        }
        let status = self.read_run(run).await?.status.unwrap_or_default();
        if !is_it(status.report.as_ref()) {
            return Err(StoreError::Conflict);
        }
        let mut standing = ReportState {
            report: status.report,
            started_at: status.started_at,
            calls: OpenCalls::default(),
            transcript_lines: 0,
            transcript_head: run.plan.clone(),
        };
        let segments = |read: fn(&RunReport) -> Option<i64>| standing.report.as_ref().and_then(read).unwrap_or(0);
        let (receipts, transcripts) =
            (segments(|report| report.receipt_segments), segments(|report| report.transcript_segments));
        for number in (receipts - REPLAYED_RECORDS).max(0)..receipts {
            let record = self.read_record(run, RecordKind::Receipts, number).await?;
            for line in &record.spec.lines {
                if let Ok(receipt) = serde_json::from_str::<Receipt>(line) {
                    // Its isolation report was merged when it arrived.
                    standing.calls.apply(run, &receipt, &mut Vec::new());
                }
            }
        }
        if transcripts > 0 {
            let last = self.read_record(run, RecordKind::Transcript, transcripts - 1).await?;
            let lines = i64::try_from(last.spec.lines.len()).unwrap_or(i64::MAX);
            standing.transcript_lines = last.spec.first_line.saturating_add(lines);
            standing.transcript_head = last.spec.head;
        }
        Ok(standing)
    }

    /// Reads a record that the status counts.
    async fn read_record(&self, run: &RunFacts, kind: RecordKind, number: i64) -> Result<RunRecord, StoreError> {
        let name = record_name(run, kind, number);
        let found = with_timeout("reading a record", self.records_api(run).get_opt(&name)).await?;
        let is_ours = |record: &RunRecord| {
            record.spec.run == run_reference(&run.run)
                && record.spec.kind == kind
                && i64::from(record.spec.segment) == number
        };
        found.filter(is_ours).ok_or(StoreError::Missing(name))
    }

    fn records_api(&self, run: &RunFacts) -> Api<RunRecord> {
        Api::namespaced(self.client.clone(), run.run.namespace.as_str())
    }

    async fn store_report(&self, run: &RunFacts, report: &Report, cursor: &ReportCursor) -> Result<(), StoreError> {
        let mut standing = self.load_state(run, cursor.reports.saturating_sub(1)).await?;
        let before = standing.report.take();
        let mut isolation = before.as_ref().map_or_else(Vec::new, |before| before.isolation.clone());
        for line in &report.receipts {
            // Each line was parsed when the report was verified.
            if let Ok(receipt) = serde_json::from_str::<Receipt>(line) {
                standing.calls.apply(run, &receipt, &mut isolation);
            }
        }
        let receipts = receipt_segments(run, report, before.as_ref())?;
        let transcript = transcript_segments(run, report, before.as_ref(), &standing)?;
        for segment in receipts.iter().chain(&transcript.segments) {
            self.write_segment(run, segment).await?;
        }

        let count = |segments: &[Segment]| i64::try_from(segments.len()).unwrap_or(i64::MAX);
        let segments_before = before.as_ref().and_then(|before| before.receipt_segments).unwrap_or(0);
        let at = now();
        let mut next = status::build_report(
            report,
            status::ReportContext {
                run: &run.run,
                before: before.as_ref(),
                cursor,
                calls: &standing.calls,
                receipt_segments: segments_before + count(&receipts),
                transcript: &transcript,
                started_at: standing.started_at.as_ref(),
                now: &at,
            },
        );
        next.isolation = isolation;
        let started_at = self.swap_status(run, before.as_ref(), &next).await?;

        if let Some(last) = transcript.segments.last() {
            standing.transcript_lines = last.first_line + i64::try_from(last.lines.len()).unwrap_or(0);
            standing.transcript_head = last.head.clone();
        }
        if !next.finished {
            standing.report = Some(next);
            standing.started_at = started_at;
            self.cache_state(run.uid(), standing);
        }
        Ok(())
    }

    /// Writes a segment, or finds that it was written before.
    async fn write_segment(&self, run: &RunFacts, segment: &Segment) -> Result<(), StoreError> {
        if segment.number >= MAX_SEGMENTS {
            return Err(StoreError::TooManySegments);
        }
        let name = record_name(run, segment.kind, segment.number);
        let spec = RunRecordSpec {
            run: run_reference(&run.run),
            kind: segment.kind,
            segment: i32::try_from(segment.number).map_err(|_| StoreError::TooManySegments)?,
            first_line: segment.first_line,
            lines: segment.lines.clone(),
            previous_head: segment.previous_head.clone(),
            head: segment.head.clone(),
            recorded_at: Some(now()),
        };
        let mut record = RunRecord::new(&name, spec);
        record.metadata = object_meta(&run.run, name.clone());
        let api = self.records_api(run);
        let parameters = PostParams { field_manager: Some(GATEWAY.to_owned()), ..PostParams::default() };
        match with_timeout("writing a record", api.create(&parameters, &record)).await {
            Ok(_) => return Ok(()),
            Err(StoreError::Rejected { error, .. }) if already_exists(&error) => {}
            Err(error) => return Err(error),
        }
        let found = with_timeout("reading a record", api.get_opt(&name)).await?;
        let same = found.is_some_and(|found| {
            let spec = RunRecordSpec { recorded_at: record.spec.recorded_at.clone(), ..found.spec };
            spec == record.spec
        });
        if same {
            tracing::info!(run = run.uid(), record = name, "a record was written before");
            return Ok(());
        }
        // If another gateway accepted a different report with this number, the status says so by now. Otherwise the
        // record is foreign.
        let status = self.read_run(run).await?.status.unwrap_or_default();
        let segments = status.report.and_then(|report| match segment.kind {
            RecordKind::Receipts => report.receipt_segments,
            RecordKind::Transcript => report.transcript_segments,
        });
        if segments.unwrap_or(0) > segment.number {
            return Err(StoreError::Conflict);
        }
        Err(StoreError::Mismatch(name))
    }

    /// Replaces the report in the status if it is still `before`. Returns when the run started.
    async fn swap_status(
        &self,
        run: &RunFacts,
        before: Option<&RunReport>,
        next: &RunReport,
    ) -> Result<Option<Time>, StoreError> {
        let unwritable = |error: serde_json::Error| StoreError::Serialize(Box::new(error));
        let expected = match before {
            Some(before) => json!({
                "op": "test", "path": "/status/report/reports", "value": before.reports,
            }),
            // A missing field equals null for a `test`, and only there.
            None => json!({ "op": "test", "path": "/status/report", "value": null }),
        };
        let patch = json!([
            { "op": "test", "path": "/metadata/uid", "value": run.uid() },
            expected,
            {
                "op": "add", "path": "/status/report",
                "value": serde_json::to_value(next).map_err(unwritable)?,
            },
        ]);
        let patch = Patch::Json::<()>(serde_json::from_value(patch).map_err(unwritable)?);
        let parameters = PatchParams { field_manager: Some(GATEWAY.to_owned()), ..PatchParams::default() };
        let api: Api<AgentRun> = Api::namespaced(self.client.clone(), run.run.namespace.as_str());
        let patching = api.patch_status(run.run.name.as_str(), &parameters, &patch);
        let error = match with_timeout("writing the run's status", patching).await {
            Ok(written) => return Ok(written.status.and_then(|status| status.started_at)),
            Err(error) => error,
        };
        let StoreError::Rejected { error: refused, .. } = &error else {
            return Err(error);
        };
        if !is_rejected(refused) {
            return Err(error);
        }
        // The API server does not say which test failed, or whether one did.
        let status = self.read_run(run).await?.status.unwrap_or_default();
        let found = status.report.map_or(0, |report| report.reports);
        if found == before.map_or(0, |before| before.reports) {
            return Err(error);
        }
        Err(StoreError::Conflict)
    }

    fn cache_state(&self, run: &str, standing: ReportState) {
        let mut known = self.states.lock();
        // A missing state is read from the cluster.
        if known.len() >= MAX_RUNS {
            known.clear();
        }
        known.insert(run.to_owned(), standing);
        drop(known);
        // The run may have ended while its report was stored. Then there is no further notification.
        if !self.runs.is_active(run) {
            self.states.lock().remove(run);
        }
    }
}

impl ReportStore for ClusterReports {
    async fn cursor(&self, run: &Arc<RunFacts>) -> Result<Option<ReportCursor>, HandlerError> {
        let status = self.read_run(run).await?.status.unwrap_or_default();
        Ok(status.report.map(|report| status::read_cursor(&report, &run.plan)))
    }

    async fn store(&self, run: &Arc<RunFacts>, report: Report, cursor: &ReportCursor) -> Result<(), HandlerError> {
        let taken = Self::store_report(self, run, &report, cursor).await;
        self.metrics.count_report(match &taken {
            Ok(()) => ReportResult::Stored,
            Err(StoreError::Conflict) => ReportResult::Conflict,
            Err(_) => ReportResult::Failed,
        });
        Ok(taken?)
    }
}

/// The name of a record: the stem of the run, `r` or `t`, and the number of the segment.
pub fn record_name(run: &RunFacts, kind: RecordKind, number: i64) -> String {
    let letter = match kind {
        RecordKind::Receipts => 'r',
        RecordKind::Transcript => 't',
    };
    object_name(&run.run, &format!("{letter}{number}"))
}

fn receipt_segments(run: &RunFacts, report: &Report, before: Option<&RunReport>) -> Result<Vec<Segment>, StoreError> {
    let head = before.and_then(|before| before.receipts_head.clone());
    let place = SegmentPosition {
        kind: RecordKind::Receipts,
        segments: before.and_then(|before| before.receipt_segments).unwrap_or(0),
        lines: before.and_then(|before| before.receipts).unwrap_or(0),
        head: head.unwrap_or_else(|| run.plan.clone()),
    };
    segments::split_receipts(place, &report.receipts).map_err(|error| StoreError::Serialize(Box::new(error)))
}

fn transcript_segments(
    run: &RunFacts,
    report: &Report,
    before: Option<&RunReport>,
    standing: &ReportState,
) -> Result<TranscriptSegments, StoreError> {
    let stored = before.and_then(|before| before.transcript_bytes).unwrap_or(0);
    let room = run.transcript_bytes.saturating_sub(u64::try_from(stored).unwrap_or(0));
    // Lines after a cut would look as if nothing were missing before them.
    let lines = if before.is_some_and(|before| before.transcript_cut) { &[][..] } else { &report.transcript };
    let place = SegmentPosition {
        kind: RecordKind::Transcript,
        segments: before.and_then(|before| before.transcript_segments).unwrap_or(0),
        lines: standing.transcript_lines,
        head: standing.transcript_head.clone(),
    };
    segments::split_transcript(place, lines, room).map_err(|error| StoreError::Serialize(Box::new(error)))
}

async fn with_timeout<T>(what: &'static str, asking: impl Future<Output = kube::Result<T>>) -> Result<T, StoreError> {
    match timeout(REQUEST_TIMEOUT, asking).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(StoreError::Rejected { what, error: Box::new(error) }),
        Err(_) => Err(StoreError::Timeout(what)),
    }
}

fn already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_already_exists())
}

/// A failed `test`, or a value that violates the schema: the API server reports both in the same way.
fn is_rejected(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_invalid() || status.is_conflict())
}

#[cfg(test)]
mod tests;
