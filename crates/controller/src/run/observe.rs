//! Observes an active run: reads its pod, its report and its spec, and reacts.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::runtime::reflector::ObjectRef;
use sympozium_api::agent_run::{GrantRecord, Phase, TIME_IS_UP};
use sympozium_api::labels::{self, component};
use sympozium_api::names::{ObjectName, Uid};
use sympozium_api::{AgentRun, RunPlan};

use super::end::{self, Outcome};
use super::error::Error;
use super::faults::{self, Fault, Patience};
use super::hooks;
use super::inputs::{self, Renewed};
use super::over::{error_of, over, stop};
use super::status::{Change, Says, condition, fresh, holds, now, since};
use crate::context::{About, Context};
use crate::world::World;

/// Time beyond its ceiling that a run gets before the controller stops it: bridge and Job enforce the limit first.
pub const CEILING_SLACK: Duration = Duration::from_secs(15);
/// Time beyond its grace period that a terminating pod gets.
pub const GRACE_SLACK: Duration = Duration::from_secs(15);

/// Handles a run whose Job or Sandbox exists and whose pod is not known yet.
pub async fn starting(run: Arc<AgentRun>, context: &Context) -> Result<Action, Error> {
    let plan = context.plans.of(&run, context).await;
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) if error.is_final() => {
            return end::finish(run, Outcome::failed(&error.told()), context).await;
        }
        Err(error) => return Err(error),
    };
    if let Some((pod, grants)) = first_pod(&run, context).await? {
        let change = Change::of(&run)
            .set("podName", ObjectName::new(pod.name_any()))?
            .set("podUID", Uid::new(pod.uid().unwrap_or_default()))?
            .set("grants", grants)?;
        let run = change.write(context).await?;
        return going(run, context).await;
    }
    let job = job(&run, context);
    if let Some(why) = job.as_deref().and_then(faults::of_job) {
        return end::finish(run, Outcome::failed(&why), context).await;
    }
    let waited = waited(&run);
    let start = Duration::from_secs(plan.deadlines.start_seconds);
    if let Some(said) = context.refusals.of(&run.uid().unwrap_or_default()) {
        let fault = faults::refusal(&said);
        return hindered(run, &fault, waited, start, context).await;
    }
    if waited >= start {
        let why = "the run's pod did not come into being; is the Job controller running?";
        return end::finish(run, Outcome::failed(why), context).await;
    }
    Ok(Action::requeue(start - waited))
}

/// Time since the run was ready to start.
fn waited(run: &AgentRun) -> Duration {
    let granted = run.status.as_ref().and_then(|it| it.granted_at.as_ref());
    granted.map_or(Duration::ZERO, since)
}

/// The first pod of a run, and the run's grant records with the UID of the pod's owner: its own Job or Sandbox. The UID
/// is compared because any object can have that name.
async fn first_pod(run: &AgentRun, context: &Context) -> Result<Option<(Arc<Pod>, Vec<GrantRecord>)>, Error> {
    let (uid, status) = (run.uid().unwrap_or_default(), run.status.as_ref());
    let pods = context.world.pods.state_filter(|pod| {
        pod.labels().get(labels::RUN_UID) == Some(&uid)
            && pod.namespace() == run.namespace()
            && pod.labels().get(labels::COMPONENT).map(String::as_str) == Some(component::AGENT_RUN)
    });
    let mut grants = status.map(|it| it.grants.clone()).unwrap_or_default();
    if pods.is_empty() {
        return Ok(None);
    }
    let makers = status.map(|it| [it.job_name.as_ref(), it.sandbox_name.as_ref()]);
    let names: Vec<_> = makers.into_iter().flatten().flatten().collect();
    let is_maker = |it: &&mut GrantRecord| end::is_workload(it) && names.iter().any(|name| name.as_str() == it.name);
    let Some(maker) = grants.iter_mut().find(is_maker) else {
        return Ok(None);
    };
    maker.uid = end::find(run, maker, context).await?.map(Uid::new);
    let made = maker.uid.clone();
    let is_made = |pod: &Pod| {
        let mut owners = pod.owner_references().iter();
        owners.any(|it| it.controller == Some(true) && made.as_ref().is_some_and(|uid| uid.as_str() == it.uid))
    };
    let mut pods: Vec<_> = pods.into_iter().filter(|pod| is_made(pod)).collect();
    pods.sort_by_key(|it| (it.creation_timestamp(), it.name_any()));
    Ok(pods.into_iter().next().map(|pod| (pod, grants)))
}

