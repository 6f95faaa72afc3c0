//! Finds objects of runs that no longer exist, and deletes them.
//!
//! A run is torn down before it is deleted, so there are no orphans unless something went wrong: a person removed the
//! finalizer by hand, or restored objects from a backup. Objects are found by labels, and any client can write labels;
//! so an object is deleted only if it has the exact [shape](ownership) of our objects, down to the digits of the run's
//! UID in its name. All others are reported and left. That the run is gone is read from the API server, after the
//! objects were listed: the cache may lag behind.
//!
//! Secrets are not listed: that would need permission to read every Secret of the cluster. Those of runs are owned by
//! their run, and the garbage collector of Kubernetes deletes them.

pub mod ownership;

use std::collections::{BTreeSet, HashSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{DeleteParams, ListParams, PartialObjectMeta, Preconditions};
use kube::runtime::events::{Event, EventType};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use sympozium_api::{AgentRun, labels};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::caches::is_torn_down;
use crate::context::Context;
use ownership::{Ownership, RunObject};

/// Interval between sweeps of everything.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// Runs that are deleted within this time are swept together.
const COALESCE_WINDOW: Duration = Duration::from_secs(2);
/// When a failed sweep is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Runs per list request, in the label selector.
const RUNS_PER_LIST: usize = 50;
/// Objects per list request.
const PAGE_SIZE: u32 = 500;
/// Objects of one kind in one sweep, at most.
const MAX_OBJECTS: usize = 50_000;
/// Foreign objects that are remembered as reported, at most.
const MAX_REPORTED: usize = 1_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedRun {
    pub uid: String,
}

/// Why a sweep was not completed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{kind} cannot be listed")]
    List {
        kind: String,
        #[source]
        source: kube::Error,
    },
    #[error("{kind} `{name}` cannot be deleted")]
    Delete {
        kind: String,
        name: String,
        #[source]
        source: kube::Error,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    All,
    /// Only what these runs have left, by UID.
    Runs(BTreeSet<String>),
}

impl Scope {
    fn selectors(&self) -> Vec<String> {
        let ours = format!("{}={}", labels::MANAGED_BY, labels::MANAGER);
        match self {
            Self::All => vec![ours],
            Self::Runs(runs) => {
                // A string that is not a UID must not get into a label selector.
                let runs: Vec<&str> =
                    runs.iter().map(String::as_str).filter(|uid| ownership::uid_digits(uid).is_some()).collect();
                let part = |runs: &[&str]| format!("{ours},{} in ({})", labels::RUN_UID, runs.join(","));
                runs.chunks(RUNS_PER_LIST).map(part).collect()
            }
        }
    }
}

pub struct Sweeper {
    context: Arc<Context>,
    reported: HashSet<String>,
}

impl Sweeper {
    /// Lives as long as this process is the leader.
    pub fn new(context: Arc<Context>) -> Self {
        Self { context, reported: HashSet::new() }
    }

    /// Sweeps everything at the start and every ten minutes, and what a run has left shortly after it is deleted.
    pub async fn run(mut self, mut gone: mpsc::UnboundedReceiver<DeletedRun>, stop: watch::Receiver<bool>) {
        let mut whole = Instant::now();
        loop {
            let runs = tokio::select! {
                () = sleep_until(whole) => None,
                first = gone.recv() => match first {
                    Some(first) => Some(collect_deleted(first, &mut gone).await),
                    None => return,
                },
            };
            if *stop.borrow() {
                return;
            }
            let scope = runs.map_or(Scope::All, Scope::Runs);
            let outcome = self.sweep(&scope).await;
            let failed = outcome.is_err();
            if let Err(error) = outcome {
                let error = sympozium_program::error_chain(&error);
                tracing::warn!(error, "the sweep could not be completed; it is retried");
                self.context.metrics.count_failure("Sweep");
            }
            if scope == Scope::All {
                whole = Instant::now() + SWEEP_INTERVAL;
            }
            // A full sweep finds what this one has missed.
            if failed {
                whole = whole.min(Instant::now() + RETRY_INTERVAL);
            }
        }
    }

    /// Performs one sweep.
    ///
    /// # Errors
    ///
    /// When a list or a deletion failed. The other objects were swept all the same.
    pub async fn sweep(&mut self, scope: &Scope) -> Result<(), Error> {
        self.context.metrics.count_reconcile("Sweep");
        // Bindings first: they give permissions.
        let mut outcome = self.sweep_kind::<ClusterRoleBinding>(scope).await;
        outcome = outcome.and(self.sweep_kind::<RoleBinding>(scope).await);
        outcome = outcome.and(self.sweep_kind::<Job>(scope).await);
        outcome = outcome.and(self.sweep_kind::<ServiceAccount>(scope).await);
        outcome = outcome.and(self.sweep_kind::<ClusterRole>(scope).await);
        outcome = outcome.and(self.sweep_kind::<Role>(scope).await);
        // Last: it confines pods.
        outcome.and(self.sweep_kind::<NetworkPolicy>(scope).await)
    }

    async fn sweep_kind<K>(&mut self, scope: &Scope) -> Result<(), Error>
    where
        K: RunObject + Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + 'static,
    {
        let client = self.context.client.clone();
        // A run that is torn down has no objects any more, except a Job that is to be kept: any other object was
        // created late, by a controller that did not know yet that it had lost the Lease.
        let (mut known, mut settled) = (HashSet::new(), HashSet::new());
        for run in self.context.caches.runs.state() {
            let over = K::NAME != "Job" && is_torn_down(&run);
            let side = if over { &mut settled } else { &mut known };
            side.extend(run.uid());
        }
        let is_of =
            |object: &K, runs: &HashSet<String>| ownership::run_uid(object).is_some_and(|uid| runs.contains(uid));
        let mut candidates = Vec::new();
        for selector in scope.selectors() {
            let found = list_all::<K>(&client, &selector).await?;
            // Most objects belong to runs in the cache and need no request.
            candidates.extend(found.into_iter().filter(|candidate| !is_of(candidate, &known)));
        }
        if candidates.is_empty() {
            if *scope == Scope::All {
                self.context.metrics.set_foreign(K::NAME, 0);
            }
            return Ok(());
        }
        let runs = list_run_uids(&client).await?;
        candidates.retain(|candidate| !is_of(candidate, &runs) || is_of(candidate, &settled));
        let mut foreign = 0;
        let mut failure = None;
        for object in candidates {
            match ownership::check(&object) {
                Ownership::Ours => {
                    if let Err(error) = self.delete(&object).await {
                        failure = Some(error);
                    }
                }
                Ownership::Foreign(why) => {
                    foreign += 1;
                    self.warn_foreign(&object, why).await;
                }
            }
        }
        if *scope == Scope::All {
            self.context.metrics.set_foreign(K::NAME, foreign);
        }
        failure.map_or(Ok(()), Err)
    }

    async fn delete<K>(&self, object: &K) -> Result<(), Error>
    where
        K: RunObject + Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let name = object.name_any();
        let parameters =
            DeleteParams::background().preconditions(Preconditions { uid: object.uid(), ..Preconditions::default() });
        let Some(api) = object.api(self.context.client.clone()) else {
            return Ok(());
        };
        let deleted = api.delete(&name, &parameters).await;
        self.context.metrics.count_write(K::NAME, "delete");
        match deleted {
            Ok(_) => {
                self.context.metrics.count_swept(K::NAME);
                tracing::warn!(
                    kind = K::NAME,
                    name,
                    namespace = object.namespace(),
                    run = ownership::run_uid(object),
                    "deleted an object whose run does not exist any more"
                );
                Ok(())
            }
            // Another client deleted it first, or the name belongs to another object now.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(source) => Err(Error::Delete { kind: K::NAME.to_owned(), name, source }),
        }
    }

    async fn warn_foreign<K>(&mut self, object: &K, why: &'static str)
    where
        K: RunObject + Resource<DynamicType = ()>,
    {
        let Some(uid) = object.uid() else { return };
        if self.reported.len() >= MAX_REPORTED || !self.reported.insert(uid) {
            return;
        }
        let name = object.name_any();
        let namespace = object.namespace();
        tracing::warn!(
            kind = K::NAME,
            name,
            namespace,
            why,
            "an object with the labels of a run does not belong to one; it is not changed"
        );
        let event = Event {
            type_: EventType::Warning,
            reason: "NotOurs".to_owned(),
            note: Some(format!(
                "This object has the labels of a run that does not exist, and {why}. The controller does not delete it: delete it yourself, or remove its labels."
            )),
            action: "Sweep".to_owned(),
            secondary: None,
        };
        let reference = object.object_ref(&());
        if let Err(error) = self.context.recorder.publish(&event, &reference).await {
            tracing::warn!(%error, "the Event about the object could not be written");
        }
        self.context.metrics.count_write("Event", "create");
    }
}

/// The UIDs of runs that were deleted at about the same time.
async fn collect_deleted(first: DeletedRun, gone: &mut mpsc::UnboundedReceiver<DeletedRun>) -> BTreeSet<String> {
    let until = Instant::now() + COALESCE_WINDOW;
    let mut runs = BTreeSet::from([first.uid]);
    while let Ok(Some(next)) = timeout_at(until, gone.recv()).await {
        runs.insert(next.uid);
    }
    runs
}

async fn list_all<K>(client: &Client, selector: &str) -> Result<Vec<K>, Error>
where
    K: RunObject + Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let error = |source| Error::List { kind: K::NAME.to_owned(), source };
    let mut parameters = ListParams::default().labels(selector).limit(PAGE_SIZE);
    let mut all = Vec::new();
    loop {
        let api: Api<K> = Api::all(client.clone());
        let page = api.list(&parameters).await.map_err(error)?;
        all.extend(page.items);
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() && all.len() < MAX_OBJECTS => {
                parameters = parameters.continue_token(&token);
            }
            _ => return Ok(all),
        }
    }
}

/// The UIDs of all existing runs, from the API server.
async fn list_run_uids(client: &Client) -> Result<HashSet<String>, Error> {
    let api: Api<PartialObjectMeta<AgentRun>> = Api::all(client.clone());
    let mut parameters = ListParams::default().limit(PAGE_SIZE);
    let mut all = HashSet::new();
    loop {
        let page = api.list(&parameters).await.map_err(|source| Error::List { kind: "AgentRun".to_owned(), source })?;
        all.extend(page.items.into_iter().filter_map(|run| run.metadata.uid));
        match page.metadata.continue_ {
            // Without a limit: a run that is missing from the list would count as deleted.
            Some(token) if !token.is_empty() => parameters = parameters.continue_token(&token),
            _ => return Ok(all),
        }
    }
}
