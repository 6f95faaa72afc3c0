//! Converts a ToolApproval into a question, and reads its decision.

use kube::ResourceExt as _;
use sympozium_api::tool_approval::ApprovalDecision;
use sympozium_api::{RunPlan, ToolApproval};
use sympozium_ipc::run_api::Decision;
use sympozium_plan::render::names::ObjectNames;

use super::view::to_millis;
use sympozium_runs::Question;

/// The question as it is shown to approvers. Only the run's plan says whether an approval may apply to the whole run.
pub fn to_question(approval: &ToolApproval, names: &ObjectNames, plan: Option<&RunPlan>) -> Question {
    let spec = &approval.spec;
    Question {
        approval: name(approval, names),
        tool: spec.tool.clone(),
        pack: spec.pack.as_ref().map(|it| it.as_str().to_owned()),
        action: spec.action_hash.clone(),
        shown: spec.summary.clone(),
        deadline_ms: to_millis(&spec.expires_at),
        run_scope: plan.is_some_and(|it| it.approval.run_scope),
    }
}

/// The question's name in its run: the object's name without the prefix that stands for the run.
pub fn name(approval: &ToolApproval, names: &ObjectNames) -> String {
    let all = approval.name_any();
    let own = all.strip_prefix(&names.with_suffix("")).map(str::to_owned);
    own.unwrap_or(all)
}

/// The decision, and the user who made it.
pub fn decision(approval: &ToolApproval) -> Option<(Decision, Option<String>)> {
    let status = approval.status.as_ref()?;
    let decision = match status.decision? {
        ApprovalDecision::Approved => Decision::Approved,
        ApprovalDecision::Denied => Decision::Denied,
    };
    Some((decision, status.decided_by.clone()))
}

/// Whether the question is undecided and not expired.
pub fn is_open(approval: &ToolApproval, now_ms: u64) -> bool {
    decision(approval).is_none() && to_millis(&approval.spec.expires_at) > now_ms
}
