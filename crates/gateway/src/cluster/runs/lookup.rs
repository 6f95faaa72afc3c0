//! Looks up one run that the watch has not delivered.
//!
//! A bridge whose token is rejected ends its run, so a token is not rejected because a watch is behind or interrupted.
//! The service account of a run's pod has a name that follows from the run, and so has the ConfigMap with its plan,
//! which has the name of the run. None of that is trusted: it leads to an AgentRun, and only that counts.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::ApiResource;
use kube::{Api, ResourceExt as _};
use serde::Deserialize;
use sympozium_api::AgentRun;
use sympozium_plan::render::key;
use sympozium_plan::render::names::{ObjectNames, is_run_object_name};
use sympozium_program::error_chain;
use tokio::time::timeout;

use super::{Origin, PLAN_SUFFIX, PartialRun, PodOwner, RunCache, identity};
use crate::cluster::REQUEST_TIMEOUT;

/// Hexadecimal digits of each group of a UUID.
const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];

/// The common prefix of the names of a run's objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stem {
    text: String,
    /// The run's UID, as API servers generate them.
    pub(super) uid: String,
}

impl Stem {
    /// The stem of the service account of a run's pod.
    pub(super) fn from_account(account: &str) -> Option<Self> {
        let (text, _) = account.rsplit_once('-')?;
        if !is_run_object_name(text) || !is_run_object_name(account) {
            return None;
        }
        let mut digits = text.rsplit('-').next()?;
        let mut uid = Vec::with_capacity(GROUPS.len());
        for group in GROUPS {
            let (this, rest) = digits.split_at_checked(group)?;
            uid.push(this);
            digits = rest;
        }
        digits.is_empty().then(|| Self { text: text.to_owned(), uid: uid.join("-") })
    }
}

/// The only field of a plan that is parsed here.
#[derive(Debug, Deserialize)]
struct PlanName {
    run: PlanRun,
}

#[derive(Debug, Deserialize)]
struct PlanRun {
    name: String,
}

impl RunCache {
    /// Looks up the owner of a pod that is not in the cache. The API server is asked, but not more often than its
    /// answer can change: the cache decides if it has the run.
    pub(in crate::cluster) async fn look_up_owner(
        self: &Arc<Self>,
        namespace: &str,
        account: &str,
        pod: &str,
    ) -> PodOwner {
        let no_owner = PodOwner::NoRun("the pod is no run's that is under way");
        let Some(stem) = Stem::from_account(account) else {
            return no_owner;
        };
        if let Some(decided) = self.cached_owner(&stem) {
            return decided;
        }
        // Never closed. A request that waits too long here is refused for now.
        let _room = self.lookups.acquire().await;
        match self.find_run(namespace, &stem).await {
            Ok(Some(run)) => self.observe(&run, Origin::Lookup),
            Ok(None) => return no_owner,
            Err(why) => {
                tracing::warn!(namespace, account, why, "a run cannot be looked at");
                return PodOwner::Undecided("the watch does not know the run, and it cannot be looked at");
            }
        }
        match self.pod_owner(namespace, pod) {
            PodOwner::Unknown => self.cached_owner(&stem).unwrap_or(no_owner),
            found => found,
        }
    }

    /// What the cache says about the run with this stem, if the pod is not the run's.
    fn cached_owner(&self, stem: &Stem) -> Option<PodOwner> {
        let index = self.index.lock();
        if index.ended.contains(&stem.uid) {
            return Some(PodOwner::NoRun("the pod's run is over"));
        }
        Some(match index.runs.get(&stem.uid)?.pod {
            None => PodOwner::Undecided("the run waits for its pod, and this may be it"),
            Some(_) => PodOwner::NoRun("the pod's run has another pod"),
        })
    }

    async fn find_run(&self, namespace: &str, stem: &Stem) -> Result<Option<PartialRun>, String> {
        let plans: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let plan = with_timeout(plans.get_opt(&format!("{}-{PLAN_SUFFIX}", stem.text))).await?;
        let plan = plan.and_then(|plan| plan.data?.remove(key::PLAN));
        let named = plan.and_then(|text| serde_json::from_str::<PlanName>(&text).ok());
        let Some(PlanName { run: PlanRun { name } }) = named else {
            return Ok(None);
        };
        let is_its = ObjectNames::new(&identity(namespace, &name, &stem.uid)).workload() == stem.text;
        if !is_its {
            return Ok(None);
        }
        let resource = ApiResource::erase::<AgentRun>(&());
        let runs: Api<PartialRun> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let run = with_timeout(runs.get_opt(&name)).await?;
        Ok(run.filter(|run| run.uid().as_ref() == Some(&stem.uid)))
    }
}

async fn with_timeout<T>(asking: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    let asked = timeout(REQUEST_TIMEOUT, asking).await;
    let asked = asked.map_err(|_| "the API server did not answer in time".to_owned())?;
    asked.map_err(|error| error_chain(&error))
}

#[cfg(test)]
mod tests;
