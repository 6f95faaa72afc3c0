//! Handles the end of the agent, by itself or forced: revokes its grants at once and collects the run end.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::controller::Action;
use sympozium_api::agent_run::{AgentEndKind, Phase, TIMEOUT_ERROR_PREFIX, condition};
use sympozium_api::{AgentRun, RunPlan};

use super::end::{FinalStatus, end_run};
use super::error::Error;
use super::observe::{GRACE_SLACK, network_condition};
use super::revoke::{RevocationScope, revoke_grants};
use super::status::{StatusPatch, condition_is_true};
use super::stored::StoredRun;
use super::teardown::delete_workload;
use super::{hooks, logs, pod_status};
use crate::conditions::{ConditionValue, elapsed_since};
use crate::context::Context;

/// How long the kubelet may take to report how the agent ended, once the bridge has reported that it did.
const KUBELET_TIMEOUT: Duration = Duration::from_secs(10);

/// Stops a run: revokes its grants at once and deletes its pod. Its last report is waited for.
pub async fn abort(
    run: StoredRun,
    pod: Option<Arc<Pod>>,
    why: Option<String>,
    plan: Option<&RunPlan>,
    context: &Context,
) -> Result<Action, Error> {
    let mut run = run;
    if condition_is_true(&run, condition::GRANTED) {
        revoke_grants(&run, revocation_scope(&run), context).await?;
        let mut patch = StatusPatch::new(&run);
        patch.set_condition(
            condition::GRANTED,
            ConditionValue::no("Ending", "the controller is stopping the run; its permissions are revoked"),
        );
        if let Some(why) = &why {
            patch.set_error(Some(why));
            // Before the pod is deleted: its logs are deleted with it.
            if let Some(pod) = &pod {
                patch.status.failed_containers = logs::collect_failures(run.namespace(), pod, context).await;
            }
        }
        run = patch.write(context).await?;
    }
    let Some(pod) = pod else {
        return agent_finished(run, None, context).await;
    };
    let grace = plan.map_or(30, |plan| plan.deadlines.grace_seconds);
    let limit = Duration::from_secs(grace) + GRACE_SLACK;
    match &pod.metadata.deletion_timestamp {
        None => {
            delete_workload(&run, &pod, context).await?;
            Ok(Action::requeue(limit))
        }
        // The deletion timestamp is the end of the grace period, not its beginning.
        Some(by) => {
            let late = Timestamp::now().duration_since(by.0);
            if late >= SignedDuration::try_from(GRACE_SLACK).unwrap_or(SignedDuration::ZERO) {
                return agent_finished(run, Some(pod), context).await;
            }
            Ok(Action::requeue(limit))
        }
    }
}

/// Handles the end of the agent. Continues with the hooks, or ends the run.
pub async fn agent_finished(run: StoredRun, pod: Option<Arc<Pod>>, context: &Context) -> Result<Action, Error> {
    // Before any other request: the skills' grants end with the agent. The hooks keep their own grants until they are
    // done.
    revoke_grants(&run, revocation_scope(&run), context).await?;
    if let Some(pause) = pod.as_deref().and_then(|pod| awaiting_kubelet(&run, pod)) {
        return Ok(Action::requeue(pause));
    }
    let outcome = final_status(&run, pod.as_deref(), context).await;
    if !has_post_hooks(&run) {
        return end_run(run, outcome, context).await;
    }
    let mut patch = StatusPatch::new(&run);
    patch.set_error(outcome.error.as_deref());
    patch.status.phase = Some(Phase::PostRunning);
    patch.status.exit_code = outcome.exit_code;
    patch.status.failed_containers = outcome.failed_containers;
    patch.status.token_usage = outcome.token_usage;
    let ended = ConditionValue::yes("HooksFollow", "the agent has ended; the hooks after the run are next");
    patch.set_condition(condition::AGENT_ENDED, ended);
    if let Some(network) = outcome.network_condition {
        patch.set_condition(condition::NETWORK_ENFORCED, network);
    }
    let run = patch.write(context).await?;
    hooks::run_post_hooks(run, context).await
}

