//! A run that goes on: what its pod, its report and its author say, and what follows.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::runtime::reflector::ObjectRef;
use serde_json::json;
use sympozium_api::agent_run::{
    Cleanup, GateVerdict, GrantRecord, Phase, ReportedEnding, TIME_IS_UP,
};
use sympozium_api::labels::{self, component, field_manager};
use sympozium_api::names::{ObjectName, Uid};
use sympozium_api::run_plan::Role;
use sympozium_api::{AgentRun, RunPlan};

use super::again::again;
use super::end::{self, Outcome};
use super::error::Error;
use super::faults::{self, Fault, Patience};
use super::inputs::{self, Renewed};
use super::status::{Change, Says, condition, fresh, holds, now, since};
use crate::context::{About, Context};
use crate::world::World;

/// How long beyond its ceiling a run is left to those who keep its clock.
const CEILING_SLACK: Duration = Duration::from_secs(15);
/// How soon to look again for something that is there and that the watch has not told of.
const WATCH_PAUSE: Duration = Duration::from_secs(1);
/// How long beyond its grace a pod that was asked to end is waited for.
const GRACE_SLACK: Duration = Duration::from_secs(15);

/// A run whose Job or Sandbox is there and whose pod was not seen yet.
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

/// How long ago the run was ready to start.
fn waited(run: &AgentRun) -> Duration {
    let granted = run.status.as_ref().and_then(|it| it.granted_at.as_ref());
    granted.map_or(Duration::ZERO, since)
}

/// The first pod of a run, and what was made for the run with the UID of what made the pod: its own Job or Sandbox. A name can be
/// had by anybody.
async fn first_pod(
    run: &AgentRun,
    context: &Context,
) -> Result<Option<(Arc<Pod>, Vec<GrantRecord>)>, Error> {
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
    let is_maker = |it: &&mut GrantRecord| {
        end::is_workload(it) && names.iter().any(|name| name.as_str() == it.name)
    };
    let Some(maker) = grants.iter_mut().find(is_maker) else {
        return Ok(None);
    };
    maker.uid = end::find(run, maker, context).await?.map(Uid::new);
    let made = maker.uid.clone();
    let is_made = |pod: &Pod| {
        let mut owners = pod.owner_references().iter();
        owners.any(|it| {
            it.controller == Some(true) && made.as_ref().is_some_and(|uid| uid.as_str() == it.uid)
        })
    };
    let mut pods: Vec<_> = pods.into_iter().filter(|pod| is_made(pod)).collect();
    pods.sort_by_key(|it| (it.creation_timestamp(), it.name_any()));
    Ok(pods.into_iter().next().map(|pod| (pod, grants)))
}

/// The pod that the run's status names, as long as it is there.
fn pod_of(run: &AgentRun, context: &Context) -> Option<Arc<Pod>> {
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

/// A run whose pod is known.
pub async fn going(run: Arc<AgentRun>, context: &Context) -> Result<Action, Error> {
    let plan = match context.plans.of(&run, context).await {
        Ok(plan) => plan,
        // Nobody knows any more what it may do.
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
        // It may have reported in its last moment, and the watch of pods is ahead of that of runs.
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
    let age = pod
        .creation_timestamp()
        .map_or(Duration::ZERO, |it| since(&it));
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
        if let Some(why) = slow_hook(&pod, &plan) {
            return stop(run, Some(pod), Some(why), Some(&plan), context).await;
        }
        let until = hooks_before(&plan) + start;
        if age >= until {
            let why = "the run's pod did not start in time".to_owned();
            return stop(run, Some(pod), Some(why), Some(&plan), context).await;
        }
        let hook = hook_due(&pod, &plan);
        let look = faults::SANDBOX_PATIENCE.checked_sub(age);
        return Ok(Action::requeue(least(&[
            Some(until - age),
            renew,
            hook,
            look,
        ])));
    }
    began(&run, &pod, context).await?;
    Ok(Action::requeue(least(&[Some(ceiling - age), renew])))
}

/// Seconds that the hooks before a run have, all together.
fn hooks_before(plan: &RunPlan) -> Duration {
    let hooks = plan
        .parts
        .iter()
        .filter(|it| matches!(it.role, Role::PreRun { .. }));
    let seconds = hooks.map(|it| it.timeout_seconds.unwrap_or(plan.deadlines.run_seconds));
    Duration::from_secs(seconds.sum())
}

fn least(times: &[Option<Duration>]) -> Duration {
    let least = times.iter().flatten().min().copied();
    least
        .unwrap_or(Duration::from_secs(60))
        .max(Duration::from_millis(10))
}

/// Whether the run itself has said how it ended.
fn is_finished(run: &AgentRun) -> bool {
    let report = run.status.as_ref().and_then(|it| it.report.as_ref());
    report.is_some_and(|it| it.finished)
}

fn error_of(run: &AgentRun) -> Option<&str> {
    run.status.as_ref()?.error.as_deref()
}

/// Says that the agent works.
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
    change = change.say(
        condition::STARTED,
        Says::yes(
            "Started",
            format!("every container has begun, {where_}{kernel}"),
        ),
    );
    let network = network_says(pod)
        .unwrap_or_else(|| Says::unknown("Unknown", "the check of the network has said nothing"));
    change = change.say(condition::NETWORK_ENFORCED, network);
    change.write(context).await.map(drop)
}

