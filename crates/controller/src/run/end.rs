//! Ends a run: revokes its grants, tears down everything else, and verifies that nothing is left.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::{Api, ResourceExt as _};
use sympozium_api::agent_run::{
    ContainerFailure, CostEstimate, GateVerdict, GrantRecord, GrantRole, IsolationRecord, Phase, Revocation, TokenUsage,
};
use sympozium_api::run_plan::Identity;
use sympozium_api::{AgentRun, RunPlan, labels, limits};
use sympozium_plan::render::SandboxVersion;
use sympozium_plan::render::names::ObjectNames;

use super::error::Error;
use super::objects;
use super::plans::run_identity;
use super::pod_status;
use super::retry::retry;
use super::status::{ConditionValue, StatusPatch, condition, elapsed_since, now, remove_finalizer};
use crate::caches::is_revoked;
use crate::context::{Context, EventContent};

/// Reason of the condition `Revoked` while objects of the run remain.
const REMAINING_REASON: &str = "Remaining";
/// When to check again for an object that should be gone. Usually a watch event comes earlier.
const RECHECK_INTERVAL: Duration = Duration::from_secs(10);
/// The same for deleted objects that still exist and that no watch covers.
const REMAINING_RECHECK: Duration = Duration::from_secs(2);
/// Longest interval between checks for objects that do not go.
const MAX_RECHECK: Duration = Duration::from_secs(60);
/// How long a pod may take to go before the status shows it.
const POD_TIMEOUT: Duration = Duration::from_secs(60);
/// Limit for listing the pods of a run: more than a run can have.
const MAX_PODS: u32 = 100;
/// Access reviews per identity in the verification: the first verb and resource of each rule, for so many rules.
const MAX_ACCESS_REVIEWS: usize = 16;

/// How a run ended, as it is written to its status.
#[derive(Debug, Clone, Default)]
pub struct RunEnd {
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

impl RunEnd {
    pub fn failed(why: &str) -> Self {
        Self { phase: Phase::Failed, error: Some(why.to_owned()), ..Self::default() }
    }

    /// A person cancelled it before it started.
    pub fn cancelled() -> Self {
        Self { phase: Phase::Cancelled, ..Self::default() }
    }
}

/// Whose grants are revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevocationScope {
    All,
    /// Those of skills; hooks keep theirs.
    Skills,
}

/// Revokes access to the Kubernetes API: bindings first, which takes effect at once, then tokens.
pub async fn revoke_grants(run: &AgentRun, whose: RevocationScope, context: &Context) -> Result<(), Error> {
    let uid = run.uid().unwrap_or_default();
    let grants = grants(run);
    let concerned = |it: &&GrantRecord| whose == RevocationScope::All || it.skill.is_some();
    let of_role = |role| grants.iter().filter(move |record| record.role() == role).filter(concerned);
    let bindings = of_role(GrantRole::Binding);
    let tokens = of_role(GrantRole::Token);
    let remove = |record| objects::delete(context, record, &uid, None);
    // Concurrently: a deletion that fails or takes long must not delay the others.
    let mut removed = join_all(bindings.map(remove)).await;
    removed.extend(join_all(tokens.map(remove)).await);
    removed.into_iter().try_for_each(|it| it.map(drop))
}

fn grants(run: &AgentRun) -> &[GrantRecord] {
    run.status.as_ref().map(|it| it.grants.as_slice()).unwrap_or_default()
}

/// Whether a record is of an object that creates pods.
pub fn is_workload(record: &GrantRecord) -> bool {
    record.role() == GrantRole::Workload
}

/// Deletes the run's pod: first its owner, so that it creates no other, and then the pod itself, which may have lost
/// its owner reference.
pub async fn delete_workload(run: &AgentRun, pod: &Pod, context: &Context) -> Result<(), Error> {
    let uid = run.uid().unwrap_or_default();
    let version = sandbox_version(run, context)?;
    let post = run.status.as_ref().and_then(|it| it.post_run_job_name.as_ref());
    for record in grants(run).iter().filter(|it| is_workload(it)) {
        // Hooks after the run start later.
        if post.is_some_and(|it| it.as_str() == record.name) {
            continue;
        }
        objects::delete(context, record, &uid, version).await?;
    }
    objects::delete(context, &pod_record(pod), &uid, version).await?;
    Ok(())
}

