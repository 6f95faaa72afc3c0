//! Stores reports as files: one directory for each run, with access for its owner only.
//!
//! | file | what |
//! |---|---|
//! | `receipts.jsonl` | the receipts, one per line, as `sympozium audit verify` reads them |
//! | `transcript.jsonl` | the transcript, one JSON value per line, as much as the plan allows |
//! | `report.json` | a report: phase, usage, head, run end |
//!
//! `report.json` is replaced as a whole and has the valid lengths of the other two: what a crash left behind them is
//! cut off by the next report. All files are opened relative to descriptors, and no link is followed.

mod directory;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sympozium_api::names::Digest;
use sympozium_ipc::door::MAX_PROGRESS;
use sympozium_ipc::run_api::{AgentEnd, BridgePhase, MAX_REQUEST, Report, Usage};

use super::super::traits::{HandlerError, ReportCursor, ReportStore};
use crate::plans::RunFacts;
use directory::{RecordsDirectory, RunDirectory};

/// Maximum number of bytes of the receipts of one run.
pub const MAX_RECEIPT_BYTES: u64 = 256 << 20;
/// Maximum number of bytes of a `report.json`: what one request can hold, and the rest.
const MAX_REPORT_BYTES: u64 = 2 * MAX_REQUEST as u64;

/// The file names of a run.
pub mod files {
    pub const RECEIPTS: &str = "receipts.jsonl";
    pub const TRANSCRIPT: &str = "transcript.jsonl";
    pub const REPORT: &str = "report.json";
    /// A report that is being written.
    pub(super) const NEW_REPORT: &str = "report.json.new";
}

/// A directory with one subdirectory for each run. Clones share it.
///
/// Old runs stay until they are deleted by other means: this program does not know how long records are needed.
#[derive(Debug, Clone)]
pub struct RecordStore {
    directory: Arc<RecordsDirectory>,
    path: PathBuf,
}

/// `report.json`: the state of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StoredReport {
    pub run: String,
    /// The digest of the plan, which the chain of receipts starts from.
    pub plan: Digest,
    pub phase: BridgePhase,
    /// The agent's last progress message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    pub usage: Usage,
    /// Number of receipts.
    pub receipts: u64,
    /// The hash that covers all receipts.
    pub head: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<AgentEnd>,
    /// Number of reports.
    pub reports: u64,
    pub last_report: Digest,
    /// Valid bytes of the receipts.
    pub receipts_bytes: u64,
    /// Valid bytes of the transcript.
    pub transcript_bytes: u64,
    /// Whether the transcript was longer than the plan allows.
    pub transcript_cut: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum RecordStoreError {
    #[error("{path}")]
    Io {
        path: String,
        #[source]
        error: io::Error,
    },
    #[error("`{0}` is not the UID of a run")]
    Uid(String),
    #[error("{0} is not a file or directory of ours alone")]
    NotPrivate(String),
    #[error("{0} was changed by another program, or is of another run or release")]
    Changed(String),
    #[error("the receipts of this run have {MAX_RECEIPT_BYTES} bytes, and more are not stored")]
    TooLarge,
}

impl RecordStore {
    /// Opens this directory, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be created or opened.
    pub fn open(path: &Path) -> Result<Self, RecordStoreError> {
        Ok(Self { directory: Arc::new(RecordsDirectory::open(path)?), path: path.to_owned() })
    }

    /// The directory of a run.
    pub fn path(&self, run: &str) -> PathBuf {
        self.path.join(run)
    }

    /// Reads the state of a run; `None` if it has not reported.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be read, or was changed.
    pub fn read_report(&self, run: &str) -> Result<Option<StoredReport>, RecordStoreError> {
        match self.directory.open_run(run)? {
            Some(directory) => load_report(&directory),
            None => Ok(None),
        }
    }
}

impl ReportStore for RecordStore {
    async fn cursor(&self, run: &Arc<RunFacts>) -> Result<Option<ReportCursor>, HandlerError> {
        let (records, run) = (self.clone(), Arc::clone(run));
        run_blocking(move || {
            let Some(report) = records.read_report(run.uid())? else {
                return Ok(None);
            };
            if report.run != run.uid() || report.plan != run.plan {
                return Err(RecordStoreError::Changed(files::REPORT.to_owned()));
            }
            Ok(Some(ReportCursor {
                reports: report.reports,
                last: Some(report.last_report),
                receipts: report.receipts,
                head: report.head,
                phase: Some(report.phase),
            }))
        })
        .await
    }

