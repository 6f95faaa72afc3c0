//! The table of what the API server accepts and rejects, through all stages of validation.
//!
//! The tests of the kinds put the same table through their types and rules, and the cluster tests through a real API
//! server. So the three cannot drift apart.

use std::fs;

use serde_json::{Value, json};
use sympozium_testkit::objects::merge;
use sympozium_testkit::static_build::workspace_root;

use super::*;
use crate::tree::Node;

/// What the API server rejects and we accept, because we expand the short form.
const ACCEPTED_HERE: &[&str] = &["skills by name only"];

/// Kinds that the gateway creates: only the API server checks their rules.
const MADE_BY_US: &[&str] = &["ToolApproval", "RunRecord"];

#[test]
fn verdicts_are_those_of_the_api_server() {
    let table = read("crates/api/tests/fixtures/cases.yaml");
    let mut schemas = Schemas::default();
    let mut counts = [0, 0, 0];
    let mut wrong = Vec::new();
    for case in table["cases"].as_array().unwrap() {
        // Only the API server checks changes to existing objects.
        if !case["update"].is_null() {
            continue;
        }
        let name = case["name"].as_str().unwrap();
        let kind = case["kind"].as_str().unwrap();
        let mut object = json!({
            "apiVersion": "sympozium.ai/v1alpha1",
            "kind": kind,
            "metadata": {"name": "object"},
        });
        merge(&mut object, &table["bases"][kind]);
        if !case["merge"].is_null() {
            merge(&mut object, &case["merge"]);
        }
        let mut session = Session::new("default");
        session.add_text("case.yaml".to_owned(), Ok(object.to_string()));
        let report = session.finish(&mut schemas, Completeness::Partial);
        let conclusion = report.conclusion();
        let by = case["by"].as_str().filter(|_| !ACCEPTED_HERE.contains(&name));
        let (count, is_right) = match by {
            None => (0, conclusion != Conclusion::Invalid),
            Some("rule") => (1, conclusion != Conclusion::Passed || MADE_BY_US.contains(&kind)),
            Some(_) => (2, conclusion == Conclusion::Invalid),
        };
        counts[count] += 1;
        if !is_right {
            wrong.push(format!("{kind}, {name}: by {by:?}: {conclusion:?}\n{}", report.text()));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(counts.iter().all(|count| *count > 5), "{counts:?}");
}

fn read(path: &str) -> Value {
    let text = fs::read_to_string(workspace_root().join(path)).unwrap();
    let loaded = load(&text, &mut Budget::default());
    loaded.documents.first().map(Node::to_json).unwrap()
}

/// From the file to the report: characters that only a model reads are reported with their line, in whatever field and
/// file.
#[test]
fn hidden_characters_in_a_manifest_are_reported_with_their_line() {
    const PACK: &str = "\
apiVersion: sympozium.ai/v1alpha1
kind: SkillPack
metadata: {name: p}
spec:
  skills:
    - name: s
      description: Harmless.
      content: |
        Do it.
";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pack.yaml");
    let find_hidden = |text: &str| -> Vec<(FindingSeverity, ValidationStage, u32, u32, String)> {
        fs::write(&path, text).unwrap();
        let session = Session::read("default", std::slice::from_ref(&path), None);
        let report = session.finish(&mut Schemas::default(), Completeness::Partial);
        assert_eq!(report.conclusion(), Conclusion::Passed, "{}", report.text());
        let found = report.findings().iter();
        let found = found.filter(|finding| finding.rule == "hidden-characters");
        found
            .map(|finding| {
                let message = finding.message.clone();
                (finding.severity, finding.stage, finding.line, finding.column, message)
            })
            .collect()
    };
    let warning = |line, column, message: &str| {
        let message = message.to_owned();
        [(FindingSeverity::Warning, ValidationStage::Read, line, column, message)]
    };
    assert_eq!(find_hidden(PACK), []);
    assert_eq!(
        find_hidden(&PACK.replace("Harmless.", "Harmless.\u{e0041}")),
        warning(7, 29, "an invisible character: ` Harmless.\\u{e0041}`")
    );
    assert_eq!(
        find_hidden(&PACK.replace("Do it.", "Do\u{200b}\u{200b} it.")),
        warning(9, 11, "2 invisible characters: `        Do\\u{200b}\\u{200b} it.`")
    );
}
