//! `run.json`: the record of a run, from its plan to verified teardown.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sympozium_api::agent_run::CostEstimate;
use sympozium_api::names::Digest;
use sympozium_exec::IsolationReport;
use sympozium_ipc::run_api::{BridgePhase, Usage};

use crate::prepared_run::PreparedRun;
use sympozium_api::origin::ObjectOrigin;
use sympozium_runs::RunEnd;
use sympozium_runs::time::now_ms;

/// The version of the format.
pub const FORMAT: u32 = 1;
/// Characters of the task that are stored.
const MAX_TASK_CHARS: usize = 2000;

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

impl LocalRunRecord {
    /// The record of a run that starts now, in this process.
    pub fn new(prepared: &PreparedRun, workspace: Option<PathBuf>) -> Self {
        let plan = &prepared.plan;
        let task = match plan.task.task.as_ref().map(serde_json::to_value) {
            Some(Ok(serde_json::Value::String(text))) => text,
            Some(Ok(other)) if !other.is_null() => other.to_string(),
            _ => String::new(),
        };
        let mut skills: Vec<String> = prepared.skill_texts.keys().cloned().collect();
        for pack in plan.parts.iter().filter_map(|part| part.role.pack()) {
            if !skills.iter().any(|it| it == pack) {
                skills.push(pack.to_owned());
            }
        }
        Self {
            format: FORMAT,
            uid: plan.run.uid.as_str().to_owned(),
            name: plan.run.name.as_str().to_owned(),
            namespace: plan.run.namespace.as_str().to_owned(),
            agent: plan.run.agent.as_str().to_owned(),
            task: task.chars().take(MAX_TASK_CHARS).collect(),
            model: format!("{}/{}", plan.model.provider, plan.model.model),
            skills,
            origins: prepared.origins.clone(),
            plan: prepared.plan_digest.clone(),
            pid: std::process::id(),
            started_ms: now_ms(),
            ended_ms: None,
            phase: BridgePhase::Starting,
            workspace,
            usage: Usage::default(),
            cost: None,
            outcome: None,
            isolation: BTreeMap::new(),
            leftovers: None,
        }
    }
}
