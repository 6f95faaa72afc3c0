//! `run.json`: what is known about a run, from its plan to the proof that nothing of it is left.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sympozium_api::agent_run::CostEstimate;
use sympozium_api::names::Digest;
use sympozium_exec::IsolationReport;
use sympozium_ipc::run_api::{Phase, Usage};

use crate::origin::ResolvedFrom;

/// The form of this file.
pub const FORMAT: u32 = 1;

/// What is known about a run. Replaced as a whole, by rename.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunRecord {
    /// How this is written.
    pub format: u32,
    /// The run's UID, which is also the name of its directory.
    pub uid: String,
    /// Its name. Names may come again.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The agent.
    pub agent: String,
    /// What it was to do, as far as it fits.
    pub task: String,
    /// The model, as `provider/model`.
    pub model: String,
    /// The packs.
    pub skills: Vec<String>,
    /// Where its policies and packs came from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<ResolvedFrom>,
    /// The plan's digest.
    pub plan: Digest,
    /// The process that runs it, or ran it.
    pub pid: u32,
    /// When it began, in milliseconds since 1970.
    pub started_ms: u64,
    /// When it was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// What it is doing, as it last said.
    pub phase: Phase,
    /// The workspace, on this machine; none where the policy leaves no files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<PathBuf>,
    /// What was used so far.
    pub usage: Usage,
    /// What that cost, once it is over, where its model has a price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostEstimate>,
    /// What came of it, once it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// What held each part.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub isolation: BTreeMap<String, IsolationReport>,
    /// What of it was still there when it was over, by listing. Absent while it goes on, empty when all is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leftovers: Option<Vec<String>>,
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "is")]
pub enum Outcome {
    /// It has an answer.
    Succeeded {
        /// The answer: text of a model, not to be trusted.
        answer: String,
    },
    /// It has none, and says why.
    Failed {
        /// Why.
        why: String,
    },
    /// A policy of the cluster that it was sent to does not let it exist.
    Denied {
        /// Every reason, and what to do.
        why: String,
    },
    /// It could not be started on this machine, or in the cluster that it was sent to.
    Refused {
        /// Why, and what to do.
        why: String,
    },
    /// Its time was up.
    TimedOut,
    /// A person ended it.
    Cancelled,
    /// Whoever ran it died without a word. Never written: it follows from a lock that nobody holds.
    Interrupted,
}

impl Outcome {
    /// The exit code of `sympozium run`.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Succeeded { .. } => 0,
            Self::Refused { .. } => 1,
            Self::Denied { .. } => 3,
            Self::Failed { .. } | Self::Interrupted => 4,
            Self::TimedOut => 5,
            Self::Cancelled => 130,
        }
    }

    /// In a word, as tables show it.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Succeeded { .. } => "succeeded",
            Self::Failed { .. } => "failed",
            Self::Refused { .. } => "refused",
            Self::Denied { .. } => "denied",
            Self::TimedOut => "timed out",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }
}
