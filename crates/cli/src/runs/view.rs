//! A run as it is listed: its record and the state of its lock.

use std::path::PathBuf;

use serde::Serialize;
use sympozium_api::agent_run::CostEstimate;
use sympozium_ipc::run_api::{BridgePhase, Usage};

use super::duration;
use crate::target_flags::TargetFlags;
use sympozium_local::record::LocalRunRecord;
use sympozium_local::state::RunDirectory;
use sympozium_runs::RunEnd;

/// The fraction of a currency unit that costs are counted in.
const MILLION: u64 = 1_000_000;

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

impl RunView {
    /// The current state of a run, and how it ended.
    pub fn new(directory: &RunDirectory, record: &LocalRunRecord) -> (Self, Option<RunEnd>) {
        let outcome = directory.run_end(record);
        let view = Self {
            name: record.name.clone(),
            uid: record.uid.clone(),
            namespace: record.namespace.clone(),
            agent: record.agent.clone(),
            model: record.model.clone(),
            skills: record.skills.clone(),
            state: state_label(record.phase, outcome.as_ref()),
            alive: outcome.is_none(),
            started_ms: record.started_ms,
            ended_ms: record.ended_ms,
            usage: record.usage,
            cost: record.cost.clone(),
            workspace: record.workspace.clone(),
            directory: Some(directory.path().to_owned()),
            target: TargetFlags::local(),
        };
        (view, outcome)
    }

    /// The duration of the run, or of its time so far.
    pub fn format_duration(&self, now_ms: u64) -> String {
        let until = match (self.ended_ms, self.alive) {
            (Some(ended), _) => ended,
            (None, true) => now_ms,
            // It was killed, and the time is unknown.
            (None, false) => return "-".to_owned(),
        };
        duration::format_duration(until.saturating_sub(self.started_ms))
    }

    /// The total of tokens; with a mark if some are estimated.
    pub fn format_tokens(&self) -> String {
        let total = (self.usage.input_tokens).saturating_add(self.usage.output_tokens);
        let mark = if self.usage.estimated { "~" } else { "" };
        format!("{mark}{total}")
    }

    /// The cost and the price it is based on. It is approximate if the tokens are estimated.
    pub fn format_cost(&self) -> Option<String> {
        let cost = self.cost.as_ref()?;
        let about = if self.usage.estimated { "about " } else { "" };
        let sign = if cost.amount_micro < 0 { "-" } else { "" };
        let micro = cost.amount_micro.unsigned_abs();
        let (units, rest) = (micro / MILLION, micro % MILLION);
        let by = cost.price_key.as_ref().map(|it| format!(" by {it}"));
        Some(format!("{about}{sign}{units}.{rest:06} {}{}", cost.currency, by.unwrap_or_default()))
    }
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
