//! Hooks of a run: limits the time of those before it; starts those after it once nothing of the agent is running, and
//! lets a gate hook withhold the answer.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::Patch;
use kube::runtime::controller::Action;
use serde_json::json;
use sympozium_api::agent_run::{AgentEndKind, Cleanup, GateVerdict, Phase, TIMEOUT_ERROR_PREFIX, condition};
use sympozium_api::labels::{self, component};
use sympozium_api::lifecycle::GateDefault;
use sympozium_api::run_plan::{Deadlines, Part, Role};
use sympozium_api::{AgentRun, RunPlan};

use super::end::{FinalStatus, end_run};
use super::error::Error;
use super::inputs::{self, RenewalScope};
use super::observe::{CEILING_SLACK, GRACE_SLACK, lost_node, pod_of};
use super::pod_status::{self, ContainerVerdict};
use super::retry::retry;
use super::stored::StoredRun;
use super::teardown::{LINGER_TIMEOUT, cached_pods, delete_workload};
use crate::caches::Caches;
use crate::conditions::elapsed_since;
use crate::context::Context;
use crate::status::patch_params;

/// When to look again for an object that exists and is not in the cache yet.
const WATCH_LAG: Duration = Duration::from_secs(1);

const HOOKS_TIMED_OUT: &str = "the hooks after the run exceeded their time";

/// The hooks before a run, with their timeouts.
fn pre_run_hooks(plan: &RunPlan) -> impl Iterator<Item = (&Part, Duration)> {
    let hooks = plan.parts.iter().filter(|part| matches!(part.role, Role::PreRun { .. }));
    hooks.map(|hook| {
        let seconds = hook.timeout_seconds.unwrap_or(plan.deadlines.run_seconds);
        (hook, Duration::from_secs(seconds))
    })
}

/// The sum of the timeouts of the hooks before a run.
pub fn pre_run_timeout(plan: &RunPlan) -> Duration {
    pre_run_hooks(plan).map(|(_, limit)| limit).sum()
}

/// A message about the hook before the run that has exceeded its timeout, if any.
pub fn overdue_hook(pod: &Pod, plan: &RunPlan) -> Option<String> {
    pre_run_hooks(plan).find_map(|(hook, limit)| {
        let running = elapsed_since(&pod_status::running_since(pod, &hook.name.0)?);
        let name = &hook.name;
        let seconds = limit.as_secs();
        (running >= limit).then(|| format!("hook `{name}` exceeded its timeout of {seconds} s"))
    })
}

/// Time until the next hook before the run exceeds its timeout.
pub fn next_hook_timeout(pod: &Pod, plan: &RunPlan) -> Option<Duration> {
    let due = pre_run_hooks(plan).filter_map(|(hook, limit)| {
        let running = elapsed_since(&pod_status::running_since(pod, &hook.name.0)?);
        Some(limit.saturating_sub(running))
    });
    due.min()
}

