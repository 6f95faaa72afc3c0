use proptest::prelude::*;
use sympozium_api::names::Digest;
use sympozium_api::run_plan::Gate;

use super::*;

fn plan() -> Digest {
    sympozium_api::digest::digest_canonical("test", b"plan")
}

fn event(number: u64) -> Event {
    let hash = sympozium_api::digest::digest_canonical("test", &number.to_le_bytes());
    match number % 4 {
        0 => Event::Called {
            call: number,
            tool: "execute_command".to_owned(),
            pack: Some("k8s-ops".to_owned()),
            arguments: hash,
            gate: Some(Gate::Ask),
            decided: CallDecision::Waiting,
            reason: None,
        },
        1 => Event::Answered {
            call: number,
            action: hash,
            decided: CallDecision::Allowed,
            by: Some("someone@example.com".to_owned()),
        },
        2 => Event::Acted {
            call: number,
            by: Actor::Skill,
            action: hash,
            outcome: Outcome::Exited { code: 3 },
            output: OutputSize { bytes: 12, truncated: false },
            duration_ms: 7,
            isolation: Some(ReportedIsolation {
                profile: "container".to_owned(),
                guarantees: vec!["filesystem".to_owned()],
            }),
        },
        _ => Event::Ended { outcome: Outcome::Done, result: Some(hash) },
    }
}

/// This number of lines, and the head after each.
fn lines(count: u64) -> (Vec<String>, Chain) {
    let mut chain = Chain::new(plan());
    let lines = (0..count).map(|number| chain.add(number, event(number)).expect("it fits").text).collect();
    (lines, chain)
}

fn check(lines: &[String], reported: Option<&Digest>) -> Result<VerifiedChain, ChainError> {
    verify(lines.iter().map(String::as_str), &plan(), reported)
}

#[test]
fn a_whole_chain_holds_and_reads_back() {
    let (lines, chain) = lines(9);
    let verified = check(&lines, Some(chain.head())).expect("it holds");
    assert_eq!(verified.head, *chain.head());
    let events: Vec<Event> = verified.receipts.into_iter().map(|receipt| receipt.event).collect();
    assert_eq!(events, (0..9).map(event).collect::<Vec<_>>());
    assert_eq!(check(&[], Some(&plan())).expect("nothing yet").receipts, []);
}

#[test]
fn an_end_that_was_cut_off_shows_by_the_head_that_was_reported() {
    let (lines, chain) = lines(5);
    let broken = check(&lines[..4], Some(chain.head())).expect_err("a line is missing");
    assert_eq!(broken.line, 5);
    assert!(matches!(broken.problem, LineError::WrongHead { .. }), "{broken}");
    // Without a head it cannot be detected.
    assert!(check(&lines[..4], None).is_ok());
}

#[test]
fn a_chain_is_read_in_pieces_and_a_wrong_line_changes_nothing() {
    let (lines, chain) = lines(6);
    let mut verifier = Verifier::new(plan());
    for line in &lines[..3] {
        verifier.read(line).expect("it follows");
    }
    let before = verifier.clone();
    assert_eq!(verifier.read(&lines[2]), Err(LineError::WrongNumber { expected: 3, found: 2 }));
    assert_eq!(verifier.read("{}"), Err(LineError::NotAReceipt));
    assert_eq!(verifier, before);
    let mut later = Verifier::resume(verifier.lines(), verifier.head().clone());
    for line in &lines[3..] {
        later.read(line).expect("it follows");
    }
    assert_eq!((later.lines(), later.head()), (6, chain.head()));
    let mut other = Verifier::resume(3, plan());
    assert_eq!(other.read(&lines[3]), Err(LineError::WrongPrevious));
}

#[test]
fn the_chain_of_another_plan_does_not_hold() {
    let (lines, _) = lines(2);
    let other = sympozium_api::digest::digest_canonical("test", b"other");
    let broken = verify(lines.iter().map(String::as_str), &other, None).expect_err("other plan");
    assert_eq!((broken.line, broken.problem), (1, LineError::WrongPrevious));
}

