//! A run as it is listed.

use std::path::PathBuf;

use serde::Serialize;
use sympozium_api::agent_run::CostEstimate;
use sympozium_ipc::run_api::{BridgePhase, Usage};

use crate::{RunEnd, TargetFlags};

/// The JSON output. Fields may be added; none changes its meaning.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunView {
    pub name: String,
    pub uid: String,
    pub namespace: String,
    pub agent: String,
    /// The model, as `provider/model`.
    pub model: String,
    pub skills: Vec<String>,
    /// In words: `running`, `waiting for approval`, `succeeded` and so on.
    pub state: &'static str,
    /// Whether the run is running.
    pub alive: bool,
    /// Milliseconds since 1970.
    pub started_ms: u64,
    /// Milliseconds since 1970; `None` if the run is running, or was killed.
    pub ended_ms: Option<u64>,
    pub usage: Usage,
    /// The estimated cost, if its model has a price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostEstimate>,
    pub workspace: Option<PathBuf>,
    /// The directory of the run; `None` for a run in a cluster.
    pub directory: Option<PathBuf>,
    #[serde(skip)]
    pub target: TargetFlags,
}

/// The beginning of a UID, which is enough for people.
pub fn short_uid(uid: &str) -> String {
    uid.chars().take(8).collect()
}

/// The state of a run, in words.
pub fn state_label(phase: BridgePhase, outcome: Option<&RunEnd>) -> &'static str {
    match (outcome, phase) {
        (Some(outcome), _) => outcome.as_str(),
        (None, BridgePhase::Starting) => "starting",
        (None, BridgePhase::Working) => "running",
        (None, BridgePhase::Waiting) => "waiting for approval",
        (None, BridgePhase::Ended) => "ending",
    }
}
