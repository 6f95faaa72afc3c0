//! Hooks of a run: limits the time of those before it; starts those after it once nothing of the agent is running, and
//! lets a gate hook withhold the answer.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use serde_json::json;
use sympozium_api::agent_run::{Cleanup, GateVerdict, Phase, ReportedEnding, TIME_IS_UP};
use sympozium_api::labels::{self, component, field_manager};
use sympozium_api::lifecycle::GateDefault;
use sympozium_api::run_plan::{Deadlines, Part, Role};
use sympozium_api::{AgentRun, RunPlan};

use super::again::again;
use super::end::{self, Outcome};
use super::error::Error;
use super::faults::{self, ContainerWord};
use super::inputs::{self, Renewed};
use super::observe::{CEILING_SLACK, GRACE_SLACK, lost_node, pod_of};
use super::status::{condition, since};
use crate::context::Context;
use crate::world::World;

/// When to look again for an object that exists and is not in the cache yet.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

const TOO_LONG: &str = "its hooks took too long";

/// The hooks before a run, with their timeouts.
fn before(plan: &RunPlan) -> impl Iterator<Item = (&Part, Duration)> {
    let hooks = plan.parts.iter().filter(|it| matches!(it.role, Role::PreRun { .. }));
    hooks.map(|it| {
        let seconds = it.timeout_seconds.unwrap_or(plan.deadlines.run_seconds);
        (it, Duration::from_secs(seconds))
    })
}

/// The sum of the timeouts of the hooks before a run.
pub fn time_before(plan: &RunPlan) -> Duration {
    before(plan).map(|(_, limit)| limit).sum()
}

/// A message about the hook before the run that has exceeded its timeout, if any.
pub fn slow(pod: &Pod, plan: &RunPlan) -> Option<String> {
    before(plan).find_map(|(hook, limit)| {
        let running = since(&faults::running_since(pod, &hook.name.0)?);
        let name = &hook.name;
        let seconds = limit.as_secs();
        (running >= limit).then(|| format!("hook `{name}` took longer than its {seconds} s"))
    })
}

/// Time until the next hook before the run exceeds its timeout.
pub fn due(pod: &Pod, plan: &RunPlan) -> Option<Duration> {
    let due = before(plan).filter_map(|(hook, limit)| {
        let running = since(&faults::running_since(pod, &hook.name.0)?);
        Some(limit.saturating_sub(running))
    });
    due.min()
}

/// Handles a run whose agent has ended and that has hooks after the run.
pub async fn afterwards(run: Arc<AgentRun>, context: &Context) -> Result<Action, Error> {
    let plan = match context.plans.of(&run, context).await {
        Ok(plan) => plan,
        Err(error) if error.is_final() => {
            return end::finish(run, Outcome::failed(&error.told()), context).await;
        }
        Err(error) => return Err(error),
    };
    let answer = Answer::of(&run, &plan);
    // A run that was cancelled while its agent was active still runs its hooks; a later cancellation is meant for the
    // hooks.
    if run.spec.cancel && answer.outcome.phase != Phase::Cancelled {
        return end::finish(run, answer.cancelled(), context).await;
    }
    let job = match own_job(&run, context).await? {
        Found::Job(job) => job,
        Found::NotSeenYet => return Ok(Action::requeue(WATCH_PAUSE)),
        Found::Nothing => {
            // It may have rejected the answer before it was deleted.
            let why = "the Job of its hooks is gone";
            return end::finish(run, answer.held_back(GateVerdict::Error, why), context).await;
        }
    };
    if faults::is_complete(&job) {
        return end::finish(run, answer.passed(), context).await;
    }
    if let Some(why) = faults::of_job(&job) {
        let outcome = match why == TIME_IS_UP {
            true => answer.without(GateVerdict::Timeout, TOO_LONG),
            false => {
                let pod = hook_pod(&run, context);
                // The containers' status is not final yet; a rejection must not be taken for a missing verdict.
                let is_on_its_way = |pod: &Arc<Pod>| !faults::is_still(pod) && lost_node(pod, context).is_none();
                if pod.as_ref().is_some_and(is_on_its_way) {
                    return Ok(Action::requeue(WATCH_PAUSE));
                }
                let word = gate_word(&plan, pod.as_deref());
                let pod = pod.filter(|pod| faults::is_still(pod));
                let why = pod.map_or(why, |pod| faults::end(&pod));
                answer.after_failure(word, &why)
            }
        };
        return end::finish(run, outcome, context).await;
    }
    let suspended = job.spec.as_ref().and_then(|it| it.suspend) == Some(true);
    if suspended {
        // Hooks inspect what the agent has left: nothing of it may be running.
        if let Some(pause) = end_agent(&run, &plan, context).await? {
            return Ok(Action::requeue(pause));
        }
        wake(&job, context).await?;
    }
    let pod = hook_pod(&run, context);
    if let Some(node) = pod.as_ref().and_then(|pod| lost_node(pod, context)) {
        let why = format!("node `{node}` does not answer");
        return end::finish(run, answer.without(GateVerdict::Error, &why), context).await;
    }
    let of_job = rest(&run, &job, &plan);
    let of_hook = pod.map_or(Some(Duration::MAX), |pod| rest_of_hook(&pod, &plan));
    let Some(rest) = of_job.zip(of_hook).map(|(job, hook)| job.min(hook)) else {
        let outcome = answer.without(GateVerdict::Timeout, TOO_LONG);
        return end::finish(run, outcome, context).await;
    };
    let surroundings = context.surroundings.borrow().clone();
    let renewal = match surroundings {
        Some(surroundings) => inputs::renew(&run, &plan, Renewed::Hooks, &surroundings, context).await?,
        None => None,
    };
    Ok(Action::requeue(renewal.map_or(rest, |it| it.min(rest))))
}

