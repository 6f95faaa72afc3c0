//! Starts a run: resolves and plans it, has its objects [created](super::create), or records why it waits or is denied.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use sympozium_api::agent_run::{Phase, condition, reason};
use sympozium_plan::admit::Violation;
use sympozium_plan::render::TTL_SECONDS;

use super::create::{Creation, admitted_condition, is_plan};
use super::end::{FinalStatus, end_run};
use super::error::Error;
use super::index::WaitReason;
use super::resolve::{Prepared, StartBlocker, prepare};
use super::status::{StatusPatch, condition_is_true};
use super::stored::StoredRun;
use super::{objects, observe, pod_status};
use crate::caches::Caches;
use crate::conditions::{ConditionValue, elapsed_since};
use crate::context::{Context, EventContent};

/// How soon a queued run is reconciled again: at the earliest, at the latest, and the spacing between all queued runs.
/// A run is requeued when its turn comes; the recheck is for changes that no watch delivers, and thousands of queued
/// runs must not keep the loop busy.
const MIN_QUEUE_RECHECK: Duration = Duration::from_secs(30);
const MAX_QUEUE_RECHECK: Duration = Duration::from_secs(10 * 60);
const QUEUE_RECHECK_SPACING: Duration = Duration::from_millis(100);
/// How soon a run is reconciled again while the cluster info is not known. Usually it is requeued earlier.
const CLUSTER_INFO_RECHECK: Duration = Duration::from_secs(30);
/// How long after its grants a missing Job may still be created: a Job that existed and has finished is deleted after
/// this time, so a later one could execute the run twice.
const MISSING_JOB_TIMEOUT: Duration = Duration::from_secs(TTL_SECONDS as u64);

/// Reason of the condition `Started` while an object of the run cannot be created.
const NOT_CREATED: &str = "NotMade";
/// A fault is shown in the status only when it lasts longer than this.
const TRANSIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts a run, or continues an interrupted attempt.
pub async fn start(run: StoredRun, context: &Context) -> Result<Action, Error> {
    let has_plan = run.status.as_ref().is_some_and(|status| status.plan_digest.is_some());
    if run.spec.cancel {
        return end_run(run, FinalStatus::cancelled(), context).await;
    }
    // The Job exists and the pod does not: either there is an explanation, or it is on its way.
    let is_made = context.index.has_job(run.uid());
    if has_plan && condition_is_true(&run, condition::GRANTED) && (is_made || owned_job(&run, context).is_some()) {
        return observe::observe_starting(run, context).await;
    }
    // It is unknown whether the run was executed: its Job may have ended and been deleted while no controller was
    // running. Nothing is executed twice.
    let status = run.status.as_ref().filter(|status| status.job_name.is_some());
    let granted = status.and_then(|status| status.granted_at.as_ref());
    if condition_is_true(&run, condition::GRANTED)
        && granted.is_some_and(|granted_at| elapsed_since(granted_at) >= MISSING_JOB_TIMEOUT)
    {
        let why =
            "the run's Job is gone and it is unknown whether it ran, so it is not created again; create a new run";
        return end_run(run, FinalStatus::failed(why), context).await;
    }
    let Some(cluster_info) = context.cluster_info.borrow().clone() else {
        return Ok(Action::requeue(CLUSTER_INFO_RECHECK));
    };
    let prepared = match prepare(&run, context, &cluster_info.render) {
        Ok(prepared) => prepared,
        Err(not_now) => return postpone(run, not_now, context).await,
    };
    let digest = &prepared.rendered.digest;
    let written = run.status.as_ref().and_then(|status| status.plan_digest.as_ref());
    if written.is_some_and(|written| written != digest) {
        let outcome = FinalStatus::failed(
            "an agent, pack, policy or model of the run was changed while the run started; create a new run",
        );
        return end_run(run, outcome, context).await;
    }
    if run.spec.dry_run == Some(true) {
        return finish_dry_run(run, &prepared, context).await;
    }
    let mut creation = Creation::new(run, prepared, context);
    match creation.create_all(&cluster_info).await {
        Ok(action) => {
            context.start_faults.forget(creation.run.uid());
            Ok(action)
        }
        // The API server has rejected a valid request and will reject it again.
        Err(error) if error.is_final() => {
            let final_status = FinalStatus::failed(&pod_status::describe_rejection(&error.user_message()));
            end_run(creation.run, final_status, context).await
        }
        Err(error) => handle_interruption(creation.run, error, context).await,
    }
}

/// Handles an error that may be transient. It is shown in the status when it lasts, and fails the run when it lasts too
/// long: some of the run's grants may exist already.
async fn handle_interruption(run: StoredRun, error: Error, context: &Context) -> Result<Action, Error> {
    let elapsed = context.start_faults.duration(run.uid(), NOT_CREATED);
    let why = format!("the objects of the run cannot be created: {}", error.user_message());
    if elapsed >= context.settings.resolve_timeout {
        return end_run(run, FinalStatus::failed(&why), context).await;
    }
    if elapsed >= TRANSIENT_TIMEOUT {
        let mut patch = StatusPatch::new(&run);
        patch.set_condition(condition::STARTED, ConditionValue::no(NOT_CREATED, why));
        patch.write(context).await?;
    }
    Err(error)
}

/// The run's Job, from the cache. Sandboxes are not watched: their pods are.
fn owned_job(run: &StoredRun, context: &Context) -> Option<Arc<Job>> {
    let name = run.status.as_ref()?.job_name.as_ref()?;
    let job = Caches::find(&context.caches.jobs, run.namespace(), name.as_str())?;
    let is_owned = job.owner_references().iter().any(|owner| owner.uid == run.uid());
    is_owned.then_some(job)
}

