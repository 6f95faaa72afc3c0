//! Ends a run: [`revoke`](super::revoke) its grants, record how it ended, [tear down](super::teardown) the rest and
//! [`verify`](super::verify) that nothing is left.

use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use sympozium_api::agent_run::{
    ContainerFailure, CostEstimate, GateVerdict, IsolationRecord, Phase, Revocation, TokenUsage, condition,
};

use super::error::Error;
use super::revoke::{RevocationScope, revoke_grants};
use super::status::StatusPatch;
use super::stored::StoredRun;
use super::teardown::tear_down;
use crate::conditions::{ConditionValue, elapsed_since, now};
use crate::context::{Context, EventContent};

/// How a run ended, as it is written to its status.
#[derive(Debug, Clone, Default)]
pub struct FinalStatus {
    pub phase: Phase,
    pub result: Option<String>,
    pub error: Option<String>,
    /// Of the agent's container.
    pub exit_code: Option<i32>,
    pub token_usage: Option<TokenUsage>,
    /// The isolation reports.
    pub isolation: Vec<IsolationRecord>,
    pub failed_containers: Vec<ContainerFailure>,
    pub gate_verdict: Option<GateVerdict>,
    /// New value of the condition `Admitted`, if it changes.
    pub admitted_condition: Option<ConditionValue>,
    /// New value of the condition `NetworkEnforced`, if it is known.
    pub network_condition: Option<ConditionValue>,
    /// A problem that did not change the result.
    pub warning: Option<String>,
}

impl FinalStatus {
    pub fn failed(why: &str) -> Self {
        Self { phase: Phase::Failed, error: Some(why.to_owned()), ..Self::default() }
    }

    /// A person cancelled it before it started.
    pub fn cancelled() -> Self {
        Self { phase: Phase::Cancelled, ..Self::default() }
    }

    /// The Event about it.
    fn event(&self) -> EventContent<'_> {
        let (type_, note) = match (self.error.as_deref(), self.warning.as_deref()) {
            (Some(problem), _) | (None, Some(problem)) => (EventType::Warning, problem),
            (None, None) => (EventType::Normal, "the run has ended"),
        };
        let reason = match self.phase {
            Phase::Succeeded => "Succeeded",
            Phase::Cancelled => "Cancelled",
            Phase::Skipped => "Skipped",
            _ => "Failed",
        };
        EventContent { type_, reason, action: "End", note }
    }
}

/// Ends the run: revokes its grants, writes the run end, and tears down the rest.
pub async fn end_run(run: StoredRun, final_status: FinalStatus, context: &Context) -> Result<Action, Error> {
    revoke_grants(&run, RevocationScope::All, context).await?;
    let ended = record(&run, &final_status, context).await?;
    context.emit_event(&ended, final_status.event()).await;
    tear_down(ended, context).await
}

/// Writes how the run ended. Its grants must be revoked.
async fn record(run: &StoredRun, final_status: &FinalStatus, context: &Context) -> Result<StoredRun, Error> {
    let mut patch = StatusPatch::new(run);
    patch.set_error(final_status.error.as_deref());
    let status = &mut patch.status;
    status.phase = Some(final_status.phase);
    status.completed_at = Some(now());
    status.result.clone_from(&final_status.result);
    status.exit_code = final_status.exit_code;
    status.token_usage.clone_from(&final_status.token_usage);
    status.isolation.clone_from(&final_status.isolation);
    status.failed_containers.clone_from(&final_status.failed_containers);
    status.gate_verdict = final_status.gate_verdict;
    if let Some(cost) = estimate_cost(run, final_status, context).await {
        status.cost_estimate = Some(cost);
    }
    if status.granted_at.is_some() {
        // Only now: the gateway accepts no report of a run with this condition, and the bridge may send its last one
        // until then.
        status.revoked_at = Some(now());
        if let Some(report) = status.report.as_ref().filter(|report| report.finished) {
            context.metrics.observe_revoked(elapsed_since(&report.reported_at));
        }
        let revoked = ConditionValue::no("Revoked", "the run has ended and its permissions are revoked");
        patch.set_condition(condition::GRANTED, revoked);
    }
    if let Some(network) = &final_status.network_condition {
        patch.set_condition(condition::NETWORK_ENFORCED, network.clone());
    }
    if let Some(admitted) = &final_status.admitted_condition {
        patch.set_condition(condition::ADMITTED, admitted.clone());
    }
    if run.grants().is_empty() {
        // No object was ever created.
        patch.status.revocation = Some(Revocation { checked_at: now(), remaining: Vec::new() });
    } else {
        let revoking = ConditionValue::no("Revoking", "the objects of the run are being deleted");
        patch.set_condition(condition::REVOKED, revoking);
    }
    patch.write(context).await
}

/// The cost of the run, if its model has a price. An error is ignored.
async fn estimate_cost(run: &StoredRun, final_status: &FinalStatus, context: &Context) -> Option<CostEstimate> {
    let usage = final_status.token_usage.as_ref()?;
    let prices = context.settings.prices.as_ref()?;
    let plan = context.plans.load(run, context).await.ok()?;
    prices.estimate(&plan.model.provider, &plan.model.model, usage, now())
}

/// Drops all in-memory state about a run.
pub fn forget_run(uid: &str, context: &Context) {
    context.plans.forget(uid);
    context.pod_rejections.forget(uid);
    context.start_faults.forget(uid);
    context.renewals.forget(uid);
}
