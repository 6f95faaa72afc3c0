//! `bench`: runs the bench programs and compares each number with its target.
//!
//! The contract: a bench target called SUITE writes `SUITE.json` into the directory that the environment variable
//! `SYMPOZIUM_BENCH_DIR` names, a list of [`Row`]s. The rows that a suite must have are in `bench/rows/SUITE.txt`, one
//! name a line; one that is missing is a miss.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Deserialize;

use crate::launch::Role;
use crate::output::{hinted, line, note, table};
use crate::process::{Ended, Output, output, plain_cargo, run as run_program, target_directory, workspace_root};

const LIMIT: Duration = Duration::from_secs(45 * 60);

#[derive(clap::Args)]
pub struct Arguments {
    /// Only this suite.
    #[arg(long)]
    suite: Option<String>,
}

/// One number and what it should be.
#[derive(Debug, Deserialize)]
struct Row {
    name: String,
    /// `null` when the measurement came to no number.
    value: Option<f64>,
    unit: String,
    /// A text or a number, as the suite likes.
    target: serde_json::Value,
    meets: bool,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let suites = suites()?;
    let chosen: Vec<_> =
        suites.iter().filter(|suite| arguments.suite.as_ref().is_none_or(|asked| asked == *suite)).collect();
    if let (Some(asked), true) = (&arguments.suite, chosen.is_empty()) {
        return Err(hinted(format!("no suite called `{asked}`"), format!("the suites are: {}", suites.join(", "))));
    }
    let directory = target_directory().join("bench");
    fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    let mut misses = 0;
    let mut rows = vec![["suite", "what", "value", "target", "meets"].map(str::to_owned).to_vec()];
    for suite in chosen {
        for shown in measure(suite, &directory)? {
            misses += usize::from(shown[4] != "yes");
            rows.push(shown);
        }
    }
    line(&table(&rows));
    if misses > 0 {
        bail!("{misses} of {} rows miss their target", rows.len() - 1);
    }
    Ok(())
}

/// The bench targets of the workspace.
fn suites() -> anyhow::Result<Vec<String>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        targets: Vec<Target>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
        kind: Vec<String>,
    }
    let metadata: Metadata =
        serde_json::from_str(&output(&mut plain_cargo(&["metadata", "--format-version=1", "--no-deps", "--locked"]))?)?;
    let targets = metadata.packages.into_iter().flat_map(|package| package.targets);
    let suites =
        targets.filter(|target| target.kind.iter().any(|kind| kind == "bench")).map(|target| target.name).collect();
    Ok(suites)
}

/// Runs one suite and gives the rows of the table.
fn measure(suite: &str, directory: &Path) -> anyhow::Result<Vec<Vec<String>>> {
    note(&format!("measuring {suite}"));
    let path = directory.join(format!("{suite}.json"));
    // What an earlier run left must not stand in for this one.
    if path.exists() {
        fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
    }
    // In the profile of what ships, which the programs that are measured have too: everything is compiled once. By the name of the
    // suite and not of its package: so its libraries have the features of the whole workspace, and suites share them.
    let mut bench = plain_cargo(&["bench", "--locked", "--profile", "dist", "--bench", suite]);
    let ended = run_program(bench.env("SYMPOZIUM_BENCH_DIR", directory), Role::Tool, LIMIT, Output::Shown)?.ended;
    let found: Vec<Row> = match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| format!("reading {}", path.display()))?,
        Err(_) => Vec::new(),
    };
    let expected = fs::read_to_string(workspace_root().join(format!("bench/rows/{suite}.txt"))).unwrap_or_default();
    let mut rows = judge(suite, &found, &expected);
    if ended != Ended::Well || rows.is_empty() {
        let failed = format!("the bench itself: {ended:?}, {} rows", found.len());
        rows.push([suite, &failed, "-", "-", "failed"].map(str::to_owned).to_vec());
    }
    Ok(rows)
}

/// The rows that were measured, then those that should have been.
fn judge(suite: &str, found: &[Row], expected: &str) -> Vec<Vec<String>> {
    let measured = found.iter().map(|row| {
        let value = row.value.map_or("-".to_owned(), |value| format!("{value} {}", row.unit));
        let meets = if row.meets { "yes" } else { "no" };
        let target = match &row.target {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        [suite, &row.name, &value, &target, meets].map(str::to_owned).to_vec()
    });
    let missing = expected
        .lines()
        .map(str::trim)
        .filter(|name| !name.is_empty() && !name.starts_with('#'))
        .filter(|name| !found.iter().any(|row| row.name == *name))
        .map(|name| [suite, name, "-", "-", "missing"].map(str::to_owned).to_vec());
    measured.chain(missing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_should_be_there_and_is_not_is_a_miss() {
        let found = r#"[{"name":"a","value":0.9,"unit":"x","target":">= 0.8","meets":true}]"#;
        let found: Vec<Row> = serde_json::from_str(found).unwrap();
        let rows = judge("exec", &found, "# what must be measured\na\nb\n");
        let meets: Vec<_> = rows.iter().map(|row| (row[1].as_str(), row[4].as_str())).collect();
        assert_eq!(meets, [("a", "yes"), ("b", "missing")]);
    }
}
