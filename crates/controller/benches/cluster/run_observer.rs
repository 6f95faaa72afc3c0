//! When something was seen: the Jobs of runs, and runs of which nothing is left.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::batch::v1::Job;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use sympozium_api::agent_run::Phase;
use sympozium_api::{AgentRun, labels};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::harness::TIMEOUT;

/// Watches for as long as it is kept.
pub struct RunObserver {
    observed: Arc<Mutex<Observed>>,
    changed: watch::Receiver<()>,
    /// Aborted when dropped.
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Observed {
    jobs: HashMap<String, Instant>,
    torn_down: HashMap<String, Instant>,
}

/// What is waited for.
#[derive(Debug, Clone, Copy)]
pub enum Milestone {
    /// The run's Job.
    Job,
    /// That nothing of the run is left.
    TornDown,
}

impl RunObserver {
    pub fn start(client: Client) -> Self {
        let seen: Arc<Mutex<Observed>> = Arc::default();
        let (tell, changed) = watch::channel(());
        let mut tasks = JoinSet::new();
        let jobs: Api<Job> = Api::all(client.clone());
        let ours = watcher::Config::default().labels(&format!("{}={}", labels::MANAGED_BY, labels::MANAGER));
        let (noting, telling) = (Arc::clone(&seen), tell.clone());
        tasks.spawn(async move {
            let mut events = watcher(jobs, ours).default_backoff().applied_objects().boxed();
            while let Some(event) = events.next().await {
                let Ok(job) = event else { continue };
                // Hooks have a Job too, which is there before the run's own.
                let labels = job.labels();
                let is_run = labels.get(labels::COMPONENT).map(String::as_str) == Some(labels::component::AGENT_RUN);
                if let Some(uid) = labels.get(labels::RUN_UID).filter(|_| is_run) {
                    noting.lock().jobs.entry(uid.clone()).or_insert_with(Instant::now);
                    telling.send_replace(());
                }
            }
        });
        let runs: Api<AgentRun> = Api::all(client);
        let noting = Arc::clone(&seen);
        tasks.spawn(async move {
            let mut events = watcher(runs, watcher::Config::default()).default_backoff().applied_objects().boxed();
            while let Some(event) = events.next().await {
                let Ok(run) = event else { continue };
                if is_torn_down(&run) {
                    noting.lock().torn_down.entry(run.uid().unwrap_or_default()).or_insert_with(Instant::now);
                    tell.send_replace(());
                }
            }
        });
        Self { observed: seen, changed, _tasks: tasks }
    }

    /// When the last of these was seen; waits for it.
    pub async fn wait_all(&self, what: Milestone, uids: &[String]) -> Instant {
        let mut changed = self.changed.clone();
        let wait = async {
            loop {
                changed.mark_unchanged();
                if let Some(last) = self.last(what, uids) {
                    return last;
                }
                changed.changed().await.expect("it is watched");
                // Not for each of thousands.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        match tokio::time::timeout(TIMEOUT, wait).await {
            Ok(last) => last,
            Err(_) => panic!("waited in vain for {what:?} of {} runs", uids.len()),
        }
    }

    fn last(&self, what: Milestone, uids: &[String]) -> Option<Instant> {
        let seen = self.observed.lock();
        let all = match what {
            Milestone::Job => &seen.jobs,
            Milestone::TornDown => &seen.torn_down,
        };
        let mut last = None;
        for uid in uids {
            last = last.max(Some(*all.get(uid)?));
        }
        last
    }
}

fn is_torn_down(run: &AgentRun) -> bool {
    let status = run.status.as_ref();
    status.is_some_and(|it| it.phase.is_some_and(Phase::is_terminal) && it.revocation.is_some())
        && run.finalizers().is_empty()
}
