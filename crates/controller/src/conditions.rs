//! Conditions in a status.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use sympozium_api::text::{Bytes, truncate};
use sympozium_plan::admit::{Denial, Violation};

/// Limit for a condition's message; the API server rejects longer ones.
const MAX_MESSAGE: Bytes = Bytes(32_768);
/// Limit for a list of violations: a status has several conditions.
const MAX_VIOLATIONS: Bytes = Bytes(8 * 1024);

/// The current time in whole seconds, as the API server stores it: so what is read equals what was written.
pub fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

pub fn elapsed_since(time: &Time) -> Duration {
    let elapsed = Timestamp::now().duration_since(time.0);
    Duration::try_from(elapsed).unwrap_or_default()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionValue {
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// One CamelCase word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

impl ConditionValue {
    /// Status `True`.
    pub fn yes(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new("True", reason, message)
    }

    /// Status `False`.
    pub fn no(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new("False", reason, message)
    }

    /// Status `Unknown`.
    pub fn unknown(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new("Unknown", reason, message)
    }

    fn new(status: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { status, reason, message: truncate(message.into(), MAX_MESSAGE).into_owned() }
    }

    pub fn is_true(&self) -> bool {
        self.status == "True"
    }
}

/// Sets a condition in a list. The transition time changes only with the status.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    type_: &str,
    value: ConditionValue,
    generation: Option<i64>,
    now: Time,
) {
    let known = conditions.iter_mut().find(|condition| condition.type_ == type_);
    let since = known.as_ref().filter(|known| known.status == value.status);
    let condition = Condition {
        type_: type_.to_owned(),
        last_transition_time: since.map_or(now, |known| known.last_transition_time.clone()),
        status: value.status.to_owned(),
        reason: value.reason.to_owned(),
        message: value.message,
        observed_generation: generation,
    };
    match known {
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
}

/// The condition `Admitted` with every violation and warning of an object.
pub fn admitted_condition(findings: &Denial) -> ConditionValue {
    let lines = |violations: &[Violation], prefix: &str| -> Vec<String> {
        let line = |violation: &Violation| {
            format!("{prefix}{}: {} [{}]; {}", violation.field, violation.message, violation.rule, violation.hint)
        };
        violations.iter().map(line).collect()
    };
    let mut all = lines(&findings.violations, "");
    all.extend(lines(&findings.warnings, "warning: "));
    let message = truncate(all.join("\n"), MAX_VIOLATIONS).into_owned();
    if !findings.violations.is_empty() {
        ConditionValue::no("Denied", message)
    } else if message.is_empty() {
        ConditionValue::yes("Valid", "no rule is violated")
    } else {
        ConditionValue::yes("Warnings", message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn a_condition_keeps_its_time_until_it_turns() {
        let mut list = Vec::new();
        let mut set = |value, generation, second| {
            set_condition(&mut list, "Admitted", value, Some(generation), at(second));
            list.clone()
        };
        let first = set(ConditionValue::yes("Because", "a"), 1, 10);
        assert_eq!(set(ConditionValue::yes("Because", "a"), 1, 20), first);
        let second = set(ConditionValue::yes("Because", "b"), 2, 20);
        assert_eq!((&second[0].last_transition_time, second[0].message.as_str()), (&at(10), "b"));
        let third = set(ConditionValue::unknown("Because", "c"), 2, 30);
        assert_eq!((third.len(), &third[0].last_transition_time), (1, &at(30)));
    }

    #[test]
    fn a_message_is_cut_between_characters() {
        let message = ConditionValue::unknown("Because", "ä".repeat(MAX_MESSAGE.0)).message;
        assert!(message.len() <= MAX_MESSAGE.0);
        assert!(message.ends_with("ä…"));
    }
}
