//! The isolation that was live, as every result reports it.

use serde_json::{Map, Value, json};
use sympozium_exec::IsolationReport;
use sympozium_exec::report::GuaranteeState;

/// For each guarantee, whether the executor enforces it, the platform is trusted to, or neither.
///
/// It is the same for every command of an executor, so it is built once.
#[derive(Debug, Clone)]
pub struct IsolationSummary(Value);

impl IsolationSummary {
    pub fn from_report(report: &IsolationReport) -> Self {
        let guarantees: Map<_, _> = report
            .guarantees
            .iter()
            .map(|(guarantee, state)| {
                let word = match state {
                    GuaranteeState::Enforced { .. } => "enforced",
                    GuaranteeState::Delegated { .. } => "delegated",
                    GuaranteeState::NotHeld { .. } => "not-held",
                };
                (guarantee.as_str().to_owned(), Value::from(word))
            })
            .collect();
        Self(json!({"profile": report.profile.as_str(), "guarantees": guarantees}))
    }

    /// The value of `_meta.isolation` and of `isolation` in results.
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
    fn the_summary_is_short_and_complete() {
        let layers = BTreeMap::from([(Layer::Seccomp, String::new())]);
        let report = IsolationReport::new(Profile::Container, layers);
        let isolation = IsolationSummary::from_report(&report);
        let guarantees = isolation.as_json()["guarantees"].as_object().unwrap();
        assert_eq!(isolation.as_json()["profile"], "container");
        assert_eq!(guarantees.len(), report.guarantees.len());
        assert_eq!(guarantees["filesystem"], "not-held");
        assert_eq!(guarantees["memory"], "delegated");
    }
}
