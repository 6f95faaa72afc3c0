//! Admission denies everything that a rule in the schemas rejects: the table of the kinds goes through both.

use serde_json::{Value, json};
use sympozium_api::{Agent, AgentRun, SkillPack, SympoziumPolicy};
use sympozium_testkit::objects::merge;

use super::harness::{Harness, yaml};
use crate::admit::{Subject, admit_agent, admit_pack, admit_policy};

const TABLE: &str = include_str!("../../../../api/tests/fixtures/cases.yaml");

#[test]
fn admission_refuses_what_rules_refuse() {
    let table: Value = yaml(TABLE);
    let (mut refused, mut accepted) = (0, 0);
    for case in table["cases"].as_array().expect("a list") {
        let name = case["name"].as_str().expect("a name");
        let kind = case["kind"].as_str().expect("a kind");
        // The API server checks changes of stored objects; the other kinds are not admitted here.
        let ours = ["Agent", "AgentRun", "SkillPack", "SympoziumPolicy"].contains(&kind);
        if !ours || !case["update"].is_null() {
            continue;
        }
        let mut object = json!({
            "apiVersion": "sympozium.ai/v1alpha1", "kind": kind, "metadata": { "name": "r" },
        });
        merge(&mut object, &table["bases"][kind]);
        if !case["merge"].is_null() {
            merge(&mut object, &case["merge"]);
        }
        match (case["by"].as_str(), denies(kind, object)) {
            (Some("rule"), denied) => {
                assert_eq!(denied, Some(true), "{name}");
                refused += 1;
            }
            // No schema restricts the types of volumes.
            (None, denied) if name != "a volume of a type that we do not know" => {
                assert_eq!(denied, Some(false), "{name}");
                accepted += 1;
            }
            _ => {}
        }
    }
    assert!(refused >= 10 && accepted >= 10, "{refused} {accepted}");
}

/// `None` when the object cannot be read.
fn denies(kind: &str, object: Value) -> Option<bool> {
    let denied = match kind {
        "Agent" => {
            let agent: Agent = serde_json::from_value(object).ok()?;
            admit_agent(&Subject::new("Agent", None, "r"), &agent.spec, false)
        }
        "SkillPack" => {
            let pack: SkillPack = serde_json::from_value(object).ok()?;
            admit_pack(&pack, None, None)
        }
        "SympoziumPolicy" => {
            let policy: SympoziumPolicy = serde_json::from_value(object).ok()?;
            admit_policy(&Subject::new("SympoziumPolicy", None, "r"), &policy.spec)
        }
        _ => {
            let mut harness = Harness::new("own: {p: {skills: []}, q: {skills: []}}");
            harness.run = serde_json::from_value::<AgentRun>(object).ok()?;
            return Some(harness.decide().2.is_none());
        }
    };
    Some(!denied.violations.is_empty())
}
