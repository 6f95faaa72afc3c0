//! The findings of validation, of all files and stages.

use serde::Serialize;
use sympozium_api::text::printable;

use crate::limits::MAX_FINDINGS;
use crate::problem::{Problem, Problems, Severity};
use crate::tree::Mark;

/// The stage that a finding comes from, in the order of the stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ValidationStage {
    /// Is it a file of YAML or JSON documents?
    Read,
    /// Would the API server store the objects?
    Schema,
    /// Do the objects that they name exist?
    Reference,
    /// Would the run be admitted?
    Admission,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FindingSeverity {
    /// It must be fixed before it can be applied.
    Error,
    /// It can be applied, but will not be admitted.
    Denied,
    /// It is admitted, but unwise.
    Warning,
}

/// The result of validation as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conclusion {
    /// Neither errors nor denials; there may be warnings.
    Passed,
    /// It would be denied.
    Denied,
    /// There are errors to fix first.
    Invalid,
}

impl FindingSeverity {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Denied => "denied",
            Self::Warning => "warning",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ObjectName {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

impl std::fmt::Display for ObjectName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = printable(&self.name);
        write!(f, "{} {}/{name}", self.kind, self.namespace)
    }
}

/// One finding. The field names are part of the JSON output.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    pub severity: FindingSeverity,
    pub stage: ValidationStage,
    pub rule: String,
    pub file: String,
    pub line: u32,
    pub column: u32,
    /// Absent when the finding is about the file or the document as a whole.
    pub object: Option<ObjectName>,
    /// From the object's root, as in `spec.skills[0].skillPackRef`; empty for the object itself.
    pub field: String,
    pub message: String,
    pub hint: Option<String>,
}

impl Finding {
    /// A finding of the loader about a file.
    pub fn from_problem(file: &str, problem: Problem) -> Self {
        Self {
            severity: match problem.severity {
                Severity::Error => FindingSeverity::Error,
                Severity::Warning => FindingSeverity::Warning,
            },
            stage: ValidationStage::Read,
            rule: problem.rule.to_owned(),
            file: file.to_owned(),
            line: problem.at.line,
            column: problem.at.column,
            object: None,
            field: String::new(),
            message: problem.message,
            hint: problem.hint,
        }
    }

    pub fn at(&self) -> Mark {
        Mark { line: self.line, column: self.column }
    }
}

fn printable_lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    lines.join("\n")
}

/// All findings, bounded in number.
#[derive(Debug, Default)]
pub struct Findings {
    entries: Vec<Finding>,
    pub errors: usize,
    pub denials: usize,
    pub warnings: usize,
}

impl Findings {
    /// Makes message and hint printable here, whatever stage they come from: both contain names from files.
    pub fn add(&mut self, mut finding: Finding) {
        self.count(finding.severity, 1);
        if !self.is_full() {
            finding.message = printable_lines(&finding.message);
            finding.hint = finding.hint.as_deref().map(printable_lines);
            self.entries.push(finding);
        }
    }

    /// Adds the findings of the loader about a file.
    pub fn add_problems(&mut self, file: &str, problems: Problems) {
        for problem in problems.items {
            self.add(Finding::from_problem(file, problem));
        }
        self.count(FindingSeverity::Error, problems.errors_omitted);
        self.count(FindingSeverity::Warning, problems.warnings_omitted);
    }

    fn count(&mut self, verdict: FindingSeverity, number: usize) {
        match verdict {
            FindingSeverity::Error => self.errors += number,
            FindingSeverity::Denied => self.denials += number,
            FindingSeverity::Warning => self.warnings += number,
        }
    }

    /// Whether further findings are only counted, so that they need no message.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= MAX_FINDINGS
    }

    /// How many findings are counted but not stored.
    pub fn omitted(&self) -> usize {
        self.errors + self.denials + self.warnings - self.entries.len()
    }

    /// In the order of `files`, then of lines.
    pub fn into_sorted(mut self, files: &[String]) -> Self {
        let position = |finding: &Finding| files.iter().position(|file| *file == finding.file);
        self.entries.sort_by_cached_key(|entry| (position(entry), entry.at(), entry.stage));
        self
    }

    pub fn as_slice(&self) -> &[Finding] {
        &self.entries
    }
}