/// What the check of the network has found.
fn network_says(pod: &Pod) -> Option<Says> {
    Some(match faults::network(pod)? {
        Ok(()) => Says::yes(
            "Enforced",
            "the run reaches what its plan lists and nothing else",
        ),
        Err(why) => Says::no("Unenforced", why),
    })
}

/// The hook before the run that takes longer than it may, if one does.
fn slow_hook(pod: &Pod, plan: &RunPlan) -> Option<String> {
    let hooks = plan
        .parts
        .iter()
        .filter(|it| matches!(it.role, Role::PreRun { .. }));
    for hook in hooks {
        let seconds = hook.timeout_seconds.unwrap_or(plan.deadlines.run_seconds);
        let running = faults::running_since(pod, &hook.name.0).map(|it| since(&it));
        if running.is_some_and(|it| it >= Duration::from_secs(seconds)) {
            return Some(format!(
                "hook `{}` took longer than its {seconds} s",
                hook.name
            ));
        }
    }
    None
}

/// When the next hook before the run has had its time.
fn hook_due(pod: &Pod, plan: &RunPlan) -> Option<Duration> {
    let hooks = plan
        .parts
        .iter()
        .filter(|it| matches!(it.role, Role::PreRun { .. }));
    let due = hooks.filter_map(|hook| {
        let seconds = hook.timeout_seconds.unwrap_or(plan.deadlines.run_seconds);
        let running = since(&faults::running_since(pod, &hook.name.0)?);
        Some(Duration::from_secs(seconds).saturating_sub(running))
    });
    due.min()
}

/// Tokens are renewed long before they expire. When the next is due.
async fn renewal(
    run: &AgentRun,
    plan: &RunPlan,
    context: &Context,
) -> Result<Option<Duration>, Error> {
    if plan.identities.is_empty() || !holds(run, condition::GRANTED) {
        return Ok(None);
    }
    let Some(surroundings) = context.surroundings.borrow().clone() else {
        return Ok(None);
    };
    inputs::renew(run, plan, Renewed::All, &surroundings, context).await
}

/// Something is in the way before there is a pod.
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

/// Something is in the way of the pod's containers.
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

/// How much longer a fault is borne; nothing when it is over. What may pass has its time from when it was first seen, not from
/// when the run began to wait for something else.
fn patience(
    run: &AgentRun,
    fault: &Fault,
    waited: Duration,
    start: Duration,
    context: &Context,
) -> Option<Duration> {
    let since = context
        .hindrances
        .since(&run.uid().unwrap_or_default(), fault.reason);
    let rest = match fault.patience {
        Patience::None => Duration::ZERO,
        Patience::Some(time) => time.min(start).saturating_sub(since),
        Patience::Start => start.saturating_sub(waited),
    };
    (!rest.is_zero()).then_some(rest)
}

async fn say_hindered(run: &Arc<AgentRun>, fault: &Fault, context: &Context) -> Result<(), Error> {
    let change = Change::of(run).say(
        condition::STARTED,
        Says::no(fault.reason, fault.message.clone()),
    );
    let written = change.write(context).await?;
    if Arc::ptr_eq(&written, run) {
        // It was said before.
        return Ok(());
    }
    let about = About {
        type_: EventType::Warning,
        reason: fault.reason,
        action: "Start",
        note: &fault.message,
    };
    context.tell(run, about).await;
    Ok(())
}

