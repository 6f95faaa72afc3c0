//! Observes an active run: reads its pod, its report and its spec, and reacts.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::runtime::reflector::ObjectRef;
use sympozium_api::agent_run::{GrantRecord, GrantRole, Phase, TIMEOUT_ERROR_PREFIX, condition};
use sympozium_api::labels::{self, component};
use sympozium_api::names::{ObjectName, Uid};
use sympozium_api::{AgentRun, RunPlan};

use super::end::{FinalStatus, end_run};
use super::error::Error;
use super::finish::{abort, agent_finished, recorded_error};
use super::inputs::{self, RenewalScope};
use super::pod_status::{self, FaultTimeout, StartFault};
use super::status::{StatusPatch, condition_is_true, refetch};
use super::stored::StoredRun;
use super::{hooks, objects};
use crate::caches::Caches;
use crate::conditions::{ConditionValue, elapsed_since, now};
use crate::context::{Context, EventContent};

/// Time beyond its ceiling that a run gets before the controller stops it: bridge and Job enforce the limit first.
pub const CEILING_SLACK: Duration = Duration::from_secs(15);
/// Time beyond its grace period that a terminating pod gets.
pub const GRACE_SLACK: Duration = Duration::from_secs(15);

/// Handles a run whose Job or Sandbox exists and whose pod is not known yet.
pub async fn observe_starting(run: StoredRun, context: &Context) -> Result<Action, Error> {
    let plan = context.plans.load(&run, context).await;
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) if error.is_final() => {
            return end_run(run, FinalStatus::failed(&error.user_message()), context).await;
        }
        Err(error) => return Err(error),
    };
    if let Some((pod, grants)) = find_pod(&run, context).await? {
        let mut patch = StatusPatch::new(&run);
        patch.status.pod_name = Some(ObjectName::new(pod.name_any()));
        patch.status.pod_uid = pod.uid().map(Uid::new);
        patch.status.grants = grants;
        let run = patch.write(context).await?;
        return observe_running(run, context).await;
    }
    let job = cached_job(&run, context);
    if let Some(why) = job.as_deref().and_then(pod_status::job_failure) {
        return end_run(run, FinalStatus::failed(&why), context).await;
    }
    let waited = time_since_granted(&run);
    let start = Duration::from_secs(plan.deadlines.start_seconds);
    if let Some(rejection) = context.pod_rejections.get(run.uid()) {
        let fault = pod_status::rejection_fault(&rejection);
        return handle_start_fault(run, &fault, waited, start, context).await;
    }
    if waited >= start {
        let why = "no pod was created for the run's Job in time; check the Job's Events and that kube-controller-manager runs";
        return end_run(run, FinalStatus::failed(why), context).await;
    }
    Ok(Action::requeue(start - waited))
}

/// Time since the run was ready to start.
fn time_since_granted(run: &AgentRun) -> Duration {
    let granted = run.status.as_ref().and_then(|status| status.granted_at.as_ref());
    granted.map_or(Duration::ZERO, elapsed_since)
}

/// The first pod of a run, and the run's grant records with the UID of the pod's owner: its own Job or Sandbox. The UID
/// is compared because any object can have that name.
async fn find_pod(run: &StoredRun, context: &Context) -> Result<Option<(Arc<Pod>, Vec<GrantRecord>)>, Error> {
    let pods = context.caches.pods.state_filter(|pod| {
        pod.labels().get(labels::RUN_UID).is_some_and(|uid| uid == run.uid())
            && pod.metadata.namespace.as_deref() == Some(run.namespace())
            && pod.labels().get(labels::COMPONENT).map(String::as_str) == Some(component::AGENT_RUN)
    });
    if pods.is_empty() {
        return Ok(None);
    }
    let mut grants = run.grants().to_vec();
    let makers = run.status.as_ref().map(|status| [status.job_name.as_ref(), status.sandbox_name.as_ref()]);
    let names: Vec<_> = makers.into_iter().flatten().flatten().collect();
    let is_maker = |record: &&mut GrantRecord| {
        record.role() == GrantRole::Workload && names.iter().any(|name| name.as_str() == record.name)
    };
    let Some(maker) = grants.iter_mut().find(is_maker) else {
        return Ok(None);
    };
    maker.uid = objects::find(context, maker, run).await?.map(Uid::new);
    let made = maker.uid.clone();
    let is_made = |pod: &Pod| {
        let mut owners = pod.owner_references().iter();
        owners.any(|owner| owner.controller == Some(true) && made.as_ref().is_some_and(|uid| uid.as_str() == owner.uid))
    };
    let mut pods: Vec<_> = pods.into_iter().filter(|pod| is_made(pod)).collect();
    pods.sort_by_key(|pod| (pod.creation_timestamp(), pod.name_any()));
    Ok(pods.into_iter().next().map(|pod| (pod, grants)))
}