    async fn store(&self, run: &Arc<RunFacts>, report: Report, cursor: &ReportCursor) -> Result<(), HandlerError> {
        let (records, run, cursor) = (self.clone(), Arc::clone(run), cursor.clone());
        run_blocking(move || write_report(&records.directory, &run, report, &cursor)).await
    }
}

/// File operations may block, so they run on a blocking thread.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RecordStoreError> + Send + 'static,
) -> Result<T, HandlerError> {
    let failed =
        |cause| HandlerError::Failed { message: "the report could not be stored".to_owned(), cause: Some(cause) };
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(failed(error.into())),
        Err(error) => Err(failed(error.into())),
    }
}

fn load_report(directory: &RunDirectory) -> Result<Option<StoredReport>, RecordStoreError> {
    let Some(bytes) = directory.read(files::REPORT, MAX_REPORT_BYTES)? else {
        return Ok(None);
    };
    let report = serde_json::from_slice(&bytes);
    let report = report.map_err(|_| directory.changed_error(files::REPORT))?;
    Ok(Some(report))
}

fn write_report(
    records: &RecordsDirectory,
    run: &RunFacts,
    report: Report,
    cursor: &ReportCursor,
) -> Result<(), RecordStoreError> {
    let directory = records.create_run(run.uid())?;
    let before = load_report(&directory)?;
    // Another writer's report would be overwritten silently.
    if before.as_ref().map_or(0, |before| before.reports) + 1 != cursor.reports {
        return Err(directory.changed_error(files::REPORT));
    }
    let (receipts_before, transcript_before, cut_before) = before
        .as_ref()
        .map_or((0, 0, false), |before| (before.receipts_bytes, before.transcript_bytes, before.transcript_cut));

    let mut lines = String::new();
    for receipt in &report.receipts {
        lines.push_str(receipt);
        lines.push('\n');
    }
    let receipts_bytes = receipts_before + lines.len() as u64;
    if receipts_bytes > MAX_RECEIPT_BYTES {
        return Err(RecordStoreError::TooLarge);
    }
    let receipts = directory.append(files::RECEIPTS, receipts_before, lines.as_bytes())?;

    let room = run.transcript_bytes.saturating_sub(transcript_before);
    let (lines, transcript_cut) = if cut_before {
        // Later lines would look as if nothing were missing before them.
        (String::new(), true)
    } else {
        fit_transcript(&report.transcript, room)
    };
    let transcript_bytes = transcript_before + lines.len() as u64;
    let transcript = directory.append(files::TRANSCRIPT, transcript_before, lines.as_bytes())?;

    let ended = report.ending.is_some();
    let progress = report.progress.map(|text| text[..text.floor_char_boundary(MAX_PROGRESS)].to_owned());
    let written = StoredReport {
        run: run.uid().to_owned(),
        plan: run.plan.clone(),
        phase: report.phase,
        progress: progress.or_else(|| before.and_then(|before| before.progress)),
        usage: report.usage,
        receipts: cursor.receipts,
        head: cursor.head.clone(),
        ending: report.ending,
        reports: cursor.reports,
        last_report: cursor.last.clone().unwrap_or_default(),
        receipts_bytes,
        transcript_bytes,
        transcript_cut,
    };
    let bytes = serde_json::to_vec_pretty(&written);
    let bytes = bytes.map_err(|_| directory.changed_error(files::REPORT))?;
    if ended {
        // Before the report that refers to them.
        directory.sync(&receipts, files::RECEIPTS)?;
        directory.sync(&transcript, files::TRANSCRIPT)?;
    }
    directory.replace(files::REPORT, files::NEW_REPORT, &bytes, ended)
}

/// The lines that fit, and whether there were more.
fn fit_transcript(lines: &[String], room: u64) -> (String, bool) {
    let mut text = String::new();
    for line in lines {
        let line = to_json_line(line);
        if (text.len() + line.len() + 1) as u64 > room {
            return (text, true);
        }
        text.push_str(&line);
        text.push('\n');
    }
    (text, false)
}

/// A line of JSON as it is. Anything else, because the agent wrote it, as a JSON string: it must not look like two
/// lines.
pub(crate) fn to_json_line(line: &str) -> String {
    let is_json = serde_json::from_str::<serde::de::IgnoredAny>(line).is_ok();
    if is_json && !line.contains(['\n', '\r']) {
        return line.to_owned();
    }
    serde_json::Value::from(line).to_string()
}

#[cfg(test)]
mod tests;
