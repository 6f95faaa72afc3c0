//! Removing runs of a cluster: deletes an AgentRun, with everything that it owns.

use std::time::{Duration, Instant};

use kube::api::{DeleteParams, Preconditions, PropagationPolicy};
use sympozium_runs::{HintedError, Removal, RunRef};

use super::Connection;
use super::call_error::Role;

/// How long to wait for the deletion: the run's grants are revoked first.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Deletes a run, and waits for a bounded time until it is gone.
pub async fn delete_and_wait(connection: &Connection, run: &RunRef) -> Result<Removal, HintedError> {
    let api = connection.runs();
    // Delete no other run of the same name, and all that this one owns.
    let parameters = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        preconditions: Some(Preconditions { uid: Some(run.uid.clone()), resource_version: None }),
        ..DeleteParams::default()
    };
    let deleted = api.delete(&run.name, &parameters);
    let operation = format!("delete AgentRun {}", run.display_name());
    connection.call(&operation, Role::Runner, deleted).await?;
    let deadline = Instant::now() + REMOVAL_TIMEOUT;
    loop {
        let current = api.get_opt(&run.name);
        let current = connection.call(&operation, Role::Viewer, current).await?;
        if current.is_none_or(|found| found.metadata.uid.as_deref() != Some(&run.uid)) {
            return Ok(Removal::Done);
        }
        if Instant::now() >= deadline {
            return Ok(Removal::Pending);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
