//! A ToolApproval as a question to a person, and what became of it.

use kube::ResourceExt as _;
use sympozium_api::tool_approval::ApprovalDecision;
use sympozium_api::{RunPlan, ToolApproval};
use sympozium_ipc::run_api::Decision;
use sympozium_plan::render::names::Names;

use super::view::milliseconds;
use crate::local::event::Question;

/// What a person is asked. Only the run's plan says whether a yes may be for the whole run.
pub fn question(approval: &ToolApproval, names: &Names, plan: Option<&RunPlan>) -> Question {
    let spec = &approval.spec;
    Question {
        approval: name(approval, names),
        tool: spec.tool.clone(),
        pack: spec.pack.as_ref().map(|it| it.as_str().to_owned()),
        action: spec.action_hash.clone(),
        shown: spec.summary.clone(),
        deadline_ms: milliseconds(&spec.expires_at),
        run_scope: plan.is_some_and(|it| it.approval.run_scope),
    }
}

/// What the question is called in its run: the object's name without what stands for the run.
pub fn name(approval: &ToolApproval, names: &Names) -> String {
    let all = approval.name_any();
    let own = all.strip_prefix(&names.of("")).map(str::to_owned);
    own.unwrap_or(all)
}

/// What was decided, and by whom.
pub fn decision(approval: &ToolApproval) -> Option<(Decision, Option<String>)> {
    let status = approval.status.as_ref()?;
    let decision = match status.decision? {
        ApprovalDecision::Approved => Decision::Approved,
        ApprovalDecision::Denied => Decision::Denied,
    };
    Some((decision, status.decided_by.clone()))
}

/// Whether a person is still asked: nobody has decided, and there is time.
pub fn is_open(approval: &ToolApproval, now_ms: u64) -> bool {
    decision(approval).is_none() && milliseconds(&approval.spec.expires_at) > now_ms
}
