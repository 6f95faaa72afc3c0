//! Plans as files: every `*.json` in a directory is the plan of an active run.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use rustix::fs::{Mode, OFlags};
use sympozium_api::RunPlan;
use sympozium_api::run_plan::MAX_BYTES;

use super::Plans;
use crate::settings::MAX_RUNS;

#[derive(Debug, Default)]
pub struct LoadResult {
    /// Number of active runs.
    pub active: usize,
    /// Runs that were active before, and have ended.
    pub ended: Vec<String>,
    /// Invalid files, with their errors.
    pub invalid: Vec<(PathBuf, anyhow::Error)>,
}

/// Makes the runs of a directory the active ones. A run whose file is gone or is no valid plan any more has ended:
/// without its plan, nothing can be checked.
///
/// # Errors
///
/// Returns an error if the directory cannot be listed, or has too many files. Then nothing has changed.
pub fn load_directory(plans: &Plans, directory: &Path) -> anyhow::Result<LoadResult> {
    let mut loaded = LoadResult::default();
    let mut present = BTreeSet::new();
    for path in list_files(directory).with_context(|| format!("listing {}", directory.display()))? {
        let read = read_plan(&path).and_then(|plan| {
            plans.add(&plan)?;
            Ok(plan.run.uid.as_str().to_owned())
        });
        match read {
            Ok(uid) => drop(present.insert(uid)),
            Err(error) => loaded.invalid.push((path, error)),
        }
    }
    for uid in plans.active_uids() {
        if !present.contains(&uid) {
            plans.end(&uid);
            loaded.ended.push(uid);
        }
    }
    loaded.active = plans.active_uids().len();
    Ok(loaded)
}

fn list_files(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            ensure!(files.len() < MAX_RUNS, "it has more than {MAX_RUNS} plans");
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read_plan(path: &Path) -> anyhow::Result<RunPlan> {
    // Does not block on a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?);
    ensure!(file.metadata()?.is_file(), "it is not a regular file");
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(RunPlan::read(&bytes)?)
}
