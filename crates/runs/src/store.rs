//! Where runs are stored: the state directory of this machine, or a cluster.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sympozium_api::names::Digest;
use sympozium_api::origin::ObjectOrigin;
use sympozium_api::text::printable;
use sympozium_exec::IsolationReport;

use crate::receipts::{OnReceipt, VerifiedChain};
use crate::view::{RunView, short_uid};
use crate::{HintedError, Question, RunEnd, TargetFlags, TimedEvent};

/// The runs of one machine or one namespace, as one user can see and control them.
///
/// # Contract
///
/// - A run is selected by its name, its UID, or a unique prefix of its UID of at least four characters. Of several runs
///   with one name, the newest is selected. An ambiguous or unknown name is an error, and nothing happens.
/// - Everything that is read is bounded in count and bytes. What was omitted is a warning, never an error.
/// - Texts come from manifests, models and tools: the caller makes them printable.
/// - Methods block. A server calls them on a thread for blocking work.
/// - Nothing here starts a run, and nothing decides about powers: a vote counts if the backend accepts it.
pub trait RunStore {
    /// The flags with which another command selects this store.
    fn target(&self) -> TargetFlags;

    /// Lists runs, newest first, at most `limit`. May remove what killed processes left behind.
    fn list(&self, limit: Option<usize>) -> Result<Listed<RunView>, HintedError>;

    fn find(&self, run: &str) -> Result<RunRef, HintedError>;

    /// Reads everything about a run. If other data, such as its questions, cannot be read, it is omitted.
    fn show(&self, run: &str) -> Result<RunDetails, HintedError>;

    /// Passes the transcript of a run to `sink`, or the log of one part. With `follow`, returns after the run's last
    /// event.
    fn read_log(&self, run: &str, request: LogRequest<'_>, sink: &mut dyn LogSink) -> Result<(), LogError>;

    /// Reads the receipts of a run, for the caller to verify.
    fn receipts(&self, run: &str) -> Result<Box<dyn StoredReceipts>, HintedError>;

    /// The UIDs or names of all runs whose receipts can be verified.
    fn runs_with_receipts(&self) -> Result<Vec<String>, HintedError>;

    /// Asks a run to end. Returns before it has ended.
    fn cancel(&self, run: &str) -> Result<Cancellation, HintedError>;

    /// Removes a run with everything that is stored of it. With `force` a running run is ended first; without, that is
    /// an error. After an error the call can be repeated.
    fn remove(&self, run: &RunRef, force: bool) -> Result<Removal, HintedError>;

    /// Lists the pending questions of all runs, those of the newest run first.
    fn questions(&self) -> Result<Listed<PendingQuestion>, HintedError>;

    /// Votes on the exact action of a question, as the current user. After an error it is unknown whether the vote
    /// counts.
    fn vote(&self, question: &PendingQuestion, vote: VoteChoice, reason: Option<&str>) -> anyhow::Result<VoteResult>;
}

/// A list, and what is missing from it.
#[derive(Debug)]
pub struct Listed<T> {
    pub items: Vec<T>,
    /// The number of items that are not in the list.
    pub omitted: usize,
    /// What could not be read.
    pub warnings: Vec<String>,
}

/// The identity of a run in its store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRef {
    pub name: String,
    pub uid: String,
    pub is_running: bool,
}

impl RunRef {
    /// The run as messages name it.
    pub fn display_name(&self) -> String {
        display_name(&self.name, &self.uid)
    }
}

/// A run as messages name it: its name and short UID, printable.
pub fn display_name(name: &str, uid: &str) -> String {
    format!("{} ({})", printable(name), short_uid(&printable(uid)))
}

/// Everything about a run. The JSON output of `show`: fields may be added; none changes its meaning.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunDetails {
    #[serde(flatten)]
    pub view: RunView,
    pub task: String,
    /// `None` before the run is planned.
    pub plan: Option<Digest>,
    /// The origins of its policies and packs; empty before the run is planned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<ObjectOrigin>,
    /// The process that realises the run, on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The pod of the run, in a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// What its start waits for, in a cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
    pub outcome: Option<RunEnd>,
    pub isolation: BTreeMap<String, IsolationReport>,
    pub leftovers: Option<Vec<String>>,
    /// The stored files that exist, by content.
    pub files: BTreeMap<&'static str, PathBuf>,
    pub questions: Vec<Question>,
}

/// What is read of a run's logs.
#[derive(Debug, Clone, Copy)]
pub struct LogRequest<'r> {
    /// The part whose log is meant; the transcript of the run if absent.
    pub part: Option<&'r str>,
    /// Whether to wait for more until the run has ended.
    pub follow: bool,
}

/// Takes what [`RunStore::read_log`] reads. An error ends the reading.
pub trait LogSink {
    /// A stored line of the transcript: JSON, unless the file was changed.
    fn transcript_line(&mut self, line: String) -> io::Result<()>;

    /// An event of a run that is followed, which includes the lines of its transcript.
    fn event(&mut self, event: &TimedEvent) -> io::Result<()>;

    /// Bytes that a part logged.
    fn part_output(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Called before the store waits for more.
    fn flush(&mut self) -> io::Result<()>;

    /// A remark about the log, such as that there is more.
    fn note(&mut self, text: &str);

    /// The state of a run that is not followed; `None` while it is running.
    fn run_state(&mut self, end: Option<&RunEnd>);
}

/// Why reading a log ended early.
#[derive(Debug)]
pub enum LogError {
    /// The sink failed.
    Sink(io::Error),
    /// The log cannot be read.
    Store(HintedError),
}

impl From<io::Error> for LogError {
    fn from(error: io::Error) -> Self {
        Self::Sink(error)
    }
}

impl From<HintedError> for LogError {
    fn from(error: HintedError) -> Self {
        Self::Store(error)
    }
}

/// The stored receipts of one run.
pub trait StoredReceipts {
    /// The run as messages name it.
    fn display_name(&self) -> String;

    /// Verifies that the receipts are those that the run wrote: all that it reported, and nothing else. Each valid one
    /// is passed on in order. The error is the first defect: nothing behind it is passed on.
    fn verify(&self, on_receipt: &mut OnReceipt<'_>) -> anyhow::Result<VerifiedChain>;
}

/// The effect of a request to end a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancellation {
    /// The run accepted the request.
    Requested { name: String },
    /// The run had ended before.
    AlreadyEnded { name: String, end: &'static str },
}

/// The effect of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    Done,
    /// The removal was accepted, and had not finished before a timeout.
    Pending,
}

/// A pending question, with its run.
#[derive(Debug, Clone)]
pub struct PendingQuestion {
    pub run: String,
    pub uid: String,
    pub question: Question,
    /// The name of the question in the store.
    pub key: String,
}

/// The vote of an approver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VoteChoice {
    /// Approve this once.
    Yes,
    /// Approve the identical action as often as the run repeats it.
    YesForTheRun,
    No,
}

/// The effect of a vote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VoteResult {
    /// The question is decided.
    Decided,
    /// This many more approvals are needed.
    MoreNeeded(u32),
    /// The vote is stored; how many are needed is not known here.
    Recorded,
    /// The vote was not counted, and why.
    Refused(String),
}