/// Ends a run with `dryRun` after planning.
async fn finish_dry_run(run: StoredRun, prepared: &Prepared, context: &Context) -> Result<Action, Error> {
    let mut patch = StatusPatch::new(&run);
    patch.status.plan_digest = Some(prepared.rendered.digest.clone());
    patch.status.resolved.clone_from(&prepared.plan.resolved);
    patch.set_condition(condition::ADMITTED, admitted_condition(&prepared.warnings));
    let run = patch.write(context).await?;
    let plans = prepared.rendered.objects.iter().map(|item| &item.object);
    for object in plans.filter(|plan| is_plan(plan)) {
        objects::create(context, object, &run).await?;
    }
    let outcome = FinalStatus {
        phase: Phase::Skipped,
        result: Some(
            "the run was planned and not started, because of `dryRun`; `sympozium explain` shows the plan".to_owned(),
        ),
        ..FinalStatus::default()
    };
    end_run(run, outcome, context).await
}

/// Records why a run does not start, and when to look again.
async fn postpone(run: StoredRun, blocker: StartBlocker, context: &Context) -> Result<Action, Error> {
    let timeout = context.settings.resolve_timeout;
    let waited = run.creation_timestamp().map_or(Duration::ZERO, |created| elapsed_since(&created));
    if !matches!(blocker, StartBlocker::Queued(_)) {
        context.index.release_slot(run.uid());
    }
    // A run that was started partially has grants already, and must not wait with them.
    let has_begun = run.status.as_ref().is_some_and(|status| status.plan_digest.is_some());
    match blocker {
        StartBlocker::Missing(violations) if waited < timeout && !has_begun => {
            write_waiting(&run, ConditionValue::unknown("Waiting", format_missing(&violations)), context).await?;
            Ok(Action::requeue(timeout.saturating_sub(waited)))
        }
        StartBlocker::Queued(WaitReason::ClusterFull(why) | WaitReason::TreeFull(why)) => {
            write_waiting(&run, ConditionValue::unknown("Queued", why), context).await?;
            Ok(Action::requeue(queue_recheck(context.index.queued())))
        }
        StartBlocker::Queued(WaitReason::NotCached) => Ok(Action::await_change()),
        StartBlocker::Missing(violations) | StartBlocker::Denied(violations) => {
            let text = format_violations(&violations);
            let event = EventContent { type_: EventType::Warning, reason: "Denied", action: "Admit", note: &text };
            context.emit_event(&run, event).await;
            let final_status = FinalStatus {
                admitted_condition: Some(ConditionValue::no(reason::DENIED, text.clone())),
                ..FinalStatus::failed(&format!("the run is denied\n{text}"))
            };
            end_run(run, final_status, context).await
        }
        StartBlocker::Impossible(why) => {
            let final_status = FinalStatus {
                admitted_condition: Some(ConditionValue::no(reason::IMPOSSIBLE, why.clone())),
                ..FinalStatus::failed(&why)
            };
            end_run(run, final_status, context).await
        }
    }
}

/// Records that the run waits, and for what.
async fn write_waiting(run: &StoredRun, admitted: ConditionValue, context: &Context) -> Result<(), Error> {
    let mut patch = StatusPatch::new(run);
    patch.status.phase = Some(Phase::Pending);
    patch.set_condition(condition::ADMITTED, admitted);
    patch.write(context).await.map(drop)
}

/// When to reconcile a queued run again, by the number of queued runs.
fn queue_recheck(queued: usize) -> Duration {
    let queued = u32::try_from(queued).unwrap_or(u32::MAX);
    let spaced = QUEUE_RECHECK_SPACING.saturating_mul(queued);
    spaced.clamp(MIN_QUEUE_RECHECK, MAX_QUEUE_RECHECK)
}

/// One missing object per line. The other violations count once everything is found.
fn format_missing(violations: &[Violation]) -> String {
    let line = |violation: &Violation| {
        let missing = violation.missing.as_ref()?;
        Some(format!("the run waits for {missing}: {}; {}", violation.message, violation.hint))
    };
    let lines: Vec<String> = violations.iter().filter_map(line).collect();
    lines.join("\n")
}

/// One violation per line, with its rule and hint.
fn format_violations(reasons: &[Violation]) -> String {
    let line = |violation: &Violation| {
        format!(
            "denied[{}]: {}: {}: {} (hint: {})",
            violation.rule, violation.subject, violation.field, violation.message, violation.hint
        )
    };
    let lines: Vec<String> = reasons.iter().map(line).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use sympozium_plan::admit::Subject;

    use super::*;

    #[test]
    fn a_waiting_run_names_what_is_missing() {
        let violation = |missing: Option<Subject>, message: &str| Violation {
            subject: Subject::new("AgentRun", Some("team"), "nightly"),
            field: "spec.skills[0]".to_owned(),
            rule: "a-rule",
            message: message.to_owned(),
            hint: "create it, or correct the name".to_owned(),
            missing,
        };
        let pack = Subject::new("SkillPack", Some("team"), "shell");
        let missing = violation(Some(pack), "there is no pack `shell` in namespace `team` or `system`");
        let text = "the run waits for SkillPack shell: there is no pack `shell` in namespace `team` or `system`; create \
                    it, or correct the name";
        assert_eq!(format_missing(&[missing, violation(None, "something else")]), text);
    }

    #[test]
    fn the_longer_the_queue_the_rarer_a_look() {
        for (queued, seconds) in [(0, 30), (1, 30), (300, 30), (2000, 200), (usize::MAX, 600)] {
            assert_eq!(queue_recheck(queued).as_secs(), seconds, "{queued}");
        }
    }
}