/// A record for a pod, so that it can be deleted and verified like the other objects.
fn pod_record(pod: &Pod) -> GrantRecord {
    GrantRecord {
        kind: "Pod".to_owned(),
        namespace: pod.namespace().map(Into::into),
        name: pod.name_any(),
        uid: pod.uid().map(Into::into),
        skill: None,
        role: Some(GrantRole::Workload),
    }
}

/// The version of Sandboxes that the cluster serves, if any.
///
/// # Errors
///
/// While the cluster info is not known: then it is unknown whether a Sandbox exists.
fn sandbox_version(run: &AgentRun, context: &Context) -> Result<Option<SandboxVersion>, Error> {
    let surroundings = context.cluster_info.borrow();
    match surroundings.as_ref() {
        Some(surroundings) => Ok(surroundings.render.sandbox_version),
        None if grants(run).iter().all(|it| it.kind != "Sandbox") => Ok(None),
        None => Err(Error::Waiting("the cluster around it is known")),
    }
}

/// The UID of the object that a record names, if it exists and belongs to the run.
pub async fn find(run: &AgentRun, record: &GrantRecord, context: &Context) -> Result<Option<String>, Error> {
    let uid = run.uid().unwrap_or_default();
    objects::find(context, record, &uid, sandbox_version(run, context)?).await
}

/// Ends the run: revokes its grants, writes the run end, and tears down the rest.
pub async fn end_run(run: Arc<AgentRun>, outcome: RunEnd, context: &Context) -> Result<Action, Error> {
    revoke_grants(&run, RevocationScope::All, context).await?;
    let mut change = StatusPatch::new(&run)
        .set("phase", outcome.phase)?
        .set("result", &outcome.result)?
        .set_error(outcome.error.as_deref())?
        .set("completedAt", now())?
        .set("exitCode", outcome.exit_code)?
        .set("tokenUsage", &outcome.token_usage)?
        .set("isolation", &outcome.isolation)?
        .set("failedContainers", &outcome.failed_containers)?
        .set("gateVerdict", outcome.gate_verdict)?;
    if let Some(cost) = estimate_cost(&run, &outcome, context).await {
        change = change.set("costEstimate", &cost)?;
    }
    let status = run.status.as_ref();
    if status.is_some_and(|it| it.granted_at.is_some()) {
        // Only now: the gateway accepts no report of a run with this condition, and the bridge may send its last one
        // until then.
        change = change.set("revokedAt", now())?.set_condition(
            condition::GRANTED,
            ConditionValue::no("Revoked", "the run is over, and its rights were taken back"),
        );
        let reported = status.and_then(|it| it.report.as_ref());
        if let Some(reported) = reported.filter(|it| it.finished) {
            context.metrics.observe_revoked(elapsed_since(&reported.reported_at));
        }
    }
    if let Some(says) = outcome.network_condition {
        change = change.set_condition(condition::NETWORK_ENFORCED, says);
    }
    if let Some(says) = outcome.admitted_condition {
        change = change.set_condition(condition::ADMITTED, says);
    }
    if grants(&run).is_empty() {
        // No object was ever created.
        change = change.set("revocation", revocation(Vec::new()))?;
    } else {
        change = change.set_condition(
            condition::REVOKED,
            ConditionValue::no("Revoking", "what was made for the run is being removed"),
        );
    }
    let run = change.write(context).await?;
    let (type_, note) = match (&run.status.as_ref().and_then(|it| it.error.clone()), &outcome.warning) {
        (Some(error), _) => (EventType::Warning, error.clone()),
        (None, Some(warning)) => (EventType::Warning, warning.clone()),
        (None, None) => (EventType::Normal, "the run is over".to_owned()),
    };
    let reason = match outcome.phase {
        Phase::Succeeded => "Succeeded",
        Phase::Cancelled => "Cancelled",
        Phase::Skipped => "Skipped",
        _ => "Failed",
    };
    let about = EventContent { type_, reason, action: "End", note: &note };
    context.emit_event(&run, about).await;
    tear_down(run, context).await
}

/// The cost of the run, if its model has a price. An error is ignored.
async fn estimate_cost(run: &AgentRun, outcome: &RunEnd, context: &Context) -> Option<CostEstimate> {
    let usage = outcome.token_usage.as_ref()?;
    let prices = context.settings.prices.as_ref()?;
    let plan = context.plans.load(run, context).await.ok()?;
    let model = &plan.model;
    prices.estimate(&model.provider, &model.model, usage, now())
}

