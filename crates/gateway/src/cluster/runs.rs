//! The active runs: one watch of all AgentRuns, and the plan of each run that has a pod.
//!
//! Of an AgentRun only the deciding fields are parsed, and nothing is stored of one that has ended: thousands of
//! finished runs cost nothing here. A plan is identified by its digest, which is in the run's status. If the ConfigMap
//! was replaced, the run is not served.

mod fetch;
mod look;
mod over;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use futures::{StreamExt as _, pin_mut};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::{ApiResource, Object};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde::Deserialize;
use sympozium_api::AgentRun;
use sympozium_api::labels::annotation;
use sympozium_api::names::{Digest, NamespaceName, RunName, Uid};
use sympozium_api::run_plan::RunIdentity;
use tokio::sync::{Semaphore, watch};

use self::look::Stem;
use self::over::{OverRuns, is_over};
use super::PAGE;
use crate::plans::Plans;

/// Maximum number of concurrent plan fetches.
pub const MAX_FETCHES: usize = 16;
/// Maximum number of concurrent lookups of single runs.
pub const MAX_LOOKS: usize = 4;
/// The suffix of the name of a plan's ConfigMap.
const PLAN: &str = "plan";

/// An AgentRun with the fields that are parsed here: no texts, no conditions.
type SeenRun = Object<Nothing, SeenStatus>;

/// A spec that is not parsed.
#[derive(Debug, Clone, Default, Deserialize)]
struct Nothing {}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SeenStatus {
    phase: Option<String>,
    plan_digest: Option<Digest>,
    #[serde(rename = "podUID")]
    pod_uid: Option<Uid>,
    revoked_at: Option<String>,
    report: Option<SeenReport>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct SeenReport {
    #[serde(default)]
    finished: bool,
}

pub struct Runs {
    client: Client,
    plans: Arc<Plans>,
    index: Mutex<Index>,
    fetches: Semaphore,
    looks: Semaphore,
    ready: watch::Sender<bool>,
    when_over: OnceLock<Box<WhenOver>>,
}

/// Called with the UID of a run that has ended.
type WhenOver = dyn Fn(&str) + Send + Sync;

#[derive(Debug, Default)]
struct Index {
    /// By UID.
    runs: HashMap<String, Known>,
    /// UIDs of pods to UIDs of their runs.
    pods: HashMap<String, String>,
    over: OverRuns,
}

/// An active run.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    namespace: String,
    name: String,
    author: Option<String>,
    digest: Option<Digest>,
    /// The first pod. No other one is served.
    pod: Option<String>,
    plan: Fetched,
    /// Whether it has reported its end.
    finished: bool,
}

/// How a run was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// By the watch, which delivers each change in order.
    Watch,
    /// By a lookup, whose result may be older than what the watch has delivered meanwhile.
    Look,
}

/// The state of a run's plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fetched {
    /// Not fetched: there is no pod yet, or fetching was given up.
    No,
    Asking,
    /// The run is served.
    Yes,
    /// The ConfigMap has another plan. The run is not served.
    Never,
}

/// The owner of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PodOf {
    /// This run, which is served.
    Run(String),
    /// Not known yet.
    Later(&'static str),
    /// No known run. The watch may be behind or interrupted: a lookup decides.
    Unknown,
    /// No active run.
    Nobody(&'static str),
}

/// Whether the pod that an unverified token claims can belong to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claimed {
    /// It is the pod of a known run.
    Known,
    /// It may belong to a run.
    Possible,
    /// It belongs to no run.
    No,
}

impl Runs {
    pub fn new(client: Client, plans: Arc<Plans>) -> Arc<Self> {
        Arc::new(Self {
            client,
            plans,
            index: Mutex::default(),
            fetches: Semaphore::new(MAX_FETCHES),
            looks: Semaphore::new(MAX_LOOKS),
            ready: watch::Sender::new(false),
            when_over: OnceLock::new(),
        })
    }

    /// Calls this for each run that ends from now on. Only the first call has an effect.
    pub(super) fn when_over(&self, act: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.when_over.set(Box::new(act));
    }

    pub(super) fn is_under_way(&self, uid: &str) -> bool {
        self.lock().runs.contains_key(uid)
    }

