//! That what is wrong is found.

use sympozium_api::run_plan::Gate;
use sympozium_ipc::receipt::{OutputSize, ReportedIsolation};

use super::*;
use crate::receipts::ReceiptsExpected;

const PLAN: &str = include_str!("../../../../crates/plan/src/plan/tests/fixtures/plan-v1.json");

fn digest() -> Digest {
    Digest::new(format!("sha256:{}", "0".repeat(64)))
}

fn receipts(events: Vec<Event>) -> Vec<Receipt> {
    let numbered = events.into_iter().zip(0..);
    let receipt = |(event, number)| Receipt { number, previous: digest(), at_ms: 0, event };
    numbered.map(receipt).collect()
}

fn started() -> Event {
    Event::Started { run: "run".to_owned(), by: "bridge".to_owned() }
}

fn called(call: u64, pack: Option<&str>, decided: CallDecision) -> Event {
    Event::Called {
        call,
        tool: "execute_command".to_owned(),
        pack: pack.map(str::to_owned),
        arguments: digest(),
        gate: Some(Gate::Allow),
        decided,
        reason: None,
    }
}

fn acted(call: u64, guarantees: Option<&[&str]>) -> Event {
    Event::Acted {
        call,
        by: Actor::Skill,
        action: digest(),
        outcome: Outcome::Exited { code: 0 },
        output: OutputSize::default(),
        duration_ms: 0,
        isolation: guarantees.map(|guarantees| ReportedIsolation {
            profile: "container".to_owned(),
            guarantees: guarantees.iter().map(|it| (*it).to_owned()).collect(),
        }),
    }
}

fn ended() -> Event {
    Event::Ended { outcome: Outcome::Done, result: None }
}

#[test]
fn receipts_that_cannot_be_so_are_found() {
    let good = receipts(vec![started(), called(0, None, CallDecision::Allowed), acted(0, None), ended()]);
    assert_eq!(always(&good), Vec::<String>::new());
    for (events, wrong) in [
        (vec![ended()], "the first receipt is not that of the start"),
        (vec![started(), ended(), called(0, None, CallDecision::Denied)], "there are receipts after the end"),
        (
            vec![started(), called(0, None, CallDecision::Waiting), acted(0, None)],
            "call 0 was made without being allowed",
        ),
        (
            vec![started(), called(0, None, CallDecision::Allowed), acted(0, None), acted(0, None)],
            "call 0 was made twice",
        ),
    ] {
        assert_eq!(always(&receipts(events)), [wrong]);
    }
}

#[test]
fn receipts_are_told_by_call_and_compared_as_a_whole() {
    let summary = summarize(&receipts(vec![
        started(),
        called(0, Some("tools"), CallDecision::Allowed),
        called(1, None, CallDecision::Denied),
        acted(0, None),
        ended(),
    ]));
    let calls = ["execute_command of tools: allowed, exited 0 by skill", "execute_command: denied"];
    assert_eq!(summary.calls, calls);
    let mut expected = ReceiptsExpected {
        calls: calls.map(str::to_owned).to_vec(),
        model: Some(Vec::new()),
        foreign: Vec::new(),
        ended: "done".to_owned(),
    };
    assert_eq!(expected.problems(&summary), Vec::<String>::new());
    expected.calls.pop();
    expected.model = Some(vec!["200".to_owned()]);
    expected.ended = "failed".to_owned();
    assert_eq!(expected.problems(&summary).len(), 3);
}

#[test]
fn a_command_is_held_by_its_executor_and_its_part_together() {
    let plan = RunPlan::read(PLAN.trim_end().as_bytes()).expect("a plan");
    let part = plan.parts.iter().find(|part| part.role.pack().is_some());
    let part = part.expect("a skill");
    let pack = part.role.pack();
    let wanted = [Guarantee::Filesystem, Guarantee::Network];
    let mut records = Records {
        plan: Vec::new(),
        receipts: Vec::new(),
        head: None,
        results: BTreeMap::new(),
        around: BTreeMap::new(),
        files: None,
    };
    let of = |guarantees: Option<&[&str]>| {
        receipts(vec![started(), called(0, pack, CallDecision::Allowed), acted(0, guarantees)])
    };
    let own: &[&str] = &["filesystem"];
    assert_eq!(isolation(&of(Some(own)), &plan, &records, &wanted).len(), 1);
    records.around.insert(part.name.0.clone(), vec!["network".to_owned()]);
    let problems = isolation(&of(Some(own)), &plan, &records, &wanted);
    assert_eq!(problems, Vec::<String>::new());
    // An executor that says nothing is not believed.
    assert_eq!(isolation(&of(None), &plan, &records, &[]).len(), 1);
}
