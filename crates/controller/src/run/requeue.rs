//! Maps watch events to runs that have to be reconciled, and keeps what is known about starts that fail.

use std::collections::HashMap;
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use sympozium_api::AgentRun;
use tokio::time::Instant;

use super::end;
use super::stored::StoredRun;
use crate::caches::{WatchEvent, is_torn_down};
use crate::context::Context;
use crate::object_key::ObjectKey;

/// The runs that have to be reconciled because of a watch event.
pub fn runs_to_requeue(event: &WatchEvent, context: &Context) -> Vec<ObjectRef<AgentRun>> {
    let index = &context.index;
    match event {
        WatchEvent::Run(run) => requeue_for_run(run, context),
        WatchEvent::RunDeleted(run) => {
            let change = index.forget(run.uid());
            context.own_writes.forget(run.uid());
            end::forget_run(run.uid(), context);
            if change.freed_slot { index.take_runnable() } else { Vec::new() }
        }
        WatchEvent::Agent(key) | WatchEvent::Pack(key) | WatchEvent::Policy(key) | WatchEvent::Model(key) => {
            // Objects in the system namespace are visible to all namespaces.
            let concerns_all = key.namespace == context.settings.system_namespace;
            let mut waiting = index.waiting();
            waiting.retain(|run| concerns_all || run.namespace.as_ref() == Some(&key.namespace));
            waiting
        }
        WatchEvent::RunObject { namespace, run_uid } => {
            let run = index.find(run_uid);
            // Any client can set the label; a run of another namespace is not concerned.
            run.filter(|run| run.namespace.as_ref() == Some(namespace)).into_iter().collect()
        }
        WatchEvent::PodRejection { job, message } => requeue_for_rejection(job, message, context),
        WatchEvent::Node => index.active(),
        // No run depends on schedules.
        WatchEvent::Schedule(_) => Vec::new(),
    }
}

fn requeue_for_run(run: &StoredRun, context: &Context) -> Vec<ObjectRef<AgentRun>> {
    let change = context.index.track(run);
    let mut requeued = if change.freed_slot { context.index.take_runnable() } else { Vec::new() };
    let is_torn_down = is_torn_down(run);
    if is_torn_down {
        context.own_writes.forget(run.uid());
    }
    // A run that is torn down: once, to apply the history limit; or again, until its retention time has passed.
    if !is_torn_down || change.torn_down || context.settings.retention.is_some() {
        requeued.push(run.reference());
    }
    requeued
}

/// Stores why the API server rejected the pod of a Job, for the run that the Job belongs to.
fn requeue_for_rejection(job: &ObjectKey, message: &str, context: &Context) -> Vec<ObjectRef<AgentRun>> {
    let mut active = context.index.active();
    active.retain(|reference| {
        if reference.namespace.as_ref() != Some(&job.namespace) {
            return false;
        }
        let Some(run) = context.caches.runs.get(reference).and_then(StoredRun::new) else {
            return false;
        };
        let job_name = run.status.as_ref().and_then(|status| status.job_name.as_ref());
        let is_its = job_name.is_some_and(|name| name.as_str() == job.name);
        if is_its {
            context.pod_rejections.remember(run.uid(), message);
        }
        is_its
    });
    active
}

/// Start faults of runs, and since when this process has seen them, by the run's UID.
#[derive(Debug, Default)]
pub struct StartFaults {
    seen: Mutex<HashMap<String, (&'static str, Instant)>>,
}

impl StartFaults {
    /// How long a run has had this fault. A different fault of the same run restarts the time.
    pub fn duration(&self, uid: &str, reason: &'static str) -> Duration {
        let mut seen = self.seen.lock();
        let now = Instant::now();
        let known = seen.entry(uid.to_owned()).or_insert((reason, now));
        if known.0 != reason {
            *known = (reason, now);
        }
        now.duration_since(known.1)
    }

    pub fn forget(&self, uid: &str) {
        let mut seen = self.seen.lock();
        seen.remove(uid);
    }
}

/// Runs whose rejections are remembered, at most.
const MAX_REJECTIONS: usize = 4096;

/// Why the API server rejected the pods of Jobs of runs, by the run's UID.
#[derive(Debug, Default)]
pub struct PodRejections {
    messages: Mutex<HashMap<String, String>>,
}

impl PodRejections {
    pub fn remember(&self, uid: &str, message: &str) {
        let mut all = self.messages.lock();
        if all.len() < MAX_REJECTIONS || all.contains_key(uid) {
            all.insert(uid.to_owned(), message.to_owned());
        }
    }

    pub fn get(&self, uid: &str) -> Option<String> {
        let all = self.messages.lock();
        all.get(uid).cloned()
    }

    pub fn forget(&self, uid: &str) {
        let mut all = self.messages.lock();
        all.remove(uid);
    }
}
