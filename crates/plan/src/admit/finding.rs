//! Violations and warnings of admission, each with the field, the rule and a hint.

use std::fmt;

/// Maximum number of violations, and of warnings, of one decision: enough to correct an object, and a bound for hostile
/// ones.
pub const MAX_FINDINGS: usize = 256;

/// An object that a violation is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// The kind of the object.
    pub kind: &'static str,
    /// The namespace, where it is known.
    pub namespace: Option<String>,
    /// The name; empty where the API server has yet to generate one.
    pub name: String,
}

/// Why a run is denied, or what is unwise about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The object that must be changed.
    pub subject: Subject,
    /// The field in it, as a path such as `spec.sidecar.env[2].name`.
    pub field: String,
    /// The name of the rule, which is stable.
    pub rule: &'static str,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
    /// The missing object, when that is the violation: waiting may help.
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
        write!(f, "{} {}", self.kind, crate::text::shown(&self.name))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}: {} ({})", self.subject, self.field, self.message, self.rule)
    }
}

/// Collects violations and warnings.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub reasons: Vec<Reason>,
    pub warnings: Vec<Reason>,
}

/// A violation before its subject is known.
pub(crate) struct Told {
    pub field: String,
    pub rule: &'static str,
    pub message: String,
    pub remedy: String,
}

/// Builds a violation.
pub(crate) fn told(
    field: impl Into<String>,
    rule: &'static str,
    message: impl Into<String>,
    remedy: impl Into<String>,
) -> Told {
    Told { field: field.into(), rule, message: message.into(), remedy: remedy.into() }
}

impl Findings {
    pub fn deny(&mut self, subject: &Subject, told: Told) {
        self.add_reason(reason(subject, told, None));
    }

    pub fn deny_missing(&mut self, subject: &Subject, told: Told, missing: Subject) {
        self.add_reason(reason(subject, told, Some(missing)));
    }

    fn add_reason(&mut self, reason: Reason) {
        #[cfg(test)]
        if suspension::is_suspended(reason.rule) {
            return;
        }
        push(&mut self.reasons, reason);
    }

    pub fn warn(&mut self, subject: &Subject, told: Told) {
        push(&mut self.warnings, reason(subject, told, None));
    }
}

fn reason(subject: &Subject, told: Told, missing: Option<Subject>) -> Reason {
    Reason {
        subject: subject.clone(),
        field: told.field,
        rule: told.rule,
        message: told.message,
        remedy: told.remedy,
        missing,
    }
}

fn push(list: &mut Vec<Reason>, reason: Reason) {
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
