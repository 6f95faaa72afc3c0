//! Shared state of all reconcilers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource as _};
use parking_lot::Mutex;
use sympozium_api::AgentRun;
use sympozium_api::installation::CONTROLLER;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::caches::Caches;
use crate::cluster_info::ClusterInfo;
use crate::metrics::Metrics;
use crate::run::{Plans, PodRejections, RunIndex, StartFaults, StoredRun, TokenRenewals};
use crate::settings::Settings;

/// Shared state of all reconcilers.
#[derive(Clone)]
pub struct Context {
    pub client: Client,
    pub settings: Arc<Settings>,
    pub caches: Caches,
    /// The gateway, the API server and the nodes. `None` while they are not discovered: no run starts then.
    pub cluster_info: watch::Receiver<Option<Arc<ClusterInfo>>>,
    /// The results of our last writes, which the watch may not have delivered yet.
    pub own_writes: Arc<OwnWrites>,
    /// Runs that are not torn down.
    pub index: Arc<RunIndex>,
    /// Plans of active runs.
    pub plans: Arc<Plans>,
    /// Why the API server rejected pods of runs.
    pub pod_rejections: Arc<PodRejections>,
    /// Since when start faults of runs have lasted.
    pub start_faults: Arc<StartFaults>,
    /// When tokens of runs were last written.
    pub renewals: Arc<TokenRenewals>,
    pub metrics: Arc<Metrics>,
    /// Emits Kubernetes Events.
    pub recorder: Recorder,
}

impl Context {
    pub fn new(
        client: Client,
        settings: Settings,
        caches: Caches,
        cluster_info: watch::Receiver<Option<Arc<ClusterInfo>>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let reporter = Reporter { controller: CONTROLLER.to_owned(), instance: None };
        Self {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            index: Arc::new(RunIndex::new(settings.max_active_runs, settings.namespace_weights.clone())),
            settings: Arc::new(settings),
            caches,
            cluster_info,
            own_writes: Arc::default(),
            plans: Arc::default(),
            pod_rejections: Arc::default(),
            start_faults: Arc::default(),
            renewals: Arc::default(),
            metrics,
        }
    }

    /// Emits a Kubernetes Event about a run, for `kubectl describe`. A failure is logged and stops nothing.
    pub async fn emit_event(&self, run: &AgentRun, about: EventContent<'_>) {
        let event = Event {
            type_: about.type_,
            reason: about.reason.to_owned(),
            note: Some(about.note.chars().take(MAX_NOTE).collect()),
            action: about.action.to_owned(),
            secondary: None,
        };
        let about = run.object_ref(&());
        let published = timeout(EVENT_TIMEOUT, self.recorder.publish(&event, &about)).await;
        match published {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the Event could not be written"),
            Err(_elapsed) => tracing::debug!("the Event was not written in time"),
        }
    }
}

/// The reconciler waits for the Event, so it must not take long.
const EVENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Characters of an Event's note; the API server rejects longer ones.
const MAX_NOTE: usize = 1000;

#[derive(Debug, Clone)]
pub struct EventContent<'a> {
    pub type_: EventType,
    /// One CamelCase word.
    pub reason: &'a str,
    /// What the controller did, as one word.
    pub action: &'a str,
    /// The message, one sentence.
    pub note: &'a str,
}

/// Runs as our own last write left them. A watch lags behind: without this a reconciler would repeat a step.
#[derive(Debug, Default)]
pub struct OwnWrites {
    runs: Mutex<HashMap<String, StoredRun>>,
}

impl OwnWrites {
    /// Stores the run that a write returned.
    pub fn remember(&self, run: StoredRun) -> StoredRun {
        self.runs.lock().insert(run.uid().to_owned(), run.clone());
        run
    }

    /// The newer of what the watch has delivered and what we wrote.
    pub fn latest(&self, delivered: StoredRun) -> StoredRun {
        let mut runs = self.runs.lock();
        match runs.get(delivered.uid()) {
            Some(written) if resource_version(written) > resource_version(&delivered) => written.clone(),
            Some(_) => {
                runs.remove(delivered.uid());
                delivered
            }
            None => delivered,
        }
    }

    pub fn forget(&self, uid: &str) {
        self.runs.lock().remove(uid);
    }
}

/// Resource versions of one kind are increasing numbers (KEP-5504).
fn resource_version(run: &AgentRun) -> u64 {
    let version = run.metadata.resource_version.as_deref();
    version.and_then(|version| version.parse().ok()).unwrap_or(0)
}