#[test]
fn texts_of_others_are_cut_and_cannot_move_a_cursor() {
    assert_eq!(to_receipt_text("a\u{1b}[2J\u{202e}\nb"), "a\u{fffd}[2J\u{fffd}\u{fffd}b");
    // Letters, according to `is_alphanumeric`, and blank.
    assert_eq!(to_receipt_text("a\u{3164}\u{ffa0}b"), "a\u{fffd}\u{fffd}b");
    let long = to_receipt_text(&"w".repeat(MAX_TEXT + 1));
    assert_eq!(long.chars().count(), MAX_TEXT);
    assert!(long.ends_with("w…"));
    assert_eq!(to_receipt_text(&long), long);
    assert_eq!(to_receipt_text(&"w".repeat(MAX_TEXT)), "w".repeat(MAX_TEXT));
}

/// An event in which every foreign field has a hostile value.
fn hostile(kind: u8, number: u64, text: &str) -> Event {
    let (text, hash) = (text.to_owned(), plan());
    match kind {
        0 => Event::Started { run: text.clone(), by: text },
        1 => Event::Called {
            call: number,
            tool: text.clone(),
            pack: Some(text.clone()),
            arguments: hash,
            gate: Some(Gate::Ask),
            decided: CallDecision::Waiting,
            reason: Some(text),
        },
        2 => Event::Asked { call: number, action: hash, approval: text },
        3 => Event::Answered { call: number, action: hash, decided: CallDecision::Allowed, by: Some(text) },
        4 => Event::Acted {
            call: number,
            by: Actor::Skill,
            action: hash,
            outcome: Outcome::Failed { why: text.clone() },
            output: OutputSize { bytes: number, truncated: true },
            duration_ms: number,
            isolation: Some(ReportedIsolation { profile: text.clone(), guarantees: vec![text; 40] }),
        },
        5 => Event::Model {
            request: number,
            status: Some(200),
            sent_bytes: number,
            received_bytes: number,
            input_tokens: Some(number),
            output_tokens: Some(number),
            duration_ms: number,
            error: Some(text),
        },
        6 => Event::Foreign { pack: text.clone(), what: ForeignKind::Request, name: text, ends_run: true },
        _ => Event::Ended { outcome: Outcome::Failed { why: text }, result: Some(hash) },
    }
}

proptest! {
    /// A line that could not be read again would block everything after it from being reported.
    #[test]
    fn whatever_is_in_an_event_its_line_fits_and_reads_back(
        kind in 0..8_u8,
        number in prop_oneof![any::<u64>(), Just(u64::MAX), (1_u64 << 53) - 2..(1 << 53) + 2],
        text in prop_oneof!["\\PC{0,40}", any::<String>(), Just("\"".repeat(5_000)), Just("\u{10ffff}".repeat(5_000)), Just("\u{20000}".repeat(5_000))],
        at: u64,
    ) {
        let mut chain = Chain::new(plan());
        let line = chain.add(at, hostile(kind, number, &text));
        let line = line.map_err(|error| TestCaseError::fail(error.to_string()))?;
        let verified = verify([line.text.as_str()], &plan(), Some(&line.head));
        let verified = verified.map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(&verified.receipts[0].event, &hostile(kind, number, &text).truncate());
    }
}

proptest! {
    /// Any change, removal, repetition or reordering of lines of a chain whose head is known is detected.
    #[test]
    fn every_change_shows(
        count in 1_u64..12,
        at in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(),
        how in 0..5_u8,
        byte in any::<u8>(),
    ) {
        let (original, chain) = lines(count);
        let mut lines = original.clone();
        let at = at.index(lines.len());
        match how {
            0 => {
                let mut bytes = lines[at].clone().into_bytes();
                let place = other.index(bytes.len());
                bytes[place] = byte;
                lines[at] = String::from_utf8_lossy(&bytes).into_owned();
            }
            1 => { lines.remove(at); }
            2 => { let line = lines[at].clone(); lines.insert(at, line); }
            3 => { let other = other.index(lines.len()); lines.swap(at, other); }
            _ => { let line = &mut lines[at]; line.insert(1, ' '); }
        }
        let verdict = check(&lines, Some(chain.head()));
        prop_assert_eq!(verdict.is_ok(), lines == original);
    }

    #[test]
    fn any_text_is_read_or_refused(text: String) {
        let verdict = verify([text.as_str()], &plan(), None);
        prop_assert!(verdict.is_err());
    }
}
