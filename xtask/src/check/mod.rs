//! `check`: what the compiler and clippy do not see. All problems are reported at once.

mod dockerfiles;
mod edges;
mod features;
mod files;
mod identifiers;
mod links;
mod words;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::output::{line, note};
use crate::process::{command, output, workspace_root};

/// A file of the project, as text.
pub struct Source {
    /// Relative to the root.
    pub path: String,
    pub text: String,
}

pub fn run() -> anyhow::Result<()> {
    let sources = sources()?;
    let mut problems = edges::check()?;
    problems.extend(features::check()?);
    problems.extend(crate::docs::check()?);
    problems.extend(crate::crds::check()?);
    problems.extend(crate::install::check()?);
    problems.extend(identifiers::check(&sources));
    for source in &sources {
        problems.extend(files::check(source));
        problems.extend(words::check(source));
        problems.extend(dockerfiles::check(source, exists, syntax_error));
        problems.extend(links::check(source, exists));
    }
    for problem in &problems {
        note(&format!("check: {problem}"));
    }
    if !problems.is_empty() {
        bail!("{} problems", problems.len());
    }
    line(&format!("checked {} files and the dependency edges: nothing wrong", sources.len()));
    Ok(())
}

/// Whether the project has this path.
fn exists(path: &Path) -> bool {
    workspace_root().join(path).exists()
}

/// What the shell says about a script that it cannot read, without running it.
fn syntax_error(script: &str) -> Option<String> {
    let result = command("sh").args(["-n", "-c", script]).output();
    match result {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("starting sh: {error}")),
    }
}

/// The files that git tracks, and those that it would: a problem should show before the commit.
fn sources() -> anyhow::Result<Vec<Source>> {
    let listed = output(command("git").args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]))
        .context("listing the project's files")?;
    let paths = listed.split('\0').filter(|path| !path.is_empty());
    Ok(paths.filter_map(read).collect())
}

/// `None` for what is no text, or deleted but not yet committed.
fn read(path: &str) -> Option<Source> {
    let text = fs::read(Path::new(workspace_root()).join(path)).ok()?;
    Some(Source { path: path.to_owned(), text: String::from_utf8(text).ok()? })
}
