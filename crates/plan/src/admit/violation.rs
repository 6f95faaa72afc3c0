//! Violations and warnings of admission, each with the field, the rule and a hint.

use std::fmt;

use serde::Serialize;
use sympozium_api::text::{MAX_NAME, printable, truncate};

/// Maximum number of violations, and of warnings, of one decision: enough to correct an object, and a bound for hostile
/// ones.
pub const MAX_FINDINGS: usize = 256;

/// An object that a violation is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Subject {
    /// The kind of the object.
    pub kind: &'static str,
    /// The namespace, where it is known.
    pub namespace: Option<String>,
    /// The name; empty where the API server has yet to generate one.
    pub name: String,
}

/// Why a run is denied, or what is unwise about it. The field names are part of the JSON output of `sympozium explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The object that must be changed.
    #[serde(rename = "object")]
    pub subject: Subject,
    /// The field in it, as a path such as `spec.sidecar.env[2].name`.
    pub field: String,
    /// The name of the rule, which is stable.
    pub rule: &'static str,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: String,
    /// The missing object, when that is the violation: waiting may help.
    #[serde(skip)]
    pub missing: Option<Subject>,
}

impl Subject {
    /// An object by kind, namespace and name.
    pub fn new(kind: &'static str, namespace: Option<&str>, name: &str) -> Self {
        Self { kind, namespace: namespace.map(str::to_owned), name: name.to_owned() }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, printable(truncate(&self.name, MAX_NAME)))
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}: {} ({})", self.subject, self.field, self.message, self.rule)
    }
}

/// Collects violations and warnings.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub violations: Vec<Violation>,
    pub warnings: Vec<Violation>,
}

/// A violation before its subject is known.
pub(crate) struct ViolationDetail {
    pub field: String,
    pub rule: &'static str,
    pub message: String,
    pub hint: String,
}

/// Builds a violation.
pub(crate) fn violation(
    field: impl Into<String>,
    rule: &'static str,
    message: impl Into<String>,
    remedy: impl Into<String>,
) -> ViolationDetail {
    ViolationDetail { field: field.into(), rule, message: message.into(), hint: remedy.into() }
}

impl Findings {
    pub fn deny(&mut self, subject: &Subject, detail: ViolationDetail) {
        self.add_violation(to_violation(subject, detail, None));
    }

    pub fn deny_missing(&mut self, subject: &Subject, detail: ViolationDetail, missing: Subject) {
        self.add_violation(to_violation(subject, detail, Some(missing)));
    }

    fn add_violation(&mut self, reason: Violation) {
        #[cfg(test)]
        if suspension::is_suspended(reason.rule) {
            return;
        }
        push_unique(&mut self.violations, reason);
    }

    pub fn warn(&mut self, subject: &Subject, detail: ViolationDetail) {
        push_unique(&mut self.warnings, to_violation(subject, detail, None));
    }
}

fn to_violation(subject: &Subject, detail: ViolationDetail, missing: Option<Subject>) -> Violation {
    Violation {
        subject: subject.clone(),
        field: detail.field,
        rule: detail.rule,
        message: detail.message,
        hint: detail.hint,
        missing,
    }
}

fn push_unique(list: &mut Vec<Violation>, reason: Violation) {
    // The same violation can occur twice where a value is used twice.
    if list.len() < MAX_FINDINGS && !list.contains(&reason) {
        list.push(reason);
    }
}

/// Admission without some of its rules, for tests which prove that their absence is noticed.
#[cfg(test)]
pub(crate) mod suspension {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    thread_local! {
        static SUSPENDED: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
    }

    /// Calls `body`. Meanwhile the rules deny nothing in this thread.
    pub fn without_rules<T>(rules: &BTreeSet<&'static str>, body: impl FnOnce() -> T) -> T {
        SUSPENDED.set(rules.clone());
        let value = body();
        SUSPENDED.take();
        value
    }

    pub fn is_suspended(rule: &str) -> bool {
        SUSPENDED.with_borrow(|suspended| suspended.contains(rule))
    }
}
