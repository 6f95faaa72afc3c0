//! Deletes finished runs that are older, or more per agent, than the settings allow.

use kube::api::{DeleteParams, Preconditions};
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt as _};
use sympozium_api::AgentRun;

use super::error::{Error, is_conflict, is_not_found};
use super::retry::retry;
use super::stored::StoredRun;
use crate::caches::is_torn_down;
use crate::conditions::elapsed_since;
use crate::context::Context;

/// Handles a run that is torn down: deletes it, or older runs of its agent, when it is time. A run is reconciled once
/// more when the watch delivers that it is torn down: before that it is not counted.
pub async fn prune(run: StoredRun, context: &Context) -> Result<Action, Error> {
    if !is_torn_down(&run) {
        return Ok(Action::await_change());
    }
    for old in excess_runs(&run, context) {
        delete(&old, context).await?;
    }
    let Some(keep) = context.settings.retention else {
        return Ok(Action::await_change());
    };
    let completed = run.status.as_ref().and_then(|status| status.completed_at.as_ref());
    let age = completed.map_or(keep, elapsed_since);
    if age >= keep {
        delete(&run, context).await?;
        return Ok(Action::await_change());
    }
    Ok(Action::requeue(keep - age))
}

/// The oldest finished runs of the same agent beyond the history limit.
fn excess_runs(run: &StoredRun, context: &Context) -> Vec<StoredRun> {
    let agent = run.spec.agent();
    let mut runs = context.caches.runs.state_filter(|other| {
        is_torn_down(other)
            && other.metadata.namespace.as_deref() == Some(run.namespace())
            && other.spec.agent() == agent
    });
    let most = context.settings.history_limit;
    if runs.len() <= most {
        return Vec::new();
    }
    runs.sort_by_key(|run| (run.creation_timestamp(), run.name_any()));
    runs.truncate(runs.len() - most);
    runs.into_iter().filter_map(StoredRun::new).collect()
}

async fn delete(run: &StoredRun, context: &Context) -> Result<(), Error> {
    let api: Api<AgentRun> = Api::namespaced(context.client.clone(), run.namespace());
    let parameters = DeleteParams {
        preconditions: Some(Preconditions { uid: Some(run.uid().to_owned()), resource_version: None }),
        ..DeleteParams::background()
    };
    context.metrics.count_write("AgentRun", "delete");
    match retry(|| api.delete(run.name(), &parameters)).await {
        Ok(_) => Ok(()),
        Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
        Err(error) => Err(Error::api("delete", "AgentRun", run.name())(error)),
    }
}
