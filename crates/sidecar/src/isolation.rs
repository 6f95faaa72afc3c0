//! The isolation that was live, as every result tells it.

use serde_json::{Map, Value, json};
use sympozium_exec::IsolationReport;
use sympozium_exec::report::GuaranteeState;

/// The executor's report in short: for each guarantee whether we enforce it, somebody outside does, or nobody.
///
/// It is the same for every command of an executor, so it is made once.
#[derive(Debug, Clone)]
pub struct Isolation(Value);

impl Isolation {
    /// The short form of `report`.
    pub fn of(report: &IsolationReport) -> Self {
        let guarantees: Map<_, _> = report
            .guarantees
            .iter()
            .map(|(guarantee, standing)| {
                let word = match standing {
                    GuaranteeState::Enforced { .. } => "enforced",
                    GuaranteeState::Delegated { .. } => "delegated",
                    GuaranteeState::NotHeld { .. } => "not-held",
                };
                (guarantee.as_str().to_owned(), Value::from(word))
            })
            .collect();
        Self(json!({"profile": report.profile.as_str(), "guarantees": guarantees}))
    }

    /// As results carry it.
    pub fn as_json(&self) -> &Value {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sympozium_exec::{Layer, Profile};

    use super::*;

    #[test]
    fn it_is_short_and_complete() {
        let layers = BTreeMap::from([(Layer::Seccomp, String::new())]);
        let report = IsolationReport::new(Profile::Container, layers);
        let isolation = Isolation::of(&report);
        let guarantees = isolation.as_json()["guarantees"].as_object().unwrap();
        assert_eq!(isolation.as_json()["profile"], "container");
        assert_eq!(guarantees.len(), report.guarantees.len());
        assert_eq!(guarantees["filesystem"], "not-held");
        assert_eq!(guarantees["memory"], "delegated");
    }
}
