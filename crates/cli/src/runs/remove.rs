//! `sympozium rm`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use sympozium_api::text::printable;

use super::arguments::RmArguments;
use super::view::short_uid;
use crate::cluster::{self, Cluster};
use crate::failure::Failure;
use crate::output::print_stdout;
use sympozium_local::control::{Client, StopMode};
use sympozium_local::record::LocalRunRecord;
use sympozium_local::remove::remove_tree;
use sympozium_local::state::{RunDirectory, RunLock, StateDirectory};

/// Time for a run to end by itself; then to be killed.
const GRACEFUL_TIMEOUT: Duration = Duration::from_secs(30);
const KILL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for other processes to finish reading a run that has ended, and release its lock.
const READERS_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub fn rm(arguments: &RmArguments) -> Result<ExitCode, Failure> {
    if let Some(cluster) = Cluster::select(&arguments.cluster)? {
        return cluster::remove::rm(&cluster, arguments);
    }
    let state = StateDirectory::open()?;
    // All are resolved before one is removed, so that a mistyped name removes nothing.
    let mut runs: Vec<(RunDirectory, LocalRunRecord)> = Vec::new();
    for wanted in &arguments.runs {
        let found = state.find_run(wanted)?;
        if runs.iter().all(|(directory, _)| *directory != found.0) {
            runs.push(found);
        }
    }
    if !arguments.force
        && let Some((_, record)) = runs.iter().find(|(directory, _)| directory.is_running())
    {
        return Err(Failure::new(
            anyhow!("{} goes on; nothing was removed", display_name(record)),
            "wait for it, or use --force to end it first",
        ));
    }
    for (directory, record) in &runs {
        let name = display_name(record);
        end_and_lock(directory, arguments.force)
            .and_then(|lock| remove_run(directory, lock))
            .with_context(|| format!("{name} is not removed"))
            .map_err(|error| Failure::new(error, "`sympozium show` says what is known about it"))?;
        print_stdout(&format!("removed {name}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes everything of a run, under its lock. After an error it can be repeated.
pub fn remove_run(directory: &RunDirectory, lock: RunLock) -> anyhow::Result<()> {
    remove_tree(directory.path())?;
    // Held until nothing is left that another process could take for a run.
    drop(lock);
    Ok(())
}

/// The run as messages name it.
pub fn display_name(record: &LocalRunRecord) -> String {
    format!("{} ({})", printable(&record.name), short_uid(&printable(&record.uid)))
}

/// Takes the lock of a run that has ended; with `force`, ends the run first.
fn end_and_lock(directory: &RunDirectory, force: bool) -> anyhow::Result<RunLock> {
    let patience = match force {
        true => Duration::ZERO,
        false => READERS_TIMEOUT,
    };
    if let Some(lock) = lock_within(directory, patience)? {
        return Ok(lock);
    }
    if !force {
        bail!("it goes on");
    }
    for (how, deadline) in [(StopMode::Gently, GRACEFUL_TIMEOUT), (StopMode::Now, KILL_TIMEOUT)] {
        let client = Client::connect(directory)?;
        if let Some(client) = client {
            client.stop(how)?;
        }
        if let Some(lock) = lock_within(directory, deadline)? {
            return Ok(lock);
        }
    }
    bail!("it was told to end, and has not")
}

/// Waits for the lock.
fn lock_within(directory: &RunDirectory, deadline: Duration) -> anyhow::Result<Option<RunLock>> {
    let until = Instant::now() + deadline;
    loop {
        match directory.try_lock()? {
            Some(lock) => return Ok(Some(lock)),
            None if Instant::now() >= until => return Ok(None),
            None => std::thread::sleep(POLL_INTERVAL),
        }
    }
}