/// Ends a run from outside: its rights are gone at once, and its pod is told to end. What it still has to say is waited for.
async fn stop(
    run: Arc<AgentRun>,
    pod: Option<Arc<Pod>>,
    why: Option<String>,
    plan: Option<&RunPlan>,
    context: &Context,
) -> Result<Action, Error> {
    let mut run = run;
    if holds(&run, condition::GRANTED) {
        end::revoke_rights(&run, whose(&run), context).await?;
        let mut change = Change::of(&run).say(
            condition::GRANTED,
            Says::no("Ending", "the run was ended from outside"),
        );
        if let Some(why) = &why {
            change = change.fail(Some(why))?;
        }
        // Before the pod goes: what its containers said goes with it.
        if why.is_some()
            && let Some(pod) = &pod
        {
            let failures = super::logs::gather(pod, context).await;
            change = change.set("failedContainers", failures)?;
        }
        run = change.write(context).await?;
    }
    let Some(pod) = pod else {
        return over(run, None, context).await;
    };
    let grace = plan.map_or(30, |it| it.deadlines.grace_seconds);
    let limit = Duration::from_secs(grace) + GRACE_SLACK;
    match &pod.metadata.deletion_timestamp {
        None => {
            end::remove_workload(&run, &pod, context).await?;
            Ok(Action::requeue(limit))
        }
        // The deletion's time is the end of the grace, not its beginning.
        Some(by) => {
            let late = Timestamp::now().duration_since(by.0);
            if late >= SignedDuration::try_from(GRACE_SLACK).unwrap_or(SignedDuration::ZERO) {
                return over(run, Some(pod), context).await;
            }
            Ok(Action::requeue(limit))
        }
    }
}

/// The agent has ended. Hooks come next, or nothing.
async fn over(
    run: Arc<AgentRun>,
    pod: Option<Arc<Pod>>,
    context: &Context,
) -> Result<Action, Error> {
    // What skills could do ends with the agent, before anything else is asked or written. The hooks' own rights stay until they
    // are done.
    end::revoke_rights(&run, whose(&run), context).await?;
    let outcome = outcome(&run, pod.as_deref(), context).await;
    if !has_hooks(&run) {
        return end::finish(run, outcome, context).await;
    }
    let change = Change::of(&run)
        .set("phase", Phase::PostRunning)?
        .set("exitCode", outcome.exit_code)?
        .fail(outcome.error.as_deref())?
        .set("failedContainers", &outcome.failed_containers)?
        .set("tokenUsage", &outcome.token_usage)?;
    let run = change.write(context).await?;
    afterwards(run, context).await
}

/// Whose rights end with the agent.
fn whose(run: &AgentRun) -> end::Whose {
    match has_hooks(run) {
        true => end::Whose::Skills,
        false => end::Whose::All,
    }
}

/// Whether hooks come after the agent.
fn has_hooks(run: &AgentRun) -> bool {
    let status = run.status.as_ref();
    status.is_some_and(|it| it.post_run_job_name.is_some())
}

/// What came of the agent, from what it reported and how its pod ended.
async fn outcome(run: &AgentRun, pod: Option<&Pod>, context: &Context) -> Outcome {
    let status = run.status.as_ref();
    let report = status.and_then(|it| it.report.as_ref());
    let mut outcome = Outcome {
        exit_code: pod.and_then(faults::agent_exit),
        token_usage: report.and_then(|it| it.token_usage.clone()),
        isolation: report.map(|it| it.isolation.clone()).unwrap_or_default(),
        network: pod.and_then(network_says),
        ..Outcome::default()
    };
    let ending = report.filter(|it| it.finished).and_then(|it| it.ending);
    if ending == Some(ReportedEnding::Answered) {
        outcome.phase = Phase::Succeeded;
        outcome.result = report.and_then(|it| it.result.clone());
        return outcome;
    }
    outcome.phase = Phase::Failed;
    let said = report.and_then(|it| it.error.clone());
    let known = error_of(run).map(str::to_owned);
    outcome.error = if run.spec.cancel {
        outcome.phase = Phase::Cancelled;
        None
    } else if known.is_some() {
        known
    } else {
        Some(match ending {
            Some(ReportedEnding::TimedOut) => TIME_IS_UP.to_owned(),
            Some(ReportedEnding::Failed) => said.unwrap_or_else(|| "the agent failed".to_owned()),
            Some(ReportedEnding::NeverCame) => "the agent never came".to_owned(),
            Some(ReportedEnding::Stopped) => pod
                .and_then(faults::from_outside)
                .unwrap_or_else(|| "the run's pod was ended from outside".to_owned()),
            Some(ReportedEnding::Crashed) => match pod {
                Some(pod) if outcome.exit_code.is_some_and(|it| it != 0) => faults::end(pod),
                _ => said.unwrap_or_else(|| "the agent crashed".to_owned()),
            },
            Some(ReportedEnding::Answered) | None => match pod {
                Some(pod) => faults::end(pod),
                None => "the run's pod was deleted".to_owned(),
            },
        })
    };
    outcome.failed_containers = status
        .map(|it| it.failed_containers.clone())
        .unwrap_or_default();
    if outcome.phase == Phase::Failed
        && outcome.failed_containers.is_empty()
        && let Some(pod) = pod
    {
        outcome.failed_containers = super::logs::gather(pod, context).await;
    }
    outcome
}

