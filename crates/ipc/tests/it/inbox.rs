//! The rules of the executor's side, one by one.

use std::fs;
use std::time::{Duration, Instant};

use sympozium_ipc::inbox::INCOMPLETE_TIMEOUT;
use sympozium_ipc::{Arrival, ExecRequest, ExecResult, RequestError, names};
use sympozium_testkit::growing;

use crate::fixture::{Fixture, await_arrival, describe, id, json, not_given_at_once, ok, pull, stays_empty};

/// Callers move these between threads.
const _: () = {
    const fn can_be_moved<T: Send + 'static>() {}
    can_be_moved::<sympozium_ipc::Inbox>();
    can_be_moved::<Arrival>();
    can_be_moved::<sympozium_ipc::Requester>();
    can_be_moved::<sympozium_ipc::DoneWatch>();
};

#[test]
fn what_lies_there_at_the_start_and_what_comes_later_is_given_once() {
    let fixture = Fixture::new();
    fixture.ask(1, "first");
    let mut inbox = fixture.inbox();
    assert_eq!(inbox.poll_reason(), None);
    let first = pull(&mut inbox).expect("it lay there");
    assert_eq!(describe(&first), "run 1: first");
    assert!(fixture.has_claim(1));
    assert!(pull(&mut inbox).is_none());

    fixture.ask(2, "second");
    let second = pull(&mut inbox).expect("the event is there before the writer goes on");
    assert_eq!(describe(&second), "run 2: second");
    assert!(pull(&mut inbox).is_none());

    let Arrival::Request(claimed, _) = first else { panic!("it is a request") };
    claimed.answer(&ok(1, "hi")).expect("there is room");
    assert_eq!(fixture.result(1), Some(ok(1, "hi")));
    drop(claimed);
    assert!(stays_empty(&mut inbox, Duration::from_millis(50)));
    assert!(fixture.inbox().next().expect("it is fine").is_none(), "nor to another inbox");
    let expected = [".claim-1", ".claim-2", "exec-request-1.json", "exec-request-2.json", "exec-result-1.json"];
    assert_eq!(fixture.listing(), expected);
}

#[test]
fn a_request_is_given_as_it_was_sent() {
    let fixture = Fixture::new();
    let request = ExecRequest {
        args: vec!["a b".to_owned()],
        work_dir: Some("/tmp".to_owned()),
        timeout: Some(7),
        target: Some("Pack ".to_owned()),
        stdin: Some("in\0put".to_owned()),
        ..ExecRequest::new(id(1), "cat")
    };
    fixture.put(&names::request(&id(1)), request.to_json().expect("it is good"));
    let mut inbox = fixture.inbox_of("pack");
    let Some(Arrival::Request(claimed, given)) = pull(&mut inbox) else { panic!("it is for us") };
    assert_eq!((claimed.id(), *given), (&id(1), request));
}

