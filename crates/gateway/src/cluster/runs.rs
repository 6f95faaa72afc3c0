//! The active runs: one watch of all AgentRuns, and the plan of each run that has a pod.
//!
//! Of an AgentRun only the deciding fields are parsed, and nothing is stored of one that has ended: thousands of
//! finished runs cost nothing here. A plan is identified by its digest, which is in the run's status. If the ConfigMap
//! was replaced, the run is not served.

mod ended;
mod fetch;
mod lookup;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use futures::{StreamExt as _, pin_mut};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::{ApiResource, Object};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use serde::Deserialize;
use sympozium_api::AgentRun;
use sympozium_api::labels::annotation;
use sympozium_api::names::{Digest, NamespaceName, RunName, Uid};
use sympozium_api::run_plan::RunIdentity;
use sympozium_program::error_chain;
use tokio::sync::{Semaphore, watch};

use self::ended::{EndedRuns, end_reason};
use self::lookup::Stem;
use super::PAGE_SIZE;
use crate::plans::Plans;

/// Maximum number of concurrent plan fetches.
pub const MAX_FETCHES: usize = 16;
/// Maximum number of concurrent lookups of single runs.
pub const MAX_LOOKUPS: usize = 4;
/// The suffix of the name of a plan's ConfigMap.
const PLAN_SUFFIX: &str = "plan";

/// An AgentRun with the fields that are parsed here: no texts, no conditions.
type PartialRun = Object<IgnoredSpec, PartialStatus>;

/// A spec that is not parsed.
#[derive(Debug, Clone, Default, Deserialize)]
struct IgnoredSpec {}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PartialStatus {
    phase: Option<String>,
    plan_digest: Option<Digest>,
    #[serde(rename = "podUID")]
    pod_uid: Option<Uid>,
    revoked_at: Option<String>,
    report: Option<PartialReport>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct PartialReport {
    #[serde(default)]
    finished: bool,
}

pub struct RunCache {
    client: Client,
    plans: Arc<Plans>,
    index: Mutex<Index>,
    fetches: Semaphore,
    lookups: Semaphore,
    ready: watch::Sender<bool>,
    on_end: OnceLock<Box<EndCallback>>,
}

/// Called with the UID of a run that has ended.
type EndCallback = dyn Fn(&str) + Send + Sync;

#[derive(Debug, Default)]
struct Index {
    /// By UID.
    runs: HashMap<String, CachedRun>,
    /// UIDs of pods to UIDs of their runs.
    pods: HashMap<String, String>,
    ended: EndedRuns,
}

/// An active run.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CachedRun {
    namespace: String,
    name: String,
    author: Option<String>,
    digest: Option<Digest>,
    /// The first pod. No other one is served.
    pod: Option<String>,
    plan: PlanState,
    /// Whether it has reported its end.
    finished: bool,
}

/// How a run was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// By the watch, which delivers each change in order.
    Watch,
    /// By a lookup, whose result may be older than what the watch has delivered meanwhile.
    Lookup,
}

