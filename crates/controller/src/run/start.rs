//! Starts a run: admits and plans it, and creates its objects in an order in which a crash leaves nothing usable.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use sympozium_api::AgentRun;
use sympozium_api::agent_run::{GrantRecord, GrantRole, Phase, reason};
use sympozium_api::names::{ObjectName, Uid};
use sympozium_api::run_plan::Workload;
use sympozium_plan::admit::Violation;
use sympozium_plan::render::{CreationStep, Object, PendingSecret, Rendered, SecretPurpose, TTL_SECONDS};

use super::end::{self, RunEnd};
use super::error::Error;
use super::index::WaitReason;
use super::resolve::{Prepared, StartBlocker, prepare};
use super::status::{ConditionValue, StatusPatch, add_finalizer, condition, condition_is_true, elapsed_since, now};
use super::{inputs, objects, observe, pod_status};
use crate::caches::Caches;
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
pub async fn start(run: Arc<AgentRun>, context: &Context) -> Result<Action, Error> {
    let has_plan = run.status.as_ref().is_some_and(|it| it.plan_digest.is_some());
    if run.spec.cancel {
        return end::end_run(run, RunEnd::cancelled(), context).await;
    }
    // The Job exists and the pod does not: either there is an explanation, or it is on its way.
    let is_made = context.index.has_job(&run.uid().unwrap_or_default());
    if has_plan && condition_is_true(&run, condition::GRANTED) && (is_made || owned_job(&run, context).is_some()) {
        return observe::observe_starting(run, context).await;
    }
    // It is unknown whether the run was executed: its Job may have ended and been deleted while no controller was
    // running. Nothing is executed twice.
    let status = run.status.as_ref().filter(|it| it.job_name.is_some());
    let granted = status.and_then(|it| it.granted_at.as_ref());
    if condition_is_true(&run, condition::GRANTED) && granted.is_some_and(|it| elapsed_since(it) >= MISSING_JOB_TIMEOUT)
    {
        let why = "its Job is gone, and nobody saw whether it ran; create the run again";
        return end::end_run(run, RunEnd::failed(why), context).await;
    }
    let Some(surroundings) = context.cluster_info.borrow().clone() else {
        return Ok(Action::requeue(CLUSTER_INFO_RECHECK));
    };
    let prepared = match prepare(&run, context, &surroundings.render) {
        Ok(prepared) => prepared,
        Err(not_now) => return postpone(run, not_now, context).await,
    };
    let digest = &prepared.rendered.digest;
    let written = run.status.as_ref().and_then(|it| it.plan_digest.as_ref());
    if written.is_some_and(|it| it != digest) {
        let outcome = RunEnd::failed("what the run is made of was changed while it began; create the run again");
        return end::end_run(run, outcome, context).await;
    }
    if run.spec.dry_run == Some(true) {
        return finish_dry_run(run, &prepared, context).await;
    }
    let uid = run.uid().unwrap_or_default();
    match create_all(run, prepared, context).await {
        // The API server has rejected a valid request and will reject it again.
        Err(Interrupted { run, error }) if error.is_final() => {
            let outcome = RunEnd::failed(&pod_status::describe_rejection(&error.user_message()));
            end::end_run(run, outcome, context).await
        }
        Err(Interrupted { run, error }) => handle_interruption(run, error, context).await,
        Ok(action) => {
            context.start_faults.forget(&uid);
            Ok(action)
        }
    }
}

/// The run as far as its objects were created, and the error that interrupted it.
struct Interrupted {
    run: Arc<AgentRun>,
    error: Error,
}

/// Handles an error that may be transient. It is shown in the status when it lasts, and fails the run when it lasts too
/// long: some of the run's grants may exist already.
async fn handle_interruption(run: Arc<AgentRun>, error: Error, context: &Context) -> Result<Action, Error> {
    let lasts = context.start_faults.duration(&run.uid().unwrap_or_default(), NOT_CREATED);
    let why = format!("the run cannot be made: {}", error.user_message());
    if lasts >= context.settings.resolve_timeout {
        return end::end_run(run, RunEnd::failed(&why), context).await;
    }
    if lasts >= TRANSIENT_TIMEOUT {
        let change = StatusPatch::new(&run).set_condition(condition::STARTED, ConditionValue::no(NOT_CREATED, why));
        change.write(context).await?;
    }
    Err(error)
}