#[test]
fn a_request_for_another_pack_is_left_unclaimed_even_when_it_is_malformed() {
    let fixture = Fixture::new();
    fixture.put("exec-request-1.json", r#"{"id":"1","command":"x","target":"other"}"#);
    fixture.put("exec-request-2.json", r#"{"id":"2","args":"nonsense","target":"other"}"#);
    let mut ours = fixture.inbox_of("ours");
    assert!(pull(&mut ours).is_none());
    assert!(!fixture.has_claim(1) && !fixture.has_claim(2));
    let mut others = fixture.inbox_of("OTHER");
    let mut given = [pull(&mut others), pull(&mut others)].map(|given| describe(&given.expect("two")));
    given.sort();
    assert_eq!(given, ["refuse 2: the field `command` is missing", "run 1: x"]);
}

#[test]
fn every_malformed_request_is_claimed_and_refused_at_once() {
    let fixture = Fixture::new();
    let mut inbox = fixture.inbox();
    let cases = [
        ("{]", "the request is not JSON: "),
        ("[]", "the request must be a JSON object"),
        (r#"{"command":"x"}"#, "the field `id` is missing"),
        (r#"{"id":"other","command":"x"}"#, "the field `id` does not equal"),
        (r#"{"id":"4","command":"x","timeout":"5"}"#, "the field `timeout` must be a whole number"),
        (r#"{"id":"5","command":"x","command":"y"}"#, "the field `command` is there more than once"),
    ];
    for (number, (content, expected)) in cases.into_iter().enumerate() {
        let number = number as u64;
        fixture.put(&names::request(&id(number)), content);
        let Some(Arrival::Refused(claimed, problem)) = pull(&mut inbox) else { panic!("{content}") };
        assert!(problem.to_string().starts_with(expected), "{problem}");
        assert!(fixture.has_claim(number));
        let result = ExecResult::failed(id(number), "refused", problem.to_string());
        claimed.answer(&result).expect("there is room");
        assert_eq!(fixture.result(number), Some(result));
    }
}

#[test]
fn what_has_a_result_is_skipped() {
    let fixture = Fixture::new();
    fixture.ask(1, "again");
    fixture.put("exec-result-1.json", "anything");
    assert!(pull(&mut fixture.inbox()).is_none());
    assert!(!fixture.has_claim(1));
}

#[test]
fn a_half_written_request_is_waited_for_and_then_run_whole() {
    let whole = json(1, "echo one; echo two");
    // `false` when the machine was so slow that it had stayed incomplete.
    let is_waited_for = || {
        let fixture = Fixture::new();
        let path = fixture.tools("exec-request-1.json");
        let mut inbox = fixture.inbox();
        for length in [0, 20, whole.len() - 1] {
            let written = Instant::now();
            fs::write(&path, &whole[..length]).expect("there is room");
            let arrival = pull(&mut inbox);
            if written.elapsed() >= INCOMPLETE_TIMEOUT {
                return false;
            }
            assert!(arrival.is_none(), "{length} bytes");
            assert!(!fixture.has_claim(1));
            let soon = Instant::now() + Duration::from_secs(1);
            assert!(inbox.wake_at().expect("it goes on") <= soon);
        }
        fs::write(&path, &whole).expect("there is room");
        assert_eq!(describe(&await_arrival(&mut inbox)), "run 1: echo one; echo two");
        true
    };
    assert!((0..50).any(|_| is_waited_for()));
}

#[test]
fn a_request_that_stays_incomplete_is_refused() {
    let (fixture, mut inbox) = not_given_at_once(|fixture| {
        let incomplete = r#"{"id":"1","command":"rm -rf /tmp/scr"#;
        fixture.put("exec-request-1.json", incomplete);
    });
    let Arrival::Refused(_, problem) = await_arrival(&mut inbox) else { panic!("it never ran") };
    assert_eq!(problem, RequestError::EndsEarly);
    assert!(fixture.has_claim(1));
}

#[test]
fn a_second_name_is_waited_for_and_then_refused() {
    // A writer that gives a file its name by link(2) and then takes the first name away.
    let (fixture, mut inbox) = not_given_at_once(|fixture| {
        let (first, second) = ("x.tmp", "exec-request-1.json");
        fs::write(fixture.tools(first), json(1, "linked")).expect("there is room");
        fs::hard_link(fixture.tools(first), fixture.tools(second)).expect("it is free");
    });
    fs::remove_file(fixture.tools("x.tmp")).expect("it is there");
    assert_eq!(describe(&await_arrival(&mut inbox)), "run 1: linked");

    fs::write(fixture.path("elsewhere"), json(2, "shared")).expect("there is room");
    fs::hard_link(fixture.path("elsewhere"), fixture.tools("exec-request-2.json")).expect("it is free");
    let Arrival::Refused(_, problem) = await_arrival(&mut inbox) else { panic!("it never ran") };
    assert_eq!(problem, RequestError::HardLinked { links: 2 });
}

#[test]
fn an_answer_is_for_its_own_request_only() {
    let fixture = Fixture::new();
    fixture.ask(1, "x");
    let mut inbox = fixture.inbox();
    let Some(Arrival::Request(claimed, _)) = pull(&mut inbox) else { panic!("it lay there") };
    let error = claimed.answer(&ok(2, "")).expect_err("it is for another");
    assert_eq!(error.to_string(), "the result is for 2, and the claim for 1");
    let mut large = ok(1, "");
    large.stdout = "x".repeat(2 << 20);
    claimed.answer(&large).expect_err("it is too large");
    assert_eq!((fixture.result(1), fixture.result(2)), (None, None));
}

#[test]
fn a_request_that_is_given_back_can_be_had_again() {
    let fixture = Fixture::new();
    fixture.ask(1, "x");
    let mut inbox = fixture.inbox();
    let Some(Arrival::Request(claimed, _)) = pull(&mut inbox) else { panic!("it lay there") };
    claimed.release();
    assert!(!fixture.has_claim(1));
    assert_eq!(describe(&pull(&mut fixture.inbox()).expect("it is free")), "run 1: x");
}

#[test]
fn a_claim_is_left_alone_for_its_lease_and_reported_once_after_it() {
    /// For which a report keeps others from reporting the same.
    const ANSWER_GRACE: Duration = Duration::from_secs(5);
    // Done anew where the machine was so slow that this time was over.
    let reported = (0..50).find_map(|_| {
        let fixture = Fixture::new();
        fixture.ask(1, "x");
        fixture.claim_as_other(1);
        let mut patient = fixture.inbox();
        assert!(pull(&mut patient).is_none());

        let mut first = fixture.inbox_with_short_lease();
        let mut second = fixture.inbox_with_short_lease();
        let before = Instant::now();
        let Some(Arrival::Abandoned(abandoned)) = pull(&mut first) else { panic!("its lease is over") };
        let other = pull(&mut second);
        if before.elapsed() >= ANSWER_GRACE {
            return None;
        }
        assert!(other.is_none(), "one reports it");
        assert!(pull(&mut first).is_none(), "once");
        Some((fixture, abandoned))
    });
    let (fixture, abandoned) = reported.expect("this machine is not too slow");
    let ambiguous = ExecResult::failed(id(1), "ambiguous", "nobody knows");
    abandoned.answer(&ambiguous).expect("there is room");
    drop(abandoned);
    assert_eq!(fixture.result(1), Some(ambiguous));
    assert!(pull(&mut fixture.inbox_with_short_lease()).is_none());
}

#[test]
fn a_late_answer_of_the_holder_is_not_replaced_by_the_report() {
    let fixture = Fixture::new();
    fixture.ask(1, "x");
    fixture.claim_as_other(1);
    let Some(Arrival::Abandoned(abandoned)) = pull(&mut fixture.inbox_with_short_lease()) else { panic!("lease") };
    fixture.put("exec-result-1.json", ok(1, "late").to_json().expect("it is good"));
    abandoned.answer(&ExecResult::failed(id(1), "ambiguous", "")).expect("that is fine");
    assert_eq!(fixture.result(1), Some(ok(1, "late")));
    assert_eq!(fixture.listing(), [".claim-1", ".lapsed-1", "exec-request-1.json", "exec-result-1.json"]);
}

#[test]
fn our_own_claims_are_never_abandoned_and_those_we_drop_are() {
    let fixture = Fixture::new();
    fixture.ask(1, "x");
    let mut inbox = fixture.inbox_with_short_lease();
    let claimed = pull(&mut inbox).expect("it lay there");
    // An event about it brings it up again.
    fixture.ask(1, "x");
    assert!(pull(&mut inbox).is_none());
    drop(claimed);
    fixture.ask(1, "x");
    let Some(Arrival::Abandoned(abandoned)) = pull(&mut inbox) else { panic!("the claim was not abandoned") };
    drop(abandoned);
    fixture.ask(1, "x");
    assert_eq!(describe(&pull(&mut inbox).expect("nor did the reporter")), "abandoned 1");
}

#[test]
fn a_claim_that_vanished_is_reported_and_not_run() {
    let found = growing(Duration::from_millis(300)).find_map(|lease_grace| {
        let fixture = Fixture::new();
        fixture.ask(1, "x");
        let claimed = Instant::now();
        fixture.claim_as_other(1);
        let settings = sympozium_ipc::InboxSettings { max_timeout: Duration::ZERO, lease_grace, ..Default::default() };
        let mut inbox = sympozium_ipc::Inbox::new(&fixture.volume, settings);
        let arrival = pull(&mut inbox);
        if claimed.elapsed() >= lease_grace {
            return None;
        }
        assert!(arrival.is_none());
        Some((fixture, inbox))
    });
    let (fixture, mut inbox) = found.expect("in time");
    fs::remove_dir(fixture.tools(".claim-1")).expect("it is there");
    assert_eq!(describe(&await_arrival(&mut inbox)), "abandoned 1");
    assert!(fixture.has_claim(1), "so that no other executor runs it");
}

#[test]
fn a_request_taken_back_before_it_is_claimed_is_not_given() {
    let fixture = Fixture::new();
    let mut inbox = fixture.inbox();
    assert!(pull(&mut inbox).is_none());
    fs::remove_file(fixture.ask(1, "x")).expect("it is there");
    assert!(pull(&mut inbox).is_none());
    assert_eq!(fixture.listing(), [""; 0]);
}