    /// Whether all runs have been listed once.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Number of active runs.
    pub fn len(&self) -> usize {
        self.lock().runs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Who created a run, if that was recorded.
    pub(super) fn author(&self, uid: &str) -> Option<String> {
        self.lock().runs.get(uid)?.author.clone()
    }

    /// The owner of a pod of this namespace.
    pub(super) fn pod(&self, namespace: &str, pod: &str) -> PodOf {
        let index = self.lock();
        if let Some(uid) = index.pods.get(pod)
            && let Some(run) = index.runs.get(uid)
        {
            if run.namespace != namespace {
                return PodOf::Nobody("the pod's service account is of another namespace than its run");
            }
            return match run.plan {
                Fetched::Yes => PodOf::Run(uid.clone()),
                Fetched::No | Fetched::Asking => PodOf::Later("the run's plan was not read yet"),
                Fetched::Never => PodOf::Nobody("the run's plan is not the one that it was admitted with"),
            };
        }
        if !self.is_ready() {
            return PodOf::Later("the runs of the cluster were not listed yet");
        }
        if index.waits_for_a_pod(namespace) {
            return PodOf::Later("a run of the namespace waits for its pod, and this may be it");
        }
        PodOf::Unknown
    }

    /// Whether a pod that a token claims can belong to a run. Namespace, account and pod are unverified.
    pub(super) fn claimed(&self, namespace: &str, account: &str, pod: &str) -> Claimed {
        let index = self.lock();
        if index.pods.contains_key(pod) {
            return Claimed::Known;
        }
        let is_of_a_run = Stem::of(account).is_some_and(|stem| !index.over.contains(&stem.uid));
        match is_of_a_run || !self.is_ready() || index.waits_for_a_pod(namespace) {
            true => Claimed::Possible,
            false => Claimed::No,
        }
    }

    /// Runs the watch until it is dropped.
    pub async fn watch(self: Arc<Self>) {
        let resource = ApiResource::erase::<AgentRun>(&());
        let api: Api<SeenRun> = Api::all_with(self.client.clone(), &resource);
        let events = watcher(api, watcher::Config::default().page_size(PAGE)).default_backoff();
        pin_mut!(events);
        let mut listed = HashSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => listed.clear(),
                Ok(watcher::Event::InitApply(run)) => {
                    listed.extend(run.uid());
                    self.see(&run, By::Watch);
                }
                Ok(watcher::Event::InitDone) => {
                    let known: Vec<String> = self.lock().runs.keys().cloned().collect();
                    for uid in known.iter().filter(|uid| !listed.contains(*uid)) {
                        self.forget(uid, "it is gone");
                    }
                    listed = HashSet::new();
                    if !self.ready.send_replace(true) {
                        tracing::info!(active = self.len(), "the runs of the cluster were listed");
                    }
                }
                Ok(watcher::Event::Apply(run)) => self.see(&run, By::Watch),
                Ok(watcher::Event::Delete(run)) => {
                    if let Some(uid) = run.uid() {
                        self.forget(&uid, "it was deleted");
                    }
                }
                Err(error) => {
                    tracing::warn!(error = chain(&error), "the watch of AgentRuns was cut; it is taken up again")
                }
            }
        }
    }

    /// Updates the cache with the current state of a run.
    fn see(self: &Arc<Self>, seen: &SeenRun, by: By) {
        let Some(uid) = seen.uid() else { return };
        if let Some(why) = is_over(seen) {
            return self.forget(&uid, why);
        }
        let status = seen.status.clone().unwrap_or_default();
        let mut index = self.lock();
        if by == By::Look && (index.over.contains(&uid) || index.runs.contains_key(&uid)) {
            return;
        }
        let run = index.runs.entry(uid.clone()).or_insert_with(|| Known {
            namespace: seen.namespace().unwrap_or_default(),
            name: seen.name_any(),
            author: None,
            digest: None,
            pod: None,
            plan: Fetched::No,
            finished: false,
        });
        run.finished = status.report.is_some_and(|it| it.finished);
        let finished = run.finished;
        // An empty name is no author: it would differ from every approver.
        let author = seen.annotations().get(annotation::CREATED_BY);
        run.author = author.filter(|it| !it.trim().is_empty()).cloned();
        let pod = status.pod_uid.map(|it| it.as_str().to_owned());
        match (&run.pod, &pod) {
            (None, _) => run.pod = pod.clone(),
            (Some(first), Some(now)) if first != now => {
                tracing::error!(run = uid, first, now, "a run has another pod than at first; that one is not served")
            }
            _ => {}
        }
        match (&run.digest, &status.plan_digest) {
            (None, Some(digest)) => run.digest = Some(digest.clone()),
            (Some(first), Some(now)) if first != now => tracing::error!(
                run = uid,
                %first,
                %now,
                "a run has another plan than at first; that one is not served"
            ),
            _ => {}
        }
        let wanted = run.digest.clone().filter(|_| run.pod.is_some());
        let ask = wanted.filter(|_| run.plan == Fetched::No);
        let identity = identity(&run.namespace, &run.name, &uid);
        if ask.is_some() {
            run.plan = Fetched::Asking;
        }
        if let Some(pod) = run.pod.clone() {
            index.pods.insert(pod, uid.clone());
        }
        drop(index);
        if finished {
            self.plans.reported_end(&uid);
        }
        if let Some(digest) = ask {
            tokio::spawn(Arc::clone(self).fetch(identity, digest));
        }
    }

    /// Removes a run that has ended or was deleted.
    fn forget(&self, uid: &str, why: &str) {
        let mut index = self.lock();
        index.over.add(uid);
        let Some(run) = index.runs.remove(uid) else {
            return;
        };
        if let Some(pod) = &run.pod {
            index.pods.remove(pod);
        }
        // Under the lock: a plan that arrives now finds that its run is gone.
        if run.plan != Fetched::No || run.pod.is_some() {
            self.plans.end(uid);
        }
        drop(index);
        if let Some(act) = self.when_over.get() {
            act(uid);
        }
        tracing::info!(run = uid, name = run.name, why, "a run is over");
    }

    fn fetched(&self, uid: &str, plan: Fetched) {
        if let Some(run) = self.lock().runs.get_mut(uid) {
            run.plan = plan;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        // A panic in another thread leaves the maps consistent.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Index {
    fn waits_for_a_pod(&self, namespace: &str) -> bool {
        let waits = |run: &Known| run.namespace == namespace && run.digest.is_some() && run.pod.is_none();
        self.runs.values().any(waits)
    }
}

/// The fields of an identity that names are derived from.
fn identity(namespace: &str, name: &str, uid: &str) -> RunIdentity {
    RunIdentity {
        namespace: NamespaceName::new(namespace),
        name: RunName::new(name),
        uid: Uid::new(uid),
        agent_kind: String::new(),
        agent: String::new().into(),
        agent_id: String::new(),
        session_key: String::new(),
        parent: None,
    }
}

/// An error with its causes, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        if !text.ends_with(&next_text) {
            text.push_str(": ");
            text.push_str(&next_text);
        }
        cause = next.source();
    }
    text
}

pub(super) fn now() -> Time {
    Time(k8s_openapi::jiff::Timestamp::now())
}

#[cfg(test)]
mod tests;