/// Creates all objects. The order is what makes a crash harmless; see each step.
async fn create_all(run: Arc<AgentRun>, prepared: Prepared, context: &Context) -> Result<Action, Interrupted> {
    let Prepared { plan, mut rendered, warnings } = prepared;
    let mut run = run;
    macro_rules! step {
        ($doing:expr) => {
            match $doing {
                Ok(done) => done,
                Err(error) => return Err(Interrupted { run, error }),
            }
        };
    }
    let uid = run.uid().unwrap_or_default();
    let Some(surroundings) = context.cluster_info.borrow().clone() else {
        return Ok(Action::requeue(CLUSTER_INFO_RECHECK));
    };
    step!(inputs::fill_secrets(&plan, &mut rendered, &surroundings));

    // First of all: from here on the run cannot be deleted before we revoke what we grant.
    run = step!(add_finalizer(Arc::clone(&run), context).await);
    // The names are recorded before the objects are created: after a crash they are looked for by these names.
    let mut grants = grant_records(&rendered);
    run = step!(write_plan(&run, &plan, &rendered, &grants, &warnings, context).await);
    context.plans.insert(plan.clone());

    // Accounts, confinement, inputs, roles: none of these gives a permission to anything.
    let mut bindings = Vec::new();
    for item in &rendered.objects {
        match (&item.step, &item.object) {
            (CreationStep::Workload, _) => {}
            (_, Object::RoleBinding(_) | Object::ClusterRoleBinding(_)) => {
                bindings.push(&item.object);
            }
            (CreationStep::AfterRun, Object::Job(job)) => {
                let made = objects::create(context, &suspend_job(job), &run).await;
                set_uid(&mut grants, &item.object, step!(made));
            }
            (_, object) => {
                let made = step!(objects::create(context, object, &run).await);
                set_uid(&mut grants, object, made);
            }
        }
    }
    for skeleton in &rendered.pending_secrets {
        if matches!(skeleton.purpose, SecretPurpose::Token { .. }) {
            let secret = grants.iter().find(|it| it.kind == "Secret" && it.name == skeleton.secret);
            let secret = secret.and_then(|it| it.uid.clone()).unwrap_or_default();
            step!(inputs::write_token(&plan, skeleton, secret.as_str(), &surroundings, context).await);
        }
    }
    // Bindings last: from here on the tokens, which no part has yet, give permissions.
    for object in bindings {
        let made = step!(objects::create(context, object, &run).await);
        set_uid(&mut grants, object, made);
    }
    let granted = StatusPatch::new(&run).set("grants", &grants).and_then(|it| {
        match run.status.as_ref().and_then(|it| it.granted_at.as_ref()) {
            Some(_) => Ok(it),
            None => it.set("grantedAt", now()),
        }
    });
    let granted = step!(granted).set_condition(condition::GRANTED, granted_condition(&plan));
    run = step!(granted.write(context).await);
    // From here on the UIDs are in the status.
    context.index.forget_created(&uid);

    // The run may have been cancelled or deleted in the meantime.
    let namespace = run.namespace().unwrap_or_default();
    let latest = Caches::find(&context.caches.runs, &namespace, &run.name_any());
    let is_unwanted = |it: &AgentRun| it.spec.cancel || it.metadata.deletion_timestamp.is_some();
    if latest.is_some_and(|it| it.uid() == run.uid() && is_unwanted(&it)) {
        return Ok(Action::requeue(Duration::ZERO));
    }
    for object in rendered.objects_of_step(CreationStep::Workload) {
        step!(objects::create(context, object, &run).await);
    }
    context.index.mark_job_created(&uid);
    if let Some(created) = run.creation_timestamp() {
        context.metrics.observe_job_created(elapsed_since(&created));
    }
    // The watch delivers the pod; if none appears, the start deadline applies.
    Ok(Action::requeue(Duration::from_secs(plan.deadlines.start_seconds)))
}

