//! Handles the end of the agent, by itself or forced: revokes its grants at once and collects the run end.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::controller::Action;
use sympozium_api::agent_run::{Phase, ReportedEnding, TIME_IS_UP};
use sympozium_api::{AgentRun, RunPlan};

use super::end::{self, Outcome};
use super::error::Error;
use super::observe::{GRACE_SLACK, network_says};
use super::status::{Change, Says, condition, holds, since};
use super::{faults, hooks, logs};
use crate::context::Context;

/// How long the kubelet may take to report how the agent ended, once the bridge has reported that it did.
const KUBELET_PATIENCE: Duration = Duration::from_secs(10);

/// Stops a run: revokes its grants at once and deletes its pod. Its last report is waited for.
pub async fn stop(
    run: Arc<AgentRun>,
    pod: Option<Arc<Pod>>,
    why: Option<String>,
    plan: Option<&RunPlan>,
    context: &Context,
) -> Result<Action, Error> {
    let mut run = run;
    if holds(&run, condition::GRANTED) {
        end::revoke_rights(&run, whose(&run), context).await?;
        let ending = Says::no("Ending", "the run was ended from outside");
        let mut change = Change::of(&run).say(condition::GRANTED, ending);
        if let Some(why) = &why {
            change = change.fail(Some(why))?;
        }
        // Before the pod is deleted: its logs are deleted with it.
        if why.is_some()
            && let Some(pod) = &pod
        {
            let failures = logs::gather(pod, context).await;
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
        // The deletion timestamp is the end of the grace period, not its beginning.
        Some(by) => {
            let late = Timestamp::now().duration_since(by.0);
            if late >= SignedDuration::try_from(GRACE_SLACK).unwrap_or(SignedDuration::ZERO) {
                return over(run, Some(pod), context).await;
            }
            Ok(Action::requeue(limit))
        }
    }
}

/// Handles the end of the agent. Continues with the hooks, or ends the run.
pub async fn over(run: Arc<AgentRun>, pod: Option<Arc<Pod>>, context: &Context) -> Result<Action, Error> {
    // Before any other request: the skills' grants end with the agent. The hooks keep their own grants until they are
    // done.
    end::revoke_rights(&run, whose(&run), context).await?;
    if let Some(pause) = pod.as_deref().and_then(|pod| untold(&run, pod)) {
        return Ok(Action::requeue(pause));
    }
    let outcome = outcome(&run, pod.as_deref(), context).await;
    if !has_hooks(&run) {
        return end::finish(run, outcome, context).await;
    }
    let ended = Says::yes("HooksFollow", "what follows is for the hooks after the run");
    let mut change = Change::of(&run)
        .set("phase", Phase::PostRunning)?
        .set("exitCode", outcome.exit_code)?
        .fail(outcome.error.as_deref())?
        .set("failedContainers", &outcome.failed_containers)?
        .set("tokenUsage", &outcome.token_usage)?
        .say(condition::AGENT_ENDED, ended);
    if let Some(network) = outcome.network {
        change = change.say(condition::NETWORK_ENFORCED, network);
    }
    let run = change.write(context).await?;
    hooks::afterwards(run, context).await
}

/// The bridge knows at once that the agent is gone, and only the kubelet knows why (out of memory, for example).
/// Returns how much longer to wait for the kubelet. Usually the pod's change arrives earlier.
fn untold(run: &AgentRun, pod: &Pod) -> Option<Duration> {
    let report = run.status.as_ref()?.report.as_ref()?;
    let crashed = report.finished && report.ending == Some(ReportedEnding::Crashed);
    if !crashed || run.spec.cancel || faults::agent_exit(pod).is_some() || faults::is_still(pod) {
        return None;
    }
    KUBELET_PATIENCE.checked_sub(since(&report.reported_at)).filter(|it| !it.is_zero())
}

/// The grants that end with the agent.
fn whose(run: &AgentRun) -> end::Whose {
    match has_hooks(run) {
        true => end::Whose::Skills,
        false => end::Whose::All,
    }
}

fn has_hooks(run: &AgentRun) -> bool {
    let status = run.status.as_ref();
    status.is_some_and(|it| it.post_run_job_name.is_some())
}

/// The error in the status: a reason to stop the run that was recorded earlier.
pub fn error_of(run: &AgentRun) -> Option<&str> {
    run.status.as_ref()?.error.as_deref()
}

/// The run end, from the bridge's report and the pod's status.
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
            Some(ReportedEnding::Stopped) => {
                pod.and_then(faults::from_outside).unwrap_or_else(|| "the run's pod was ended from outside".to_owned())
            }
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
    outcome.failed_containers = status.map(|it| it.failed_containers.clone()).unwrap_or_default();
    if outcome.phase == Phase::Failed
        && outcome.failed_containers.is_empty()
        && let Some(pod) = pod
    {
        outcome.failed_containers = logs::gather(pod, context).await;
    }
    outcome
}