fn revocation(remaining: Vec<GrantRecord>) -> Revocation {
    Revocation { checked_at: now(), remaining }
}

/// Deletes what is left of a finished run, verifies that all of it is gone, and records that.
pub async fn tear_down(run: Arc<AgentRun>, context: &Context) -> Result<Action, Error> {
    let uid = run.uid().unwrap_or_default();
    if grants(&run).is_empty() || is_revoked(&run) {
        remove_finalizer(&run, context).await?;
        forget_run(&uid, context);
        return Ok(Action::await_change());
    }
    let keep = run.spec.cleanup == sympozium_api::agent_run::Cleanup::Keep;
    let ended = delete_all(&run, keep, context).await?;
    let pods = if keep { Vec::new() } else { cached_pods(&run, context) };
    if (!ended || !pods.is_empty()) && time_since_completed(&run) < POD_TIMEOUT {
        return Ok(Action::requeue(RECHECK_INTERVAL));
    }
    let Verification { objects, accounts, method: asked } = verify(&run, keep, context).await?;
    let mut remaining = [objects, accounts].concat();
    remaining.truncate(limits::GRANTS);
    let says = if remaining.is_empty() {
        ConditionValue::yes("Revoked", format!("nothing of the run is left; checked {asked}"))
    } else {
        let names: Vec<String> = remaining.iter().map(|it| format!("{} {}", it.kind, it.name)).collect();
        ConditionValue::no(REMAINING_REASON, format!("still there: {}", names.join(", ")))
    };
    let is_clean = remaining.is_empty();
    let mut change = StatusPatch::new(&run).set_condition(condition::REVOKED, says);
    let known = run.status.as_ref().and_then(|it| it.revocation.as_ref());
    // Written when it changes, not at each check.
    if known.is_none_or(|it| it.remaining != remaining) {
        change = change.set("revocation", revocation(remaining.clone()))?;
    }
    let run = change.write(context).await?;
    if !is_clean {
        forget_deletions(&uid, &remaining, context);
        // The watch delivers the deletion of a pod.
        let pause = match pods.is_empty() {
            true => REMAINING_RECHECK,
            false => RECHECK_INTERVAL,
        };
        return Ok(Action::requeue(back_off(pause, time_since_completed(&run))));
    }
    remove_finalizer(&run, context).await?;
    forget_run(&uid, context);
    Ok(Action::await_change())
}

/// Checks less often what has lasted for long.
fn back_off(pause: Duration, lasts: Duration) -> Duration {
    (lasts / 10).clamp(pause, MAX_RECHECK)
}

/// Deletes everything of a run, in an order in which its pod is never less confined than before. Returns whether its
/// pods have ended.
async fn delete_all(run: &AgentRun, keep: bool, context: &Context) -> Result<bool, Error> {
    let uid = run.uid().unwrap_or_default();
    let version = sandbox_version(run, context)?;
    // With that time in the status, the grants are revoked already.
    let remained = had_remaining(run);
    if remained || run.status.as_ref().is_none_or(|it| it.revoked_at.is_none()) {
        revoke_grants(run, RevocationScope::All, context).await?;
    }
    let mut outcome = Ok(());
    let pods = match run.status.as_ref().is_some_and(|it| it.pod_uid.is_some()) {
        true => cached_pods(run, context),
        // The status names no pod: the watch may be behind.
        false => list_pods(run, context).await?,
    };
    let still = pods.iter().all(|pod| pod_status::is_terminated(pod));
    // A pod with `cleanup: keep` is kept once it has ended by itself; an agent that lingers is stopped.
    let lingering = keep && !still && has_lingered(run);
    if !keep || lingering {
        for record in grants(run).iter().filter(|it| is_workload(it)) {
            let removed = objects::delete(context, record, &uid, version).await;
            outcome = outcome.and(removed.map(drop));
        }
        // A pod is deleted with its owner, unless it has lost its owner reference.
        if has_lingered(run) {
            for pod in pods.iter().filter(|it| it.metadata.deletion_timestamp.is_none()) {
                let removed = objects::delete(context, &pod_record(pod), &uid, version).await;
                outcome = outcome.and(removed.map(drop));
            }
        }
        if pods.iter().any(|pod| !pod_status::is_terminated(pod)) {
            return Ok(false);
        }
    } else if !still {
        return Ok(false);
    }
    // Nothing runs any more: confinement, inputs and accounts can be deleted.
    for record in grants(run).iter().rev() {
        let is_revoked = matches!(record.role(), GrantRole::Binding | GrantRole::Token);
        if !is_workload(record) && (remained || !is_revoked) {
            // A failed deletion must not prevent the others.
            let removed = objects::delete(context, record, &uid, version).await;
            outcome = outcome.and(removed.map(drop));
        }
    }
    outcome.map(|()| true)
}

