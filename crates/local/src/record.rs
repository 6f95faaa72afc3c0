//! `run.json`: the record of a run, from its plan to verified teardown.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sympozium_api::agent_run::CostEstimate;
use sympozium_api::names::Digest;
use sympozium_exec::IsolationReport;
use sympozium_ipc::run_api::{BridgePhase, Usage};

use sympozium_api::origin::ObjectOrigin;
use sympozium_runs::RunEnd;

/// The version of the format.
pub const FORMAT: u32 = 1;

/// The record of a run. Replaced as a whole, by rename.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LocalRunRecord {
    /// Must be [`FORMAT`].
    pub format: u32,
    /// Also the name of the run's directory.
    pub uid: String,
    /// Not unique: a later run may have the same name.
    pub name: String,
    pub namespace: String,
    pub agent: String,
    /// Truncated if it is long.
    pub task: String,
    /// The model, as `provider/model`.
    pub model: String,
    pub skills: Vec<String>,
    /// The origins of its policies and packs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<ObjectOrigin>,
    /// The digest of the plan.
    pub plan: Digest,
    /// The process that realises the run, or did.
    pub pid: u32,
    /// Milliseconds since 1970.
    pub started_ms: u64,
    /// Milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// The phase that the bridge last reported.
    pub phase: BridgePhase,
    /// The directory on this machine; `None` if the policy permits no files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<PathBuf>,
    /// The usage so far.
    pub usage: Usage,
    /// The estimated cost, once the run has ended, if its model has a price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostEstimate>,
    /// Set once the run has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<RunEnd>,
    /// The isolation report of each part.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub isolation: BTreeMap<String, IsolationReport>,
    /// What verification found after teardown. Absent while the run is running, empty if nothing is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leftovers: Option<Vec<String>>,
}
