//! Compares what was observed of a run with what its case expects, and with what must hold for every run.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use sympozium_api::RunPlan;
use sympozium_api::guarantee::Guarantee;
use sympozium_api::names::Digest;
use sympozium_ipc::receipt::{Actor, CallDecision, Event, Outcome, Receipt, verify};
use sympozium_plan::explain::explain;

use crate::backend::Backend;
use crate::case::{Case, Expectation, OutcomeKind};
use crate::grants::Granted;
use crate::observed::{CallResult, Observed, Records};
use crate::receipts::{NEVER, summarize};

/// Everything that is wrong. Nothing when the case holds.
pub fn judge(case: &Case, observed: &Observed, backend: &dyn Backend) -> Vec<String> {
    let expect = &case.spec.expect;
    let mut problems = Vec::new();
    if observed.outcome != expect.outcome {
        problems.push(format!(
            "the run ended {:?}, and should have {:?}; it says: {}",
            observed.outcome, expect.outcome, observed.text
        ));
    } else {
        let text = expect.answer.as_ref().or(expect.why.as_ref());
        for problem in text.map(|it| it.problems(&observed.text)).unwrap_or_default() {
            problems.push(format!("what it says {problem}"));
        }
        let [found, wanted]: [BTreeSet<_>; 2] = [&observed.rules, &expect.rules].map(|it| it.iter().collect());
        if found != wanted {
            problems.push(format!("it is denied by {found:?}, and should be by {wanted:?}"));
        }
    }
    problems.extend(observed.leftovers.iter().map(|it| format!("left over: {it}")));
    problems.extend(observed.surprises.iter().cloned());
    match (&observed.records, expect.outcome) {
        // That it was refused may be records.
        (_, OutcomeKind::Refused) | (None, OutcomeKind::Denied) => {}
        (Some(_), OutcomeKind::Denied) => {
            problems.push("something is kept of a run that never began".to_owned());
        }
        (None, _) => problems.push("nothing is kept of the run".to_owned()),
        (Some(records), _) => {
            let usual = backend.guarantees();
            let enforced = expect.isolation.get(backend.name()).map_or(usual, Vec::as_slice);
            match judge_records(expect, records, enforced) {
                Ok(more) => problems.extend(more),
                Err(error) => problems.push(format!("{error:#}")),
            }
        }
    }
    problems
}

fn judge_records(expect: &Expectation, records: &Records, enforced: &[Guarantee]) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    let plan = RunPlan::read(&records.plan).context("the plan that is kept cannot be read")?;
    let granted = Granted::read(serde_json::to_value(explain(&plan))?)?;
    problems.extend(granted.always());
    if let Some(grants) = &expect.grants {
        problems.extend(grants.problems(&granted));
    }

    let lines = std::str::from_utf8(&records.receipts).context("the receipts are no text")?;
    let head = records.head.clone().map(Digest::new);
    let digest = RunPlan::digest_of(&records.plan);
    let verified = verify(lines.lines(), &digest, head.as_ref()).context("the chain of receipts is broken")?;
    let summary = summarize(&verified.receipts);
    let began = !verified.receipts.is_empty() || summary.ended != NEVER;
    if began {
        problems.extend(always(&verified.receipts));
        problems.extend(isolation(&verified.receipts, &plan, records, enforced));
    }
    if let Some(expected) = &expect.receipts {
        problems.extend(expected.problems(&summary));
        if expected.ended != NEVER && head.is_none() {
            problems.push("no head of the receipts left the run".to_owned());
        }
    }

    if let Some(expected) = &expect.results {
        let [found, wanted]: [BTreeSet<&String>; 2] = [records.results.keys().collect(), expected.keys().collect()];
        if found != wanted {
            problems.push(format!("the model was told of the calls {found:?}, and should have been of {wanted:?}"));
        }
        for (id, expected) in expected {
            let Some(CallResult { failed, text }) = records.results.get(id) else {
                continue;
            };
            let mut wrong = expected.text.problems(text);
            if *failed != expected.failed {
                wrong.push(format!("failed: {failed}; the text is {text:?}"));
            }
            problems.extend(wrong.iter().map(|problem| format!("the result of {id} {problem}")));
        }
    }

    if let Some(files) = &records.files {
        for (path, expected) in &expect.files {
            match (files.get(path), expected) {
                (None, None) => {}
                (Some(_), None) => problems.push(format!("{path} is in the workspace")),
                (None, Some(_)) => {
                    problems.push(format!("{path} is not in the workspace, which has {:?}", files.keys()));
                }
                (Some(found), Some(expected)) => {
                    let found = String::from_utf8_lossy(found);
                    let wrong = expected.problems(&found);
                    problems.extend(wrong.iter().map(|problem| format!("{path} {problem}")));
                }
            }
        }
    }
    Ok(problems)
}

/// What holds for the receipts of every run: they begin at the beginning, nothing is done that was not allowed before, nothing
/// is done twice, and nothing follows the end.
fn always(receipts: &[Receipt]) -> Vec<String> {
    let mut problems = Vec::new();
    if !matches!(receipts.first().map(|it| &it.event), Some(Event::Started { .. })) {
        problems.push("the first receipt is not that of the start".to_owned());
    }
    let ends = receipts.iter().position(|it| matches!(it.event, Event::Ended { .. }));
    if ends.is_some_and(|at| at + 1 != receipts.len()) {
        problems.push("there are receipts after the end".to_owned());
    }
    let mut allowed = BTreeSet::new();
    let mut acted = BTreeSet::new();
    for receipt in receipts {
        match &receipt.event {
            Event::Called { call, decided, .. } | Event::Answered { call, decided, .. }
                if *decided == CallDecision::Allowed =>
            {
                allowed.insert(*call);
            }
            Event::Acted { call, .. } => {
                if !allowed.contains(call) {
                    problems.push(format!("call {call} was made without being allowed"));
                }
                if !acted.insert(*call) {
                    problems.push(format!("call {call} was made twice"));
                }
            }
            _ => {}
        }
    }
    problems
}

/// Whether every command of a skill was held by what must be enforced: by its executor, or around the part as a whole.
fn isolation(receipts: &[Receipt], plan: &RunPlan, records: &Records, enforced: &[Guarantee]) -> Vec<String> {
    let mut packs = BTreeMap::new();
    let mut problems = Vec::new();
    for receipt in receipts {
        match &receipt.event {
            Event::Called { call, pack: Some(pack), .. } => {
                packs.insert(*call, pack.as_str());
            }
            Event::Acted {
                call,
                by: Actor::Skill,
                outcome: Outcome::Exited { .. } | Outcome::TimedOut,
                isolation,
                ..
            } => {
                let pack = packs.get(call).copied();
                let part = plan.parts.iter().find(|part| part.role.pack() == pack);
                let around = part.and_then(|part| records.around.get(&part.name.0));
                let own = isolation.iter().flat_map(|it| &it.guarantees);
                let live: BTreeSet<&str> = own.chain(around.into_iter().flatten()).map(String::as_str).collect();
                let missing: Vec<_> = (enforced.iter()).filter(|wanted| !live.contains(wanted.as_str())).collect();
                if isolation.is_none() || !missing.is_empty() {
                    problems.push(format!(
                        "call {call} was held by {isolation:?}, its part by {around:?}; {missing:?} should be enforced too"
                    ));
                }
            }
            _ => {}
        }
    }
    problems
}

#[cfg(test)]
mod tests;
