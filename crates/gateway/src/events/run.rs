//! Events of the run API.

use serde::Serialize;
use sympozium_ipc::run_api::{ApprovalAnswer, ApprovalRequest, Ending};

use super::Outcome;

/// How a run ended, without its answer: answers are long, and the store of reports has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndingKind {
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

impl EndingKind {
    pub fn of(ending: &Ending) -> Self {
        match ending {
            Ending::Answered { .. } => Self::Answered,
            Ending::Failed { .. } => Self::Failed,
            Ending::Crashed { .. } => Self::Crashed,
            Ending::NeverCame => Self::NeverCame,
            Ending::TimedOut => Self::TimedOut,
            Ending::Stopped => Self::Stopped,
        }
    }
}

impl Outcome {
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
