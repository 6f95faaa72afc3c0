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

/// How long a run has to end by itself, and then to be killed.
const GENTLY: Duration = Duration::from_secs(30);
const NOW: Duration = Duration::from_secs(30);
/// How long somebody may look at a run that is over.
const A_MOMENT: Duration = Duration::from_secs(1);
/// How often it is tried whether it has ended.
const PAUSE: Duration = Duration::from_millis(50);

/// Removes runs.
pub fn rm(arguments: &RmArguments) -> Result<ExitCode, Failure> {
    if let Some(cluster) = Cluster::chosen(&arguments.cluster)? {
        return cluster::remove::rm(&cluster, arguments);
    }
    let state = State::open()?;
    // All are found before one is removed, so that a mistyped name removes nothing.
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

/// Removes everything of a run, under its lock.
///
/// # Errors
///
/// When something stays. Then it may be tried again.
pub fn removed(directory: &RunDirectory, lock: RunLock) -> anyhow::Result<()> {
    remove_tree(directory.path())?;
    // Until nothing is there that somebody else could take for a run.
    drop(lock);
    Ok(())
}

/// How a run is called here.
pub fn named(record: &RunRecord) -> String {
    format!("{} ({})", printable(&record.name), short(&printable(&record.uid)))
}

/// The lock of a run that has ended, or is ended now.
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

/// The lock, once nobody holds it.
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