/// The pod that the run's status names, if it still exists.
pub fn pod_of(run: &StoredRun, context: &Context) -> Option<Arc<Pod>> {
    let status = run.status.as_ref()?;
    let (name, uid) = (status.pod_name.as_ref()?, status.pod_uid.as_ref()?);
    let pod = Caches::find(&context.caches.pods, run.namespace(), name.as_str())?;
    (pod.uid().as_deref() == Some(uid.as_str())).then_some(pod)
}

fn cached_job(run: &StoredRun, context: &Context) -> Option<Arc<Job>> {
    let name = run.status.as_ref()?.job_name.as_ref()?;
    Caches::find(&context.caches.jobs, run.namespace(), name.as_str())
}

/// Handles a run whose pod is known.
pub async fn observe_running(run: StoredRun, context: &Context) -> Result<Action, Error> {
    let plan = match context.plans.load(&run, context).await {
        Ok(plan) => plan,
        // Without the plan it is unknown what the run may do.
        Err(error) if error.is_final() => {
            let pod = pod_of(&run, context);
            return abort(run, pod, Some(error.user_message()), None, context).await;
        }
        Err(error) => return Err(error),
    };
    let pod = pod_of(&run, context);
    if is_finished(&run) {
        return agent_finished(run, pod, context).await;
    }
    let Some(pod) = pod else {
        // It may have reported just before its pod ended, and the watch of pods can be ahead of that of runs.
        let Some(run) = refetch(&run, context).await? else {
            return Ok(Action::await_change());
        };
        return agent_finished(run, None, context).await;
    };
    if pod_status::has_ended(&pod) {
        let Some(run) = refetch(&run, context).await? else {
            return Ok(Action::await_change());
        };
        return agent_finished(run, Some(pod), context).await;
    }
    if run.spec.cancel || recorded_error(&run).is_some() {
        return abort(run, Some(pod), None, Some(&plan), context).await;
    }
    if let Some(node) = lost_node(&pod, context) {
        let why = format!("node `{node}` is not ready; the permissions of the run are revoked");
        return abort(run, Some(pod), Some(why), Some(&plan), context).await;
    }
    if let Some(why) = cached_job(&run, context).as_deref().and_then(pod_status::job_failure) {
        return abort(run, Some(pod), Some(why), Some(&plan), context).await;
    }
    let ceiling = Duration::from_secs(plan.deadlines.ceiling_seconds) + CEILING_SLACK;
    let age = pod.creation_timestamp().map_or(Duration::ZERO, |created| elapsed_since(&created));
    if age >= ceiling {
        let why = TIMEOUT_ERROR_PREFIX.to_owned();
        return abort(run, Some(pod), Some(why), Some(&plan), context).await;
    }
    let start = Duration::from_secs(plan.deadlines.start_seconds);
    if let Some(fault) = pod_status::find_fault(&pod).or_else(|| pod_status::sandbox_fault(&pod, age)) {
        return handle_pod_fault(run, pod, &fault, age, start, &plan, context).await;
    }
    context.start_faults.forget(run.uid());
    let renew = renew_if_granted(&run, &plan, context).await?;
    if !pod_status::has_started(&pod) {
        if let Some(why) = hooks::overdue_hook(&pod, &plan) {
            return abort(run, Some(pod), Some(why), Some(&plan), context).await;
        }
        let until = hooks::pre_run_timeout(&plan) + start;
        if age >= until {
            let why = "the run's pod did not start in time".to_owned();
            return abort(run, Some(pod), Some(why), Some(&plan), context).await;
        }
        let hook = hooks::next_hook_timeout(&pod, &plan);
        let look = pod_status::POD_SANDBOX_TIMEOUT.checked_sub(age);
        return Ok(Action::requeue(min_requeue(&[Some(until - age), renew, hook, look])));
    }
    mark_running(&run, &pod, context).await?;
    Ok(Action::requeue(min_requeue(&[Some(ceiling - age), renew])))
}

fn min_requeue(times: &[Option<Duration>]) -> Duration {
    let least = times.iter().flatten().min().copied();
    least.unwrap_or(Duration::from_secs(60)).max(Duration::from_millis(10))
}

/// Whether the bridge has reported the run end.
fn is_finished(run: &AgentRun) -> bool {
    let report = run.status.as_ref().and_then(|status| status.report.as_ref());
    report.is_some_and(|report| report.finished)
}

