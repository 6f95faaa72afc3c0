//! A run as it is listed and shown: its record and its lock together.

use std::path::PathBuf;

use serde::Serialize;
use sympozium_api::agent_run::CostEstimate;
use sympozium_ipc::run_api::{Phase, Usage};

use super::span;
use crate::local::record::{Outcome, RunRecord};
use crate::local::state::RunDirectory;
use crate::place::Place;

/// Parts of the currency's unit that a cost is counted in.
const MILLION: u64 = 1_000_000;

/// A run for programs. Fields may be added, none changes its meaning.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// The agent.
    pub agent: String,
    /// The model, as `provider/model`.
    pub model: String,
    /// The packs.
    pub skills: Vec<String>,
    /// In words: `running`, `waiting for approval`, `succeeded` and so on.
    pub state: &'static str,
    /// Whether somebody runs it.
    pub alive: bool,
    /// When it began, in milliseconds since 1970.
    pub started_ms: u64,
    /// When it was over, where that is known.
    pub ended_ms: Option<u64>,
    /// What was used.
    pub usage: Usage,
    /// What that cost, where its model has a price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostEstimate>,
    /// The workspace.
    pub workspace: Option<PathBuf>,
    /// Where everything of it is kept; none where that is a cluster.
    pub directory: Option<PathBuf>,
    /// Where it is.
    #[serde(skip)]
    pub place: Place,
}

impl View {
    /// As it is now, and what came of it.
    pub fn new(directory: &RunDirectory, record: &RunRecord) -> (Self, Option<Outcome>) {
        let outcome = directory.outcome(record);
        let view = Self {
            name: record.name.clone(),
            uid: record.uid.clone(),
            namespace: record.namespace.clone(),
            agent: record.agent.clone(),
            model: record.model.clone(),
            skills: record.skills.clone(),
            state: state(record.phase, outcome.as_ref()),
            alive: outcome.is_none(),
            started_ms: record.started_ms,
            ended_ms: record.ended_ms,
            usage: record.usage,
            cost: record.cost.clone(),
            workspace: record.workspace.clone(),
            directory: Some(directory.path().to_owned()),
            place: Place::here(),
        };
        (view, outcome)
    }

    /// How long it took, or has taken so far.
    pub fn duration(&self, now_ms: u64) -> String {
        let until = match (self.ended_ms, self.alive) {
            (Some(ended), _) => ended,
            (None, true) => now_ms,
            // It was killed, and nobody knows when.
            (None, false) => return "-".to_owned(),
        };
        span::shown(until.saturating_sub(self.started_ms))
    }

    /// Tokens in all; with a mark where some are estimates.
    pub fn tokens(&self) -> String {
        let total = (self.usage.input_tokens).saturating_add(self.usage.output_tokens);
        let mark = if self.usage.estimated { "~" } else { "" };
        format!("{mark}{total}")
    }

    /// What it cost and by which price, where that is known. Estimated tokens make it a guess.
    pub fn cost(&self) -> Option<String> {
        let cost = self.cost.as_ref()?;
        let about = if self.usage.estimated { "about " } else { "" };
        let sign = if cost.amount_micro < 0 { "-" } else { "" };
        let micro = cost.amount_micro.unsigned_abs();
        let (units, rest) = (micro / MILLION, micro % MILLION);
        let by = cost.price_key.as_ref().map(|it| format!(" by {it}"));
        Some(format!("{about}{sign}{units}.{rest:06} {}{}", cost.currency, by.unwrap_or_default()))
    }
}

/// The beginning of a UID that is enough for people.
pub fn short(uid: &str) -> String {
    uid.chars().take(8).collect()
}

/// How a run stands, in words.
pub fn state(phase: Phase, outcome: Option<&Outcome>) -> &'static str {
    match (outcome, phase) {
        (Some(outcome), _) => outcome.word(),
        (None, Phase::Starting) => "starting",
        (None, Phase::Working) => "running",
        (None, Phase::Waiting) => "waiting for approval",
        (None, Phase::Ended) => "ending",
    }
}
