//! Finds what runs left behind that no longer exist, and deletes it.
//!
//! A run that ends takes everything with it, so there is nothing to find unless something went wrong: the finalizer was
//! removed by hand, or a person restored objects from a backup. Labels find, and anybody can write labels; so what is
//! deleted must have [our form](form), down to the digits of the run's UID in its name. Everything else is reported and
//! left. That the run is gone is asked of the API server, after the objects were listed: a cache may lag behind.
//!
//! Secrets are not listed: that would be the right to read every Secret there is. Those of runs belong to their run,
//! and Kubernetes collects what belongs to nobody.

pub mod form;

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

use crate::context::Context;
use crate::world::is_settled;
use form::{Form, Formed};

/// How often everything is looked through.
pub const SWEEP_EVERY: Duration = Duration::from_secs(10 * 60);
/// Runs that went at about the same time are looked after together.
const SETTLE: Duration = Duration::from_secs(2);
/// How soon a sweep that failed is made again.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// Runs whose leftovers are asked for in one call.
const RUNS_AT_ONCE: usize = 50;
/// Objects in one answer.
const PAGE: u32 = 500;
/// Objects of one kind that one sweep looks at.
const MAX_OBJECTS: usize = 50_000;
/// Foreign objects that are remembered as reported.
const MAX_REPORTED: usize = 1_000;

/// A run that is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    /// Its UID.
    pub uid: String,
}

/// A sweep could not be finished.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A list.
    #[error("{kind} cannot be listed")]
    List {
        /// Of what.
        kind: String,
        /// Why.
        #[source]
        source: kube::Error,
    },
    /// A deletion.
    #[error("{kind} `{name}` cannot be deleted")]
    Delete {
        /// The kind.
        kind: String,
        /// The name.
        name: String,
        /// Why.
        #[source]
        source: kube::Error,
    },
}

/// What is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Everything.
    Whole,
    /// What these runs left.
    Of(BTreeSet<String>),
}

impl Scope {
    fn selectors(&self) -> Vec<String> {
        let ours = format!("{}={}", labels::MANAGED_BY, labels::MANAGER);
        match self {
            Self::Whole => vec![ours],
            Self::Of(runs) => {
                // Labels are of our own making only where the UID is one.
                let runs: Vec<&str> =
                    runs.iter().map(String::as_str).filter(|uid| form::digits(uid).is_some()).collect();
                let part = |runs: &[&str]| format!("{ours},{} in ({})", labels::RUN_UID, runs.join(","));
                runs.chunks(RUNS_AT_ONCE).map(part).collect()
            }
        }
    }
}

/// Sweeps.
pub struct Sweeper {
    context: Arc<Context>,
    reported: HashSet<String>,
}

impl Sweeper {
    /// One for the life of a leader.
    pub fn new(context: Arc<Context>) -> Self {
        Self { context, reported: HashSet::new() }
    }

    /// Sweeps everything now and every ten minutes, and what a run left a moment after it is gone.
    pub async fn run(mut self, mut gone: mpsc::UnboundedReceiver<Gone>, stop: watch::Receiver<bool>) {
        let mut whole = Instant::now();
        loop {
            let runs = tokio::select! {
                () = sleep_until(whole) => None,
                first = gone.recv() => match first {
                    Some(first) => Some(collect(first, &mut gone).await),
                    None => return,
                },
            };
            if *stop.borrow() {
                return;
            }
            let scope = runs.map_or(Scope::Whole, Scope::Of);
            let outcome = self.sweep(&scope).await;
            let failed = outcome.is_err();
            if let Err(error) = outcome {
                let error = sympozium_program::chain(&error);
                tracing::warn!(error, "a sweep could not be finished; there will be another");
                self.context.metrics.failed("Sweep");
            }
            if scope == Scope::Whole {
                whole = Instant::now() + SWEEP_EVERY;
            }
            // What was not found this time is found by looking at everything.
            if failed {
                whole = whole.min(Instant::now() + RETRY_AFTER);
            }
        }
    }

    /// One sweep.
    ///
    /// # Errors
    ///
    /// When something could not be listed or deleted. What could be was.
    pub async fn sweep(&mut self, scope: &Scope) -> Result<(), Error> {
        self.context.metrics.reconciled("Sweep");
        // What gives rights goes first.
        let mut outcome = self.kind::<ClusterRoleBinding>(scope).await;
        outcome = outcome.and(self.kind::<RoleBinding>(scope).await);
        outcome = outcome.and(self.kind::<Job>(scope).await);
        outcome = outcome.and(self.kind::<ServiceAccount>(scope).await);
        outcome = outcome.and(self.kind::<ClusterRole>(scope).await);
        outcome = outcome.and(self.kind::<Role>(scope).await);
        // Last: it holds pods in.
        outcome.and(self.kind::<NetworkPolicy>(scope).await)
    }

