//! Events of the run API.

use serde::Serializer;
use sympozium_api::agent_run::AgentEndKind;
use sympozium_ipc::run_api::{ApprovalAnswer, ApprovalRequest};

use super::EventKind;

/// Writes an end in the form of the event log, which is kebab-case.
pub(super) fn serialize_end<S: Serializer>(end: &AgentEndKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match end {
        AgentEndKind::Answered => "answered",
        AgentEndKind::Failed => "failed",
        AgentEndKind::Crashed => "crashed",
        AgentEndKind::NeverCame => "never-came",
        AgentEndKind::TimedOut => "timed-out",
        AgentEndKind::Stopped => "stopped",
    })
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
