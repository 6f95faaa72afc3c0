//! Conditions in a status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use sympozium_plan::admit::{Denial, Violation};

/// Limit for a condition's message, in bytes. The API allows 32 KiB; a status has several conditions.
pub const MAX_MESSAGE: usize = 8 * 1024;

/// The new value of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionUpdate {
    pub type_: &'static str,
    /// `None` is `Unknown`.
    pub is_true: Option<bool>,
    /// One CamelCase word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// Sets a condition in a list. The transition time changes only with the status.
pub fn set_condition(conditions: &mut Vec<Condition>, said: ConditionUpdate, generation: Option<i64>, now: Timestamp) {
    let status = match said.is_true {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let old = (conditions.iter()).position(|it| it.type_ == said.type_);
    let since =
        old.map(|at| &conditions[at]).filter(|old| old.status == status).map(|old| old.last_transition_time.clone());
    let condition = Condition {
        type_: said.type_.to_owned(),
        status: status.to_owned(),
        reason: said.reason.to_owned(),
        message: truncate(said.message),
        observed_generation: generation,
        last_transition_time: since.unwrap_or_else(|| to_whole_seconds(now)),
    };
    match old {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
}

/// The condition `Admitted` with every violation and warning of an object.
pub fn admitted_condition(findings: &Denial) -> ConditionUpdate {
    let lines = |reasons: &[Violation], word: &str| -> Vec<String> {
        let line = |it: &Violation| format!("{word}{}: {} [{}]; {}", it.field, it.message, it.rule, it.hint);
        reasons.iter().map(line).collect()
    };
    let mut all = lines(&findings.violations, "");
    all.extend(lines(&findings.warnings, "warning: "));
    let denied = !findings.violations.is_empty();
    ConditionUpdate {
        type_: "Admitted",
        is_true: Some(!denied),
        reason: if denied {
            "Denied"
        } else if all.is_empty() {
            "Valid"
        } else {
            "Warnings"
        },
        message: if all.is_empty() { "nothing is wrong with it".to_owned() } else { all.join("\n") },
    }
}

fn truncate(mut text: String) -> String {
    const MORE: &str = " …";
    if text.len() > MAX_MESSAGE {
        text.truncate(text.floor_char_boundary(MAX_MESSAGE - MORE.len()));
        text.push_str(MORE);
    }
    text
}

/// The API server stores times in whole seconds.
pub fn to_whole_seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(holds: Option<bool>, message: &str) -> ConditionUpdate {
        ConditionUpdate { type_: "Admitted", is_true: holds, reason: "Because", message: message.to_owned() }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_condition_keeps_its_time_until_it_turns() {
        let mut list = Vec::new();
        set_condition(&mut list, said(Some(true), "a"), Some(1), at(10));
        let first = list.clone();
        set_condition(&mut list, said(Some(true), "a"), Some(1), at(20));
        assert_eq!(list, first);
        set_condition(&mut list, said(Some(true), "b"), Some(2), at(20));
        assert_eq!((list[0].last_transition_time.0, list[0].message.as_str()), (at(10), "b"));
        set_condition(&mut list, said(None, "c"), Some(2), at(30));
        assert_eq!((list.len(), list[0].last_transition_time.0), (1, at(30)));
    }

    #[test]
    fn a_message_is_cut_between_characters() {
        let mut list = Vec::new();
        set_condition(&mut list, said(None, &"ä".repeat(MAX_MESSAGE)), None, at(0));
        assert!(list[0].message.len() <= MAX_MESSAGE);
        assert!(list[0].message.ends_with("ä …"));
    }
}
