//! What a bench program measured, in the form that `cargo xtask bench` reads, and how it measures.

mod measure;
pub mod raw;
mod samples;

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use serde::Serialize;

use crate::static_build::target_directory;
pub use measure::{in_threads, median};
pub use samples::{Percentiles, Samples};

/// Names the directory that a bench writes into; `cargo xtask bench` sets it.
pub const BENCH_DIRECTORY: &str = "SYMPOZIUM_BENCH_DIR";

/// What a number should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// The number or more.
    AtLeast(f64),
    /// The number or less.
    AtMost(f64),
}

/// One number and what it should be.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    name: String,
    value: f64,
    unit: String,
    target: String,
    meets: bool,
}

/// The rows of one suite.
#[derive(Debug)]
pub struct Suite {
    name: String,
    rows: Vec<Row>,
}

impl Suite {
    /// A suite is called like its bench target.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), rows: Vec::new() }
    }

    /// Adds a number. What is not a number meets nothing.
    pub fn row(&mut self, name: &str, value: f64, unit: &str, target: Target) {
        let (meets, target) = match target {
            Target::AtLeast(least) => (value >= least, format!(">= {least} {unit}")),
            Target::AtMost(most) => (value <= most, format!("<= {most} {unit}")),
        };
        self.rows.push(Row {
            name: name.to_owned(),
            value: (value * 10_000.0).round() / 10_000.0,
            unit: unit.to_owned(),
            target: target.trim_end().to_owned(),
            meets,
        });
    }

    /// Writes `SUITE.json`.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn write(&self) -> anyhow::Result<PathBuf> {
        let directory = match std::env::var_os(BENCH_DIRECTORY) {
            Some(directory) => PathBuf::from(directory),
            None => target_directory().join("bench"),
        };
        fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
        let path = directory.join(format!("{}.json", self.name));
        let text = serde_json::to_string_pretty(&self.rows).context("writing the rows as JSON")?;
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_meets_its_target_or_not() {
        let mut suite = Suite::new("s");
        suite.row("rate", 0.849_99, "of raw", Target::AtLeast(0.85));
        suite.row("growth", 2.0, "MiB", Target::AtMost(2.0));
        suite.row("broken", f64::NAN, "", Target::AtMost(2.0));
        let meets: Vec<_> = suite.rows.iter().map(|row| row.meets).collect();
        assert_eq!(meets, [false, true, false]);
        assert_eq!(suite.rows[0].target, ">= 0.85 of raw");
    }
}
