//! Which runs something that was seen concerns, and what was said about their pods.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use sympozium_api::AgentRun;
use tokio::time::Instant;

use super::end;
use super::index::Sighted;
use crate::context::Context;
use crate::world::{Seen, is_settled};

/// The runs that are to be looked at again because of what was seen.
pub fn wake(seen: &Seen, context: &Context) -> Vec<ObjectRef<AgentRun>> {
    let index = &context.index;
    match seen {
        Seen::Run(run) => {
            let Sighted { has_settled, made_room } = index.see(run);
            let mut woken = match made_room {
                true => index.take_turns(),
                false => Vec::new(),
            };
            let this = ObjectRef::from_obj(run.as_ref());
            if !is_settled(run) {
                woken.push(this);
                return woken;
            }
            context.written.forget(&run.uid().unwrap_or_default());
            // Once, to see who is beyond what is kept; or until its own time has come.
            if has_settled || context.settings.keep.is_some() {
                woken.push(this);
            }
            woken
        }
        Seen::RunGone(run) => {
            let uid = run.uid().unwrap_or_default();
            let made_room = index.forget(&uid).made_room;
            context.written.forget(&uid);
            end::forget(&uid, context);
            match made_room {
                true => index.take_turns(),
                false => Vec::new(),
            }
        }
        Seen::Agent(namespace, _)
        | Seen::Pack(namespace, _)
        | Seen::Policy(namespace, _)
        | Seen::Model(namespace, _) => {
            // What is in the system namespace is for all.
            let everywhere = *namespace == context.settings.system_namespace;
            let mut waiting = index.waiting();
            waiting.retain(|it| everywhere || it.namespace.as_ref() == Some(namespace));
            waiting
        }
        Seen::Job(namespace, uid) | Seen::Pod(namespace, uid) => {
            let found = index.find(uid).into_iter();
            // A label is easily forged; a run of another namespace is not concerned.
            found.filter(|it| it.namespace.as_ref() == Some(namespace)).collect()
        }
        Seen::Refusal { namespace, job, said } => {
            let is_its = |run: &AgentRun| {
                let name = run.status.as_ref().and_then(|it| it.job_name.as_ref());
                name.is_some_and(|it| it.as_str() == job)
            };
            let active = index.active().into_iter();
            let active = active.filter(|it| it.namespace.as_ref() == Some(namespace));
            let mut concerned = Vec::new();
            for reference in active {
                if let Some(run) = context.world.runs.get(&reference).filter(|it| is_its(it)) {
                    let uid = run.uid().unwrap_or_default();
                    context.refusals.remember(&uid, said);
                    concerned.push(reference);
                }
            }
            concerned
        }
        Seen::Node => index.active(),
        // No run is made of it.
        Seen::Schedule(..) => Vec::new(),
    }
}

/// What is in the way of runs, and since when this process knows.
#[derive(Debug, Default)]
pub struct Hindrances {
    seen: Mutex<HashMap<String, (&'static str, Instant)>>,
}

impl Hindrances {
    /// For how long this has been in the way of a run. What was in its way before is so no more.
    pub fn since(&self, uid: &str, reason: &'static str) -> Duration {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let known = seen.entry(uid.to_owned()).or_insert((reason, now));
        if known.0 != reason {
            *known = (reason, now);
        }
        now.duration_since(known.1)
    }

    /// Nothing is in its way.
    pub fn forget(&self, uid: &str) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.remove(uid);
    }
}

/// Most runs of which it is remembered that the API server refused their pods.
const MAX_REFUSALS: usize = 4096;

/// Why the API server did not let Jobs of runs have their pods, by the run's UID.
#[derive(Debug, Default)]
pub struct Refusals {
    said: Mutex<HashMap<String, String>>,
}

impl Refusals {
    /// Remembers what was said about the Job of a run.
    pub fn remember(&self, uid: &str, said: &str) {
        let mut all = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MAX_REFUSALS || all.contains_key(uid) {
            all.insert(uid.to_owned(), said.to_owned());
        }
    }

    /// What was said.
    pub fn of(&self, uid: &str) -> Option<String> {
        let all = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(uid).cloned()
    }

    /// Forgets a run that is over.
    pub fn forget(&self, uid: &str) {
        let mut all = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(uid);
    }
}