/// Time that is left for the hooks after a run; `None` when it is up. Their Job is timed from its start; one that does
/// not start has the time in which a pod must start.
fn rest(run: &AgentRun, job: &Job, plan: &RunPlan) -> Option<Duration> {
    let work = Duration::from_secs(plan.after_run_seconds().unwrap_or_default()) + CEILING_SLACK;
    let started = job.status.as_ref().and_then(|it| it.start_time.as_ref());
    let of_job = work.checked_sub(started.map_or(Duration::ZERO, since))?;
    let conditions = run.status.iter().flat_map(|it| &it.conditions);
    let mut ended = conditions.filter(|it| it.type_ == condition::AGENT_ENDED);
    let ended = ended.next().map(|it| since(&it.last_transition_time));
    // The agent's pod ends first, which takes up to its grace period.
    let Deadlines { grace_seconds, start_seconds, .. } = plan.deadlines;
    let before = Duration::from_secs(grace_seconds + start_seconds) + GRACE_SLACK;
    let of_all = (before + work).checked_sub(ended.unwrap_or_default())?;
    Some(of_job.min(of_all)).filter(|it| !it.is_zero())
}

/// Time that is left for the hook that is running; `None` when it is up. The Job's own deadline cannot enforce that: it
/// has to include the time in which the pod starts.
fn rest_of_hook(pod: &Pod, plan: &RunPlan) -> Option<Duration> {
    let at_work = plan.parts.iter().filter(|part| part.role.is_after());
    let mut at_work = at_work.filter_map(|hook| {
        let seconds = hook.timeout_seconds.unwrap_or(plan.deadlines.run_seconds);
        let running = since(&faults::running_since(pod, &hook.name.0)?);
        Some((Duration::from_secs(seconds), running))
    });
    match at_work.next() {
        Some((limit, running)) => limit.checked_sub(running).filter(|it| !it.is_zero()),
        None => Some(Duration::MAX),
    }
}

/// The agent's result, before the hooks have decided about it.
struct Answer {
    outcome: Outcome,
    /// With a gate hook: what happens to the answer without a verdict.
    gate: Option<GateDefault>,
}

impl Answer {
    fn of(run: &AgentRun, plan: &RunPlan) -> Self {
        Self { outcome: kept_outcome(run), gate: plan.parts.iter().find_map(|it| it.role.gate()) }
    }

    /// All hooks succeeded.
    fn passed(self) -> Outcome {
        Outcome { gate: self.gate.map(|_| GateVerdict::Approved), ..self.outcome }
    }

    /// A person cancelled the hooks: a gate that has not decided withholds the answer.
    fn cancelled(self) -> Outcome {
        if self.gate.is_some() && self.outcome.phase == Phase::Succeeded {
            return Outcome { phase: Phase::Cancelled, result: None, ..self.outcome };
        }
        Outcome { warning: Some("after the run: its hooks were cancelled".to_owned()), ..self.outcome }
    }

    /// A hook failed. A verdict that the gate gave before counts; without knowledge of it the answer is withheld.
    fn after_failure(self, word: Option<ContainerWord>, why: &str) -> Outcome {
        match word {
            Some(ContainerWord::Yes) => Outcome { warning: Some(format!("after the run: {why}")), ..self.passed() },
            Some(ContainerWord::No) => self.held_back(GateVerdict::Rejected, why),
            Some(ContainerWord::Nothing) => self.without(GateVerdict::Error, why),
            None => self.held_back(GateVerdict::Error, why),
        }
    }

    /// There is no verdict: an answer that needs one is withheld, unless the run has `gateDefault: allow`.
    fn without(self, verdict: GateVerdict, why: &str) -> Outcome {
        let has_answer = self.outcome.phase == Phase::Succeeded;
        if self.gate == Some(GateDefault::Allow) && has_answer {
            return Outcome {
                gate: Some(GateVerdict::AllowedByDefault),
                warning: Some(format!("the answer goes out without a verdict, as `gateDefault: allow` says: {why}")),
                ..self.outcome
            };
        }
        self.held_back(verdict, why)
    }

