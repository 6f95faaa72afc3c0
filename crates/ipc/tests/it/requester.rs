//! The requester's side.

use std::fs;
use std::time::{Duration, Instant};

use sympozium_ipc::requester::{Arrived, SubmitError, Withdrawn};
use sympozium_ipc::{Arrival, ExecRequest, PollReason, RequestProblem, Requester, WatchMode};
use sympozium_testkit::wait_until;

use crate::fixture::{DEADLINE, Fixture, id, json, ok, pull};
use crate::volume::readable;

fn open(fixture: &Fixture) -> Requester {
    Requester::open(&fixture.volume, WatchMode::Automatic)
}

#[test]
fn a_request_is_written_whole_and_once() {
    let fixture = Fixture::new();
    let requester = open(&fixture);
    requester.submit(&ExecRequest::new(id(1), "echo hi")).expect("there is room");
    assert_eq!(fixture.listing(), ["exec-request-1.json"]);
    let written = fs::read(fixture.tools("exec-request-1.json")).expect("it is there");
    assert_eq!(written, json(1, "echo hi"));
    let second = requester.submit(&ExecRequest::new(id(1), "echo other"));
    assert!(matches!(second, Err(SubmitError::Volume(_))), "{second:?}");
    assert_eq!(fs::read(fixture.tools("exec-request-1.json")).expect("it is there"), written);
    assert_eq!(fixture.listing(), ["exec-request-1.json"]);
}

#[test]
fn what_an_executor_would_refuse_is_not_sent() {
    let fixture = Fixture::new();
    let error = open(&fixture).submit(&ExecRequest::new(id(1), "a\0b")).expect_err("it holds a NUL");
    assert!(matches!(error, SubmitError::Request(RequestProblem::Nul("command"))), "{error}");
    assert_eq!(fixture.listing(), [""; 0]);
}

#[test]
fn a_result_is_taken_once_and_leaves_nothing() {
    let fixture = Fixture::new();
    let requester = open(&fixture);
    let mut inbox = fixture.inbox();
    requester.submit(&ExecRequest::new(id(1), "x")).expect("there is room");
    assert_eq!(requester.take(&id(1)), Ok(None));
    let Some(Arrival::Request(claimed, _)) = pull(&mut inbox) else { panic!("it lay there") };
    assert_eq!(requester.take(&id(1)), Ok(None));
    claimed.answer(&ok(1, "hi")).expect("there is room");
    assert_eq!(requester.take(&id(1)), Ok(Some(ok(1, "hi"))));
    assert_eq!(requester.take(&id(1)), Ok(None));
    assert_eq!(fixture.listing(), [""; 0]);
}

#[test]
fn news_names_the_results_that_came() {
    let fixture = Fixture::new();
    let mut requester = open(&fixture);
    assert_eq!(requester.arrived(), Arrived::Nothing);
    fixture.ask(1, "x");
    fixture.put("exec-result-1.json", "anything");
    fs::write(fixture.tools("exec-result-2.json"), "anything").expect("there is room");
    assert!(readable(requester.descriptor().expect("inotify is here")));
    assert_eq!(requester.arrived(), Arrived::Result(id(1)));
    assert_eq!(requester.arrived(), Arrived::Result(id(2)));
    assert_eq!(requester.arrived(), Arrived::Nothing);
    assert!(!readable(requester.descriptor().expect("inotify is here")));
    assert!(wait_until(DEADLINE, || requester.arrived() == Arrived::LookAtAll), "in case events do not come");
}

#[test]
fn waiting_ends_with_the_result_or_at_the_deadline() {
    for mode in [WatchMode::Automatic, WatchMode::Polling] {
        let fixture = Fixture::new();
        let mut requester = Requester::open(&fixture.volume, mode);
        requester.submit(&ExecRequest::new(id(1), "x")).expect("there is room");
        assert_eq!(requester.wait(&id(1), Instant::now() + Duration::from_millis(20)), Ok(None));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut inbox = fixture.inbox();
                let Some(Arrival::Request(claimed, _)) = pull(&mut inbox) else { panic!("it lay there") };
                claimed.answer(&ok(1, "hi")).expect("there is room");
            });
            assert_eq!(requester.wait(&id(1), Instant::now() + DEADLINE), Ok(Some(ok(1, "hi"))));
        });
        assert_eq!(requester.polling().is_some(), mode == WatchMode::Polling);
    }
}

#[test]
fn a_requester_finds_out_that_no_events_come() {
    let fixture = Fixture::new();
    let mut requester = Requester::open(&fixture.volume, WatchMode::Deaf);
    let late = Instant::now() + Duration::from_millis(300);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(wait_until(DEADLINE, || Instant::now() > late));
            fixture.put("exec-result-1.json", ok(1, "hi").to_json().expect("it is good"));
        });
        assert_eq!(requester.wait(&id(1), Instant::now() + DEADLINE), Ok(Some(ok(1, "hi"))));
    });
    assert_eq!(requester.polling(), Some(&PollReason::Silent));
}

#[test]
fn a_request_that_is_withdrawn_in_time_never_runs() {
    let fixture = Fixture::new();
    let requester = open(&fixture);
    let mut inbox = fixture.inbox();
    requester.submit(&ExecRequest::new(id(1), "x")).expect("there is room");
    assert_eq!(requester.withdraw(&id(1)), Withdrawn::NotStarted);
    assert!(pull(&mut inbox).is_none());
    assert_eq!(fixture.listing(), [""; 0]);

    requester.submit(&ExecRequest::new(id(2), "x")).expect("there is room");
    let Some(Arrival::Request(claimed, _)) = pull(&mut inbox) else { panic!("it is there") };
    assert_eq!(requester.withdraw(&id(2)), Withdrawn::Started);
    claimed.answer(&ok(2, "")).expect("there is room");
    assert_eq!(requester.take(&id(2)), Ok(Some(ok(2, ""))));
    assert_eq!(fixture.listing(), [""; 0]);
}
