//! `quick`: what is worth knowing after every small change, without a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::report::{Report, Step};
use super::table::Table;
use super::totals::Totals;
use crate::launch::Role;
use crate::output::note;
use crate::process::{Output, cargo, command, output, run as run_program, workspace_root};

/// The branch that a change will land on.
const BASE: &str = "main";

/// Formatting, clippy of what changed, unit tests of that and of what is built on it.
pub fn run() -> Result<()> {
    let mut report = Report::new(Table::default());
    report.add(Step::run("format", || cargo_step(&["fmt", "--all", "--check"]).map(drop)));
    let workspace = Workspace::read()?;
    let changed = workspace.packages_of(&changed_files()?);
    if changed.is_empty() {
        note("nothing changed that is compiled");
        return report.finish(0);
    }
    note(&format!("changed: {}", words(&changed)));
    let clippy = [&["clippy", "--locked", "--all-targets"], &by_name(&changed)[..], &["--", "-D", "warnings"]];
    report.add(Step::run("clippy", || cargo_step(&clippy.concat()).map(drop)));
    let affected = workspace.dependents(&changed);
    // All of the workspace is compiled by `make test` together: a package alone would have other features, and what it needs
    // would be compiled again.
    let names: BTreeSet<&str> = affected.iter().map(String::as_str).collect();
    let left_out = workspace.packages.iter().filter(|package| !names.contains(package.name.as_str()));
    let mut test = vec!["test", "--workspace", "--locked", "--no-fail-fast", "--lib", "--bins"];
    for package in left_out {
        test.extend(["--exclude", &package.name]);
    }
    let mut totals = Totals::default();
    report.add(Step::run("unit tests", || {
        totals = Totals::parse(&cargo_step(&test)?);
        Ok(())
    }));
    report.add_totals(&totals);
    report.finish(0)
}

fn cargo_step(words: &[&str]) -> Result<Vec<String>> {
    let limit = Duration::from_secs(30 * 60);
    let ran = run_program(&cargo(words), Role::Tool, limit, Output::Shown)?;
    match ran.ended.failure() {
        None => Ok(ran.lines),
        Some(why) => bail!("cargo {}: {why}", words.join(" ")),
    }
}

fn by_name(packages: &BTreeSet<String>) -> Vec<&str> {
    packages.iter().flat_map(|name| ["--package", name.as_str()]).collect()
}

fn words(packages: &BTreeSet<String>) -> String {
    packages.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Files that differ from the branch that the change will land on, and those that git does not know yet.
fn changed_files() -> Result<Vec<PathBuf>> {
    let git = |words: &[&str]| output(command("git").args(words));
    let base = git(&["merge-base", "HEAD", BASE]).unwrap_or_else(|_| "HEAD".to_owned());
    let mut files = git(&["diff", "--name-only", base.trim()])?;
    files.push_str(&git(&["ls-files", "--others", "--exclude-standard"])?);
    Ok(files.lines().map(|file| workspace_root().join(file)).collect())
}

/// The packages of the workspace.
#[derive(Deserialize)]
struct Workspace {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
}

impl Workspace {
    fn read() -> Result<Self> {
        let words = ["metadata", "--format-version=1", "--no-deps", "--locked"];
        serde_json::from_str(&output(&mut cargo(&words))?).context("reading cargo's metadata")
    }

    /// A file belongs to the package whose directory is the nearest above it; one of no package to all.
    fn packages_of(&self, files: &[PathBuf]) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for file in files.iter().filter(|file| is_compiled(file)) {
            let holders = self.packages.iter().filter(|package| {
                let directory = package.manifest_path.parent();
                directory.is_some_and(|directory| file.starts_with(directory))
            });
            match holders.max_by_key(|package| package.manifest_path.as_os_str().len()) {
                Some(package) => {
                    found.insert(package.name.clone());
                }
                None => found.extend(self.packages.iter().map(|package| package.name.clone())),
            }
        }
        found
    }

    /// These packages and all that depend on them.
    fn dependents(&self, changed: &BTreeSet<String>) -> BTreeSet<String> {
        let uses: BTreeMap<&str, Vec<&str>> = self
            .packages
            .iter()
            .map(|package| {
                (
                    package.name.as_str(),
                    package.dependencies.iter().map(|dependency| dependency.name.as_str()).collect(),
                )
            })
            .collect();
        let mut found = changed.clone();
        loop {
            let more: Vec<String> = uses
                .iter()
                .filter(|(name, used)| {
                    !found.contains(**name) && used.iter().any(|dependency| found.contains(*dependency))
                })
                .map(|(name, _)| (*name).to_owned())
                .collect();
            if more.is_empty() {
                return found;
            }
            found.extend(more);
        }
    }
}

/// Whether a change of the file can change what is compiled.
fn is_compiled(file: &std::path::Path) -> bool {
    let ending = file.extension().and_then(|ending| ending.to_str());
    matches!(ending, Some("rs" | "toml" | "lock" | "snap" | "yaml" | "json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace() -> Workspace {
        let package = |name: &str, directory: &str, uses: &[&str]| Package {
            name: name.to_owned(),
            manifest_path: PathBuf::from(directory).join("Cargo.toml"),
            dependencies: uses.iter().map(|&name| Dependency { name: name.to_owned() }).collect(),
        };
        Workspace {
            packages: vec![
                package("api", "/w/crates/api", &[]),
                package("plan", "/w/crates/plan", &["api"]),
                package("kit", "/w/crates/kit", &[]),
                package("probe", "/w/crates/kit/probe", &[]),
                package("cli", "/w/crates/cli", &["plan"]),
            ],
        }
    }

    #[test]
    fn a_file_belongs_to_the_nearest_package() {
        let found = |file: &str| workspace().packages_of(&[PathBuf::from(file)]);
        assert_eq!(found("/w/crates/kit/probe/src/main.rs"), BTreeSet::from(["probe".to_owned()]));
        assert_eq!(found("/w/crates/kit/src/lib.rs"), BTreeSet::from(["kit".to_owned()]));
        assert_eq!(found("/w/README.md"), BTreeSet::new());
        assert_eq!(found("/w/Cargo.lock").len(), 5);
    }

    #[test]
    fn what_is_built_on_a_change_is_affected() {
        let affected = workspace().dependents(&BTreeSet::from(["api".to_owned()]));
        assert_eq!(affected, ["api", "cli", "plan"].map(str::to_owned).into());
    }
}