/// The state of a run's plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlanState {
    /// Not fetched: there is no pod yet, or fetching was given up.
    NotFetched,
    Fetching,
    /// The run is served.
    Served,
    /// The ConfigMap has another plan. The run is not served.
    Mismatch,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PodOwner {
    /// This run, which is served.
    Run(String),
    /// Not known yet.
    Undecided(&'static str),
    /// No known run. The watch may be behind or interrupted: a lookup decides.
    Unknown,
    /// No active run.
    NoRun(&'static str),
}

/// Whether the pod that an unverified token claims can belong to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaimCheck {
    /// It is the pod of a known run.
    Known,
    /// It may belong to a run.
    Possible,
    /// It belongs to no run.
    Impossible,
}

impl RunCache {
    pub fn new(client: Client, plans: Arc<Plans>) -> Arc<Self> {
        Arc::new(Self {
            client,
            plans,
            index: Mutex::default(),
            fetches: Semaphore::new(MAX_FETCHES),
            lookups: Semaphore::new(MAX_LOOKUPS),
            ready: watch::Sender::new(false),
            on_end: OnceLock::new(),
        })
    }

    /// Calls this for each run that ends from now on. Only the first call has an effect.
    pub(super) fn on_end(&self, act: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.on_end.set(Box::new(act));
    }

    pub(super) fn is_active(&self, uid: &str) -> bool {
        self.index.lock().runs.contains_key(uid)
    }

    /// Whether all runs have been listed once.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Number of active runs.
    pub fn len(&self) -> usize {
        self.index.lock().runs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Who created a run, if that was recorded.
    pub(super) fn author(&self, uid: &str) -> Option<String> {
        self.index.lock().runs.get(uid)?.author.clone()
    }

    pub(super) fn pod_owner(&self, namespace: &str, pod: &str) -> PodOwner {
        let index = self.index.lock();
        if let Some(uid) = index.pods.get(pod)
            && let Some(run) = index.runs.get(uid)
        {
            if run.namespace != namespace {
                return PodOwner::NoRun("the pod's service account is of another namespace than its run");
            }
            return match run.plan {
                PlanState::Served => PodOwner::Run(uid.clone()),
                PlanState::NotFetched | PlanState::Fetching => PodOwner::Undecided("the run's plan was not read yet"),
                PlanState::Mismatch => PodOwner::NoRun("the run's plan is not the one that it was admitted with"),
            };
        }
        if !self.is_ready() {
            return PodOwner::Undecided("the runs of the cluster were not listed yet");
        }
        if index.has_run_without_pod(namespace) {
            return PodOwner::Undecided("a run of the namespace waits for its pod, and this may be it");
        }
        PodOwner::Unknown
    }

    /// Whether a pod that a token claims can belong to a run. Namespace, account and pod are unverified.
    pub(super) fn check_claim(&self, namespace: &str, account: &str, pod: &str) -> ClaimCheck {
        let index = self.index.lock();
        if index.pods.contains_key(pod) {
            return ClaimCheck::Known;
        }
        let is_of_a_run = Stem::from_account(account).is_some_and(|stem| !index.ended.contains(&stem.uid));
        if is_of_a_run || !self.is_ready() || index.has_run_without_pod(namespace) {
            ClaimCheck::Possible
        } else {
            ClaimCheck::Impossible
        }
    }

    /// Runs the watch until it is dropped.
    pub async fn watch(self: Arc<Self>) {
        let resource = ApiResource::erase::<AgentRun>(&());
        let api: Api<PartialRun> = Api::all_with(self.client.clone(), &resource);
        let events = watcher(api, watcher::Config::default().page_size(PAGE_SIZE)).default_backoff();
        pin_mut!(events);
        let mut listed = HashSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => listed.clear(),
                Ok(watcher::Event::InitApply(run)) => {
                    listed.extend(run.uid());
                    self.observe(&run, Origin::Watch);
                }
                Ok(watcher::Event::InitDone) => {
                    let known: Vec<String> = self.index.lock().runs.keys().cloned().collect();
                    for uid in known.iter().filter(|uid| !listed.contains(*uid)) {
                        self.end_run(uid, "it is gone");
                    }
                    listed = HashSet::new();
                    if !self.ready.send_replace(true) {
                        tracing::info!(active = self.len(), "the runs of the cluster were listed");
                    }
                }
                Ok(watcher::Event::Apply(run)) => self.observe(&run, Origin::Watch),
                Ok(watcher::Event::Delete(run)) => {
                    if let Some(uid) = run.uid() {
                        self.end_run(&uid, "it was deleted");
                    }
                }
                Err(error) => {
                    tracing::warn!(error = error_chain(&error), "the watch of AgentRuns was cut; it is taken up again")
                }
            }
        }
    }

    /// Updates the cache with the current state of a run.
    fn observe(self: &Arc<Self>, seen: &PartialRun, by: Origin) {
        let Some(uid) = seen.uid() else { return };
        if let Some(why) = end_reason(seen) {
            return self.end_run(&uid, why);
        }
        let status = seen.status.clone().unwrap_or_default();
        let mut index = self.index.lock();
        if by == Origin::Lookup && (index.ended.contains(&uid) || index.runs.contains_key(&uid)) {
            return;
        }
        let run = index.runs.entry(uid.clone()).or_insert_with(|| CachedRun {
            namespace: seen.namespace().unwrap_or_default(),
            name: seen.name_any(),
            author: None,
            digest: None,
            pod: None,
            plan: PlanState::NotFetched,
            finished: false,
        });
        run.finished = status.report.is_some_and(|report| report.finished);
        let finished = run.finished;
        // An empty name is no author: it would differ from every approver.
        let author = seen.annotations().get(annotation::CREATED_BY);
        run.author = author.filter(|author| !author.trim().is_empty()).cloned();
        let pod = status.pod_uid.map(|pod_uid| pod_uid.as_str().to_owned());
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
        let ask = wanted.filter(|_| run.plan == PlanState::NotFetched);
        let identity = identity(&run.namespace, &run.name, &uid);
        if ask.is_some() {
            run.plan = PlanState::Fetching;
        }
        if let Some(pod) = run.pod.clone() {
            index.pods.insert(pod, uid.clone());
        }
        drop(index);
        if finished {
            self.plans.set_reported_end(&uid);
        }
        if let Some(digest) = ask {
            tokio::spawn(Arc::clone(self).fetch_plan(identity, digest));
        }
    }

    /// Removes a run that has ended or was deleted.
    fn end_run(&self, uid: &str, why: &str) {
        let mut index = self.index.lock();
        index.ended.add(uid);
        let Some(run) = index.runs.remove(uid) else {
            return;
        };
        if let Some(pod) = &run.pod {
            index.pods.remove(pod);
        }
        // Under the lock: a plan that arrives now finds that its run is gone.
        if run.plan != PlanState::NotFetched || run.pod.is_some() {
            self.plans.end(uid);
        }
        drop(index);
        if let Some(act) = self.on_end.get() {
            act(uid);
        }
        tracing::info!(run = uid, name = run.name, why, "a run is over");
    }

    fn set_plan_state(&self, uid: &str, plan: PlanState) {
        if let Some(run) = self.index.lock().runs.get_mut(uid) {
            run.plan = plan;
        }
    }
}

impl Index {
    fn has_run_without_pod(&self, namespace: &str) -> bool {
        let waits = |run: &CachedRun| run.namespace == namespace && run.digest.is_some() && run.pod.is_none();
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

pub(super) fn now() -> Time {
    Time(k8s_openapi::jiff::Timestamp::now())
}

#[cfg(test)]
mod tests;