/// Writes the plan's digest and the names of all objects, before any is created.
async fn write_plan(
    run: &Arc<AgentRun>,
    plan: &sympozium_api::RunPlan,
    rendered: &Rendered,
    grants: &[GrantRecord],
    warnings: &[Violation],
    context: &Context,
) -> Result<Arc<AgentRun>, Error> {
    if run.status.as_ref().is_some_and(|it| it.plan_digest.is_some()) {
        return Ok(Arc::clone(run));
    }
    let workload = rendered.objects_of_step(CreationStep::Workload).next();
    let workload = workload.map(|it| ObjectName::new(it.name()));
    let field = match plan.workload {
        Workload::Job => "jobName",
        Workload::Sandbox { .. } => "sandboxName",
    };
    let post = rendered.objects_of_step(CreationStep::AfterRun).next();
    let change = StatusPatch::new(run)
        .set("phase", Phase::Pending)?
        .set("planDigest", &rendered.digest)?
        .set("resolved", &plan.resolved)?
        .set("grants", grants)?
        .set(field, workload)?
        .set("postRunJobName", post.map(|it| ObjectName::new(it.name())))?
        .set_condition(condition::ADMITTED, admitted_condition(warnings));
    change.write(context).await
}

fn admitted_condition(warnings: &[Violation]) -> ConditionValue {
    let listed: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    if listed.is_empty() {
        ConditionValue::yes("Admitted", "the run may exist")
    } else {
        ConditionValue::yes("AdmittedWithWarnings", listed.join("\n"))
    }
}

fn granted_condition(plan: &sympozium_api::RunPlan) -> ConditionValue {
    let count = plan.identities.len();
    if count == 0 {
        return ConditionValue::yes("NoRights", "no part of the run may use the Kubernetes API");
    }
    let names: Vec<&str> = plan.identities.iter().map(|it| it.pack.as_deref().unwrap_or("hooks")).collect();
    ConditionValue::yes("Granted", format!("rights at the Kubernetes API: {}", names.join(", ")))
}

/// The objects that are deleted with the run, in the order of their creation. The plan is not among them.
pub fn grant_records(rendered: &Rendered) -> Vec<GrantRecord> {
    let objects = rendered.objects.iter().map(|item| &item.object).filter(|object| !is_plan(object));
    objects.map(|object| grant_record(object, grant_role(object, rendered))).collect()
}

fn grant_role(object: &Object, rendered: &Rendered) -> GrantRole {
    let is_token = |secret: &PendingSecret| {
        secret.secret == object.name() && matches!(secret.purpose, SecretPurpose::Token { .. })
    };
    match object {
        Object::RoleBinding(_) | Object::ClusterRoleBinding(_) => GrantRole::Binding,
        Object::Secret(_) if rendered.pending_secrets.iter().any(is_token) => GrantRole::Token,
        Object::Job(_) | Object::Sandbox(_) => GrantRole::Workload,
        _ => GrantRole::Other,
    }
}

/// The plan's ConfigMap lives as long as the run itself: it documents what the run could touch.
fn is_plan(object: &Object) -> bool {
    let component = object.metadata().labels.as_ref().and_then(|it| it.get(sympozium_api::labels::COMPONENT));
    component.is_some_and(|it| it == sympozium_api::labels::component::PLAN)
}

fn grant_record(object: &Object, role: GrantRole) -> GrantRecord {
    let skill = object.metadata().labels.as_ref().and_then(|it| it.get(sympozium_api::labels::SKILL));
    GrantRecord {
        kind: object.kind().to_owned(),
        namespace: object.namespace().map(Into::into),
        name: object.name().to_owned(),
        uid: None,
        skill: skill.cloned(),
        role: Some(role),
    }
}

/// Sets the UID of a created object in its record.
fn set_uid(grants: &mut [GrantRecord], object: &Object, uid: String) {
    let is_it = |it: &&mut GrantRecord| it.kind == object.kind() && it.name == object.name();
    if let Some(record) = grants.iter_mut().find(is_it) {
        record.uid = Some(Uid::new(uid));
    }
}

/// The Job of the hooks after the run, suspended until the agent has ended. It is created now, so that a pack that
/// changes meanwhile does not change the hooks.
fn suspend_job(job: &Job) -> Object {
    let mut job = job.clone();
    if let Some(spec) = &mut job.spec {
        spec.suspend = Some(true);
    }
    Object::from(job)
}

/// The run's Job, from the cache. Sandboxes are not watched: their pods are.
fn owned_job(run: &AgentRun, context: &Context) -> Option<Arc<Job>> {
    let name = run.status.as_ref()?.job_name.as_ref()?;
    let namespace = run.namespace().unwrap_or_default();
    let job = Caches::find(&context.caches.jobs, &namespace, name.as_str())?;
    let uid = run.uid().unwrap_or_default();
    let owned = job.owner_references().iter().any(|it| it.uid == uid);
    owned.then_some(job)
}

