//! The second step of the end of a run: deletes its pods and objects, then has [`verify`] check that they are gone.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt as _};
use sympozium_api::agent_run::{Cleanup, GrantRecord, GrantRole, Revocation};
use sympozium_api::{AgentRun, labels};

use super::end::forget_run;
use super::error::Error;
use super::retry::retry;
use super::revoke::{RevocationScope, revoke_grants};
use super::status::{StatusPatch, remove_finalizer};
use super::stored::StoredRun;
use super::verify::{REMAINING_REASON, verify};
use super::{objects, pod_status};
use crate::caches::is_revoked;
use crate::conditions::{elapsed_since, now};
use crate::context::Context;
use sympozium_api::agent_run::condition;

/// When to check again for an object that should be gone. Usually a watch event comes earlier.
const RECHECK_INTERVAL: Duration = Duration::from_secs(10);
/// The same for deleted objects that still exist and that no watch covers.
const REMAINING_RECHECK: Duration = Duration::from_secs(2);
/// Longest interval between checks for objects that do not go.
const MAX_RECHECK: Duration = Duration::from_secs(60);
/// How long a pod may take to go before the status shows it.
const POD_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a pod that is to be kept may take to end after its run.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(15);
/// Limit for listing the pods of a run: more than a run can have.
const MAX_PODS: u32 = 100;

/// Deletes what is left of a finished run, verifies that all of it is gone, and records that.
pub async fn tear_down(run: StoredRun, context: &Context) -> Result<Action, Error> {
    if run.grants().is_empty() || is_revoked(&run) {
        return complete(&run, context).await;
    }
    let cleanup = run.spec.cleanup;
    let deleted = delete_all(&run, cleanup, context).await?;
    let has_pods = cleanup == Cleanup::Delete && !cached_pods(&run, context).is_empty();
    if (!deleted || has_pods) && time_since_completed(&run) < POD_TIMEOUT {
        return Ok(Action::requeue(RECHECK_INTERVAL));
    }
    let verification = verify(&run, cleanup, context).await?;
    let remaining = verification.remaining();
    let mut patch = StatusPatch::new(&run);
    patch.set_condition(condition::REVOKED, verification.condition());
    // Written when it changes, not at each check.
    if patch.status.revocation.as_ref().is_none_or(|known| known.remaining != remaining) {
        patch.status.revocation = Some(Revocation { checked_at: now(), remaining: remaining.clone() });
    }
    let run = patch.write(context).await?;
    if remaining.is_empty() {
        return complete(&run, context).await;
    }
    forget_deletions(&run, &remaining, context);
    // The watch delivers the deletion of a pod.
    let pause = if has_pods { RECHECK_INTERVAL } else { REMAINING_RECHECK };
    Ok(Action::requeue(back_off(pause, time_since_completed(&run))))
}

/// Nothing is left: the run may be deleted.
async fn complete(run: &StoredRun, context: &Context) -> Result<Action, Error> {
    remove_finalizer(run, context).await?;
    forget_run(run.uid(), context);
    Ok(Action::await_change())
}

/// Handles the deletion of a run: like a cancellation, then removes the finalizer.
pub async fn finalize(run: StoredRun, context: &Context) -> Result<Action, Error> {
    if !run.grants().is_empty() {
        let deleted = delete_all(&run, Cleanup::Delete, context).await?;
        if !deleted || !cached_pods(&run, context).is_empty() {
            return Ok(Action::requeue(RECHECK_INTERVAL));
        }
        // Accounts are left out: one to which another client has given permissions does not belong to the run, and must
        // not block its deletion for ever.
        let remaining = verify(&run, Cleanup::Delete, context).await?.objects;
        if !remaining.is_empty() {
            forget_deletions(&run, &remaining, context);
            let deleted_at = run.metadata.deletion_timestamp.as_ref();
            let elapsed = deleted_at.map_or(Duration::ZERO, elapsed_since);
            return Ok(Action::requeue(back_off(REMAINING_RECHECK, elapsed)));
        }
    }
    let action = complete(&run, context).await?;
    context.index.forget(run.uid());
    context.own_writes.forget(run.uid());
    Ok(action)
}

/// Checks less often what has lasted for long.
fn back_off(pause: Duration, elapsed: Duration) -> Duration {
    (elapsed / 10).clamp(pause, MAX_RECHECK)
}

/// Deletes everything of a run, in an order in which its pod is never less confined than before. Returns false while
/// its pods are active: then what confines them stays.
async fn delete_all(run: &StoredRun, cleanup: Cleanup, context: &Context) -> Result<bool, Error> {
    // With that time in the status, the grants are revoked already.
    let had_remaining = had_remaining(run);
    let is_revoked = run.status.as_ref().is_some_and(|status| status.revoked_at.is_some());
    if had_remaining || !is_revoked {
        revoke_grants(run, RevocationScope::All, context).await?;
    }
    let pods = if run.status.as_ref().is_some_and(|status| status.pod_uid.is_some()) {
        cached_pods(run, context)
    } else {
        // The status names no pod: the watch may be behind.
        list_pods(run, context).await?
    };
    let are_terminated = pods.iter().all(|pod| pod_status::is_terminated(pod));
    // A pod with `cleanup: keep` is kept once it has ended by itself; an agent that lingers is stopped.
    if cleanup == Cleanup::Delete || !are_terminated && has_lingered(run) {
        delete_workloads(run, &pods, context).await?;
    }
    if !are_terminated {
        return Ok(false);
    }
    // Nothing runs any more: confinement, inputs and accounts can be deleted.
    let mut outcome = Ok(());
    for record in run.grants().iter().rev() {
        let delete = match record.role() {
            GrantRole::Workload => false,
            GrantRole::Binding | GrantRole::Token => had_remaining,
            GrantRole::Other => true,
        };
        if delete {
            // A failed deletion must not prevent the others.
            outcome = outcome.and(objects::delete(context, record, run).await);
        }
    }
    outcome.map(|()| true)
}

