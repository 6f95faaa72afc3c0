//! Events of the run API.

use serde::Serialize;
use sympozium_ipc::run_api::{ApprovalAnswer, ApprovalRequest, ReportedEnd};

use super::EventKind;

/// How a run ended, without its answer: answers are long, and the store of reports has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunEndKind {
    Answered,
    /// The agent reported an error.
    Failed,
    /// The agent disconnected without a result.
    Crashed,
    /// The agent never connected.
    NeverCame,
    TimedOut,
    /// It was told to terminate.
    Stopped,
}

impl RunEndKind {
    pub fn from_run_end(ending: &ReportedEnd) -> Self {
        match ending {
            ReportedEnd::Answered { .. } => Self::Answered,
            ReportedEnd::Failed { .. } => Self::Failed,
            ReportedEnd::Crashed { .. } => Self::Crashed,
            ReportedEnd::NeverCame => Self::NeverCame,
            ReportedEnd::TimedOut => Self::TimedOut,
            ReportedEnd::Stopped => Self::Stopped,
        }
    }
}

impl EventKind {
    pub(crate) fn asked(request: &ApprovalRequest, wait_seconds: u64) -> Self {
        Self::Asked {
            approval: request.approval.clone(),
            tool: request.tool.clone(),
            pack: request.pack.clone(),
            action: request.action.clone(),
            shown: request.shown.clone(),
            wait_seconds,
        }
    }

    pub(crate) fn answered(answer: &ApprovalAnswer) -> Self {
        Self::Answered {
            approval: answer.approval.clone(),
            action: answer.action.clone(),
            decision: answer.decision,
            by: answer.by.clone(),
            for_the_run: answer.for_the_run,
        }
    }
}
