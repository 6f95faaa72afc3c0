//! Compares the isolation report of an executor with the isolation floor of the plan.
//!
//! Only our executors attest. Admission guarantees that a run has no others if its policy requires what only they can
//! hold.

use std::collections::BTreeSet;

use serde_json::Value;
use sympozium_api::RunPlan;
use sympozium_api::guarantee::Guarantee;

/// The words of an isolation report.
const ENFORCED: &str = "enforced";
const DELEGATED: &str = "delegated";
/// Maximum number of characters of an unknown word in an error.
const MAX_WORD: usize = 32;

/// The guarantees that the plan requires around every command.
#[derive(Debug, Clone, Default)]
pub struct IsolationFloor {
    required: Vec<Guarantee>,
    /// Guarantees of the platform around the skills, which an executor may delegate.
    platform: BTreeSet<Guarantee>,
    /// Packs with our executor: by the plan, or because this machine has no image of theirs.
    attesting: BTreeSet<String>,
}

impl IsolationFloor {
    /// The floor of a plan, on a platform that holds these guarantees. `ours` are packs that run with our executor
    /// although the plan names an image.
    pub fn new(plan: &RunPlan, ours: &BTreeSet<String>, platform: &[Guarantee]) -> Self {
        let attesting = plan.parts.iter().filter(|part| part.is_attested());
        Self {
            required: plan.isolation.floor.clone(),
            platform: platform.iter().copied().collect(),
            attesting: attesting
                .filter_map(|part| part.role.pack().map(str::to_owned))
                .chain(ours.iter().cloned())
                .collect(),
        }
    }

    /// Describes what a pack's isolation report lacks, or `None` if it meets the floor. A required guarantee that is
    /// not reported counts as missing.
    pub fn describe_missing(&self, pack: &str, isolation: Option<&Value>) -> Option<String> {
        if !self.attesting.contains(pack) {
            return None;
        }
        let reported = isolation.and_then(|isolation| isolation.get("guarantees"));
        let missing = self.required.iter().filter_map(|guarantee| {
            let word = reported.and_then(|reported| reported.get(guarantee.as_str()));
            let standing = match word.and_then(Value::as_str) {
                Some(ENFORCED) => return None,
                Some(DELEGATED) if self.platform.contains(guarantee) => return None,
                Some(DELEGATED) => "delegated to a platform that does not hold it".to_owned(),
                Some(other) => format!("{:?}", other.chars().take(MAX_WORD).collect::<String>()),
                None => "not reported".to_owned(),
            };
            Some(format!("{guarantee} is {standing}"))
        });
        let missing: Vec<String> = missing.collect();
        (!missing.is_empty()).then(|| {
            format!("the executor of pack `{pack}` is below the isolation floor of the run: {}", missing.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sympozium_api::run_plan::Start;

    use super::*;

    const PLAN: &[u8] = include_bytes!("../../plan/src/plan/tests/fixtures/plan-v1.json");
    /// Packs of the plan: the first has our executor, the second has an image with its own.
    const OURS: &str = "cluster";
    const FOREIGN: &str = "tickets";

    fn floor(required: &[Guarantee], platform: &[Guarantee]) -> IsolationFloor {
        let mut plan = RunPlan::read(PLAN).unwrap();
        plan.isolation.floor = required.to_vec();
        IsolationFloor::new(&plan, &BTreeSet::new(), platform)
    }

    /// Every guarantee with every word, with and without a platform that holds it.
    #[test]
    fn each_word_is_worth_the_same_for_each_guarantee() {
        for guarantee in Guarantee::ALL {
            for (word, alone, with_platform) in [
                (json!("enforced"), true, true),
                (json!("delegated"), false, true),
                (json!("not-held"), false, false),
                (json!("Enforced"), false, false),
                (json!(true), false, false),
                (Value::Null, false, false),
            ] {
                let others = Guarantee::ALL.into_iter().filter(|other| *other != guarantee);
                let mut guarantees: serde_json::Map<String, Value> =
                    others.map(|guarantee| (guarantee.as_str().to_owned(), json!("enforced"))).collect();
                if !word.is_null() {
                    guarantees.insert(guarantee.as_str().to_owned(), word.clone());
                }
                let isolation = json!({ "profile": "container", "guarantees": guarantees });
                for (platform, holds) in [(&[][..], alone), (&[guarantee][..], with_platform)] {
                    let floor = floor(&Guarantee::ALL, platform);
                    let missing = floor.describe_missing(OURS, Some(&isolation));
                    assert_eq!(missing.is_none(), holds, "{guarantee}: {word}, {missing:?}");
                    let is_missing = missing.is_none_or(|message| message.contains(guarantee.as_str()));
                    assert!(is_missing, "{guarantee}");
                }
            }
        }
    }

    #[test]
    fn a_result_that_says_nothing_is_below_any_floor() {
        for isolation in [
            None,
            Some(json!(null)),
            Some(json!("enforced")),
            Some(json!({ "profile": "container" })),
            Some(json!({ "guarantees": ["syscalls"] })),
        ] {
            let floor = floor(&[Guarantee::Syscalls], &Guarantee::ALL);
            assert!(floor.describe_missing(OURS, isolation.as_ref()).is_some());
        }
        assert_eq!(floor(&[], &[]).describe_missing(OURS, None), None);
    }

    #[test]
    fn an_image_that_starts_itself_attests_nothing() {
        let floor = floor(&[Guarantee::Kernel], &[]);
        assert_eq!(floor.describe_missing(FOREIGN, None), None);
        let plan = RunPlan::read(PLAN).unwrap();
        let starts = |pack: &str| {
            let mut parts = plan.parts.iter();
            let part = parts.find(|part| part.role.pack() == Some(pack)).unwrap();
            matches!(part.start, Start::Injected { .. })
        };
        assert!(starts(OURS) && !starts(FOREIGN));
        // Unless our executor replaces its own.
        let mut plan = plan;
        plan.isolation.floor = vec![Guarantee::Kernel];
        let ours = BTreeSet::from([FOREIGN.to_owned()]);
        let floor = IsolationFloor::new(&plan, &ours, &[]);
        assert!(floor.describe_missing(FOREIGN, None).is_some());
    }
}
