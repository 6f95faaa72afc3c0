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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use sympozium_api::agent_run::RunReport;
use sympozium_api::labels::field_manager::GATEWAY;
use sympozium_api::names::Digest;
use sympozium_api::run_record::RecordKind;
use sympozium_api::{AgentRun, RunRecord, RunRecordSpec};
use sympozium_ipc::receipt::Receipt;
use sympozium_ipc::run_api::Report;
use sympozium_plan::render::names::object_name;
use tokio::time::timeout;

use self::calls::Calls;
use self::segments::{Place, Segment, Transcript};
use super::REQUEST_DEADLINE;
use super::objects::{metadata, reference};
use super::runs::{Runs, chain, now};
use crate::metrics::{Metrics, Taken};
use crate::plans::RunFacts;
use crate::run_api::{Kept, Reporter, Unable};
use crate::settings::MAX_RUNS;

/// Number of receipt records that are read again to find open calls, if another gateway accepted the last report.
pub const LOOK_BACK: i64 = 8;
/// Maximum number of segments of one kind: the range of the schema.
const MAX_SEGMENTS: i64 = 1_000_000;

/// Stores reports in the cluster. Clones share their state.
#[derive(Clone)]
pub struct Reports {
    client: Client,
    runs: Arc<Runs>,
    metrics: Arc<Metrics>,
    /// The state after the last report of each run. A missing one is read from the cluster.
    known: Arc<Mutex<HashMap<String, Standing>>>,
}

/// What the status and the records of a run contain so far.
#[derive(Debug, Clone)]
struct Standing {
    /// Without the answer, which is not needed here.
    report: Option<RunReport>,
    started_at: Option<Time>,
    calls: Calls,
    /// Number of lines of the transcript, and the hash that covers them.
    transcript_lines: i64,
    transcript_head: Digest,
}