/// The bridge knows at once that the agent is gone, and only the kubelet knows why (out of memory, for example).
/// Returns how much longer to wait for the kubelet. Usually the pod's change arrives earlier.
fn awaiting_kubelet(run: &AgentRun, pod: &Pod) -> Option<Duration> {
    let report = run.status.as_ref()?.report.as_ref()?;
    let crashed = report.finished && report.ending == Some(AgentEndKind::Crashed);
    if !crashed || run.spec.cancel || pod_status::agent_exit_code(pod).is_some() || pod_status::is_terminated(pod) {
        return None;
    }
    KUBELET_TIMEOUT.checked_sub(elapsed_since(&report.reported_at)).filter(|left| !left.is_zero())
}

/// The grants that end with the agent.
fn revocation_scope(run: &AgentRun) -> RevocationScope {
    if has_post_hooks(run) { RevocationScope::Skills } else { RevocationScope::All }
}

fn has_post_hooks(run: &AgentRun) -> bool {
    let status = run.status.as_ref();
    status.is_some_and(|status| status.post_run_job_name.is_some())
}

/// The error in the status: a reason to stop the run that was recorded earlier.
pub fn recorded_error(run: &AgentRun) -> Option<&str> {
    run.status.as_ref()?.error.as_deref()
}

/// The run end, from the bridge's report and the pod's status.
async fn final_status(run: &StoredRun, pod: Option<&Pod>, context: &Context) -> FinalStatus {
    let status = run.status.as_ref();
    let report = status.and_then(|status| status.report.as_ref());
    let mut outcome = FinalStatus {
        exit_code: pod.and_then(pod_status::agent_exit_code),
        token_usage: report.and_then(|report| report.token_usage.clone()),
        isolation: report.map_or_else(Vec::new, |report| report.isolation.clone()),
        network_condition: pod.and_then(network_condition),
        ..FinalStatus::default()
    };
    let ending = report.filter(|report| report.finished).and_then(|report| report.ending);
    if ending == Some(AgentEndKind::Answered) {
        outcome.phase = Phase::Succeeded;
        outcome.result = report.and_then(|report| report.result.clone());
        return outcome;
    }
    outcome.phase = Phase::Failed;
    let reported = report.and_then(|report| report.error.clone());
    let known = recorded_error(run).map(str::to_owned);
    outcome.error = if run.spec.cancel {
        outcome.phase = Phase::Cancelled;
        None
    } else if known.is_some() {
        known
    } else {
        Some(match ending {
            Some(AgentEndKind::TimedOut) => TIMEOUT_ERROR_PREFIX.to_owned(),
            Some(AgentEndKind::Failed) => reported.unwrap_or_else(|| "the agent failed".to_owned()),
            Some(AgentEndKind::NeverCame) => "the agent did not connect to the bridge".to_owned(),
            Some(AgentEndKind::Stopped) => pod
                .and_then(pod_status::disruption)
                .unwrap_or_else(|| "the run's pod was stopped by something other than the controller".to_owned()),
            Some(AgentEndKind::Crashed) => match pod {
                Some(pod) if outcome.exit_code.is_some_and(|exit_code| exit_code != 0) => {
                    pod_status::failure_reason(pod)
                }
                _ => reported.unwrap_or_else(|| "the agent crashed".to_owned()),
            },
            Some(AgentEndKind::Answered) | None => match pod {
                Some(pod) => pod_status::failure_reason(pod),
                None => "the run's pod was deleted".to_owned(),
            },
        })
    };
    outcome.failed_containers = status.map_or_else(Vec::new, |status| status.failed_containers.clone());
    if outcome.phase == Phase::Failed
        && outcome.failed_containers.is_empty()
        && let Some(pod) = pod
    {
        outcome.failed_containers = logs::collect_failures(run.namespace(), pod, context).await;
    }
    outcome
}
