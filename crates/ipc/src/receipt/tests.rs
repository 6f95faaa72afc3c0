use proptest::prelude::*;
use sympozium_api::names::Digest;
use sympozium_api::run_plan::Gate;

use super::*;

fn plan() -> Digest {
    sympozium_api::digest::of_canonical("test", b"plan")
}

fn event(number: u64) -> Event {
    let hash = sympozium_api::digest::of_canonical("test", &number.to_le_bytes());
    match number % 4 {
        0 => Event::Called {
            call: number,
            tool: "execute_command".to_owned(),
            pack: Some("k8s-ops".to_owned()),
            arguments: hash,
            gate: Some(Gate::Ask),
            decided: Decided::Waiting,
            reason: None,
        },
        1 => Event::Answered {
            call: number,
            action: hash,
            decided: Decided::Allowed,
            by: Some("someone@example.com".to_owned()),
        },
        2 => Event::Acted {
            call: number,
            by: Actor::Skill,
            action: hash,
            outcome: Outcome::Exited { code: 3 },
            output: Transferred {
                bytes: 12,
                truncated: false,
            },
            duration_ms: 7,
            isolation: Some(IsolationSeen {
                profile: "container".to_owned(),
                guarantees: vec!["filesystem".to_owned()],
            }),
        },
        _ => Event::Ended {
            outcome: Outcome::Done,
            result: Some(hash),
        },
    }
}

/// So many lines, and the head after each.
fn lines(count: u64) -> (Vec<String>, Chain) {
    let mut chain = Chain::new(plan());
    let lines = (0..count)
        .map(|number| chain.add(number, event(number)).expect("it fits").text)
        .collect();
    (lines, chain)
}

fn check(lines: &[String], reported: Option<&Digest>) -> Result<Verified, Broken> {
    verify(lines.iter().map(String::as_str), &plan(), reported)
}

#[test]
fn a_whole_chain_holds_and_reads_back() {
    let (lines, chain) = lines(9);
    let verified = check(&lines, Some(chain.head())).expect("it holds");
    assert_eq!(verified.head, *chain.head());
    let events: Vec<Event> = verified.receipts.into_iter().map(|it| it.event).collect();
    assert_eq!(events, (0..9).map(event).collect::<Vec<_>>());
    assert_eq!(check(&[], Some(&plan())).expect("nothing yet").receipts, []);
}

#[test]
fn an_end_that_was_cut_off_shows_by_the_head_that_was_reported() {
    let (lines, chain) = lines(5);
    let broken = check(&lines[..4], Some(chain.head())).expect_err("a line is missing");
    assert_eq!(broken.line, 5);
    assert!(matches!(broken.problem, Problem::Head { .. }), "{broken}");
    // Without a head nobody can know.
    assert!(check(&lines[..4], None).is_ok());
}

#[test]
fn the_chain_of_another_plan_does_not_hold() {
    let (lines, _) = lines(2);
    let other = sympozium_api::digest::of_canonical("test", b"other");
    let broken = verify(lines.iter().map(String::as_str), &other, None).expect_err("other plan");
    assert_eq!((broken.line, broken.problem), (1, Problem::Previous));
}

#[test]
fn what_does_not_fit_is_not_added() {
    let mut chain = Chain::new(plan());
    let before = chain.clone();
    let why = "w".repeat(MAX_LINE_BYTES);
    let event = |why: String| Event::Ended {
        outcome: Outcome::Failed { why },
        result: None,
    };
    assert!(matches!(
        chain.add(1, event(why.clone())),
        Err(TooLong::Bytes(_))
    ));
    assert_eq!(chain, before);
    chain.add(1, event(shortened(&why))).expect("it fits now");
    assert_eq!(
        shortened("a\u{1b}[2J\u{202e}\nb"),
        "a\u{fffd}[2J\u{fffd}\u{fffd}b"
    );
}

proptest! {
    /// Whoever changes, removes, repeats or moves lines of a chain whose head is known is found out.
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