/// Ends a run with `dryRun` after planning.
async fn finish_dry_run(run: Arc<AgentRun>, prepared: &Prepared, context: &Context) -> Result<Action, Error> {
    let change = StatusPatch::new(&run)
        .set("planDigest", &prepared.rendered.digest)?
        .set("resolved", &prepared.plan.resolved)?
        .set_condition(condition::ADMITTED, admitted_condition(&prepared.warnings));
    let run = change.write(context).await?;
    let plans = prepared.rendered.objects.iter().map(|item| &item.object);
    for object in plans.filter(|it| is_plan(it)) {
        objects::create(context, object, &run).await?;
    }
    let outcome = RunEnd {
        phase: Phase::Skipped,
        result: Some("planned only, as `dryRun` asks; `sympozium explain` shows the plan".to_owned()),
        ..RunEnd::default()
    };
    end::end_run(run, outcome, context).await
}

/// Records why a run does not start, and when to look again.
async fn postpone(run: Arc<AgentRun>, not_now: StartBlocker, context: &Context) -> Result<Action, Error> {
    let patience = context.settings.resolve_timeout;
    let waited = run.creation_timestamp().map_or(Duration::ZERO, |it| elapsed_since(&it));
    if !matches!(not_now, StartBlocker::Queued(_)) {
        context.index.release_slot(&run.uid().unwrap_or_default());
    }
    // A run that was started partially has grants already, and must not wait with them.
    let has_begun = (run.status.as_ref()).is_some_and(|it| it.plan_digest.is_some());
    match not_now {
        StartBlocker::Missing(reasons) if waited < patience && !has_begun => {
            let says = ConditionValue::unknown("Waiting", format_violations(&reasons));
            let change = StatusPatch::new(&run).set("phase", Phase::Pending)?;
            change.set_condition(condition::ADMITTED, says).write(context).await?;
            Ok(Action::requeue(patience.saturating_sub(waited)))
        }
        StartBlocker::Queued(WaitReason::ClusterFull(why) | WaitReason::TreeFull(why)) => {
            let says = ConditionValue::unknown("Queued", why);
            let change = StatusPatch::new(&run).set("phase", Phase::Pending)?;
            change.set_condition(condition::ADMITTED, says).write(context).await?;
            Ok(Action::requeue(queue_recheck(context.index.queued())))
        }
        StartBlocker::Queued(WaitReason::NotCached) => Ok(Action::await_change()),
        StartBlocker::Missing(reasons) | StartBlocker::Denied(reasons) => {
            let text = format_violations(&reasons);
            let about = EventContent { type_: EventType::Warning, reason: "Denied", action: "Admit", note: &text };
            context.emit_event(&run, about).await;
            let outcome = RunEnd {
                admitted_condition: Some(ConditionValue::no(reason::DENIED, text.clone())),
                ..RunEnd::failed(&format!("the run is denied\n{text}"))
            };
            end::end_run(run, outcome, context).await
        }
        StartBlocker::Impossible(why) => {
            let outcome = RunEnd {
                admitted_condition: Some(ConditionValue::no(reason::IMPOSSIBLE, why.clone())),
                ..RunEnd::failed(&why)
            };
            end::end_run(run, outcome, context).await
        }
    }
}

/// When to reconcile a queued run again, by the number of queued runs.
fn queue_recheck(queued: usize) -> Duration {
    let queued = u32::try_from(queued).unwrap_or(u32::MAX);
    let spaced = QUEUE_RECHECK_SPACING.saturating_mul(queued);
    spaced.clamp(MIN_QUEUE_RECHECK, MAX_QUEUE_RECHECK)
}

/// One violation per line, with its rule and hint.
fn format_violations(reasons: &[Violation]) -> String {
    let line = |it: &Violation| {
        format!("denied[{}]: {}: {}: {} (hint: {})", it.rule, it.subject, it.field, it.message, it.hint)
    };
    let lines: Vec<String> = reasons.iter().map(line).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_the_queue_the_rarer_a_look() {
        for (queued, seconds) in [(0, 30), (1, 30), (300, 30), (2000, 200), (usize::MAX, 600)] {
            assert_eq!(queue_recheck(queued).as_secs(), seconds, "{queued}");
        }
    }
}
