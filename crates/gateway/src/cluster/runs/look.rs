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
use sympozium_plan::render::names::{Names, is_of_a_run};
use tokio::time::timeout;

use super::{By, PLAN, PodOf, Runs, SeenRun, chain, identity};
use crate::cluster::REQUEST_DEADLINE;

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
    pub(super) fn of(account: &str) -> Option<Self> {
        let (text, _) = account.rsplit_once('-')?;
        if !is_of_a_run(text) || !is_of_a_run(account) {
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
struct Named {
    run: NamedRun,
}

#[derive(Debug, Deserialize)]
struct NamedRun {
    name: String,
}

impl Runs {
    /// Looks up the owner of a pod that is not in the cache. The API server is asked, but not more often than its
    /// answer can change: the cache decides if it has the run.
    pub(in crate::cluster) async fn look(self: &Arc<Self>, namespace: &str, account: &str, pod: &str) -> PodOf {
        let nobody = PodOf::Nobody("the pod is no run's that is under way");
        let Some(stem) = Stem::of(account) else {
            return nobody;
        };
        if let Some(decided) = self.decided(&stem) {
            return decided;
        }
        // Never closed. A request that waits too long here is refused for now.
        let _room = self.looks.acquire().await;
        match self.find(namespace, &stem).await {
            Ok(Some(run)) => self.see(&run, By::Look),
            Ok(None) => return nobody,
            Err(why) => {
                tracing::warn!(namespace, account, why, "a run cannot be looked at");
                return PodOf::Later("the watch does not know the run, and it cannot be looked at");
            }
        }
        match self.pod(namespace, pod) {
            PodOf::Unknown => self.decided(&stem).unwrap_or(nobody),
            found => found,
        }
    }

    /// What the cache says about the run with this stem, if the pod is not the run's.
    fn decided(&self, stem: &Stem) -> Option<PodOf> {
        let index = self.lock();
        if index.over.contains(&stem.uid) {
            return Some(PodOf::Nobody("the pod's run is over"));
        }
        Some(match index.runs.get(&stem.uid)?.pod {
            None => PodOf::Later("the run waits for its pod, and this may be it"),
            Some(_) => PodOf::Nobody("the pod's run has another pod"),
        })
    }

    async fn find(&self, namespace: &str, stem: &Stem) -> Result<Option<SeenRun>, String> {
        let plans: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let plan = asked(plans.get_opt(&format!("{}-{PLAN}", stem.text))).await?;
        let plan = plan.and_then(|it| it.data?.remove(key::PLAN));
        let named = plan.and_then(|it| serde_json::from_str::<Named>(&it).ok());
        let Some(Named { run: NamedRun { name } }) = named else {
            return Ok(None);
        };
        let is_its = Names::new(&identity(namespace, &name, &stem.uid)).workload() == stem.text;
        if !is_its {
            return Ok(None);
        }
        let resource = ApiResource::erase::<AgentRun>(&());
        let runs: Api<SeenRun> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let run = asked(runs.get_opt(&name)).await?;
        Ok(run.filter(|it| it.uid().as_ref() == Some(&stem.uid)))
    }
}

async fn asked<T>(asking: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    let asked = timeout(REQUEST_DEADLINE, asking).await;
    let asked = asked.map_err(|_| "the API server did not answer in time".to_owned())?;
    asked.map_err(|error| chain(&error))
}

#[cfg(test)]
mod tests;