/// The agent has ended, and hooks have work to do.
pub async fn afterwards(run: Arc<AgentRun>, context: &Context) -> Result<Action, Error> {
    let plan = match context.plans.of(&run, context).await {
        Ok(plan) => plan,
        Err(error) if error.is_final() => {
            return end::finish(run, Outcome::failed(&error.told()), context).await;
        }
        Err(error) => return Err(error),
    };
    let mut outcome = kept_outcome(&run);
    let gate = plan
        .parts
        .iter()
        .any(|it| matches!(it.role, Role::PostRun { gate: true, .. }));
    let kept = outcome.clone();
    let held_back = |why: &str| Outcome {
        phase: Phase::Failed,
        result: None,
        error: Some(format!("the answer is held back: {why}")),
        ..kept.clone()
    };
    let status = run.status.as_ref();
    let name = status
        .and_then(|it| it.post_run_job_name.clone())
        .unwrap_or_default();
    let namespace = run.namespace().unwrap_or_default();
    // Another of that name would give the verdict of somebody else.
    let made = status.map(|it| it.grants.as_slice()).unwrap_or_default();
    let made = made
        .iter()
        .find(|it| it.kind == "Job" && it.name == name.as_str());
    let made = made.and_then(|it| it.uid.as_ref().map(|it| it.as_str().to_owned()));
    let job = World::find(&context.world.jobs, &namespace, name.as_str());
    let is_made = |job: &Job| made.is_none() || job.uid() == made;
    let Some(job) = job.filter(|job| is_made(job)) else {
        // A watch may be behind, and what follows cannot be taken back.
        let api: kube::Api<Job> = kube::Api::namespaced(context.client.clone(), &namespace);
        let found = again(|| api.get_opt(name.as_str())).await;
        let found = found.map_err(Error::api("read", "Job", name.as_str()))?;
        if found.is_some_and(|job| is_made(&job)) {
            return Ok(Action::requeue(WATCH_PAUSE));
        }
        let why = "the Job of the hooks after it is gone";
        if gate && outcome.phase == Phase::Succeeded {
            return end::finish(run, held_back(why), context).await;
        }
        return end::finish(run, outcome, context).await;
    };
    if faults::is_complete(&job) {
        if gate {
            outcome.gate = Some(GateVerdict::Approved);
        }
        return end::finish(run, outcome, context).await;
    }
    if let Some(why) = faults::of_job(&job) {
        if gate && outcome.phase == Phase::Succeeded {
            let why = hook_failure(&run, context).unwrap_or(why);
            let mut outcome = held_back(&why);
            outcome.gate = Some(GateVerdict::Rejected);
            return end::finish(run, outcome, context).await;
        }
        outcome.warning = Some(format!("after the run: {why}"));
        return end::finish(run, outcome, context).await;
    }
    let suspended = job.spec.as_ref().and_then(|it| it.suspend) == Some(true);
    if suspended {
        // They look at what the agent has left: nothing of it may be at work any more.
        if let Some(pause) = end_agent(&run, &plan, context).await? {
            return Ok(Action::requeue(pause));
        }
        wake_hooks(&job, context).await?;
    }
    if let Some(node) = hook_pod(&run, context).and_then(|pod| lost_node(&pod, context)) {
        let why = format!("node `{node}` does not answer");
        if gate && outcome.phase == Phase::Succeeded {
            let mut outcome = held_back(&why);
            outcome.gate = Some(GateVerdict::Error);
            return end::finish(run, outcome, context).await;
        }
        outcome.warning = Some(format!("after the run: {why}"));
        return end::finish(run, outcome, context).await;
    }
    let limit = plan.after_run_seconds().unwrap_or_default();
    let age = job.status.as_ref().and_then(|it| it.start_time.as_ref());
    let age = age.map_or(Duration::ZERO, since);
    let limit = Duration::from_secs(limit) + CEILING_SLACK;
    if age >= limit {
        let why = "the hooks after the run took too long";
        let outcome = match gate && outcome.phase == Phase::Succeeded {
            true => Outcome {
                gate: Some(GateVerdict::Timeout),
                ..held_back(why)
            },
            false => Outcome {
                warning: Some(why.to_owned()),
                ..outcome
            },
        };
        return end::finish(run, outcome, context).await;
    }
    let surroundings = context.surroundings.borrow().clone();
    let renewal = match surroundings {
        Some(surroundings) => {
            inputs::renew(&run, &plan, Renewed::Hooks, &surroundings, context).await?
        }
        None => None,
    };
    let rest = limit - age;
    Ok(Action::requeue(renewal.map_or(rest, |it| it.min(rest))))
}