/// The pod that the run's status names, if it still exists.
pub fn pod_of(run: &AgentRun, context: &Context) -> Option<Arc<Pod>> {
    let status = run.status.as_ref()?;
    let (name, uid) = (status.pod_name.as_ref()?, status.pod_uid.as_ref()?);
    let namespace = run.namespace().unwrap_or_default();
    let pod = World::find(&context.world.pods, &namespace, name.as_str())?;
    (pod.uid().as_deref() == Some(uid.as_str())).then_some(pod)
}

fn job(run: &AgentRun, context: &Context) -> Option<Arc<Job>> {
    let name = run.status.as_ref()?.job_name.as_ref()?;
    World::find(&context.world.jobs, &run.namespace()?, name.as_str())
}

/// Handles a run whose pod is known.
pub async fn going(run: Arc<AgentRun>, context: &Context) -> Result<Action, Error> {
    let plan = match context.plans.of(&run, context).await {
        Ok(plan) => plan,
        // Without the plan it is unknown what the run may do.
        Err(error) if error.is_final() => {
            let pod = pod_of(&run, context);
            return stop(run, pod, Some(error.told()), None, context).await;
        }
        Err(error) => return Err(error),
    };
    let pod = pod_of(&run, context);
    if is_finished(&run) {
        return over(run, pod, context).await;
    }
    let Some(pod) = pod else {
        // It may have reported just before its pod ended, and the watch of pods can be ahead of that of runs.
        let Some(run) = fresh(&run, context).await? else {
            return Ok(Action::await_change());
        };
        return over(run, None, context).await;
    };
    if faults::has_ended(&pod) {
        let Some(run) = fresh(&run, context).await? else {
            return Ok(Action::await_change());
        };
        return over(run, Some(pod), context).await;
    }
    if run.spec.cancel || error_of(&run).is_some() {
        return stop(run, Some(pod), None, Some(&plan), context).await;
    }
    if let Some(node) = lost_node(&pod, context) {
        let why = format!("node `{node}` does not answer; the run's rights were taken back");
        return stop(run, Some(pod), Some(why), Some(&plan), context).await;
    }
    if let Some(why) = job(&run, context).as_deref().and_then(faults::of_job) {
        return stop(run, Some(pod), Some(why), Some(&plan), context).await;
    }
    let ceiling = Duration::from_secs(plan.deadlines.ceiling_seconds) + CEILING_SLACK;
    let age = pod.creation_timestamp().map_or(Duration::ZERO, |it| since(&it));
    if age >= ceiling {
        let why = TIME_IS_UP.to_owned();
        return stop(run, Some(pod), Some(why), Some(&plan), context).await;
    }
    let start = Duration::from_secs(plan.deadlines.start_seconds);
    if let Some(fault) = faults::look(&pod).or_else(|| faults::unmade(&pod, age)) {
        return hindered_pod(run, pod, &fault, age, start, &plan, context).await;
    }
    context.hindrances.forget(&run.uid().unwrap_or_default());
    let renew = renewal(&run, &plan, context).await?;
    if !faults::has_started(&pod) {
        if let Some(why) = hooks::slow(&pod, &plan) {
            return stop(run, Some(pod), Some(why), Some(&plan), context).await;
        }
        let until = hooks::time_before(&plan) + start;
        if age >= until {
            let why = "the run's pod did not start in time".to_owned();
            return stop(run, Some(pod), Some(why), Some(&plan), context).await;
        }
        let hook = hooks::due(&pod, &plan);
        let look = faults::SANDBOX_PATIENCE.checked_sub(age);
        return Ok(Action::requeue(least(&[Some(until - age), renew, hook, look])));
    }
    began(&run, &pod, context).await?;
    Ok(Action::requeue(least(&[Some(ceiling - age), renew])))
}

fn least(times: &[Option<Duration>]) -> Duration {
    let least = times.iter().flatten().min().copied();
    least.unwrap_or(Duration::from_secs(60)).max(Duration::from_millis(10))
}

/// Whether the bridge has reported the run end.
fn is_finished(run: &AgentRun) -> bool {
    let report = run.status.as_ref().and_then(|it| it.report.as_ref());
    report.is_some_and(|it| it.finished)
}

