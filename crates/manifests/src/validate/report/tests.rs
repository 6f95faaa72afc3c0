//! The text and the JSON output.

use super::*;
use crate::limits::MAX_FINDINGS;
use crate::validate::finding::{ObjectName, ValidationStage};

fn finding(severity: FindingSeverity, file: &str, line: u32) -> Finding {
    Finding {
        severity,
        stage: ValidationStage::Schema,
        rule: "rule".to_owned(),
        file: file.to_owned(),
        line,
        column: 2,
        object: Some(ObjectName { kind: "Agent".to_owned(), namespace: "default".to_owned(), name: "a".to_owned() }),
        field: "spec.x".to_owned(),
        message: "is wrong".to_owned(),
        hint: (line == 1).then(|| "mend it".to_owned()),
    }
}

fn report(all: &[(FindingSeverity, &str, u32)]) -> Report {
    let mut findings = Findings::default();
    for (severity, file, line) in all {
        findings.add(finding(*severity, file, *line));
    }
    Report::new(vec!["b.yaml".to_owned(), "a.yaml".to_owned()], &[], 0, findings)
}

#[test]
fn findings_come_in_the_order_of_files_and_lines() {
    let report = report(&[
        (FindingSeverity::Warning, "a.yaml", 1),
        (FindingSeverity::Error, "b.yaml", 10),
        (FindingSeverity::Denied, "b.yaml", 9),
    ]);
    assert_eq!(
        report.text(),
        "b.yaml:9:2: denied[rule]: spec.x: is wrong\n\
         b.yaml:10:2: error[rule]: spec.x: is wrong\n\
         \n\
         a.yaml:1:2: warning[rule]: spec.x: is wrong\n  hint: mend it\n"
    );
    assert_eq!(report.summary(), "failed: 1 error, 1 denial, 1 warning; 0 objects in 2 files");
    assert_eq!(report.conclusion(), Conclusion::Invalid);
}

#[test]
fn only_errors_and_denials_decide() {
    assert_eq!(report(&[]).conclusion(), Conclusion::Passed);
    assert_eq!(report(&[]).summary(), "ok: 0 objects in 2 files");
    let warned = report(&[(FindingSeverity::Warning, "a.yaml", 1)]);
    assert_eq!(warned.conclusion(), Conclusion::Passed);
    assert_eq!(warned.summary(), "ok: 1 warning; 0 objects in 2 files");
    let denied = report(&[(FindingSeverity::Denied, "a.yaml", 1), (FindingSeverity::Warning, "a.yaml", 1)]);
    assert_eq!(denied.conclusion(), Conclusion::Denied);
}

#[test]
fn omitted_findings_are_counted() {
    let many = vec![(FindingSeverity::Error, "a.yaml", 3); MAX_FINDINGS + 5];
    let report = report(&many);
    assert_eq!(report.findings.len(), MAX_FINDINGS);
    assert_eq!(report.summary(), "failed: 1005 errors; 0 objects in 2 files; 5 more findings not listed");
}

#[test]
fn programs_get_the_documented_shape() {
    let report = report(&[(FindingSeverity::Denied, "a.yaml", 1)]);
    insta::assert_json_snapshot!(report, @r#"
    {
      "allowed": false,
      "errors": 0,
      "denials": 1,
      "warnings": 0,
      "files": 2,
      "objects": 0,
      "otherObjects": 0,
      "undecidedRuns": 0,
      "findings": [
        {
          "severity": "denied",
          "stage": "schema",
          "rule": "rule",
          "file": "a.yaml",
          "line": 1,
          "column": 2,
          "object": {
            "kind": "Agent",
            "namespace": "default",
            "name": "a"
          },
          "field": "spec.x",
          "message": "is wrong",
          "hint": "mend it"
        }
      ],
      "findingsLeftOut": 0
    }
    "#);
}
