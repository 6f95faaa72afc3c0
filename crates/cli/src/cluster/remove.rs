//! `sympozium rm` in a cluster: deletes AgentRuns, with everything that they own.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use kube::api::{DeleteParams, Preconditions, PropagationPolicy};
use sympozium_api::text::printable;

use super::call_error::Role;
use super::{Cluster, Connection, FoundRun, view};
use crate::failure::Failure;
use crate::output::{print_stderr, print_stdout};
use crate::runs::arguments::RmArguments;
use crate::runs::view::short_uid;

/// How long to wait for the deletion: the run's grants are revoked first.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(250);

///
/// # Errors
///
/// When one does not exist, is not terminal, or cannot be deleted.
pub fn rm(cluster: &Cluster, arguments: &RmArguments) -> Result<ExitCode, Failure> {
    // Find all before one is deleted, so that a mistyped name deletes nothing.
    let mut runs: Vec<FoundRun> = Vec::new();
    for wanted in &arguments.runs {
        let found = cluster.find(wanted)?;
        if runs.iter().all(|it| it.uid != found.uid) {
            runs.push(found);
        }
    }
    let goes_on = |it: &&FoundRun| view::run_end(&it.run).is_none();
    if !arguments.force
        && let Some(found) = runs.iter().find(goes_on)
    {
        return Err(Failure::new(
            anyhow!("{} goes on; nothing was removed", display_name(found)),
            "wait for it, or use --force to end it first",
        ));
    }
    for found in &runs {
        match cluster.block_on(delete_and_wait(&cluster.connection, found))? {
            true => print_stdout(&format!("removed {}\n", display_name(found)))?,
            false => {
                print_stdout(&format!("removing {}\n", display_name(found)))?;
                let place = cluster.connection.target.as_str();
                print_stderr(&format!("it takes its time; `sympozium runs{place}` shows when it is gone"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A run's name and short UID, for messages.
pub fn display_name(found: &FoundRun) -> String {
    format!("{} ({})", printable(&found.name), short_uid(&printable(&found.uid)))
}

/// Deletes a run and waits; says whether it is gone or still being deleted.
async fn delete_and_wait(connection: &Connection, found: &FoundRun) -> Result<bool, Failure> {
    let api = connection.runs();
    // Delete no other run of the same name, and all that this one owns.
    let parameters = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        preconditions: Some(Preconditions { uid: Some(found.uid.clone()), resource_version: None }),
        ..DeleteParams::default()
    };
    let deleted = api.delete(&found.name, &parameters);
    let doing = format!("remove {}", display_name(found));
    connection.call(&doing, Role::Runner, deleted).await?;
    let until = Instant::now() + REMOVAL_TIMEOUT;
    loop {
        let there = api.get_opt(&found.name);
        let there = connection.call(&doing, Role::Viewer, there).await?;
        let is_gone = there.is_none_or(|it| it.metadata.uid.as_deref() != Some(&found.uid));
        if is_gone || Instant::now() >= until {
            return Ok(is_gone);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
