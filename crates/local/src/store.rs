//! The runs of this machine as a [`RunStore`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use sympozium_api::text::printable;
use sympozium_gateway::run_api::local::files;
use sympozium_runs::{
    Cancellation, HintedError, Listed, LogError, LogRequest, LogSink, PendingQuestion, Removal, RunDetails, RunRef,
    RunStore, RunView, StoredReceipts, TargetFlags, VoteChoice, VoteResult, display_name, state_label,
};

use crate::control::{Client, StopMode};
use crate::record::LocalRunRecord;
use crate::remove::remove_tree;
use crate::state::{RunDirectory, RunLock, StateDirectory};
use crate::sweep::{list_run_directories, sweep};
use crate::{logs, receipts};

/// Time for a run to end by itself; then to be killed.
const GRACEFUL_TIMEOUT: Duration = Duration::from_secs(30);
const KILL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for other processes to finish reading a run that has ended, and release its lock.
const READERS_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

impl RunStore for StateDirectory {
    fn target(&self) -> TargetFlags {
        TargetFlags::local()
    }

    fn list(&self, limit: Option<usize>) -> Result<Listed<RunView>, HintedError> {
        let failed = |error| {
            HintedError::new(error, "check that the directory is readable, or set SYMPOZIUM_STATE to another directory")
        };
        let swept = sweep(self).map_err(failed)?;
        let mut warnings: Vec<String> = swept.failed.iter().map(|failure| format!("warning: {failure}")).collect();
        let runs = self.list_runs().map_err(failed)?;
        let limit = limit.unwrap_or(usize::MAX);
        let items: Vec<RunView> =
            runs.iter().take(limit).map(|(directory, record)| to_view(directory, record)).collect();
        let readable: BTreeSet<&Path> = runs.iter().map(|(directory, _)| directory.path()).collect();
        let unreadable = (list_run_directories(self).map_err(failed)?.iter())
            .filter(|directory| !readable.contains(directory.path()) && !directory.is_running())
            .count();
        if unreadable > 0 {
            warnings.push(format!(
                "{unreadable} more in {} have no record that this release can read; `sympozium prune` removes them when they are old",
                self.runs_directory().display()
            ));
        }
        Ok(Listed { omitted: runs.len() - items.len(), items, warnings })
    }

    fn find(&self, run: &str) -> Result<RunRef, HintedError> {
        let (directory, record) = self.find_run(run)?;
        Ok(RunRef { name: record.name, uid: record.uid, is_running: directory.is_running() })
    }

    fn show(&self, run: &str) -> Result<RunDetails, HintedError> {
        let (directory, record) = self.find_run(run)?;
        let view = to_view(&directory, &record);
        // A run that does not answer is shown without questions.
        let questions = match Client::connect(&directory) {
            Ok(Some(client)) if view.alive => client.questions().unwrap_or_default(),
            _ => Vec::new(),
        };
        let outcome = directory.run_end(&record);
        let LocalRunRecord { task, origins, plan, pid, isolation, leftovers, .. } = record;
        Ok(RunDetails {
            view,
            task,
            plan: Some(plan),
            origins,
            pid: Some(pid),
            pod: None,
            waits_for: Vec::new(),
            outcome,
            isolation,
            leftovers,
            files: existing_files(&directory),
            questions,
        })
    }

    fn read_log(&self, run: &str, request: LogRequest<'_>, sink: &mut dyn LogSink) -> Result<(), LogError> {
        let (directory, record) = self.find_run(run)?;
        match request.part {
            Some(part) => logs::read_part_log(&directory, part, request.follow, sink),
            None => logs::read_run_log(&directory, &record, request.follow, sink),
        }
    }

    fn receipts(&self, run: &str) -> Result<Box<dyn StoredReceipts>, HintedError> {
        let (directory, record) = self.find_run(run)?;
        Ok(Box::new(receipts::LocalReceipts { directory, record }))
    }

    fn runs_with_receipts(&self) -> Result<Vec<String>, HintedError> {
        let runs = self.list_runs().map_err(|error| HintedError::new(error, "check that the directory is readable"))?;
        Ok(runs.into_iter().map(|(_, record)| record.uid).collect())
    }

    fn cancel(&self, run: &str) -> Result<Cancellation, HintedError> {
        let (directory, record) = self.find_run(run)?;
        let name = display_name(&record.name, &record.uid);
        let failed = |error| HintedError::new(error, "`sympozium show` prints the state of the run");
        if let Some(end) = directory.run_end(&record) {
            return Ok(Cancellation::AlreadyEnded { name, end: end.as_str() });
        }
        let Some(client) = Client::connect(&directory).map_err(failed)? else {
            let error = anyhow!("{name} is starting or ending, and does not accept requests");
            return Err(HintedError::new(error, "try again in a few seconds"));
        };
        client.stop(StopMode::Gently).map_err(failed)?;
        Ok(Cancellation::Requested { name })
    }

