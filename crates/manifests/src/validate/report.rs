//! The result of validation, as text and as JSON.

#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use serde::Serialize;
use sympozium_api::text::printable;

use super::finding::{Conclusion, Finding, FindingSeverity, Findings, ValidationStage};
use super::object::{Object, ObjectKind};

/// All findings. The field names are the JSON output, which `docs/validate.md` describes: fields may be added, none
/// changes its meaning.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Whether there are neither errors nor denials.
    allowed: bool,
    errors: usize,
    denials: usize,
    warnings: usize,
    /// Files that were named or found.
    files: usize,
    /// Objects of our kinds.
    objects: usize,
    /// Objects of other kinds, which were not checked.
    other_objects: usize,
    /// Runs that cannot be admitted because an object is missing; violations that are known are reported nevertheless.
    undecided_runs: usize,
    findings: Vec<Finding>,
    /// Findings that are counted but not listed.
    findings_left_out: usize,
}

impl Report {
    pub fn new(files: Vec<String>, objects: &[Object], undecided_runs: usize, findings: Findings) -> Self {
        let findings = findings.into_sorted(&files);
        let ours = objects.iter().filter(|object| matches!(object.kind, ObjectKind::Sympozium(_))).count();
        Self {
            allowed: findings.errors == 0 && findings.denials == 0,
            errors: findings.errors,
            denials: findings.denials,
            warnings: findings.warnings,
            files: files.len(),
            objects: ours,
            other_objects: objects.len() - ours,
            undecided_runs,
            findings_left_out: findings.omitted(),
            findings: findings.as_slice().to_vec(),
        }
    }

    /// Determines the exit code. Errors come first: what cannot be applied cannot be denied.
    pub fn conclusion(&self) -> Conclusion {
        match (self.errors, self.denials) {
            (0, 0) => Conclusion::Passed,
            (0, _) => Conclusion::Denied,
            _ => Conclusion::Invalid,
        }
    }

    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Whether a file could not be read or violates a schema: its content is not known for certain.
    pub fn has_unreadable(&self) -> bool {
        let errors = self.findings.iter();
        let errors = errors.filter(|error| error.severity == FindingSeverity::Error);
        let of_admission = errors.filter(|error| error.stage == ValidationStage::Admission).count();
        self.errors > of_admission
    }

    pub fn warnings(&self) -> usize {
        self.warnings
    }

    /// One finding per line, with its hint below it, and a blank line between files.
    pub fn text(&self) -> String {
        render_findings(self.findings.iter())
    }

    /// The same without warnings.
    pub fn failures_text(&self) -> String {
        let failures = self.findings.iter();
        render_findings(failures.filter(|failure| failure.severity != FindingSeverity::Warning))
    }

    /// The last line of the text output.
    pub fn summary(&self) -> String {
        let what = format!("{} in {}", pluralize(self.objects, "object"), pluralize(self.files, "file"));
        let mut summary = match (self.errors, self.denials, self.warnings) {
            (0, 0, 0) => format!("ok: {what}"),
            (errors, denials, warnings) => {
                let mut parts = Vec::new();
                for (count, noun) in [(errors, "error"), (denials, "denial"), (warnings, "warning")] {
                    if count > 0 {
                        parts.push(pluralize(count, noun));
                    }
                }
                let prefix = if self.allowed { "ok" } else { "failed" };
                format!("{prefix}: {}; {what}", parts.join(", "))
            }
        };
        if self.other_objects > 0 {
            let _ = write!(summary, "; {} of other kinds not checked", pluralize(self.other_objects, "object"));
        }
        if self.undecided_runs > 0 {
            let _ =
                write!(summary, "; {} undecided because objects are missing", pluralize(self.undecided_runs, "run"));
        }
        if self.findings_left_out > 0 {
            let _ = write!(summary, "; {} more findings not listed", self.findings_left_out);
        }
        summary
    }
}

fn render_findings<'f>(findings: impl Iterator<Item = &'f Finding>) -> String {
    let mut text = String::new();
    let mut file = "";
    for finding in findings {
        if !file.is_empty() && file != finding.file {
            text.push('\n');
        }
        file = &finding.file;
        render_finding(&mut text, finding);
    }
    text
}

fn render_finding(text: &mut String, finding: &Finding) {
    let Finding { severity, rule, file, line, column, field, message, hint, .. } = finding;
    let severity = severity.as_str();
    // Writing to a String cannot fail.
    let _ = write!(text, "{file}:{line}:{column}: {severity}[{rule}]: ");
    if !field.is_empty() {
        let _ = write!(text, "{}: ", printable(field));
    }
    let _ = writeln!(text, "{message}");
    if let Some(hint) = hint {
        let _ = writeln!(text, "  hint: {hint}");
    }
}

fn pluralize(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