/// Whether a deleted object was found again: then what this process remembers about deletions is not trusted.
fn had_remaining(run: &AgentRun) -> bool {
    let conditions = run.status.iter().flat_map(|it| &it.conditions);
    let mut revoked = conditions.filter(|it| it.type_ == condition::REVOKED);
    revoked.any(|it| it.reason == REMAINING_REASON)
}

/// The pods of a run, from the cache.
pub fn cached_pods(run: &AgentRun, context: &Context) -> Vec<Arc<Pod>> {
    context.caches.pods.state_filter(|pod| is_pod_of(pod, run))
}

/// The pods of a run from the API server: the cache may be behind.
async fn list_pods(run: &AgentRun, context: &Context) -> Result<Vec<Arc<Pod>>, Error> {
    let namespace = run.namespace().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let selector = format!("{}={}", labels::RUN_UID, run.uid().unwrap_or_default());
    let parameters = ListParams::default().labels(&selector).limit(MAX_PODS);
    let pods = retry(|| api.list(&parameters)).await;
    let pods = pods.map_err(Error::api("list", "Pod", run.name_any()))?;
    let pods = pods.items.into_iter().filter(|pod| is_pod_of(pod, run));
    Ok(pods.map(Arc::new).collect())
}

/// Whether a pod belongs to the run: the one in its status, or one that is owned by an object of the run. The label
/// alone proves nothing, since any pod can have it.
fn is_pod_of(pod: &Pod, run: &AgentRun) -> bool {
    let labelled = pod.labels().get(labels::RUN_UID) == run.metadata.uid.as_ref();
    if !labelled || pod.namespace() != run.namespace() {
        return false;
    }
    let written = run.status.as_ref().and_then(|it| it.pod_uid.as_ref());
    if written.is_some() && pod.uid().as_deref() == written.map(|it| it.as_str()) {
        return true;
    }
    let owners = pod.owner_references().iter();
    let mut makers = owners.filter(|it| it.controller == Some(true));
    makers.any(|owner| {
        let mut workloads = grants(run).iter().filter(|it| is_workload(it));
        workloads.any(|record| match &record.uid {
            Some(uid) => uid.as_str() == owner.uid,
            None => record.kind == owner.kind && record.name == owner.name,
        })
    })
}

/// Time since the run was completed.
fn time_since_completed(run: &AgentRun) -> Duration {
    let completed = run.status.as_ref().and_then(|it| it.completed_at.as_ref());
    completed.map_or(Duration::ZERO, elapsed_since)
}

/// How long a pod that is to be kept may take to end after its run.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(15);

fn has_lingered(run: &AgentRun) -> bool {
    time_since_completed(run) >= LINGER_TIMEOUT
}

/// The result of a verification.
struct Verification {
    /// Objects that still exist.
    objects: Vec<GrantRecord>,
    /// Accounts that still have access, though they may not exist any more.
    accounts: Vec<GrantRecord>,
    /// How it was verified, for the condition's message.
    method: &'static str,
}

/// Lists what still exists, by reading it back and by access reviews for the run's accounts.
async fn verify(run: &AgentRun, keep: bool, context: &Context) -> Result<Verification, Error> {
    let uid = run.uid().unwrap_or_default();
    let version = sandbox_version(run, context)?;
    let mut objects = Vec::new();
    if !keep {
        let pods = list_pods(run, context).await?;
        objects.extend(pods.iter().map(|pod| pod_record(pod)));
    }
    for record in grants(run) {
        if keep && is_workload(record) {
            continue;
        }
        if (objects::find(context, record, &uid, version).await?).is_some() {
            objects.push(record.clone());
        }
    }
    let mut accounts = Vec::new();
    // Without the plan the rules are unknown; the objects are still read back.
    let plan = match context.plans.load(run, context).await {
        Err(error) if !error.is_final() => return Err(error),
        found => found.ok(),
    };
    let mut asked = "by reading back; its plan is gone, so that nobody knows what to ask about its accounts";
    if let Some(plan) = plan {
        asked = "by reading back and by asking what its accounts may do";
        for identity in &plan.identities {
            if still_has_access(run, &plan, identity, context).await? {
                accounts.push(GrantRecord {
                    kind: "ServiceAccount".to_owned(),
                    namespace: Some(plan.run.namespace.clone()),
                    name: ObjectNames::new(&plan.run).with_suffix(&identity.name.0.replace('-', "")),
                    uid: None,
                    skill: identity.pack.clone(),
                    role: Some(GrantRole::Other),
                });
            }
        }
    }
    Ok(Verification { objects, accounts, method: asked })
}