    fn remove(&self, run: &RunRef, force: bool) -> Result<Removal, HintedError> {
        let (directory, _) = self.find_run(&run.uid)?;
        end_and_lock(&directory, force)
            .and_then(|lock| remove_run(&directory, lock))
            .with_context(|| format!("{} was not removed", run.display_name()))
            .map_err(|error| HintedError::new(error, "`sympozium show` prints the state of the run"))?;
        Ok(Removal::Done)
    }

    /// A run that does not respond is skipped with a warning.
    fn questions(&self) -> Result<Listed<PendingQuestion>, HintedError> {
        let runs = self.list_runs().map_err(|error| HintedError::new(error, "check that the directory is readable"))?;
        let (mut items, mut warnings) = (Vec::new(), Vec::new());
        for (directory, run) in runs {
            if run.outcome.is_some() || !directory.is_running() {
                continue;
            }
            let questions = match Client::connect(&directory) {
                Ok(Some(client)) => client.questions(),
                // The run has not opened its socket yet, or has just ended.
                Ok(None) => continue,
                Err(error) => Err(error),
            };
            match questions {
                Ok(questions) => items.extend(questions.into_iter().map(|question| PendingQuestion {
                    run: run.name.clone(),
                    uid: run.uid.clone(),
                    key: question.approval.clone(),
                    question,
                })),
                Err(error) => warnings.push(format!(
                    "warning: cannot read the questions of {}: {}",
                    printable(&run.name),
                    printable(format!("{error:#}"))
                )),
            }
        }
        Ok(Listed { items, omitted: 0, warnings })
    }

    fn vote(&self, question: &PendingQuestion, vote: VoteChoice, reason: Option<&str>) -> anyhow::Result<VoteResult> {
        let ended = || Ok(VoteResult::Refused("the run has ended".to_owned()));
        let Ok((directory, _)) = self.find_run(&question.uid) else {
            return ended();
        };
        match Client::connect(&directory)? {
            Some(client) => client.vote(&question.key, &question.question.action, vote, reason),
            None => ended(),
        }
    }
}

fn to_view(directory: &RunDirectory, record: &LocalRunRecord) -> RunView {
    let outcome = directory.run_end(record);
    RunView {
        name: record.name.clone(),
        uid: record.uid.clone(),
        namespace: record.namespace.clone(),
        agent: record.agent.clone(),
        model: record.model.clone(),
        skills: record.skills.clone(),
        state: state_label(record.phase, outcome.as_ref()),
        alive: outcome.is_none(),
        started_ms: record.started_ms,
        ended_ms: record.ended_ms,
        usage: record.usage,
        cost: record.cost.clone(),
        workspace: record.workspace.clone(),
        directory: Some(directory.path().to_owned()),
        target: TargetFlags::local(),
    }
}

/// The stored files that exist.
fn existing_files(directory: &RunDirectory) -> BTreeMap<&'static str, PathBuf> {
    let all = [
        ("plan", directory.join("plan.json")),
        ("receipts", directory.join(files::RECEIPTS)),
        ("transcript", directory.join(files::TRANSCRIPT)),
        ("report", directory.join(files::REPORT)),
        ("logs", directory.logs_directory()),
    ];
    let exists = |path: &Path| std::fs::symlink_metadata(path).is_ok();
    all.into_iter().filter(|(_, path)| exists(path)).collect()
}

/// Removes everything of a run, under its lock. After an error it can be repeated.
pub fn remove_run(directory: &RunDirectory, lock: RunLock) -> anyhow::Result<()> {
    remove_tree(directory.path())?;
    // Held until nothing is left that another process could take for a run.
    drop(lock);
    Ok(())
}

/// Takes the lock of a run that has ended; with `force`, ends the run first.
fn end_and_lock(directory: &RunDirectory, force: bool) -> anyhow::Result<RunLock> {
    let timeout = if force { Duration::ZERO } else { READERS_TIMEOUT };
    if let Some(lock) = lock_within(directory, timeout)? {
        return Ok(lock);
    }
    if !force {
        bail!("it is still running");
    }
    for (how, timeout) in [(StopMode::Gently, GRACEFUL_TIMEOUT), (StopMode::Now, KILL_TIMEOUT)] {
        if let Some(client) = Client::connect(directory)? {
            client.stop(how)?;
        }
        if let Some(lock) = lock_within(directory, timeout)? {
            return Ok(lock);
        }
    }
    bail!("it was asked to end and then killed, and is still running")
}

/// Waits for the lock.
fn lock_within(directory: &RunDirectory, timeout: Duration) -> anyhow::Result<Option<RunLock>> {
    let deadline = Instant::now() + timeout;
    loop {
        match directory.try_lock()? {
            Some(lock) => return Ok(Some(lock)),
            None if Instant::now() >= deadline => return Ok(None),
            None => std::thread::sleep(POLL_INTERVAL),
        }
    }
}