    /// Withholds an answer that needs a verdict; a run without a gate gets a warning.
    fn held_back(self, verdict: GateVerdict, why: &str) -> Outcome {
        if self.gate.is_some() && self.outcome.phase == Phase::Succeeded {
            return Outcome {
                phase: Phase::Failed,
                result: None,
                error: Some(format!("the answer is held back: {why}")),
                gate: Some(verdict),
                ..self.outcome
            };
        }
        Outcome { warning: Some(format!("after the run: {why}")), ..self.outcome }
    }
}

/// The gate's verdict in a pod that failed. `None` if the pod does not exist any more.
fn gate_word(plan: &RunPlan, pod: Option<&Pod>) -> Option<ContainerWord> {
    let gate = plan.parts.iter().find(|it| it.role.gate().is_some())?;
    Some(faults::word_of(pod?, &gate.name.0))
}

/// The state of the hooks' Job.
enum Found {
    Job(Arc<Job>),
    /// It exists and is not in the cache yet.
    NotSeenYet,
    Nothing,
}

/// The Job of the hooks that was created for this run. Another Job of that name would fake a verdict.
async fn own_job(run: &AgentRun, context: &Context) -> Result<Found, Error> {
    let status = run.status.as_ref();
    let name = status.and_then(|it| it.post_run_job_name.clone()).unwrap_or_default();
    let namespace = run.namespace().unwrap_or_default();
    let made = status.map(|it| it.grants.as_slice()).unwrap_or_default();
    let made = made.iter().find(|it| it.kind == "Job" && it.name == name.as_str());
    let made = made.and_then(|it| it.uid.as_ref().map(|it| it.as_str().to_owned()));
    let is_made = |job: &Job| made.is_none() || job.uid() == made;
    let seen = World::find(&context.world.jobs, &namespace, name.as_str());
    if let Some(job) = seen.filter(|job| is_made(job)) {
        return Ok(Found::Job(job));
    }
    // The cache may be behind, and what follows cannot be reverted.
    let api: kube::Api<Job> = kube::Api::namespaced(context.client.clone(), &namespace);
    let found = again(|| api.get_opt(name.as_str())).await;
    let found = found.map_err(Error::api("read", "Job", name.as_str()))?;
    Ok(match found.is_some_and(|job| is_made(&job)) {
        true => Found::NotSeenYet,
        false => Found::Nothing,
    })
}

/// Stops the agent's pod before hooks start, also an agent that lingers. Returns how long to wait for it; `None` when
/// it has ended, or when its node does not report that in time.
async fn end_agent(run: &AgentRun, plan: &RunPlan, context: &Context) -> Result<Option<Duration>, Error> {
    let Some(pod) = pod_of(run, context).filter(|pod| !faults::is_still(pod)) else {
        return Ok(None);
    };
    if let Some(by) = &pod.metadata.deletion_timestamp {
        return Ok(GRACE_SLACK.checked_sub(since(by)));
    }
    let report = run.status.as_ref().and_then(|it| it.report.as_ref());
    let ended = report.filter(|it| it.finished).map(|it| since(&it.reported_at));
    // A pod that is to be kept gets some time to end by itself.
    let keep = run.spec.cleanup == Cleanup::Keep;
    if keep && let Some(rest) = ended.and_then(|it| end::LINGER.checked_sub(it)) {
        return Ok(Some(rest.max(WATCH_PAUSE)));
    }
    end::remove_workload(run, &pod, context).await?;
    Ok(Some(Duration::from_secs(plan.deadlines.grace_seconds) + GRACE_SLACK))
}

/// Starts the hooks.
async fn wake(job: &Job, context: &Context) -> Result<(), Error> {
    let namespace = job.namespace().unwrap_or_default();
    let api: kube::Api<Job> = kube::Api::namespaced(context.client.clone(), &namespace);
    let patch = json!({ "metadata": { "uid": job.uid() }, "spec": { "suspend": false } });
    let parameters =
        PatchParams { field_manager: Some(field_manager::CONTROLLER.to_owned()), ..PatchParams::default() };
    context.metrics.wrote("Job", "patch");
    let name = job.name_any();
    let patch = Patch::Merge(&patch);
    let woken = again(|| api.patch(&name, &parameters, &patch)).await;
    woken.map_err(Error::api("start", "Job", name)).map(drop)
}

fn hook_pod(run: &AgentRun, context: &Context) -> Option<Arc<Pod>> {
    let pods = end::pods_of(run, context).into_iter();
    let is_hooks =
        |pod: &Arc<Pod>| pod.labels().get(labels::COMPONENT).map(String::as_str) == Some(component::POST_RUN);
    pods.filter(is_hooks).max_by_key(|it| it.creation_timestamp())
}

/// The run end that was recorded in the status when the agent ended.
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
        result: report.and_then(|it| it.result.clone()).filter(|_| phase == Phase::Succeeded),
        error: status.error.clone(),
        exit_code: status.exit_code,
        token_usage: status.token_usage.clone(),
        isolation: report.map(|it| it.isolation.clone()).unwrap_or_default(),
        failed_containers: status.failed_containers.clone(),
        ..Outcome::default()
    }
}
