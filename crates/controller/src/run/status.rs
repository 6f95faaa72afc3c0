//! The only module that writes to runs: the controller's own fields of their status, and its finalizer.

use kube::api::Patch;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use sympozium_api::AgentRun;
use sympozium_api::agent_run::AgentRunStatus;
use sympozium_api::labels::finalizer;
use sympozium_api::limits;
use sympozium_api::text::{Bytes, truncate};

use super::error::{Error, is_not_found};
use super::retry::{retry, with_timeout};
use super::stored::StoredRun;
use crate::conditions::{ConditionValue, now, set_condition};
use crate::context::Context;
use crate::status::{diff, patch_params};

/// Changes to a run's status that are written in one request: set fields of [`Self::status`], then [`Self::write`].
#[derive(Debug)]
pub struct StatusPatch<'r> {
    run: &'r StoredRun,
    /// The status as it is to be. Its `report` belongs to the gateway and must not be changed.
    pub status: AgentRunStatus,
}

impl<'r> StatusPatch<'r> {
    pub fn new(run: &'r StoredRun) -> Self {
        Self { run, status: run.status.clone().unwrap_or_default() }
    }

    /// Sets the error of the run, truncated to what the schema allows.
    pub fn set_error(&mut self, why: Option<&str>) {
        self.status.error = why.map(|why| truncate(why, Bytes(limits::VALUE)).into_owned());
    }

    pub fn set_condition(&mut self, type_: &'static str, value: ConditionValue) {
        set_condition(&mut self.status.conditions, type_, value, self.run.metadata.generation, now());
    }

    /// Writes the changes, if there are any. Returns the run as it is afterwards.
    ///
    /// # Errors
    ///
    /// When the API server rejects the request.
    pub async fn write(self, context: &Context) -> Result<StoredRun, Error> {
        let run = self.run;
        let before = match &run.status {
            Some(status) => serde_json::to_value(status)?,
            None => json!({}),
        };
        let Some(mut changes) = diff(&before, &serde_json::to_value(&self.status)?) else {
            return Ok(run.clone());
        };
        if self.status.observed_generation != run.metadata.generation {
            changes["observedGeneration"] = json!(run.metadata.generation);
        }
        // With the UID: a later run of the same name is a different run.
        let patch = json!({ "metadata": { "uid": run.uid() }, "status": changes });
        context.metrics.count_write("AgentRun", "status");
        let (api, parameters, patch) = (api(run, context), patch_params(), Patch::Merge(&patch));
        let written = retry(|| api.patch_status(run.name(), &parameters, &patch)).await;
        let written = written.map_err(Error::api("write the status of", "AgentRun", run.name()))?;
        Ok(context.own_writes.remember(run.updated(written)))
    }
}

pub fn condition_is_true(run: &AgentRun, type_: &str) -> bool {
    let conditions = run.status.iter().flat_map(|status| &status.conditions);
    conditions.filter(|condition| condition.type_ == type_).any(|condition| condition.status == "True")
}

/// Adds our finalizer, so that the run cannot be deleted before it is torn down.
///
/// # Errors
///
/// When the API server rejects the request.
pub async fn add_finalizer(run: &StoredRun, context: &Context) -> Result<StoredRun, Error> {
    if run.finalizers().iter().any(|name| name == finalizer::RUN) {
        return Ok(run.clone());
    }
    let mut finalizers = run.finalizers().to_vec();
    finalizers.push(finalizer::RUN.to_owned());
    write_finalizers(run, finalizers, context).await
}

/// Removes our finalizer.
///
/// # Errors
///
/// When the API server rejects the request.
pub async fn remove_finalizer(run: &StoredRun, context: &Context) -> Result<(), Error> {
    if !run.finalizers().iter().any(|name| name == finalizer::RUN) {
        return Ok(());
    }
    let others = run.finalizers().iter().filter(|name| *name != finalizer::RUN);
    match write_finalizers(run, others.cloned().collect(), context).await {
        // The run was deleted with its last finalizer.
        Err(Error::Api { error, .. }) if is_not_found(&error) => Ok(()),
        written => written.map(drop),
    }
}

/// With the resource version: a concurrent change of the list by another client must not be overwritten.
async fn write_finalizers(run: &StoredRun, finalizers: Vec<String>, context: &Context) -> Result<StoredRun, Error> {
    let patch = json!({ "metadata": {
        "uid": run.uid(),
        "resourceVersion": run.resource_version(),
        "finalizers": finalizers,
    } });
    context.metrics.count_write("AgentRun", "patch");
    let (api, parameters, patch) = (api(run, context), patch_params(), Patch::Merge(&patch));
    // Once: a retry would conflict with the version that the first attempt created.
    let written = with_timeout(api.patch(run.name(), &parameters, &patch)).await;
    let written = written.map_err(Error::api("write the finalizers of", "AgentRun", run.name()))?;
    Ok(context.own_writes.remember(run.updated(written)))
}

fn api(run: &StoredRun, context: &Context) -> Api<AgentRun> {
    Api::namespaced(context.client.clone(), run.namespace())
}

/// The run as the API server has it now; `None` when it is gone.
///
/// # Errors
///
/// When the API server does not answer.
pub async fn refetch(run: &StoredRun, context: &Context) -> Result<Option<StoredRun>, Error> {
    let api = api(run, context);
    let found = retry(|| api.get_opt(run.name())).await;
    let found = found.map_err(Error::api("read", "AgentRun", run.name()))?;
    let same = found.filter(|found| found.metadata.uid.as_deref() == Some(run.uid()));
    Ok(same.map(|found| context.own_writes.remember(run.updated(found))))
}