    async fn kind<K>(&mut self, scope: &Scope) -> Result<(), Error>
    where
        K: Form + Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + 'static,
    {
        let client = self.context.client.clone();
        // A run that is settled has nothing any more, but a Job that is to be kept: whatever else is there came late, from a
        // controller that did not know yet that it leads no more.
        let (mut known, mut settled) = (HashSet::new(), HashSet::new());
        for run in self.context.world.runs.state() {
            let over = K::NAME != "Job" && is_settled(&run);
            let side = if over { &mut settled } else { &mut known };
            side.extend(run.uid());
        }
        let is_of = |object: &K, runs: &HashSet<String>| form::run_uid(object).is_some_and(|uid| runs.contains(uid));
        let mut candidates = Vec::new();
        for selector in scope.selectors() {
            let found = list::<K>(&client, &selector).await?;
            // Most belong to runs that the watch knows: those need no question.
            candidates.extend(found.into_iter().filter(|it| !is_of(it, &known)));
        }
        if candidates.is_empty() {
            if *scope == Scope::Whole {
                self.context.metrics.foreign(K::NAME, 0);
            }
            return Ok(());
        }
        let runs = live_runs(&client).await?;
        candidates.retain(|it| !is_of(it, &runs) || is_of(it, &settled));
        let mut foreign = 0;
        let mut failure = None;
        for object in candidates {
            match form::judge(&object) {
                Formed::Ours => {
                    if let Err(error) = self.delete(&object).await {
                        failure = Some(error);
                    }
                }
                Formed::Foreign(why) => {
                    foreign += 1;
                    self.report(&object, why).await;
                }
            }
        }
        if *scope == Scope::Whole {
            self.context.metrics.foreign(K::NAME, foreign);
        }
        failure.map_or(Ok(()), Err)
    }

    async fn delete<K>(&self, object: &K) -> Result<(), Error>
    where
        K: Form + Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let name = object.name_any();
        let parameters =
            DeleteParams::background().preconditions(Preconditions { uid: object.uid(), ..Preconditions::default() });
        let client = self.context.client.clone();
        let deleted = K::api(client, object.meta().namespace.as_deref()).delete(&name, &parameters).await;
        self.context.metrics.wrote(K::NAME, "delete");
        match deleted {
            Ok(_) => {
                self.context.metrics.swept(K::NAME);
                tracing::warn!(
                    kind = K::NAME,
                    name,
                    namespace = object.namespace(),
                    run = form::run_uid(object),
                    "deleted: its run is gone"
                );
                Ok(())
            }
            // Somebody was quicker, or something else has the name now.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(source) => Err(Error::Delete { kind: K::NAME.to_owned(), name, source }),
        }
    }

    async fn report<K>(&mut self, object: &K, why: &'static str)
    where
        K: Form + Resource<DynamicType = ()>,
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
            "an object has our labels and is not ours; it is left as it is"
        );
        let event = Event {
            type_: EventType::Warning,
            reason: "NotOurs".to_owned(),
            note: Some(format!(
                "It has the labels of a run that does not exist, and {why}: it is left as it is. Remove it, or its labels."
            )),
            action: "Sweep".to_owned(),
            secondary: None,
        };
        let reference = object.object_ref(&());
        if let Err(error) = self.context.recorder.publish(&event, &reference).await {
            tracing::warn!(%error, "the Event about it could not be written");
        }
        self.context.metrics.wrote("Event", "create");
    }
}

/// Those that went at about the same time.
async fn collect(first: Gone, gone: &mut mpsc::UnboundedReceiver<Gone>) -> BTreeSet<String> {
    let until = Instant::now() + SETTLE;
    let mut runs = BTreeSet::from([first.uid]);
    while let Ok(Some(next)) = timeout_at(until, gone.recv()).await {
        runs.insert(next.uid);
    }
    runs
}

async fn list<K>(client: &Client, selector: &str) -> Result<Vec<K>, Error>
where
    K: Form + Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let error = |source| Error::List { kind: K::NAME.to_owned(), source };
    let mut parameters = ListParams::default().labels(selector).limit(PAGE);
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

/// The UIDs of all runs that there are, from the API server itself.
async fn live_runs(client: &Client) -> Result<HashSet<String>, Error> {
    let api: Api<PartialObjectMeta<AgentRun>> = Api::all(client.clone());
    let mut parameters = ListParams::default().limit(PAGE);
    let mut all = HashSet::new();
    loop {
        let page = api.list(&parameters).await.map_err(|source| Error::List { kind: "AgentRun".to_owned(), source })?;
        all.extend(page.items.into_iter().filter_map(|run| run.metadata.uid));
        match page.metadata.continue_ {
            // Without a bound: a run that is not in the list would count as gone.
            Some(token) if !token.is_empty() => parameters = parameters.continue_token(&token),
            _ => return Ok(all),
        }
    }
}
