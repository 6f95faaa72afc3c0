//! `test/suites.txt`: how each step and suite is run, and how long it may take on two cores.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::process::workspace_root;

pub const FILE: &str = "test/suites.txt";
/// Over its budget by a quarter, a step or suite is named in the summary.
const TOLERANCE: f64 = 1.25;

/// What a suite needs before it can begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Need {
    #[default]
    Nothing,
    /// The parts of a Kubernetes control plane.
    ControlPlane,
    /// Every part of a cluster, and the images that are loaded into it.
    Node,
}

/// How a suite is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub budget: Duration,
    pub threads: usize,
    pub need: Need,
    /// Suites share the clusters of a run, unless one has a name for clusters of its own: it changes what others rely on.
    pub clusters: Option<String>,
    /// The harness is the conformance suite's.
    pub own_harness: bool,
    pub arguments: Vec<String>,
}

impl Default for Row {
    /// Of the many small ones, whose tests compute and do not wait.
    fn default() -> Self {
        Self {
            budget: Duration::from_secs(20),
            threads: 2,
            need: Need::Nothing,
            clusters: None,
            own_harness: false,
            arguments: Vec::new(),
        }
    }
}

/// The rows in their order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Table {
    steps: Vec<(String, Duration)>,
    suites: Vec<(String, Row)>,
}

impl Table {
    pub fn read() -> Result<Self> {
        let text = fs::read_to_string(workspace_root().join(FILE)).with_context(|| format!("reading {FILE}"))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut table = Self::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split(" # ").next().unwrap_or_default().trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            table.add(line).with_context(|| format!("{FILE}:{}: {line}", number + 1))?;
        }
        Ok(table)
    }

    fn add(&mut self, line: &str) -> Result<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [kind, name, seconds, more @ ..] = &words[..] else {
            bail!("expected `step NAME SECONDS` or `suite NAME SECONDS [SETTING…] [-- ARGUMENT…]`");
        };
        let budget = Duration::from_secs(seconds.parse().context("not a number of seconds")?);
        match *kind {
            "step" => self.steps.push((name.replace('-', " "), budget)),
            "suite" => {
                let mut row = Row { budget, ..Row::default() };
                let mut words = more.iter();
                for word in words.by_ref().take_while(|word| **word != "--") {
                    row.set(word)?;
                }
                row.arguments = words.map(|&word| word.to_owned()).collect();
                self.suites.push(((*name).to_owned(), row));
            }
            other => bail!("`{other}` is neither `step` nor `suite`"),
        }
        Ok(())
    }

    /// The rows that the tests of a binary are divided into; a row is called as its binary, or that with `:part`.
    pub fn rows_of(&self, binary: &str) -> Vec<(&str, &Row)> {
        let is_of = |name: &str| name.split(':').next() == Some(binary);
        let rows = self.suites.iter().filter(|(name, _)| is_of(name));
        rows.map(|(name, row)| (name.as_str(), row)).collect()
    }

    /// Whether one of the suites whose names contain one of these parts needs a cluster; no parts mean all suites.
    pub fn needs_cluster(&self, parts: &[String]) -> bool {
        let is_wanted = |name: &str| parts.is_empty() || parts.iter().any(|part| name.contains(part));
        let mut suites = self.suites.iter();
        suites.any(|(name, row)| row.need != Need::Nothing && is_wanted(name))
    }

    /// The names of clusters that are not the run's.
    pub fn clusters(&self) -> impl Iterator<Item = &str> {
        self.suites.iter().filter_map(|(_, row)| row.clusters.as_deref())
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.suites.iter().map(|(name, _)| name.as_str())
    }

    /// Says by how much a step took longer than it may.
    pub fn step_warning(&self, name: &str, took: Duration) -> Option<String> {
        let (_, budget) = self.steps.iter().find(|(step, _)| step == name)?;
        warning(&format!("step {name}"), took, *budget)
    }
}

/// Says by how much something took longer than it may.
pub fn warning(what: &str, took: Duration, budget: Duration) -> Option<String> {
    (took.as_secs_f64() > budget.as_secs_f64() * TOLERANCE)
        .then(|| format!("warning: {what} took {:.0} s, its budget is {} s", took.as_secs_f64(), budget.as_secs()))
}

impl Row {
    fn set(&mut self, word: &str) -> Result<()> {
        match word.split_once('=') {
            Some(("threads", count)) => self.threads = count.parse().context("threads")?,
            Some(("needs", "control-plane")) => self.need = Need::ControlPlane,
            Some(("clusters", name)) => self.clusters = Some(name.to_owned()),
            Some(("needs", "node")) => self.need = Need::Node,
            None if word == "own-harness" => self.own_harness = true,
            _ => bail!("unknown setting `{word}`"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_say_how_and_how_long() {
        let text = "# why\nstep test-build 420\nsuite a/it 90 threads=6 needs=control-plane # waits\n\
                    suite b/it:kubernetes 300 own-harness needs=node clusters=own -- kubernetes --skip x\n";
        let table = Table::parse(text).unwrap();
        let [(name, row)] = &table.rows_of("a/it")[..] else {
            panic!("{table:?}");
        };
        assert_eq!((*name, row.threads, row.need), ("a/it", 6, Need::ControlPlane));
        let [(name, row)] = &table.rows_of("b/it")[..] else {
            panic!("{table:?}");
        };
        assert_eq!(*name, "b/it:kubernetes");
        assert!(row.own_harness);
        assert_eq!(row.clusters.as_deref(), Some("own"));
        assert_eq!(row.arguments, ["kubernetes", "--skip", "x"]);
        assert_eq!(table.step_warning("test build", Duration::from_secs(525)), None);
        assert!(table.step_warning("test build", Duration::from_secs(526)).is_some());
    }

    #[test]
    fn a_row_that_is_not_understood_is_an_error() {
        for text in ["suite a", "suite a b", "suit a 1", "suite a 1 thread=2", "suite a 1 threads=x"] {
            assert!(Table::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_table_of_the_checkout_is_read() {
        Table::read().unwrap();
    }
}
