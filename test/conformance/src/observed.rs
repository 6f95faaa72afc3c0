//! What was observed of a run, on either backend.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde::Deserialize;
use sympozium_ipc::receipt::Receipt;

use crate::case::OutcomeKind;

/// What was seen of a run.
#[derive(Debug)]
pub struct Observed {
    /// How it ended.
    pub outcome: OutcomeKind,
    /// The answer, or why there is none.
    pub text: String,
    /// The rules by which it was denied.
    pub rules: Vec<String>,
    /// What is kept of it; nothing of a run that never began.
    pub records: Option<Records>,
    /// What of it is still there although it should not be. Empty when all is well.
    pub leftovers: Vec<String>,
    /// Questions without an answer in the case, answers without a question, moments that never came.
    pub surprises: Vec<String>,
}

/// What is kept of a run that began.
#[derive(Debug)]
pub struct Records {
    /// The plan, as it was stored.
    pub plan: Vec<u8>,
    /// Its receipts: lines.
    pub receipts: Vec<u8>,
    /// The head of the receipts that left the run with its last report, if there was one.
    pub head: Option<String>,
    /// What the model was told, by the id of the call.
    pub results: BTreeMap<String, CallResult>,
    /// What is enforced around each part as a whole, by part; what is enforced around a command comes on top.
    pub around: BTreeMap<String, Vec<String>>,
    /// Files of the workspace, by their path in it; nothing where a backend cannot look.
    pub files: Option<BTreeMap<String, Vec<u8>>>,
}

/// What the model was told of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallResult {
    /// Whether it failed.
    pub failed: bool,
    /// The text.
    pub text: String,
}

#[derive(Deserialize)]
struct Line {
    kind: String,
    #[serde(default)]
    id: String,
    #[serde(default)]
    failed: bool,
    #[serde(default)]
    text: Option<String>,
}

/// The results in a transcript, by the id of the call.
///
/// # Errors
///
/// When a line cannot be read, or a call has two results.
pub fn results(transcript: &str) -> anyhow::Result<BTreeMap<String, CallResult>> {
    let mut results = BTreeMap::new();
    for line in transcript.lines() {
        let line: Line =
            serde_json::from_str(line).with_context(|| format!("a line of the transcript cannot be read: {line}"))?;
        if line.kind != "result" {
            continue;
        }
        let seen = CallResult { failed: line.failed, text: line.text.unwrap_or_default() };
        let id = line.id;
        if results.insert(id.clone(), seen).is_some() {
            anyhow::bail!("the call {id} has two results");
        }
    }
    Ok(results)
}

/// The receipts, line by line.
///
/// # Errors
///
/// When one cannot be read.
pub fn receipts(lines: &[u8]) -> anyhow::Result<Vec<Receipt>> {
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).context("a receipt cannot be read")).collect()
}
