use sympozium_api::names::Digest;
use sympozium_ipc::receipt::{Chain, Event};
use sympozium_ipc::run_api::{AgentEnd, BridgePhase, Usage};

use super::*;

fn plan() -> Digest {
    sympozium_api::digest::digest_canonical("test", b"plan")
}

fn report(chain: &mut Chain, number: u64, receipts: u64) -> Report {
    let first_receipt = chain.len();
    let line = |number| {
        let event = Event::Started { run: format!("run-{number}"), by: "test".to_owned() };
        chain.add(number, event).unwrap().text
    };
    let receipts = (0..receipts).map(line).collect();
    Report {
        number,
        phase: BridgePhase::Working,
        first_receipt,
        receipts,
        head: chain.head().clone(),
        progress: None,
        transcript: Vec::new(),
        usage: Usage::default(),
        ending: None,
    }
}

fn next(cursor: &ReportCursor, report: &Report) -> (ReportCursor, usize) {
    match check_report(cursor, report) {
        Ok(ReportStep::Next { cursor, receipts }) => (cursor, receipts.len()),
        other => panic!("{other:?}"),
    }
}

fn broken(cursor: &ReportCursor, report: &Report) -> String {
    let refusal = check_report(cursor, report).unwrap_err();
    assert_eq!(refusal.code, ApiRefusalCode::Chain, "{refusal}");
    refusal.message
}

#[test]
fn reports_follow_from_each_other() {
    let mut chain = Chain::new(plan());
    let nothing = ReportCursor::start(plan());
    let first = report(&mut chain, 0, 2);
    let second = report(&mut chain, 1, 0);
    let third = report(&mut chain, 2, 3);
    let (one, count) = next(&nothing, &first);
    assert_eq!((one.reports, one.receipts, count), (1, 2, 2));
    assert_eq!(one.head, first.head);
    assert_eq!(check_report(&one, &first), Ok(ReportStep::Duplicate));
    let (two, _) = next(&one, &second);
    let (three, count) = next(&two, &third);
    assert_eq!((three.reports, three.receipts, count), (3, 5, 3));

    // A gap, an old report, and the last one with another content.
    assert!(broken(&one, &third).contains("report 2, and 1"));
    assert!(broken(&three, &first).contains("report 0, and 3"));
    let other = Report { progress: Some("other".to_owned()), ..third };
    assert!(broken(&three, &other).contains("report 2, and 3"));
    assert!(broken(&nothing, &second).contains("report 1, and 0"));
}

#[test]
fn receipts_follow_from_each_other_and_from_the_plan() {
    let mut chain = Chain::new(plan());
    let (cursor, _) = next(&ReportCursor::start(plan()), &report(&mut chain, 0, 2));
    let good = report(&mut chain, 1, 3);
    let with = |change: &dyn Fn(&mut Report)| {
        let mut report = good.clone();
        change(&mut report);
        broken(&cursor, &report)
    };
    assert!(with(&|report| report.first_receipt = 1).contains("number 1, and 2"));
    // Truncated, left out, reordered, forged.
    assert!(with(&|report| drop(report.receipts.pop())).contains("do not lead"));
    assert!(with(&|report| drop(report.receipts.remove(0))).contains("receipt 2:"));
    assert!(with(&|report| report.receipts.swap(1, 2)).contains("receipt 3:"));
    let forged = |report: &mut Report| report.receipts[1] = report.receipts[1].replace("run-1", "run-9");
    assert!(with(&forged).contains("receipt 4: it does not follow"));
    assert!(with(&|report| report.head = plan()).contains("do not lead"));
    // The chain of another run.
    let mut other = Chain::new(sympozium_api::digest::digest_canonical("test", b"other"));
    let foreign = report(&mut other, 0, 1);
    let text = broken(&ReportCursor::start(plan()), &foreign);
    assert!(text.contains("another plan"), "{text}");
    let (after, _) = next(&cursor, &good);
    assert_eq!(after.receipts, 5);
}

#[test]
fn nothing_comes_after_the_end() {
    let mut chain = Chain::new(plan());
    let last = Report { phase: BridgePhase::Ended, ending: Some(AgentEnd::TimedOut), ..report(&mut chain, 0, 1) };
    let (cursor, _) = next(&ReportCursor::start(plan()), &last);
    assert!(cursor.has_ended());
    assert_eq!(check_report(&cursor, &last), Ok(ReportStep::Duplicate));
    let more = report(&mut chain, 1, 1);
    assert!(broken(&cursor, &more).contains("how it ended"));
}