/// Handles a run whose agent has ended and that has hooks after the run.
pub async fn run_post_hooks(run: StoredRun, context: &Context) -> Result<Action, Error> {
    let plan = match context.plans.load(&run, context).await {
        Ok(plan) => plan,
        Err(error) if error.is_final() => {
            return end_run(run, FinalStatus::failed(&error.user_message()), context).await;
        }
        Err(error) => return Err(error),
    };
    let answer = AgentResult::new(&run, &plan);
    // A run that was cancelled while its agent was active still runs its hooks; a later cancellation is meant for the
    // hooks.
    if run.spec.cancel && answer.final_status.phase != Phase::Cancelled {
        return end_run(run, answer.into_cancelled(), context).await;
    }
    let job = match find_hook_job(&run, context).await? {
        HookJob::Cached(job) => job,
        HookJob::NotCached => return Ok(Action::requeue(WATCH_LAG)),
        HookJob::Missing => {
            // It may have rejected the answer before it was deleted.
            let why = "the Job of the hooks after the run was deleted";
            return end_run(run, answer.into_withheld(GateVerdict::Error, why), context).await;
        }
    };
    if pod_status::is_job_complete(&job) {
        return end_run(run, answer.into_approved(), context).await;
    }
    if let Some(why) = pod_status::job_failure(&job) {
        return match hook_failure(&run, &plan, answer, why, context) {
            Some(final_status) => end_run(run, final_status, context).await,
            None => Ok(Action::requeue(WATCH_LAG)),
        };
    }
    let suspended = job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true);
    if suspended {
        // Hooks inspect what the agent has left: nothing of it may be running.
        if let Some(pause) = stop_agent(&run, &plan, context).await? {
            return Ok(Action::requeue(pause));
        }
        resume_job(&run, &job, context).await?;
    }
    let pod = hook_pod(&run, context);
    if let Some(node) = pod.as_ref().and_then(|pod| lost_node(pod, context)) {
        let why = format!("node `{node}` is not ready");
        return end_run(run, answer.into_undecided(GateVerdict::Error, &why), context).await;
    }
    let of_job = time_left(&run, &job, &plan);
    let of_hook = pod.map_or(Some(Duration::MAX), |pod| hook_time_left(&pod, &plan));
    let Some(rest) = of_job.zip(of_hook).map(|(job, hook)| job.min(hook)) else {
        let outcome = answer.into_undecided(GateVerdict::Timeout, HOOKS_TIMED_OUT);
        return end_run(run, outcome, context).await;
    };
    let cluster_info = context.cluster_info.borrow().clone();
    let renewal = match cluster_info {
        Some(cluster_info) => inputs::renew_tokens(&run, &plan, RenewalScope::Hooks, &cluster_info, context).await?,
        None => None,
    };
    Ok(Action::requeue(renewal.map_or(rest, |renewal| renewal.min(rest))))
}

/// The run end after the hooks' Job has failed; `None` while the final status of its containers is not known: a
/// rejection must not be taken for a missing verdict.
fn hook_failure(
    run: &StoredRun,
    plan: &RunPlan,
    answer: AgentResult,
    why: String,
    context: &Context,
) -> Option<FinalStatus> {
    if why == TIMEOUT_ERROR_PREFIX {
        return Some(answer.into_undecided(GateVerdict::Timeout, HOOKS_TIMED_OUT));
    }
    let pod = hook_pod(run, context);
    let terminated = pod.as_deref().filter(|pod| pod_status::is_terminated(pod));
    if terminated.is_none() && pod.as_ref().is_some_and(|pod| lost_node(pod, context).is_none()) {
        return None;
    }
    let verdict = gate_verdict(plan, pod.as_deref());
    let why = terminated.map_or(why, pod_status::failure_reason);
    Some(answer.into_hook_failure(verdict, &why))
}

/// Time that is left for the hooks after a run; `None` when it is up. Their Job is timed from its start; one that does
/// not start has the time in which a pod must start.
fn time_left(run: &AgentRun, job: &Job, plan: &RunPlan) -> Option<Duration> {
    let work = Duration::from_secs(plan.after_run_seconds().unwrap_or(0)) + CEILING_SLACK;
    let started = job.status.as_ref().and_then(|status| status.start_time.as_ref());
    let of_job = work.checked_sub(started.map_or(Duration::ZERO, elapsed_since))?;
    let conditions = run.status.iter().flat_map(|status| &status.conditions);
    let mut ended = conditions.filter(|entry| entry.type_ == condition::AGENT_ENDED);
    let ended = ended.next().map(|entry| elapsed_since(&entry.last_transition_time));
    // The agent's pod ends first, which takes up to its grace period.
    let Deadlines { grace_seconds, start_seconds, .. } = plan.deadlines;
    let before = Duration::from_secs(grace_seconds + start_seconds) + GRACE_SLACK;
    let of_all = (before + work).checked_sub(ended.unwrap_or(Duration::ZERO))?;
    Some(of_job.min(of_all)).filter(|left| !left.is_zero())
}

/// Time that is left for the hook that is running; `None` when it is up. The Job's own deadline cannot enforce that: it
/// has to include the time in which the pod starts.
fn hook_time_left(pod: &Pod, plan: &RunPlan) -> Option<Duration> {
    let at_work = plan.parts.iter().filter(|part| part.role.is_post_run());
    let mut at_work = at_work.filter_map(|hook| {
        let seconds = hook.timeout_seconds.unwrap_or(plan.deadlines.run_seconds);
        let running = elapsed_since(&pod_status::running_since(pod, &hook.name.0)?);
        Some((Duration::from_secs(seconds), running))
    });
    match at_work.next() {
        Some((limit, running)) => limit.checked_sub(running).filter(|left| !left.is_zero()),
        None => Some(Duration::MAX),
    }
}

