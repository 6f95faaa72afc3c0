//! The manifests of a case, admitted and planned without a run.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::Value;
use sympozium_conformance::Case;
use sympozium_conformance::case::OutcomeKind;
use sympozium_conformance::grants::Granted;
use sympozium_testkit::command;

use crate::pages;

/// What `sympozium explain -o json` says of the manifests of a case.
pub fn explanation(case: &Case, binary: &Path) -> anyhow::Result<Value> {
    let pages = pages::at(Ipv4Addr::LOCALHOST)?;
    let mut manifests = tempfile::Builder::new().suffix(".yaml").tempfile()?;
    manifests.write_all(case.text(pages)?.as_bytes())?;
    let output = command(binary)
        .args(["explain", "-o", "json", "--run", "case"])
        .arg(manifests.path())
        .output()
        .context("the program cannot be started")?;
    serde_json::from_slice(&output.stdout).with_context(|| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        format!("explain printed no JSON, and said: {said}")
    })
}

/// The rules by which the one run is denied, or for want of what it cannot be decided.
pub fn rules(explanation: &Value) -> BTreeSet<String> {
    let denied = explanation["denied"].as_array().into_iter().flatten();
    let reasons = denied.flat_map(|run| run["reasons"].as_array().into_iter().flatten());
    let errors = explanation["findings"].as_array().into_iter().flatten();
    let errors = errors.filter(|finding| finding["severity"] == "error");
    reasons.chain(errors).filter_map(|finding| finding["rule"].as_str().map(str::to_owned)).collect()
}

/// What is wrong with how the manifests of a case are planned.
pub fn problems(case: &Case, binary: &Path) -> anyhow::Result<Vec<String>> {
    let explanation = explanation(case, binary)?;
    let expect = &case.spec.expect;
    let rules = rules(&explanation);
    let wanted: BTreeSet<String> = expect.rules.iter().cloned().collect();
    if rules != wanted {
        let text = format!("it is denied by {rules:?}, and should be by {wanted:?}");
        return Ok(vec![text]);
    }
    let runs = explanation["runs"].as_array().map_or(&[][..], Vec::as_slice);
    match (expect.outcome, runs) {
        (OutcomeKind::Denied, []) => Ok(Vec::new()),
        (OutcomeKind::Denied, _) => Ok(vec!["it is denied, and planned".to_owned()]),
        (_, [run]) => {
            let granted = Granted::read(run.clone())?;
            let mut problems = granted.always();
            if let Some(grants) = &expect.grants {
                problems.extend(grants.problems(&granted));
            }
            Ok(problems)
        }
        (_, runs) => bail!("{} runs are planned, and should be one", runs.len()),
    }
}
