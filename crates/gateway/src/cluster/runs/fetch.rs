//! Fetches the plan of a run, with retries, and checks it against the digest in the run's status.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use sympozium_api::RunPlan;
use sympozium_api::names::Digest;
use sympozium_api::run_plan::RunIdentity;
use sympozium_plan::render::{key, names};
use sympozium_program::error_chain;
use tokio::time::{sleep, timeout};

use super::{PLAN_SUFFIX, PlanState, RunCache};
use crate::cluster::REQUEST_TIMEOUT;
use crate::plans::PlanError;

/// Maximum number of attempts before the next change of the run.
pub const MAX_ATTEMPTS: u32 = 12;
/// The pause after the first attempt. It doubles each time.
const FIRST_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("the plan cannot be read")]
    Read(#[source] Box<kube::Error>),
    #[error("the API server did not answer in time")]
    Timeout,
    #[error("there is no ConfigMap {0} with the plan in it")]
    Missing(String),
    #[error("the ConfigMap holds another plan than the one that the run was admitted with")]
    Mismatch(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the plan is that of another run")]
    OtherRun,
    #[error("there is no room for another run")]
    TooManyRuns(#[source] PlanError),
}

impl FetchError {
    /// Whether a retry may help.
    fn is_transient(&self) -> bool {
        match self {
            Self::Read(_) | Self::Timeout | Self::Missing(_) | Self::TooManyRuns(_) => true,
            Self::Mismatch(_) | Self::OtherRun => false,
        }
    }
}

impl RunCache {
    /// Fetches a plan, with a bounded number of retries.
    pub(super) async fn fetch_plan(self: Arc<Self>, run: RunIdentity, digest: Digest) {
        let uid = run.uid.as_str();
        let mut pause = FIRST_BACKOFF;
        for attempt in 1..=MAX_ATTEMPTS {
            let error = match self.fetch_once(&run, &digest).await {
                Ok(()) => return,
                Err(error) => error,
            };
            let text = error_chain(&error);
            if !error.is_transient() {
                tracing::error!(run = uid, error = text, "a run is not served");
                self.set_plan_state(uid, PlanState::Mismatch);
                return;
            }
            tracing::warn!(run = uid, error = text, attempt, "a plan is asked for again");
            sleep(pause).await;
            pause = (2 * pause).min(MAX_BACKOFF);
            if !self.index.lock().runs.contains_key(uid) {
                return;
            }
        }
        tracing::error!(run = uid, "a plan is not asked for any more until its run changes");
        self.set_plan_state(uid, PlanState::NotFetched);
    }

    async fn fetch_once(&self, run: &RunIdentity, digest: &Digest) -> Result<(), FetchError> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), run.namespace.as_str());
        let name = names::object_name(run, PLAN_SUFFIX);
        let config_map = {
            // The semaphore is never closed.
            let _room = self.fetches.acquire().await;
            let asked = timeout(REQUEST_TIMEOUT, api.get_opt(&name)).await;
            asked.map_err(|_| FetchError::Timeout)?
        };
        let config_map = config_map.map_err(|error| FetchError::Read(Box::new(error)))?;
        let text = config_map.and_then(|config_map| config_map.data?.remove(key::PLAN));
        let text = text.ok_or(FetchError::Missing(name))?;
        let plan = RunPlan::read_verified(text.as_bytes(), digest);
        let plan = plan.map_err(|error| FetchError::Mismatch(Box::new(error)))?;
        let is_its = plan.run.uid == run.uid && plan.run.name == run.name && plan.run.namespace == run.namespace;
        if !is_its {
            return Err(FetchError::OtherRun);
        }
        let mut index = self.index.lock();
        // The run may have ended by now.
        let Some(known) = index.runs.get_mut(run.uid.as_str()) else {
            return Ok(());
        };
        match self.plans.add(&plan) {
            Ok(()) => {
                known.plan = PlanState::Served;
                if known.finished {
                    self.plans.set_reported_end(run.uid.as_str());
                }
            }
            Err(full @ PlanError::TooMany) => return Err(FetchError::TooManyRuns(full)),
            Err(error) => return Err(FetchError::Mismatch(Box::new(error))),
        }
        drop(index);
        tracing::info!(run = %run.uid, name = %run.name, namespace = %run.namespace, "a run is served");
        Ok(())
    }
}