/// The agent's result, before the hooks have decided about it.
struct AgentResult {
    final_status: FinalStatus,
    /// With a gate hook: what happens to the answer without a verdict.
    gate_default: Option<GateDefault>,
}

impl AgentResult {
    fn new(run: &AgentRun, plan: &RunPlan) -> Self {
        Self {
            final_status: recorded_final_status(run),
            gate_default: plan.parts.iter().find_map(|part| part.role.gate_default()),
        }
    }

    /// All hooks succeeded.
    fn into_approved(self) -> FinalStatus {
        FinalStatus { gate_verdict: self.gate_default.map(|_| GateVerdict::Approved), ..self.final_status }
    }

    /// A person cancelled the hooks: a gate that has not decided withholds the answer.
    fn into_cancelled(self) -> FinalStatus {
        if self.gate_default.is_some() && self.final_status.phase == Phase::Succeeded {
            return FinalStatus { phase: Phase::Cancelled, result: None, ..self.final_status };
        }
        FinalStatus { warning: Some("the hooks after the run were cancelled".to_owned()), ..self.final_status }
    }

    /// A hook failed. A verdict that the gate gave before counts; without knowledge of it the answer is withheld.
    fn into_hook_failure(self, word: Option<ContainerVerdict>, why: &str) -> FinalStatus {
        match word {
            Some(ContainerVerdict::Succeeded) => {
                FinalStatus { warning: Some(format!("the hooks after the run failed: {why}")), ..self.into_approved() }
            }
            Some(ContainerVerdict::Failed) => self.into_withheld(GateVerdict::Rejected, why),
            Some(ContainerVerdict::Unknown) => self.into_undecided(GateVerdict::Error, why),
            None => self.into_withheld(GateVerdict::Error, why),
        }
    }

    /// There is no verdict: an answer that needs one is withheld, unless the run has `gateDefault: allow`.
    fn into_undecided(self, verdict: GateVerdict, why: &str) -> FinalStatus {
        let has_answer = self.final_status.phase == Phase::Succeeded;
        if self.gate_default == Some(GateDefault::Allow) && has_answer {
            return FinalStatus {
                gate_verdict: Some(GateVerdict::AllowedByDefault),
                warning: Some(format!("the answer goes out without a verdict, as `gateDefault: allow` says: {why}")),
                ..self.final_status
            };
        }
        self.into_withheld(verdict, why)
    }

    /// Withholds an answer that needs a verdict; a run without a gate gets a warning.
    fn into_withheld(self, verdict: GateVerdict, why: &str) -> FinalStatus {
        if self.gate_default.is_some() && self.final_status.phase == Phase::Succeeded {
            return FinalStatus {
                phase: Phase::Failed,
                result: None,
                error: Some(format!("the answer is withheld: {why}")),
                gate_verdict: Some(verdict),
                ..self.final_status
            };
        }
        FinalStatus { warning: Some(format!("the hooks after the run failed: {why}")), ..self.final_status }
    }
}

/// The gate's verdict in a pod that failed. `None` if the pod does not exist any more.
fn gate_verdict(plan: &RunPlan, pod: Option<&Pod>) -> Option<ContainerVerdict> {
    let gate = plan.parts.iter().find(|part| part.role.gate_default().is_some())?;
    Some(pod_status::container_verdict(pod?, &gate.name.0))
}

/// The state of the hooks' Job.
enum HookJob {
    Cached(Arc<Job>),
    /// It exists and is not in the cache yet.
    NotCached,
    Missing,
}

