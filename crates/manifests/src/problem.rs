//! Problems in a file, independent of what the file contains.

use super::limits::MAX_FINDINGS;
use super::tree::Mark;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Error,
    Warning,
}

/// One problem with its position.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    pub severity: Severity,
    pub at: Mark,
    /// A short, stable name for filters and searches.
    pub rule: &'static str,
    pub message: String,
    pub hint: Option<String>,
}

impl Problem {
    pub fn error(rule: &'static str, at: Mark, message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, at, rule, message: message.into(), hint: None }
    }

    pub fn warning(rule: &'static str, at: Mark, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(rule, at, message) }
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// The problems of one file. A file can be wrong in a million places: the first ones are stored, further ones counted.
#[derive(Debug, Default)]
pub struct Problems {
    pub items: Vec<Problem>,
    pub errors_omitted: usize,
    pub warnings_omitted: usize,
}

impl Problems {
    pub fn add(&mut self, problem: Problem) {
        if self.items.len() < MAX_FINDINGS {
            self.items.push(problem);
            return;
        }
        match problem.severity {
            Severity::Error => self.errors_omitted += 1,
            Severity::Warning => self.warnings_omitted += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_beyond_the_bound_are_counted() {
        let mut problems = Problems::default();
        for _ in 0..MAX_FINDINGS + 2 {
            problems.add(Problem::error("x", Mark::START, ""));
        }
        problems.add(Problem::warning("x", Mark::START, ""));
        assert_eq!(problems.items.len(), MAX_FINDINGS);
        assert_eq!((problems.errors_omitted, problems.warnings_omitted), (2, 1));
    }
}