#[derive(Debug, thiserror::Error)]
enum NotKept {
    #[error("another gateway has taken reports meanwhile")]
    Overtaken,
    #[error("there is no such run any more")]
    Gone,
    /// The API server rejected the request.
    #[error("{what}")]
    Refused {
        what: &'static str,
        #[source]
        error: Box<kube::Error>,
    },
    #[error("{0}: the API server did not answer in time")]
    Late(&'static str),
    /// Another record has this name.
    #[error("the record {0} is there and has other lines, or is another run's")]
    Another(String),
    /// A record that the status counts is missing.
    #[error("the record {0} is not there, or not what was written")]
    Missing(String),
    #[error("the run has {MAX_SEGMENTS} records, and more are not kept")]
    Full,
    #[error("it cannot be written down")]
    Unwritable(#[source] Box<dyn Error + Send + Sync>),
}

impl From<NotKept> for Unable {
    fn from(error: NotKept) -> Self {
        match error {
            NotKept::Overtaken => Self::Overtaken,
            cause => Self::Failed {
                message: "the report could not be kept".to_owned(),
                // In one line: the logger does not print nested causes.
                cause: Some(chain(&cause).into()),
            },
        }
    }
}

impl Reports {
    pub fn new(client: Client, runs: Arc<Runs>, metrics: Arc<Metrics>) -> Self {
        let known: Arc<Mutex<HashMap<String, Standing>>> = Arc::default();
        // A run that ends without a last report would stay in the map.
        let of_all = Arc::clone(&known);
        runs.when_over(move |uid| drop(lock(&of_all).remove(uid)));
        Self { client, runs, metrics, known }
    }

    async fn read(&self, run: &RunFacts) -> Result<AgentRun, NotKept> {
        let api: Api<AgentRun> = Api::namespaced(self.client.clone(), run.run.namespace.as_str());
        let found = asked("reading the run", api.get_opt(run.run.name.as_str())).await?;
        found.filter(|it| it.uid().as_deref() == Some(run.uid())).ok_or(NotKept::Gone)
    }

    /// The state of a run after `reports` reports.
    async fn standing(&self, run: &RunFacts, reports: u64) -> Result<Standing, NotKept> {
        let count = |report: Option<&RunReport>| report.map_or(0, |it| it.reports);
        let is_it = |report: Option<&RunReport>| u64::try_from(count(report)) == Ok(reports);
        let known = lock(&self.known).remove(run.uid());
        if let Some(known) = known.filter(|it| is_it(it.report.as_ref())) {
            return Ok(known);
        }
        let status = self.read(run).await?.status.unwrap_or_default();
        if !is_it(status.report.as_ref()) {
            return Err(NotKept::Overtaken);
        }
        let mut standing = Standing {
            report: status.report,
            started_at: status.started_at,
            calls: Calls::default(),
            transcript_lines: 0,
            transcript_head: run.plan.clone(),
        };
        let segments = |read: fn(&RunReport) -> Option<i64>| standing.report.as_ref().and_then(read).unwrap_or(0);
        let (receipts, transcripts) = (segments(|it| it.receipt_segments), segments(|it| it.transcript_segments));
        for number in (receipts - LOOK_BACK).max(0)..receipts {
            let record = self.record(run, RecordKind::Receipts, number).await?;
            for line in &record.spec.lines {
                if let Ok(receipt) = serde_json::from_str::<Receipt>(line) {
                    // Its isolation report was merged when it arrived.
                    standing.calls.follow(run, &receipt, &mut Vec::new());
                }
            }
        }
        if transcripts > 0 {
            let last = self.record(run, RecordKind::Transcript, transcripts - 1).await?;
            let lines = i64::try_from(last.spec.lines.len()).unwrap_or(i64::MAX);
            standing.transcript_lines = last.spec.first_line.saturating_add(lines);
            standing.transcript_head = last.spec.head;
        }
        Ok(standing)
    }

    /// Reads a record that the status counts.
    async fn record(&self, run: &RunFacts, kind: RecordKind, number: i64) -> Result<RunRecord, NotKept> {
        let name = record_name(run, kind, number);
        let found = asked("reading a record", self.records(run).get_opt(&name)).await?;
        let is_ours = |it: &RunRecord| {
            it.spec.run == reference(&run.run) && it.spec.kind == kind && i64::from(it.spec.segment) == number
        };
        found.filter(is_ours).ok_or(NotKept::Missing(name))
    }

    fn records(&self, run: &RunFacts) -> Api<RunRecord> {
        Api::namespaced(self.client.clone(), run.run.namespace.as_str())
    }

    async fn take(&self, run: &RunFacts, report: &Report, kept: &Kept) -> Result<(), NotKept> {
        let mut standing = self.standing(run, kept.reports.saturating_sub(1)).await?;
        let before = standing.report.take();
        let mut isolation = before.as_ref().map_or_else(Vec::new, |it| it.isolation.clone());
        for line in &report.receipts {
            // Each line was parsed when the report was verified.
            if let Ok(receipt) = serde_json::from_str::<Receipt>(line) {
                standing.calls.follow(run, &receipt, &mut isolation);
            }
        }
        let receipts = receipt_segments(run, report, before.as_ref())?;
        let transcript = transcript_segments(run, report, before.as_ref(), &standing)?;
        for segment in receipts.iter().chain(&transcript.segments) {
            self.write(run, segment).await?;
        }

        let count = |segments: &[Segment]| i64::try_from(segments.len()).unwrap_or(i64::MAX);
        let segments_before = before.as_ref().and_then(|it| it.receipt_segments).unwrap_or(0);
        let at = now();
        let mut next = status::report(
            report,
            status::Around {
                run: &run.run,
                before: before.as_ref(),
                kept,
                calls: &standing.calls,
                receipt_segments: segments_before + count(&receipts),
                transcript: &transcript,
                started_at: standing.started_at.as_ref(),
                now: &at,
            },
        );
        next.isolation = isolation;
        let started_at = self.swap(run, before.as_ref(), &next).await?;

        if let Some(last) = transcript.segments.last() {
            standing.transcript_lines = last.first_line + i64::try_from(last.lines.len()).unwrap_or(0);
            standing.transcript_head = last.head.clone();
        }
        if !next.finished {
            standing.report = Some(next);
            standing.started_at = started_at;
            self.remember(run.uid(), standing);
        }
        Ok(())
    }

    /// Writes a segment, or finds that it was written before.
    async fn write(&self, run: &RunFacts, segment: &Segment) -> Result<(), NotKept> {
        if segment.number >= MAX_SEGMENTS {
            return Err(NotKept::Full);
        }
        let name = record_name(run, segment.kind, segment.number);
        let spec = RunRecordSpec {
            run: reference(&run.run),
            kind: segment.kind,
            segment: i32::try_from(segment.number).map_err(|_| NotKept::Full)?,
            first_line: segment.first_line,
            lines: segment.lines.clone(),
            previous_head: segment.previous_head.clone(),
            head: segment.head.clone(),
            recorded_at: Some(now()),
        };
        let mut record = RunRecord::new(&name, spec);
        record.metadata = metadata(&run.run, name.clone());
        let api = self.records(run);
        let parameters = PostParams { field_manager: Some(GATEWAY.to_owned()), ..PostParams::default() };
        match asked("writing a record", api.create(&parameters, &record)).await {
            Ok(_) => return Ok(()),
            Err(NotKept::Refused { error, .. }) if is_there(&error) => {}
            Err(error) => return Err(error),
        }
        let found = asked("reading a record", api.get_opt(&name)).await?;
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
        let status = self.read(run).await?.status.unwrap_or_default();
        let segments = status.report.and_then(|it| match segment.kind {
            RecordKind::Receipts => it.receipt_segments,
            RecordKind::Transcript => it.transcript_segments,
        });
        if segments.unwrap_or(0) > segment.number {
            return Err(NotKept::Overtaken);
        }
        Err(NotKept::Another(name))
    }

    /// Replaces the report in the status if it is still `before`. Returns when the run started.
    async fn swap(
        &self,
        run: &RunFacts,
        before: Option<&RunReport>,
        next: &RunReport,
    ) -> Result<Option<Time>, NotKept> {
        let unwritable = |error: serde_json::Error| NotKept::Unwritable(Box::new(error));
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
        let error = match asked("writing the run's status", patching).await {
            Ok(written) => return Ok(written.status.and_then(|it| it.started_at)),
            Err(error) => error,
        };
        let NotKept::Refused { error: refused, .. } = &error else {
            return Err(error);
        };
        if !is_refused(refused) {
            return Err(error);
        }
        // The API server does not say which test failed, or whether one did.
        let status = self.read(run).await?.status.unwrap_or_default();
        let found = status.report.map_or(0, |it| it.reports);
        if found == before.map_or(0, |it| it.reports) {
            return Err(error);
        }
        Err(NotKept::Overtaken)
    }

    fn remember(&self, run: &str, standing: Standing) {
        let mut known = lock(&self.known);
        // A missing state is read from the cluster.
        if known.len() >= MAX_RUNS {
            known.clear();
        }
        known.insert(run.to_owned(), standing);
        drop(known);
        // The run may have ended while its report was stored. Then there is no further notification.
        if !self.runs.is_under_way(run) {
            lock(&self.known).remove(run);
        }
    }
}

fn lock(known: &Mutex<HashMap<String, Standing>>) -> MutexGuard<'_, HashMap<String, Standing>> {
    // A panic in another thread leaves the map consistent.
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reporter for Reports {
    async fn kept(&self, run: &Arc<RunFacts>) -> Result<Option<Kept>, Unable> {
        let status = self.read(run).await?.status.unwrap_or_default();
        Ok(status.report.map(|it| status::kept(&it, &run.plan)))
    }

    async fn take(&self, run: &Arc<RunFacts>, report: Report, kept: &Kept) -> Result<(), Unable> {
        let taken = Self::take(self, run, &report, kept).await;
        self.metrics.report(match &taken {
            Ok(()) => Taken::Kept,
            Err(NotKept::Overtaken) => Taken::Overtaken,
            Err(_) => Taken::Failed,
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

fn receipt_segments(run: &RunFacts, report: &Report, before: Option<&RunReport>) -> Result<Vec<Segment>, NotKept> {
    let head = before.and_then(|it| it.receipts_head.clone());
    let place = Place {
        kind: RecordKind::Receipts,
        segments: before.and_then(|it| it.receipt_segments).unwrap_or(0),
        lines: before.and_then(|it| it.receipts).unwrap_or(0),
        head: head.unwrap_or_else(|| run.plan.clone()),
    };
    segments::receipts(place, &report.receipts).map_err(|error| NotKept::Unwritable(Box::new(error)))
}

fn transcript_segments(
    run: &RunFacts,
    report: &Report,
    before: Option<&RunReport>,
    standing: &Standing,
) -> Result<Transcript, NotKept> {
    let kept = before.and_then(|it| it.transcript_bytes).unwrap_or(0);
    let room = run.transcript_bytes.saturating_sub(u64::try_from(kept).unwrap_or(0));
    // Lines after a cut would look as if nothing were missing before them.
    let lines = match before.is_some_and(|it| it.transcript_cut) {
        true => &[][..],
        false => &report.transcript,
    };
    let place = Place {
        kind: RecordKind::Transcript,
        segments: before.and_then(|it| it.transcript_segments).unwrap_or(0),
        lines: standing.transcript_lines,
        head: standing.transcript_head.clone(),
    };
    segments::transcript(place, lines, room).map_err(|error| NotKept::Unwritable(Box::new(error)))
}

async fn asked<T>(what: &'static str, asking: impl Future<Output = kube::Result<T>>) -> Result<T, NotKept> {
    match timeout(REQUEST_DEADLINE, asking).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(NotKept::Refused { what, error: Box::new(error) }),
        Err(_) => Err(NotKept::Late(what)),
    }
}

fn is_there(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_already_exists())
}

/// A failed `test`, or a value that violates the schema: the API server reports both in the same way.
fn is_refused(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_invalid() || status.is_conflict())
}

#[cfg(test)]
mod tests;
