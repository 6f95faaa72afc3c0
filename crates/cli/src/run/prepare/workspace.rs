//! The directory of `--workspace`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use sympozium_local::state::StateDirectory;

use crate::failure::Failure;
use crate::run::assemble::HostEnvironment;

/// Checks the directory and resolves its path: it must not contain, or be in, directories that decide about runs.
pub fn check(path: &Path, state: &StateDirectory, host: &HostEnvironment<'_>) -> Result<PathBuf, Failure> {
    let hint = "give --workspace a directory of the project that the agent works on";
    let workspace = fs::canonicalize(path).with_context(|| format!("cannot use {}", path.display()));
    let workspace = workspace.map_err(|error| Failure::new(error, hint))?;
    if !workspace.is_dir() {
        let error = anyhow!("{} is not a directory", workspace.display());
        return Err(Failure::new(error, hint));
    }
    let runs = state.runs_directory();
    let state = runs.parent().unwrap_or(&runs);
    for reserved in [Some(state), host.configuration.as_deref(), host.data.as_deref()].into_iter().flatten() {
        // A directory that does not exist yet has no other name.
        let reserved = fs::canonicalize(reserved).unwrap_or_else(|_| reserved.to_owned());
        let is_inside = workspace.starts_with(&reserved) && !is_run_workspace(&workspace, &reserved);
        if reserved.starts_with(&workspace) || is_inside {
            let error =
                anyhow!("the agent could write to {}, where secrets and rules of this machine are", reserved.display());
            return Err(Failure::new(error, hint));
        }
    }
    Ok(workspace)
}

/// Whether this is the workspace of an earlier run.
fn is_run_workspace(path: &Path, state: &Path) -> bool {
    let below: Vec<_> = path.strip_prefix(state).into_iter().flatten().collect();
    matches!(below.as_slice(), [runs, _, workspace, ..] if *runs == "runs" && *workspace == "workspace")
}
