//! Removes what killed processes left behind: `live/` and the control socket of runs that no process realises any more,
//! and their empty control groups.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use uuid::Uuid;

use crate::remove::remove_tree;
use crate::state::{MAX_RUNS, RunDirectory, StateDirectory};

/// The minimum age of a directory without a lock file: a younger one may belong to a run that is just starting.
const ABANDONED_AGE: Duration = Duration::from_secs(3600);
/// Failures that are reported.
const MAX_FAILURES: usize = 16;

/// What was removed. Fields are those of the JSON output of `prune`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SweepReport {
    /// Runs whose `live` directory was removed.
    pub live: usize,
    /// Stale sockets.
    pub sockets: usize,
    /// What could not be removed, and why.
    pub failed: Vec<String>,
}

/// Whether anything is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalMode {
    Remove,
    /// Only count what would be removed.
    DryRun,
}

/// Removes `live/` and socket of every run that no process realises, and stale control groups. Each run is swept under
/// its lock, so that a running one is never touched; no link is followed. Failures for single runs are in the returned
/// report.
pub fn sweep(state: &StateDirectory) -> anyhow::Result<SweepReport> {
    // Control groups are matched by their names. They are empty and belong to no directory, so they are not counted
    // here; where none can be listed, none was created.
    let _ = sympozium_exec::cgroup::sweep_stale();
    sweep_runs(state, RemovalMode::Remove)
}

/// Sweeps the directories of runs, but no control groups; a dry run only counts.
pub fn sweep_runs(state: &StateDirectory, mode: RemovalMode) -> anyhow::Result<SweepReport> {
    let mut swept = SweepReport::default();
    for directory in list_run_directories(state)? {
        if let Err(error) = sweep_run(&directory, mode, &mut swept)
            && swept.failed.len() < MAX_FAILURES
        {
            swept.failed.push(format!("{error:#}"));
        }
    }
    Ok(swept)
}

/// Lists the directories whose name is a UID, with or without a record.
pub fn list_run_directories(state: &StateDirectory) -> anyhow::Result<Vec<RunDirectory>> {
    let runs = state.runs_directory();
    let entries = fs::read_dir(&runs).with_context(|| format!("cannot read {}", runs.display()))?;
    let mut found = Vec::new();
    for entry in entries.take(MAX_RUNS).flatten() {
        // Links are skipped.
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let name = entry.file_name();
        let uid = name.to_str().filter(|name| Uuid::try_parse(name).is_ok());
        if let (true, Some(uid)) = (is_directory, uid) {
            found.push(state.run_directory(uid));
        }
    }
    Ok(found)
}

/// Whether a directory without a lock file is too old to belong to a run that is just starting.
pub fn is_abandoned(directory: &RunDirectory) -> bool {
    let modified = fs::symlink_metadata(directory.path()).and_then(|it| it.modified());
    modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > ABANDONED_AGE))
}

fn sweep_run(directory: &RunDirectory, mode: RemovalMode, swept: &mut SweepReport) -> anyhow::Result<()> {
    let is_there = |path: &Path| fs::symlink_metadata(path).is_ok();
    let (live, socket) = (directory.live_directory(), directory.control_socket());
    // Most runs are torn down already, and cost two lookups.
    if !is_there(&live) && !is_there(&socket) {
        return Ok(());
    }
    if !is_there(&directory.join("lock")) && !is_abandoned(directory) {
        return Ok(());
    }
    let Some(_lock) = directory.try_lock()? else {
        return Ok(());
    };
    if is_there(&live) {
        if mode == RemovalMode::Remove {
            remove_tree(&live)?;
        }
        swept.live += 1;
    }
    if is_there(&socket) {
        if mode == RemovalMode::Remove {
            fs::remove_file(&socket).with_context(|| format!("cannot remove {}", socket.display()))?;
        }
        swept.sockets += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    const DEAD: &str = "00000000-0000-4000-8000-000000000001";
    const ALIVE: &str = "00000000-0000-4000-8000-000000000002";
    const BEGINNING: &str = "00000000-0000-4000-8000-000000000003";
    const LINKED: &str = "00000000-0000-4000-8000-000000000004";

    fn made(state: &StateDirectory, uid: &str) -> (RunDirectory, crate::state::RunLock) {
        let directory = state.run_directory(uid);
        let lock = directory.create().unwrap();
        fs::create_dir_all(directory.live_directory().join("a/b")).unwrap();
        drop(UnixListener::bind(directory.control_socket()).unwrap());
        (directory, lock)
    }

    #[test]
    fn only_leftovers_of_killed_runs_are_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let state = StateDirectory::open_at(temporary.path().join("s")).unwrap();
        let (dead, lock) = made(&state, DEAD);
        drop(lock);
        let (alive, _lock) = made(&state, ALIVE);
        // Without a lock file yet.
        let beginning = state.run_directory(BEGINNING);
        fs::create_dir_all(beginning.live_directory()).unwrap();
        // A link with the name of a run.
        let outside = temporary.path().join("outside");
        fs::create_dir_all(outside.join("live")).unwrap();
        fs::write(outside.join("lock"), "").unwrap();
        symlink(&outside, state.run_directory(LINKED).path()).unwrap();
        fs::create_dir_all(state.runs_directory().join("other/live")).unwrap();

        let counted = sweep_runs(&state, RemovalMode::DryRun).unwrap();
        assert!(dead.live_directory().exists());
        let swept = sweep(&state).unwrap();
        let expected = SweepReport { live: 1, sockets: 1, failed: Vec::new() };
        assert_eq!((&counted, &swept), (&expected, &expected));
        assert!(!dead.live_directory().exists() && !dead.control_socket().exists() && dead.logs_directory().exists());
        assert!(alive.live_directory().join("a/b").exists() && alive.control_socket().exists());
        assert!(beginning.live_directory().exists());
        assert!(outside.join("live").exists());
        assert!(state.runs_directory().join("other/live").exists());
        assert_eq!(sweep(&state).unwrap(), SweepReport::default());
    }

    #[test]
    fn a_live_directory_that_is_a_link_is_not_followed() {
        let temporary = tempfile::tempdir().unwrap();
        let state = StateDirectory::open_at(temporary.path().join("s")).unwrap();
        let directory = state.run_directory(DEAD);
        drop(directory.create().unwrap());
        fs::remove_dir(directory.live_directory()).unwrap();
        let outside = temporary.path().join("outside");
        fs::create_dir_all(outside.join("kept")).unwrap();
        symlink(&outside, directory.live_directory()).unwrap();
        assert_eq!(sweep(&state).unwrap().live, 1);
        assert!(fs::symlink_metadata(directory.live_directory()).is_err());
        assert!(outside.join("kept").exists());
    }
}