/// Whether an account of the run still has access that an account which never existed does not have: access that
/// everyone has is not the run's.
async fn still_has_access(
    run: &AgentRun,
    plan: &RunPlan,
    identity_: &Identity,
    context: &Context,
) -> Result<bool, Error> {
    let names = ObjectNames::new(&run_identity(run));
    let account = names.with_suffix(&identity_.name.0.replace('-', ""));
    let nobody = names.with_suffix("nobody");
    let namespace = plan.run.namespace.as_str();
    let in_namespace = identity_.namespace_rules.iter().map(|rule| (rule, Some(namespace)));
    let in_cluster = identity_.cluster_rules.iter().map(|rule| (rule, None));
    for (rule, scope) in in_namespace.chain(in_cluster).take(MAX_ACCESS_REVIEWS) {
        let attributes = ResourceAttributes {
            group: rule.api_groups.first().cloned(),
            resource: rule.resources.first().map(|it| it.split('/').next().unwrap_or(it).to_owned()),
            subresource: rule.resources.first().and_then(|it| it.split_once('/')).map(|(_, sub)| sub.to_owned()),
            verb: rule.verbs.first().cloned(),
            name: rule.resource_names.first().cloned(),
            namespace: scope.map(str::to_owned),
            ..ResourceAttributes::default()
        };
        if has_access(&account, namespace, &attributes, context).await?
            && !has_access(&nobody, namespace, &attributes, context).await?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn has_access(
    account: &str,
    namespace: &str,
    attributes: &ResourceAttributes,
    context: &Context,
) -> Result<bool, Error> {
    let reviews: Api<SubjectAccessReview> = Api::all(context.client.clone());
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(format!("system:serviceaccount:{namespace}:{account}")),
            groups: Some(vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ]),
            resource_attributes: Some(attributes.clone()),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let parameters = PostParams::default();
    let answer = retry(|| reviews.create(&parameters, &review)).await;
    let answer = answer.map_err(Error::api("ask about", "ServiceAccount", account))?;
    Ok(answer.status.is_some_and(|it| it.allowed))
}

/// Handles the deletion of a run: like a cancellation, then removes the finalizer.
pub async fn finalize(run: Arc<AgentRun>, context: &Context) -> Result<Action, Error> {
    let uid = run.uid().unwrap_or_default();
    if !grants(&run).is_empty() {
        let ended = delete_all(&run, false, context).await?;
        if !ended || !cached_pods(&run, context).is_empty() {
            return Ok(Action::requeue(RECHECK_INTERVAL));
        }
        // Accounts are left out: one to which another client has given permissions does not belong to the run, and must
        // not block its deletion for ever.
        let remaining = verify(&run, false, context).await?.objects;
        if !remaining.is_empty() {
            forget_deletions(&uid, &remaining, context);
            let deleted = run.metadata.deletion_timestamp.as_ref();
            let lasts = deleted.map_or(Duration::ZERO, elapsed_since);
            return Ok(Action::requeue(back_off(REMAINING_RECHECK, lasts)));
        }
    }
    remove_finalizer(&run, context).await?;
    forget_run(&uid, context);
    context.index.forget(&uid);
    context.own_writes.forget(&uid);
    Ok(Action::await_change())
}

/// Forgets that these objects were deleted, so that the next reconcile deletes them again.
fn forget_deletions(uid: &str, remaining: &[GrantRecord], context: &Context) {
    for record in remaining {
        context.index.forget_deleted(uid, &record.kind, &record.name);
    }
}

/// Drops all in-memory state about a run.
pub fn forget_run(uid: &str, context: &Context) {
    context.plans.forget(uid);
    context.pod_rejections.forget(uid);
    context.start_faults.forget(uid);
    context.renewals.forget(uid);
}
