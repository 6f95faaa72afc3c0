//! Fetches the plan of a run, with retries, and checks it against the digest in the run's status.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use sympozium_api::RunPlan;
use sympozium_api::names::Digest;
use sympozium_api::run_plan::RunIdentity;
use sympozium_plan::render::{key, names};
use tokio::time::{sleep, timeout};

use super::{Fetched, PLAN, Runs, chain};
use crate::cluster::REQUEST_DEADLINE;
use crate::plans::Unusable;

/// Maximum number of attempts before the next change of the run.
pub const MAX_ATTEMPTS: u32 = 12;
/// The pause after the first attempt. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
enum NoPlan {
    #[error("the plan cannot be read")]
    Unread(#[source] Box<kube::Error>),
    #[error("the API server did not answer in time")]
    Late,
    #[error("there is no ConfigMap {0} with the plan in it")]
    Absent(String),
    #[error("the ConfigMap holds another plan than the one that the run was admitted with")]
    Another(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the plan is that of another run")]
    AnotherRun,
    #[error("there is no room for another run")]
    NoRoom(#[source] Unusable),
}

impl NoPlan {
    /// Whether a retry may help.
    fn may_pass(&self) -> bool {
        match self {
            Self::Unread(_) | Self::Late | Self::Absent(_) | Self::NoRoom(_) => true,
            Self::Another(_) | Self::AnotherRun => false,
        }
    }
}

impl Runs {
    /// Fetches a plan, with a bounded number of retries.
    pub(super) async fn fetch(self: Arc<Self>, run: RunIdentity, digest: Digest) {
        let uid = run.uid.as_str();
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=MAX_ATTEMPTS {
            let error = match self.fetch_once(&run, &digest).await {
                Ok(()) => return,
                Err(error) => error,
            };
            let text = chain(&error);
            if !error.may_pass() {
                tracing::error!(run = uid, error = text, "a run is not served");
                self.fetched(uid, Fetched::Never);
                return;
            }
            tracing::warn!(run = uid, error = text, attempt, "a plan is asked for again");
            sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
            if !self.lock().runs.contains_key(uid) {
                return;
            }
        }
        tracing::error!(run = uid, "a plan is not asked for any more until its run changes");
        self.fetched(uid, Fetched::No);
    }

    async fn fetch_once(&self, run: &RunIdentity, digest: &Digest) -> Result<(), NoPlan> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), run.namespace.as_str());
        let name = names::object_name(run, PLAN);
        let config_map = {
            // The semaphore is never closed.
            let _room = self.fetches.acquire().await;
            let asked = timeout(REQUEST_DEADLINE, api.get_opt(&name)).await;
            asked.map_err(|_| NoPlan::Late)?
        };
        let config_map = config_map.map_err(|error| NoPlan::Unread(Box::new(error)))?;
        let text = config_map.and_then(|it| it.data?.remove(key::PLAN));
        let text = text.ok_or(NoPlan::Absent(name))?;
        let plan = RunPlan::read_expected(text.as_bytes(), digest);
        let plan = plan.map_err(|error| NoPlan::Another(Box::new(error)))?;
        let is_its = plan.run.uid == run.uid && plan.run.name == run.name && plan.run.namespace == run.namespace;
        if !is_its {
            return Err(NoPlan::AnotherRun);
        }
        let mut index = self.lock();
        // The run may have ended by now.
        let Some(known) = index.runs.get_mut(run.uid.as_str()) else {
            return Ok(());
        };
        match self.plans.add(&plan) {
            Ok(()) => {
                known.plan = Fetched::Yes;
                if known.finished {
                    self.plans.reported_end(run.uid.as_str());
                }
            }
            Err(full @ Unusable::TooMany) => return Err(NoPlan::NoRoom(full)),
            Err(error) => return Err(NoPlan::Another(Box::new(error))),
        }
        drop(index);
        tracing::info!(run = %run.uid, name = %run.name, namespace = %run.namespace, "a run is served");
        Ok(())
    }
}
