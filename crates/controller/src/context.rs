//! What every reconciler has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource as _, ResourceExt as _};
use sympozium_api::AgentRun;
use sympozium_api::installation::CONTROLLER;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::metrics::Metrics;
use crate::run::{Hindrances, Index, Plans, Refusals, Renewals};
use crate::settings::Settings;
use crate::surroundings::Surroundings;
use crate::world::World;

/// What every reconciler has.
#[derive(Clone)]
pub struct Context {
    /// The way to the API server.
    pub client: Client,
    /// How this installation is set up.
    pub settings: Arc<Settings>,
    /// What is in the cluster, as far as the watches have seen.
    pub world: World,
    /// The gateway, the API server and the nodes. Nothing while they are not known yet: no run is begun then.
    pub surroundings: watch::Receiver<Option<Arc<Surroundings>>>,
    /// What we wrote last and the watch may not have shown yet.
    pub written: Arc<Written>,
    /// Runs that are not settled.
    pub index: Arc<Index>,
    /// Plans of runs that go on.
    pub plans: Arc<Plans>,
    /// Why the API server did not let Jobs of runs have their pods.
    pub refusals: Arc<Refusals>,
    /// What is in the way of runs.
    pub hindrances: Arc<Hindrances>,
    /// When tokens of runs were last written.
    pub renewals: Arc<Renewals>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Where Events are written.
    pub recorder: Recorder,
}

impl Context {
    /// Of a controller that begins.
    pub fn new(
        client: Client,
        settings: Settings,
        world: World,
        surroundings: watch::Receiver<Option<Arc<Surroundings>>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let reporter = Reporter { controller: CONTROLLER.to_owned(), instance: None };
        Self {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            index: Arc::new(Index::new(settings.active_runs, settings.namespace_weights.clone())),
            settings: Arc::new(settings),
            world,
            surroundings,
            written: Arc::default(),
            plans: Arc::default(),
            refusals: Arc::default(),
            hindrances: Arc::default(),
            renewals: Arc::default(),
            metrics,
        }
    }

    /// Writes an Event about a run, for `kubectl describe`. That it cannot be written stops nothing.
    pub async fn tell(&self, run: &AgentRun, about: About<'_>) {
        let event = Event {
            type_: about.type_,
            reason: about.reason.to_owned(),
            note: Some(about.note.chars().take(MAX_NOTE).collect()),
            action: about.action.to_owned(),
            secondary: None,
        };
        let about = run.object_ref(&());
        let published = timeout(EVENT_DEADLINE, self.recorder.publish(&event, &about)).await;
        match published {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "an Event could not be written"),
            Err(_elapsed) => tracing::debug!("an Event was not taken in time"),
        }
    }
}

/// How long an Event may take: what it is about goes on meanwhile.
const EVENT_DEADLINE: Duration = Duration::from_secs(5);
/// Characters of an Event's note, as the API server takes them.
const MAX_NOTE: usize = 1000;

/// What an Event says.
#[derive(Debug, Clone)]
pub struct About<'a> {
    /// Whether it is a warning.
    pub type_: EventType,
    /// In a word.
    pub reason: &'a str,
    /// What was done.
    pub action: &'a str,
    /// In a sentence.
    pub note: &'a str,
}

/// Runs as our own last write left them. A watch lags behind: without this a step would be made twice.
#[derive(Debug, Default)]
pub struct Written {
    runs: Mutex<HashMap<String, Arc<AgentRun>>>,
}

impl Written {
    /// Remembers what a write answered.
    pub fn remember(&self, run: AgentRun) -> Arc<AgentRun> {
        let run = Arc::new(run);
        if let Some(uid) = run.uid() {
            self.lock().insert(uid, Arc::clone(&run));
        }
        run
    }

    /// The later of what the watch has shown and what we wrote.
    pub fn latest(&self, seen: Arc<AgentRun>) -> Arc<AgentRun> {
        let Some(uid) = seen.uid() else { return seen };
        let mut runs = self.lock();
        match runs.get(&uid) {
            Some(written) if version(written) > version(&seen) => Arc::clone(written),
            Some(_) => {
                runs.remove(&uid);
                seen
            }
            None => seen,
        }
    }

    /// Forgets a run that is gone.
    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<AgentRun>>> {
        // A panic elsewhere leaves the map whole.
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Versions of one kind are numbers that grow (KEP-5504).
fn version(run: &AgentRun) -> u64 {
    let version = run.metadata.resource_version.as_deref();
    version.and_then(|it| it.parse().ok()).unwrap_or(0)
}
