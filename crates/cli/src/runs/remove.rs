//! `sympozium rm`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};

use super::arguments::RmArguments;
use super::view::short;
use crate::cluster::{self, Cluster};
use crate::failure::Failure;
use crate::local::control::{Client, How};
use crate::local::record::RunRecord;
use crate::local::remove::remove_tree;
use crate::local::state::{RunDirectory, RunLock, State};
use crate::manifests::problem::printable;
use crate::output::answer;

/// Time for a run to end by itself; then to be killed.
const GENTLY: Duration = Duration::from_secs(30);
const NOW: Duration = Duration::from_secs(30);
/// Time for other processes to finish reading a run that has ended, and release its lock.
const A_MOMENT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);

pub fn rm(arguments: &RmArguments) -> Result<ExitCode, Failure> {
    if let Some(cluster) = Cluster::chosen(&arguments.cluster)? {
        return cluster::remove::rm(&cluster, arguments);
    }
    let state = State::open()?;
    // All are resolved before one is removed, so that a mistyped name removes nothing.
    let mut runs: Vec<(RunDirectory, RunRecord)> = Vec::new();
    for wanted in &arguments.runs {
        let found = state.find(wanted)?;
        if runs.iter().all(|(directory, _)| *directory != found.0) {
            runs.push(found);
        }
    }
    if !arguments.force
        && let Some((_, record)) = runs.iter().find(|(directory, _)| directory.is_alive())
    {
        return Err(Failure::new(
            anyhow!("{} goes on; nothing was removed", named(record)),
            "wait for it, or use --force to end it first",
        ));
    }
    for (directory, record) in &runs {
        let name = named(record);
        ended(directory, arguments.force)
            .and_then(|lock| removed(directory, lock))
            .with_context(|| format!("{name} is not removed"))
            .map_err(|error| Failure::new(error, "`sympozium show` says what is known about it"))?;
        answer(&format!("removed {name}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes everything of a run, under its lock. After an error it can be repeated.
pub fn removed(directory: &RunDirectory, lock: RunLock) -> anyhow::Result<()> {
    remove_tree(directory.path())?;
    // Held until nothing is left that another process could take for a run.
    drop(lock);
    Ok(())
}

/// The run as messages name it.
pub fn named(record: &RunRecord) -> String {
    format!("{} ({})", printable(&record.name), short(&printable(&record.uid)))
}

/// Takes the lock of a run that has ended; with `force`, ends the run first.
fn ended(directory: &RunDirectory, force: bool) -> anyhow::Result<RunLock> {
    let patience = match force {
        true => Duration::ZERO,
        false => A_MOMENT,
    };
    if let Some(lock) = locked_within(directory, patience)? {
        return Ok(lock);
    }
    if !force {
        bail!("it goes on");
    }
    for (how, deadline) in [(How::Gently, GENTLY), (How::Now, NOW)] {
        let client = Client::connect(directory)?;
        if let Some(client) = client {
            client.stop(how)?;
        }
        if let Some(lock) = locked_within(directory, deadline)? {
            return Ok(lock);
        }
    }
    bail!("it was told to end, and has not")
}

/// Waits for the lock.
fn locked_within(directory: &RunDirectory, deadline: Duration) -> anyhow::Result<Option<RunLock>> {
    let until = Instant::now() + deadline;
    loop {
        match directory.lock()? {
            Some(lock) => return Ok(Some(lock)),
            None if Instant::now() >= until => return Ok(None),
            None => std::thread::sleep(PAUSE),
        }
    }
}