/// The Job of the hooks that was created for this run. Another Job of that name would fake a verdict.
async fn find_hook_job(run: &StoredRun, context: &Context) -> Result<HookJob, Error> {
    let Some(name) = run.status.as_ref().and_then(|status| status.post_run_job_name.as_ref()) else {
        return Ok(HookJob::Missing);
    };
    let record = run.grants().iter().find(|record| record.kind == "Job" && record.name == name.as_str());
    let recorded = record.and_then(|record| record.uid.as_ref());
    let is_recorded = |job: &Job| recorded.is_none_or(|uid| job.metadata.uid.as_deref() == Some(uid.as_str()));
    let cached = Caches::find(&context.caches.jobs, run.namespace(), name.as_str());
    if let Some(job) = cached.filter(|job| is_recorded(job)) {
        return Ok(HookJob::Cached(job));
    }
    // The cache may be behind, and what follows cannot be reverted.
    let api: kube::Api<Job> = kube::Api::namespaced(context.client.clone(), run.namespace());
    let found = retry(|| api.get_opt(name.as_str())).await;
    let found = found.map_err(Error::api("read", "Job", name.as_str()))?;
    Ok(if found.is_some_and(|job| is_recorded(&job)) { HookJob::NotCached } else { HookJob::Missing })
}

/// Stops the agent's pod before hooks start, also an agent that lingers. Returns how long to wait for it; `None` when
/// it has ended, or when its node does not report that in time.
async fn stop_agent(run: &StoredRun, plan: &RunPlan, context: &Context) -> Result<Option<Duration>, Error> {
    let Some(pod) = pod_of(run, context).filter(|pod| !pod_status::is_terminated(pod)) else {
        return Ok(None);
    };
    if let Some(by) = &pod.metadata.deletion_timestamp {
        return Ok(GRACE_SLACK.checked_sub(elapsed_since(by)));
    }
    let report = run.status.as_ref().and_then(|status| status.report.as_ref());
    let ended = report.filter(|report| report.finished).map(|report| elapsed_since(&report.reported_at));
    // A pod that is to be kept gets some time to end by itself.
    let keep = run.spec.cleanup == Cleanup::Keep;
    if keep && let Some(rest) = ended.and_then(|elapsed| LINGER_TIMEOUT.checked_sub(elapsed)) {
        return Ok(Some(rest.max(WATCH_LAG)));
    }
    delete_workload(run, &pod, context).await?;
    Ok(Some(Duration::from_secs(plan.deadlines.grace_seconds) + GRACE_SLACK))
}

/// Starts the hooks.
async fn resume_job(run: &StoredRun, job: &Job, context: &Context) -> Result<(), Error> {
    let api: kube::Api<Job> = kube::Api::namespaced(context.client.clone(), run.namespace());
    let patch = json!({ "metadata": { "uid": job.uid() }, "spec": { "suspend": false } });
    context.metrics.count_write("Job", "patch");
    let name = job.name_any();
    let (parameters, patch) = (patch_params(), Patch::Merge(&patch));
    let woken = retry(|| api.patch(&name, &parameters, &patch)).await;
    woken.map_err(Error::api("start", "Job", name)).map(drop)
}

fn hook_pod(run: &StoredRun, context: &Context) -> Option<Arc<Pod>> {
    let pods = cached_pods(run, context).into_iter();
    let is_hooks =
        |pod: &Arc<Pod>| pod.labels().get(labels::COMPONENT).map(String::as_str) == Some(component::POST_RUN);
    pods.filter(is_hooks).max_by_key(|pod| pod.creation_timestamp())
}

/// The run end that was recorded in the status when the agent ended.
fn recorded_final_status(run: &AgentRun) -> FinalStatus {
    let Some(status) = &run.status else {
        return FinalStatus::failed("the run has no status, so it is unknown how it ended");
    };
    let report = status.report.as_ref();
    let phase = if status.error.is_some() {
        Phase::Failed
    } else if report.and_then(|report| report.ending) == Some(AgentEndKind::Answered) {
        Phase::Succeeded
    } else {
        Phase::Cancelled
    };
    FinalStatus {
        phase,
        result: report.and_then(|report| report.result.clone()).filter(|_| phase == Phase::Succeeded),
        error: status.error.clone(),
        exit_code: status.exit_code,
        token_usage: status.token_usage.clone(),
        isolation: report.map_or_else(Vec::new, |report| report.isolation.clone()),
        failed_containers: status.failed_containers.clone(),
        ..FinalStatus::default()
    }
}