/// Sets phase, `Started` and `NetworkEnforced` of a run whose containers have started.
async fn began(run: &Arc<AgentRun>, pod: &Pod, context: &Context) -> Result<(), Error> {
    let spec = pod.spec.as_ref();
    let where_ = match spec.and_then(|it| it.host_users) {
        Some(false) => "in a user namespace of its own",
        _ => "in the user namespace of its node",
    };
    let kernel = spec.and_then(|it| it.runtime_class_name.as_deref());
    let kernel = kernel.map_or_else(String::new, |it| format!(", by RuntimeClass `{it}`"));
    let mut change = Change::of(run).set("phase", Phase::Running)?;
    if run.status.as_ref().is_none_or(|it| it.started_at.is_none()) {
        change = change.set("startedAt", now())?;
    }
    change =
        change.say(condition::STARTED, Says::yes("Started", format!("every container has begun, {where_}{kernel}")));
    let network =
        network_says(pod).unwrap_or_else(|| Says::unknown("Unknown", "the check of the network has said nothing"));
    change = change.say(condition::NETWORK_ENFORCED, network);
    change.write(context).await.map(drop)
}

/// The condition `NetworkEnforced` from the result of the network check.
pub fn network_says(pod: &Pod) -> Option<Says> {
    Some(match faults::network(pod)? {
        Ok(()) => Says::yes("Enforced", "the run reaches what its plan lists and nothing else"),
        Err(why) => Says::no("Unenforced", why),
    })
}

/// Renews tokens long before they expire. Returns the time until the next renewal.
async fn renewal(run: &AgentRun, plan: &RunPlan, context: &Context) -> Result<Option<Duration>, Error> {
    if plan.identities.is_empty() || !holds(run, condition::GRANTED) {
        return Ok(None);
    }
    let Some(surroundings) = context.surroundings.borrow().clone() else {
        return Ok(None);
    };
    inputs::renew(run, plan, Renewed::All, &surroundings, context).await
}

/// Handles a start fault before there is a pod.
async fn hindered(
    run: Arc<AgentRun>,
    fault: &Fault,
    waited: Duration,
    start: Duration,
    context: &Context,
) -> Result<Action, Error> {
    let Some(rest) = patience(&run, fault, waited, start, context) else {
        return end::finish(run, Outcome::failed(&fault.message), context).await;
    };
    say_hindered(&run, fault, context).await?;
    Ok(Action::requeue(rest))
}

/// Handles a start fault of the pod's containers.
async fn hindered_pod(
    run: Arc<AgentRun>,
    pod: Arc<Pod>,
    fault: &Fault,
    age: Duration,
    start: Duration,
    plan: &RunPlan,
    context: &Context,
) -> Result<Action, Error> {
    let Some(rest) = patience(&run, fault, age, start, context) else {
        let why = Some(fault.message.clone());
        return stop(run, Some(pod), why, Some(plan), context).await;
    };
    say_hindered(&run, fault, context).await?;
    Ok(Action::requeue(rest))
}

/// How much longer a fault is tolerated; `None` when its time is up. A transient fault is timed from when it was first
/// seen, not from when the run began to wait for something else.
fn patience(run: &AgentRun, fault: &Fault, waited: Duration, start: Duration, context: &Context) -> Option<Duration> {
    let since = context.hindrances.since(&run.uid().unwrap_or_default(), fault.reason);
    let rest = match fault.patience {
        Patience::None => Duration::ZERO,
        Patience::Some(time) => time.min(start).saturating_sub(since),
        Patience::Start => start.saturating_sub(waited),
    };
    (!rest.is_zero()).then_some(rest)
}

async fn say_hindered(run: &Arc<AgentRun>, fault: &Fault, context: &Context) -> Result<(), Error> {
    let change = Change::of(run).say(condition::STARTED, Says::no(fault.reason, fault.message.clone()));
    let written = change.write(context).await?;
    if Arc::ptr_eq(&written, run) {
        // The condition is unchanged, so the Event was emitted before.
        return Ok(());
    }
    let about = About { type_: EventType::Warning, reason: fault.reason, action: "Start", note: &fault.message };
    context.tell(run, about).await;
    Ok(())
}

/// The name of the pod's node if that is not ready.
pub fn lost_node(pod: &Pod, context: &Context) -> Option<String> {
    let name = pod.spec.as_ref()?.node_name.as_deref()?;
    let node = context.world.nodes.get(&ObjectRef::new(name))?;
    faults::is_lost(&node).then(|| node.name_any())
}