/// Sets phase, `Started` and `NetworkEnforced` of a run whose containers have started.
async fn mark_running(run: &StoredRun, pod: &Pod, context: &Context) -> Result<(), Error> {
    let spec = pod.spec.as_ref();
    let where_ = match spec.and_then(|spec| spec.host_users) {
        Some(false) => "in a user namespace of its own",
        _ => "in the user namespace of its node",
    };
    let kernel = spec.and_then(|spec| spec.runtime_class_name.as_deref());
    let kernel = kernel.map_or_else(String::new, |kernel| format!(", by RuntimeClass `{kernel}`"));
    let mut patch = StatusPatch::new(run);
    patch.status.phase = Some(Phase::Running);
    patch.status.started_at.get_or_insert_with(now);
    let started = ConditionValue::yes("Started", format!("every container has started, {where_}{kernel}"));
    patch.set_condition(condition::STARTED, started);
    let network = network_condition(pod)
        .unwrap_or_else(|| ConditionValue::unknown("Unknown", "the network check has reported no result"));
    patch.set_condition(condition::NETWORK_ENFORCED, network);
    patch.write(context).await.map(drop)
}

/// The condition `NetworkEnforced` from the result of the network check.
pub fn network_condition(pod: &Pod) -> Option<ConditionValue> {
    Some(match pod_status::network_check(pod)? {
        Ok(()) => ConditionValue::yes("Enforced", "the run can reach only what its plan lists"),
        Err(why) => ConditionValue::no("Unenforced", why),
    })
}

/// Renews tokens long before they expire. Returns the time until the next renewal.
async fn renew_if_granted(run: &StoredRun, plan: &RunPlan, context: &Context) -> Result<Option<Duration>, Error> {
    if plan.identities.is_empty() || !condition_is_true(run, condition::GRANTED) {
        return Ok(None);
    }
    let Some(cluster_info) = context.cluster_info.borrow().clone() else {
        return Ok(None);
    };
    inputs::renew_tokens(run, plan, RenewalScope::All, &cluster_info, context).await
}

/// Handles a start fault before there is a pod.
async fn handle_start_fault(
    run: StoredRun,
    fault: &StartFault,
    waited: Duration,
    start: Duration,
    context: &Context,
) -> Result<Action, Error> {
    let Some(rest) = fault_time_left(&run, fault, waited, start, context) else {
        return end_run(run, FinalStatus::failed(&fault.message), context).await;
    };
    publish_start_fault(&run, fault, context).await?;
    Ok(Action::requeue(rest))
}

/// Handles a start fault of the pod's containers.
async fn handle_pod_fault(
    run: StoredRun,
    pod: Arc<Pod>,
    fault: &StartFault,
    age: Duration,
    start: Duration,
    plan: &RunPlan,
    context: &Context,
) -> Result<Action, Error> {
    let Some(rest) = fault_time_left(&run, fault, age, start, context) else {
        let why = Some(fault.message.clone());
        return abort(run, Some(pod), why, Some(plan), context).await;
    };
    publish_start_fault(&run, fault, context).await?;
    Ok(Action::requeue(rest))
}

/// How much longer a fault is tolerated; `None` when its time is up. A transient fault is timed from when it was first
/// seen, not from when the run began to wait for something else.
fn fault_time_left(
    run: &StoredRun,
    fault: &StartFault,
    waited: Duration,
    start: Duration,
    context: &Context,
) -> Option<Duration> {
    let since = context.start_faults.duration(run.uid(), fault.reason);
    let rest = match fault.timeout {
        FaultTimeout::Immediate => Duration::ZERO,
        FaultTimeout::After(time) => time.min(start).saturating_sub(since),
        FaultTimeout::StartDeadline => start.saturating_sub(waited),
    };
    (!rest.is_zero()).then_some(rest)
}

async fn publish_start_fault(run: &StoredRun, fault: &StartFault, context: &Context) -> Result<(), Error> {
    let mut patch = StatusPatch::new(run);
    patch.set_condition(condition::STARTED, ConditionValue::no(fault.reason, fault.message.clone()));
    let written = patch.write(context).await?;
    if written.resource_version() == run.resource_version() {
        // The condition is unchanged, so the Event was emitted before.
        return Ok(());
    }
    let about = EventContent { type_: EventType::Warning, reason: fault.reason, action: "Start", note: &fault.message };
    context.emit_event(run, about).await;
    Ok(())
}

/// The name of the pod's node if that is not ready.
pub fn lost_node(pod: &Pod, context: &Context) -> Option<String> {
    let name = pod.spec.as_ref()?.node_name.as_deref()?;
    let node = context.caches.nodes.get(&ObjectRef::new(name))?;
    pod_status::is_node_lost(&node).then(|| node.name_any())
}
