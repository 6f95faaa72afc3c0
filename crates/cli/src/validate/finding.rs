//! What validation finds, and how the findings of all files become one report.

use std::process::ExitCode;

use serde::Serialize;

use crate::failure::{DENIED, FAILED};
use crate::manifests::limits::MAX_FINDINGS;
use crate::manifests::problem::{Problem, Problems, Severity, printable};
use crate::manifests::tree::Mark;

/// Which question a finding answers. The order is the order in which the questions are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// Is it a file of YAML or JSON documents?
    Read,
    /// Are they objects that the API server would store?
    Schema,
    /// Is what they name there?
    Reference,
    /// Is the run allowed?
    Admission,
}

/// What a finding means for the outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// It must be mended before it can be applied.
    Error,
    /// It can be applied, and will not be allowed to run.
    Denied,
    /// It is allowed, and unwise.
    Warning,
}

/// What is left when everything has been looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conclusion {
    /// Nothing stands against it; there may be warnings.
    Well,
    /// It would be denied.
    Denied,
    /// Something must be mended first.
    Broken,
}

impl Conclusion {
    /// What the command answers with.
    pub fn exit_code(self) -> ExitCode {
        match self {
            Self::Well => ExitCode::SUCCESS,
            Self::Denied => ExitCode::from(DENIED),
            Self::Broken => ExitCode::from(FAILED),
        }
    }
}

impl Verdict {
    pub fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Denied => "denied",
            Self::Warning => "warning",
        }
    }
}

/// An object, as a person names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ObjectName {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

impl std::fmt::Display for ObjectName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = crate::manifests::problem::printable(&self.name);
        write!(f, "{} {}/{name}", self.kind, self.namespace)
    }
}

/// One finding. The names of its fields are part of the JSON output.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    pub severity: Verdict,
    pub stage: Stage,
    pub rule: String,
    pub file: String,
    pub line: u32,
    pub column: u32,
    /// Absent when the file or the document as a whole is meant.
    pub object: Option<ObjectName>,
    /// From the object's root, as in `spec.skills[0].skillPackRef`; empty for the object itself.
    pub field: String,
    pub message: String,
    pub hint: Option<String>,
}

impl Finding {
    /// What the loader says about a file.
    pub fn of_file(file: &str, problem: Problem) -> Self {
        Self {
            severity: match problem.severity {
                Severity::Error => Verdict::Error,
                Severity::Warning => Verdict::Warning,
            },
            stage: Stage::Read,
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
    let lines: Vec<String> = text.split('\n').map(printable).collect();
    lines.join("\n")
}

/// Everything that was found, bounded.
#[derive(Debug, Default)]
pub struct Findings {
    kept: Vec<Finding>,
    pub errors: usize,
    pub denials: usize,
    pub warnings: usize,
}

impl Findings {
    /// What is shown is made safe here, whoever wrote it: names from files are in messages and in hints.
    pub fn add(&mut self, mut finding: Finding) {
        self.count(finding.severity, 1);
        if !self.is_full() {
            finding.message = printable_lines(&finding.message);
            finding.hint = finding.hint.as_deref().map(printable_lines);
            self.kept.push(finding);
        }
    }

    /// Takes what the loader says about a file.
    pub fn add_file(&mut self, file: &str, problems: Problems) {
        for problem in problems.kept {
            self.add(Finding::of_file(file, problem));
        }
        self.count(Verdict::Error, problems.errors_left_out);
        self.count(Verdict::Warning, problems.warnings_left_out);
    }

    fn count(&mut self, verdict: Verdict, number: usize) {
        match verdict {
            Verdict::Error => self.errors += number,
            Verdict::Denied => self.denials += number,
            Verdict::Warning => self.warnings += number,
        }
    }

    /// Whether what comes now is only counted, so that it needs no words.
    pub fn is_full(&self) -> bool {
        self.kept.len() >= MAX_FINDINGS
    }

    /// How many were counted and not kept.
    pub fn left_out(&self) -> usize {
        self.errors + self.denials + self.warnings - self.kept.len()
    }

    /// In the order of `files`, then of lines.
    pub fn sorted(mut self, files: &[String]) -> Self {
        let position = |finding: &Finding| files.iter().position(|file| *file == finding.file);
        self.kept.sort_by_cached_key(|it| (position(it), it.at(), it.stage));
        self
    }

    pub fn all(&self) -> &[Finding] {
        &self.kept
    }
}
