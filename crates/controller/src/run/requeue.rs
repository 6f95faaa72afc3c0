//! Maps watch events to runs that have to be reconciled, and keeps what is known about starts that fail.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use sympozium_api::AgentRun;
use tokio::time::Instant;

use super::end;
use super::index::RunChange;
use crate::caches::{WatchEvent, is_torn_down};
use crate::context::Context;

/// The runs that have to be reconciled because of a watch event.
pub fn runs_to_requeue(seen: &WatchEvent, context: &Context) -> Vec<ObjectRef<AgentRun>> {
    let index = &context.index;
    match seen {
        WatchEvent::Run(run) => {
            let RunChange { torn_down: has_settled, freed_slot: made_room } = index.track(run);
            let mut woken = match made_room {
                true => index.take_runnable(),
                false => Vec::new(),
            };
            let this = ObjectRef::from_obj(run.as_ref());
            if !is_torn_down(run) {
                woken.push(this);
                return woken;
            }
            context.own_writes.forget(&run.uid().unwrap_or_default());
            // Once, to apply the history limit; or again, until its retention time has passed.
            if has_settled || context.settings.retention.is_some() {
                woken.push(this);
            }
            woken
        }
        WatchEvent::RunDeleted(run) => {
            let uid = run.uid().unwrap_or_default();
            let made_room = index.forget(&uid).freed_slot;
            context.own_writes.forget(&uid);
            end::forget_run(&uid, context);
            match made_room {
                true => index.take_runnable(),
                false => Vec::new(),
            }
        }
        WatchEvent::Agent(namespace, _)
        | WatchEvent::Pack(namespace, _)
        | WatchEvent::Policy(namespace, _)
        | WatchEvent::Model(namespace, _) => {
            // Objects in the system namespace are visible to all namespaces.
            let everywhere = *namespace == context.settings.system_namespace;
            let mut waiting = index.waiting();
            waiting.retain(|it| everywhere || it.namespace.as_ref() == Some(namespace));
            waiting
        }
        WatchEvent::Job(namespace, uid) | WatchEvent::Pod(namespace, uid) => {
            let found = index.find(uid).into_iter();
            // Any client can set the label; a run of another namespace is not concerned.
            found.filter(|it| it.namespace.as_ref() == Some(namespace)).collect()
        }
        WatchEvent::PodRejection { namespace, job, message: said } => {
            let is_its = |run: &AgentRun| {
                let name = run.status.as_ref().and_then(|it| it.job_name.as_ref());
                name.is_some_and(|it| it.as_str() == job)
            };
            let active = index.active().into_iter();
            let active = active.filter(|it| it.namespace.as_ref() == Some(namespace));
            let mut concerned = Vec::new();
            for reference in active {
                if let Some(run) = context.caches.runs.get(&reference).filter(|it| is_its(it)) {
                    let uid = run.uid().unwrap_or_default();
                    context.pod_rejections.remember(&uid, said);
                    concerned.push(reference);
                }
            }
            concerned
        }
        WatchEvent::Node => index.active(),
        // No run depends on schedules.
        WatchEvent::Schedule(..) => Vec::new(),
    }
}

/// Start faults of runs, and since when this process has seen them, by the run's UID.
#[derive(Debug, Default)]
pub struct StartFaults {
    seen: Mutex<HashMap<String, (&'static str, Instant)>>,
}

impl StartFaults {
    /// How long a run has had this fault. A different fault of the same run restarts the time.
    pub fn duration(&self, uid: &str, reason: &'static str) -> Duration {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let known = seen.entry(uid.to_owned()).or_insert((reason, now));
        if known.0 != reason {
            *known = (reason, now);
        }
        now.duration_since(known.1)
    }

    pub fn forget(&self, uid: &str) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
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
    pub fn remember(&self, uid: &str, said: &str) {
        let mut all = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MAX_REJECTIONS || all.contains_key(uid) {
            all.insert(uid.to_owned(), said.to_owned());
        }
    }

    pub fn get(&self, uid: &str) -> Option<String> {
        let all = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(uid).cloned()
    }

    pub fn forget(&self, uid: &str) {
        let mut all = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(uid);
    }
}