/// Deletes what creates pods, and pods that linger: a pod is deleted with its owner, unless it has lost its owner
/// reference.
async fn delete_workloads(run: &StoredRun, pods: &[Arc<Pod>], context: &Context) -> Result<(), Error> {
    let mut outcome = Ok(());
    for record in run.grants().iter().filter(|record| record.role() == GrantRole::Workload) {
        outcome = outcome.and(objects::delete(context, record, run).await);
    }
    if has_lingered(run) {
        for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            outcome = outcome.and(objects::delete(context, &pod_record(pod), run).await);
        }
    }
    outcome
}

/// Deletes the run's pod before its hooks: first its owner, so that it creates no other, and then the pod itself, which
/// may have lost its owner reference.
pub async fn delete_workload(run: &StoredRun, pod: &Pod, context: &Context) -> Result<(), Error> {
    let hooks = run.status.as_ref().and_then(|status| status.post_run_job_name.as_ref());
    for record in run.grants().iter().filter(|record| record.role() == GrantRole::Workload) {
        // Hooks after the run start later.
        if hooks.is_none_or(|name| name.as_str() != record.name) {
            objects::delete(context, record, run).await?;
        }
    }
    objects::delete(context, &pod_record(pod), run).await
}

/// A record for a pod, so that it can be deleted and verified like the other objects.
pub fn pod_record(pod: &Pod) -> GrantRecord {
    GrantRecord {
        kind: "Pod".to_owned(),
        namespace: pod.namespace().map(Into::into),
        name: pod.name_any(),
        uid: pod.uid().map(Into::into),
        skill: None,
        role: Some(GrantRole::Workload),
    }
}

/// Whether a deleted object was found again: then what this process remembers about deletions is not trusted.
fn had_remaining(run: &AgentRun) -> bool {
    let conditions = run.status.iter().flat_map(|status| &status.conditions);
    let mut revoked = conditions.filter(|condition| condition.type_ == condition::REVOKED);
    revoked.any(|condition| condition.reason == REMAINING_REASON)
}

/// The pods of a run, from the cache.
pub fn cached_pods(run: &StoredRun, context: &Context) -> Vec<Arc<Pod>> {
    context.caches.pods.state_filter(|pod| is_pod_of(pod, run))
}

/// The pods of a run from the API server: the cache may be behind.
pub async fn list_pods(run: &StoredRun, context: &Context) -> Result<Vec<Arc<Pod>>, Error> {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), run.namespace());
    let selector = format!("{}={}", labels::RUN_UID, run.uid());
    let parameters = ListParams::default().labels(&selector).limit(MAX_PODS);
    let pods = retry(|| api.list(&parameters)).await;
    let pods = pods.map_err(Error::api("list", "Pod", run.name()))?;
    Ok(pods.items.into_iter().filter(|pod| is_pod_of(pod, run)).map(Arc::new).collect())
}

/// Whether a pod belongs to the run: the one in its status, or one that is owned by an object of the run. The label
/// alone proves nothing, since any pod can have it.
fn is_pod_of(pod: &Pod, run: &StoredRun) -> bool {
    let is_labelled = pod.labels().get(labels::RUN_UID).is_some_and(|uid| uid == run.uid());
    if !is_labelled || pod.metadata.namespace.as_deref() != Some(run.namespace()) {
        return false;
    }
    let recorded = run.status.as_ref().and_then(|status| status.pod_uid.as_ref());
    if recorded.is_some_and(|uid| pod.metadata.uid.as_deref() == Some(uid.as_str())) {
        return true;
    }
    let mut owners = pod.owner_references().iter().filter(|owner| owner.controller == Some(true));
    owners.any(|owner| {
        let mut workloads = run.grants().iter().filter(|record| record.role() == GrantRole::Workload);
        workloads.any(|record| match &record.uid {
            Some(uid) => uid.as_str() == owner.uid,
            None => record.kind == owner.kind && record.name == owner.name,
        })
    })
}

/// Time since the run was completed.
fn time_since_completed(run: &AgentRun) -> Duration {
    let completed = run.status.as_ref().and_then(|status| status.completed_at.as_ref());
    completed.map_or(Duration::ZERO, elapsed_since)
}

fn has_lingered(run: &AgentRun) -> bool {
    time_since_completed(run) >= LINGER_TIMEOUT
}

/// Forgets that these objects were deleted, so that the next reconcile deletes them again.
fn forget_deletions(run: &StoredRun, remaining: &[GrantRecord], context: &Context) {
    for record in remaining {
        context.index.forget_deleted(run.uid(), &record.kind, &record.name);
    }
}
