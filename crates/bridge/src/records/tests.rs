use proptest::prelude::*;
use sympozium_ipc::receipt::{Outcome, verify};

use super::*;

fn plan() -> Digest {
    sympozium_api::digest::digest_canonical("test", b"plan")
}

fn started() -> Event {
    Event::Started { run: "uid".to_owned(), by: "test".to_owned() }
}

fn ended() -> Event {
    Event::Ended { outcome: Outcome::Done, result: None }
}

fn next(records: &Records) -> Option<Report> {
    records.next_report(Usage::default)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// However much happens between reports, and however often one must be sent again: together they contain everything
    /// in order, each report follows from the one before, and only the last one ends the run.
    #[test]
    fn reports_carry_everything_once(
        steps in prop::collection::vec((0_usize..300, 0_usize..6, any::<bool>()), 0..6),
    ) {
        let records = Records::new(plan(), u64::MAX);
        let (mut lines, mut transcript, mut reports): (Vec<String>, Vec<String>, u64) = Default::default();
        let (mut added, mut stored) = (0, Vec::new());
        let mut take = |records: &Records, again: bool| -> Result<Option<bool>, TestCaseError> {
            let Some(report) = next(records) else { return Ok(None) };
            if again {
                prop_assert_eq!(next(records), Some(report.clone()));
            }
            prop_assert_eq!(report.check(), Ok(()));
            prop_assert_eq!(report.number, reports);
            prop_assert_eq!(report.first_receipt, lines.len() as u64);
            reports += 1;
            lines.extend(report.receipts.clone());
            transcript.extend(report.transcript.clone());
            let verified = verify(lines.iter().map(String::as_str), &plan(), Some(&report.head));
            prop_assert!(verified.is_ok(), "{:?}", verified.err());
            Ok(Some(records.confirm_report()))
        };
        for (receipts, pieces, again) in steps {
            for _ in 0..receipts {
                records.add(started());
                added += 1;
            }
            for piece in 0..pieces {
                let line = format!("{piece}{}", "x".repeat(MAX_TRANSCRIPT_LINE / 2));
                if records.add_transcript(std::iter::once(line.as_str())) == TranscriptOutcome::Stored {
                    stored.push(line);
                }
            }
            take(&records, again)?;
        }
        records.finish(ended(), AgentEnd::TimedOut);
        while take(&records, false)? == Some(false) {}
        prop_assert_eq!(lines.len(), added + 1);
        prop_assert_eq!(transcript, stored);
        prop_assert_eq!(next(&records), None);
    }
}

#[tokio::test]
async fn calls_wait_while_nothing_leaves() {
    let records = Records::new(plan(), 0);
    for _ in 0..MAX_PENDING_RECEIPTS {
        assert!(records.wait_for_room().await);
        records.add(started());
    }
    let room = records.wait_for_room();
    tokio::pin!(room);
    let now = std::time::Duration::ZERO;
    assert!(tokio::time::timeout(now, &mut room).await.is_err());
    assert!(next(&records).is_some());
    assert!(!records.confirm_report());
    assert!(room.await);
    records.finish(ended(), AgentEnd::TimedOut);
    assert!(!records.wait_for_room().await);
    let head = records.chain_head();
    records.add(started());
    assert_eq!(records.chain_head(), head, "nothing is recorded after the end");
}

#[test]
fn the_end_presses_more_than_receipts_and_those_more_than_words() {
    let records = Records::new(plan(), 100);
    assert_eq!(records.urgency(), None);
    records.set_progress("a".to_owned());
    assert_eq!(records.urgency(), Some(Urgency::Later));
    records.add(started());
    assert_eq!(records.urgency(), Some(Urgency::Soon));
    assert!(next(&records).is_some());
    assert_eq!(records.urgency(), Some(Urgency::Now), "it was not taken yet");
    assert!(!records.confirm_report());
    assert_eq!(records.urgency(), None);
    records.finish(ended(), AgentEnd::TimedOut);
    assert_eq!(records.urgency(), Some(Urgency::Now));
    assert!(next(&records).is_some());
    assert!(records.confirm_report());
    assert_eq!(records.urgency(), None);
}

#[test]
fn a_transcript_has_an_end() {
    let records = Records::new(plan(), 5);
    assert_eq!(records.add_transcript(["abc"].into_iter()), TranscriptOutcome::Stored);
    assert_eq!(records.add_transcript(["def"].into_iter()), TranscriptOutcome::TooLarge);
    assert_eq!(records.add_transcript(["de"].into_iter()), TranscriptOutcome::Stored);
    let report = next(&records).expect("news");
    assert_eq!(report.transcript, ["abc", "de"]);
}

#[test]
fn a_transcript_that_waits_to_leave_is_a_matter_of_time() {
    let records = Records::new(plan(), u64::MAX);
    let line = "a".repeat(100 << 10);
    let lines = (MAX_PENDING_TRANSCRIPT / line.len()).saturating_sub(1);
    for _ in 0..lines {
        assert_eq!(records.add_transcript([line.as_str()].into_iter()), TranscriptOutcome::Stored);
    }
    let two = || [line.as_str(), line.as_str()].into_iter();
    assert_eq!(records.add_transcript(two()), TranscriptOutcome::Full);
    while next(&records).is_some() {
        records.confirm_report();
    }
    assert_eq!(records.add_transcript(two()), TranscriptOutcome::Stored);
}