/// Has the agent's pod end before hooks begin, an agent that lingers among them. How long to wait for it; nothing when it has
/// ended, or when its node had its time and says nothing.
async fn end_agent(
    run: &AgentRun,
    plan: &RunPlan,
    context: &Context,
) -> Result<Option<Duration>, Error> {
    let Some(pod) = pod_of(run, context).filter(|pod| !faults::is_still(pod)) else {
        return Ok(None);
    };
    if let Some(by) = &pod.metadata.deletion_timestamp {
        return Ok(GRACE_SLACK.checked_sub(since(by)));
    }
    let report = run.status.as_ref().and_then(|it| it.report.as_ref());
    let ended = report
        .filter(|it| it.finished)
        .map(|it| since(&it.reported_at));
    // A pod that is to be kept has a while to end by itself.
    let keep = run.spec.cleanup == Cleanup::Keep;
    if keep && let Some(rest) = ended.and_then(|it| end::LINGER.checked_sub(it)) {
        return Ok(Some(rest.max(WATCH_PAUSE)));
    }
    end::remove_workload(run, &pod, context).await?;
    Ok(Some(
        Duration::from_secs(plan.deadlines.grace_seconds) + GRACE_SLACK,
    ))
}

/// Lets the hooks begin.
async fn wake_hooks(job: &Job, context: &Context) -> Result<(), Error> {
    let namespace = job.namespace().unwrap_or_default();
    let api: kube::Api<Job> = kube::Api::namespaced(context.client.clone(), &namespace);
    let patch = json!({ "metadata": { "uid": job.uid() }, "spec": { "suspend": false } });
    let parameters = PatchParams {
        field_manager: Some(field_manager::CONTROLLER.to_owned()),
        ..PatchParams::default()
    };
    context.metrics.wrote("Job", "patch");
    let name = job.name_any();
    let patch = Patch::Merge(&patch);
    let woken = again(|| api.patch(&name, &parameters, &patch)).await;
    woken.map_err(Error::api("start", "Job", name)).map(drop)
}

/// Why a hook failed, by its pod.
fn hook_failure(run: &AgentRun, context: &Context) -> Option<String> {
    hook_pod(run, context).map(|pod| faults::end(&pod))
}

/// The pod of the hooks after the run.
fn hook_pod(run: &AgentRun, context: &Context) -> Option<Arc<Pod>> {
    let pods = end::pods_of(run, context).into_iter();
    let is_hooks = |pod: &Arc<Pod>| {
        pod.labels().get(labels::COMPONENT).map(String::as_str) == Some(component::POST_RUN)
    };
    pods.filter(is_hooks)
        .max_by_key(|it| it.creation_timestamp())
}

/// The pod's node, if it does not answer.
fn lost_node(pod: &Pod, context: &Context) -> Option<String> {
    let name = pod.spec.as_ref()?.node_name.as_deref()?;
    let node = context.world.nodes.get(&ObjectRef::new(name))?;
    faults::is_lost(&node).then(|| node.name_any())
}

/// What was written down when the agent had ended.
fn kept_outcome(run: &AgentRun) -> Outcome {
    let Some(status) = &run.status else {
        return Outcome::failed("nothing is known about its end");
    };
    let report = status.report.as_ref();
    let phase = if status.error.is_some() {
        Phase::Failed
    } else if report.and_then(|it| it.ending) == Some(ReportedEnding::Answered) {
        Phase::Succeeded
    } else {
        Phase::Cancelled
    };
    Outcome {
        phase,
        result: report
            .and_then(|it| it.result.clone())
            .filter(|_| phase == Phase::Succeeded),
        error: status.error.clone(),
        exit_code: status.exit_code,
        token_usage: status.token_usage.clone(),
        isolation: report.map(|it| it.isolation.clone()).unwrap_or_default(),
        failed_containers: status.failed_containers.clone(),
        ..Outcome::default()
    }
}
