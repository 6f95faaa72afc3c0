//! What a run took and what came of it: a table of steps, one of suites, the slowest tests, and what went over its budget.

use std::time::{Duration, Instant};

use anyhow::bail;

use super::pool::Outcome;
use super::table::{Table, warning};
use super::totals::Totals;
use crate::output::{line, note, table};

/// How many of the slowest tests are named.
const SLOWEST: usize = 15;
/// A suite that took less is not worth a row.
const SHORT: Duration = Duration::from_secs(2);

/// What came of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Result {
    Passed,
    Failed(String),
    NotRun(String),
}

/// A step that ended.
pub struct Step {
    name: &'static str,
    took: Duration,
    result: Result,
}

pub struct Report {
    budget: Table,
    begin: Instant,
    steps: Vec<Step>,
    suites: Vec<Outcome>,
    totals: Totals,
}

impl Step {
    /// Runs a step and says when it begins and fails. Steps may run side by side.
    pub fn run(name: &'static str, act: impl FnOnce() -> anyhow::Result<()>) -> Self {
        note(&format!("--- {name}"));
        let begin = Instant::now();
        let result = match act() {
            Ok(()) => Result::Passed,
            Err(error) => {
                note(&format!("--- {name} failed: {error:#}"));
                Result::Failed(format!("{error:#}"))
            }
        };
        Self { name, took: begin.elapsed(), result }
    }

    pub fn not_run(name: &'static str, why: impl Into<String>) -> Self {
        Self { name, took: Duration::ZERO, result: Result::NotRun(why.into()) }
    }

    pub fn has_passed(&self) -> bool {
        self.result == Result::Passed
    }
}

impl Report {
    pub fn new(budget: Table) -> Self {
        Self { budget, begin: Instant::now(), steps: Vec::new(), suites: Vec::new(), totals: Totals::default() }
    }

    /// Gives whether the step passed.
    pub fn add(&mut self, step: Step) -> bool {
        let passed = step.has_passed();
        // A step that broke without a failing test (formatting, a build) is a failure too.
        self.totals.failed += u64::from(matches!(step.result, Result::Failed(_)));
        self.steps.push(step);
        passed
    }

    pub fn add_suites(&mut self, outcomes: Vec<Outcome>) {
        for outcome in &outcomes {
            self.totals.add(&outcome.totals);
        }
        self.suites.extend(outcomes);
    }

    /// Counts tests that were not run as a suite.
    pub fn add_totals(&mut self, totals: &Totals) {
        self.totals.add(totals);
    }

    /// Prints the tables and the closing line.
    pub fn finish(mut self, skipped: u64) -> anyhow::Result<()> {
        line("");
        line(&self.step_table());
        line(&self.suite_table());
        line(&self.slowest_tests());
        let mut warnings = Vec::new();
        for step in &self.steps {
            warnings.extend(self.budget.step_warning(step.name, step.took));
        }
        for suite in &self.suites {
            warnings.extend(warning(&format!("suite {}", suite.name), suite.took, suite.budget));
        }
        warnings.extend(self.budget.step_warning("everything", self.begin.elapsed()));
        for warning in &warnings {
            line(warning);
        }
        for suite in &self.suites {
            if let Some(why) = &suite.failure {
                line(&format!("FAILED: {}: {why}", suite.name));
            }
        }
        // The harness counts a skipped test as passed. This line is read by machines: nothing else may stand on it.
        let passed = self.totals.passed.saturating_sub(skipped);
        line(&format!("{passed} passed, {} failed, {skipped} skipped", self.totals.failed));
        if self.totals.failed > 0 {
            bail!("not everything passed");
        }
        Ok(())
    }

    fn step_table(&self) -> String {
        let mut rows = vec![["step", "seconds", "result"].map(str::to_owned).to_vec()];
        for Step { name, took, result } in &self.steps {
            let result = match result {
                Result::Passed => "passed".to_owned(),
                Result::Failed(why) => format!("FAILED: {}", why.lines().next().unwrap_or("")),
                Result::NotRun(why) => format!("not run: {why}"),
            };
            rows.push(vec![(*name).to_owned(), seconds(*took), result]);
        }
        rows.push(vec!["everything".to_owned(), seconds(self.begin.elapsed()), String::new()]);
        table(&rows)
    }

    fn suite_table(&mut self) -> String {
        self.suites.sort_by_key(|suite| std::cmp::Reverse(suite.took));
        let heads = ["suite", "tests", "seconds", "budget", "slowest test"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        for suite in &self.suites {
            if suite.took < SHORT && suite.failure.is_none() {
                continue;
            }
            let slowest = suite.tests.iter().max_by_key(|(_, took)| *took);
            let slowest = slowest.map(|(name, took)| format!("{} s {name}", seconds(*took)));
            rows.push(vec![
                suite.name.clone(),
                (suite.totals.passed + suite.totals.failed).to_string(),
                seconds(suite.took),
                suite.budget.as_secs().to_string(),
                slowest.unwrap_or_default(),
            ]);
        }
        table(&rows)
    }

    fn slowest_tests(&self) -> String {
        let of_suite = |suite: &Outcome| -> Vec<(Duration, String)> {
            let tests = suite.tests.iter();
            tests.map(|(test, took)| (*took, format!("{} {test}", suite.name))).collect()
        };
        let mut tests: Vec<_> = self.suites.iter().flat_map(of_suite).collect();
        tests.sort_by_key(|(took, _)| std::cmp::Reverse(*took));
        let mut rows = vec![["seconds", "slowest tests"].map(str::to_owned).to_vec()];
        for (took, test) in tests.into_iter().take(SLOWEST) {
            rows.push(vec![seconds(took), test]);
        }
        table(&rows)
    }
}

fn seconds(took: Duration) -> String {
    format!("{:.1}", took.as_secs_f64())
}
