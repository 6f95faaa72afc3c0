//! `sympozium prune`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use sympozium_api::text::printable;

use super::arguments::PruneArguments;
use crate::arguments::OutputFormat;
use crate::failure::{FAILED, Failure};
use crate::output::{print_stderr, print_stdout, to_json};
use sympozium_local::state::{RunDirectory, StateDirectory};
use sympozium_local::store::remove_run;
use sympozium_local::sweep::{RemovalMode, SweepReport, is_abandoned, list_run_directories, sweep_runs};
use sympozium_runs::short_uid;
use sympozium_runs::time::now_ms;

/// The JSON output: what was removed, or would be. Fields may be added; none changes its meaning.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PruneReport {
    dry_run: bool,
    runs: Vec<PrunedRun>,
    /// What killed processes left behind.
    leftovers: SweepReport,
    /// Control groups that killed processes left behind. Not counted in a dry run.
    control_groups: usize,
    failed: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PrunedRun {
    uid: String,
    /// Absent if the record cannot be read.
    name: Option<String>,
    ended_ms: Option<u64>,
    directory: PathBuf,
}

pub fn prune(arguments: &PruneArguments) -> Result<ExitCode, Failure> {
    let hint = "check that the directory is readable, or set SYMPOZIUM_STATE to another directory";
    let failed = |error| Failure::new(error, hint);
    let state = StateDirectory::open()?;
    let mode = match arguments.dry_run {
        true => RemovalMode::DryRun,
        false => RemovalMode::Remove,
    };
    let leftovers = sweep_runs(&state, mode).map_err(failed)?;
    let control_groups = match mode {
        RemovalMode::DryRun => 0,
        // On a machine without control groups, none can be left.
        RemovalMode::Remove => sympozium_exec::cgroup::sweep_stale().unwrap_or(0),
    };
    let mut pruned = PruneReport {
        dry_run: arguments.dry_run,
        runs: Vec::new(),
        failed: leftovers.failed.clone(),
        leftovers,
        control_groups,
    };
    for directory in list_run_directories(&state).map_err(failed)? {
        prune_run(&directory, arguments.older_than.0, mode, &mut pruned);
    }
    pruned.runs.sort_by(|a, b| (a.ended_ms, &a.uid).cmp(&(b.ended_ms, &b.uid)));
    match arguments.output {
        OutputFormat::Json => print_stdout(&to_json(&pruned)?)?,
        OutputFormat::Text => print_stdout(&format_report(&pruned))?,
    }
    for failed in &pruned.failed {
        print_stderr(&format!("error: {}", printable(failed)));
    }
    Ok(match pruned.failed.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(FAILED),
    })
}

/// Removes one run, if it has ended and is old enough.
fn prune_run(directory: &RunDirectory, older_than: Duration, mode: RemovalMode, pruned: &mut PruneReport) {
    let has_lock = std::fs::symlink_metadata(directory.join("lock")).is_ok();
    if !has_lock && !is_abandoned(directory) {
        // The directory may belong to a run that is just starting.
        return;
    }
    let lock = match directory.try_lock() {
        Ok(Some(lock)) => lock,
        Ok(None) => return,
        Err(error) => return pruned.failed.push(format!("{error:#}")),
    };
    // Under the lock, so that it no longer changes.
    let record = directory.read_record().ok();
    let ended_ms = match &record {
        Some(record) => record.ended_ms.or_else(|| modified_ms(&directory.join("run.json"))),
        // A run that is just starting may not have written it yet.
        None if !is_abandoned(directory) => return,
        None => modified_ms(directory.path()),
    };
    let age = now_ms().saturating_sub(ended_ms.unwrap_or(0));
    if u128::from(age) < older_than.as_millis() {
        return;
    }
    let path = directory.path().to_owned();
    let run = PrunedRun {
        uid: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        name: record.map(|record| record.name),
        ended_ms,
        directory: path,
    };
    if mode == RemovalMode::Remove
        && let Err(error) = remove_run(directory, lock)
    {
        return pruned.failed.push(format!("{error:#}"));
    }
    pruned.runs.push(run);
}

/// When a file was last written, in milliseconds since 1970.
fn modified_ms(path: &std::path::Path) -> Option<u64> {
    let modified = std::fs::symlink_metadata(path).and_then(|it| it.modified()).ok()?;
    let since = modified.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

fn format_report(pruned: &PruneReport) -> String {
    let verb = if pruned.dry_run { "would remove" } else { "removed" };
    let mut text = String::new();
    for run in &pruned.runs {
        let name = run.name.as_deref().unwrap_or("a run without a record");
        let line = format!("{verb} {} ({})\n", printable(name), short_uid(&run.uid));
        text.push_str(&line);
    }
    let SweepReport { live, sockets, .. } = pruned.leftovers;
    let counted = [
        (live, "directory of a killed run", "directories of killed runs"),
        (sockets, "stale socket", "stale sockets"),
        (pruned.control_groups, "stale control group", "stale control groups"),
    ];
    for (count, one, several) in counted {
        match count {
            0 => {}
            1 => text.push_str(&format!("{verb} 1 {one}\n")),
            _ => text.push_str(&format!("{verb} {count} {several}\n")),
        }
    }
    if text.is_empty() {
        text.push_str("nothing to remove\n");
    }
    text
}
