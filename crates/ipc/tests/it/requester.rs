//! The requester's side.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use sympozium_ipc::names::Entry;
use sympozium_ipc::requester::{SubmitError, VolumeChange, Withdrawal};
use sympozium_ipc::{Arrival, ExecRequest, PollReason, RequestError, Requester, WatchMode};
use sympozium_testkit::{as_user, growing, skip, wait_until};

use crate::fixture::{Fixture, TIMEOUT, id, json, ok, pull};
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

/// Whatever a command does to a request, and however quickly: it is no longer the one that was written.
#[test]
fn a_request_that_is_changed_or_replaced_is_not_as_written() {
    type Change = fn(&std::path::Path, &[u8]);
    let changes: [(Change, bool); 3] = [
        (|path, _| fs::write(path, "{}").expect("it is there"), false),
        (
            |path, same| {
                fs::write(path.with_extension("part"), same).expect("there is room");
                fs::rename(path.with_extension("part"), path).expect("in its place");
            },
            true,
        ),
        (
            |path, _| {
                fs::remove_file(path).expect("it is there");
                fs::create_dir(path).expect("there is room");
            },
            false,
        ),
    ];
    for (change, has_same_content) in changes {
        let fixture = Fixture::new();
        let requester = open(&fixture);
        let written = requester.submit(&ExecRequest::new(id(1), "x")).expect("there is room");
        assert!(requester.is_unchanged(&id(1), &written));
        assert!(requester.has_same_content(&id(1), &written));
        change(&fixture.tools("exec-request-1.json"), &json(1, "x"));
        assert!(!requester.is_unchanged(&id(1), &written));
        let same = requester.has_same_content(&id(1), &written);
        assert_eq!(same, has_same_content);
    }
    // Gone is for the caller to know: executors remove requests too.
    let fixture = Fixture::new();
    let requester = open(&fixture);
    let written = requester.submit(&ExecRequest::new(id(1), "x")).expect("there is room");
    fs::remove_file(fixture.tools("exec-request-1.json")).expect("it is there");
    assert!(requester.is_unchanged(&id(1), &written));
    assert!(requester.has_same_content(&id(1), &written));
}

#[test]
fn what_an_executor_would_refuse_is_not_sent() {
    let fixture = Fixture::new();
    let error = open(&fixture).submit(&ExecRequest::new(id(1), "a\0b")).expect_err("it holds a NUL");
    assert!(matches!(error, SubmitError::Request(RequestError::Nul("command"))), "{error}");
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
    assert!(wait_until(TIMEOUT, || requester.next_change() == VolumeChange::CheckAll), "in case events do not come");
    // That comes again only after many seconds.
    assert_eq!(requester.next_change(), VolumeChange::None);
    fixture.ask(1, "x");
    fixture.put("exec-result-1.json", "anything");
    fs::write(fixture.tools("exec-result-2.json"), "anything").expect("there is room");
    assert!(readable(requester.descriptor().expect("inotify is here")));
    assert_eq!(requester.next_change(), VolumeChange::Request(id(1)), "a request that it did not write");
    assert_eq!(requester.next_change(), VolumeChange::Result(id(1)));
    assert_eq!(requester.next_change(), VolumeChange::Result(id(2)));
    assert_eq!(requester.next_change(), VolumeChange::None);
    assert!(!readable(requester.descriptor().expect("inotify is here")));
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
            assert_eq!(requester.wait(&id(1), Instant::now() + TIMEOUT), Ok(Some(ok(1, "hi"))));
        });
        assert_eq!(requester.poll_reason().is_some(), mode == WatchMode::Polling);
    }
}

#[test]
fn a_requester_finds_out_that_no_events_come() {
    // What is there before it waits is no proof: then the machine was too slow, and the result comes later.
    let is_found_out = growing(Duration::from_millis(300)).any(|later| {
        let fixture = Fixture::new();
        let mut requester = Requester::open(&fixture.volume, WatchMode::Silent);
        let due = Instant::now() + later;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(wait_until(2 * later + TIMEOUT, || Instant::now() > due));
                fixture.put("exec-result-1.json", ok(1, "hi").to_json().expect("it is good"));
            });
            assert_eq!(requester.wait(&id(1), due + TIMEOUT), Ok(Some(ok(1, "hi"))));
        });
        requester.poll_reason() == Some(&PollReason::Silent)
    });
    assert!(is_found_out);
}

#[test]
fn a_request_that_is_withdrawn_in_time_never_runs() {
    let fixture = Fixture::new();
    let requester = open(&fixture);
    let mut inbox = fixture.inbox();
    requester.submit(&ExecRequest::new(id(1), "x")).expect("there is room");
    assert_eq!(requester.withdraw(&id(1)), Withdrawal::NotStarted);
    assert!(pull(&mut inbox).is_none());
    assert_eq!(fixture.listing(), [""; 0]);

    requester.submit(&ExecRequest::new(id(2), "x")).expect("there is room");
    let Some(Arrival::Request(claimed, _)) = pull(&mut inbox) else { panic!("it is there") };
    assert_eq!(requester.withdraw(&id(2)), Withdrawal::Started);
    claimed.answer(&ok(2, "")).expect("there is room");
    assert_eq!(requester.take(&id(2)), Ok(Some(ok(2, ""))));
    assert_eq!(fixture.listing(), [""; 0]);
}

/// What has arrived, without what is said in case events do not come.
fn news_of(requester: &mut Requester) -> Vec<VolumeChange> {
    let mut news = Vec::new();
    loop {
        match requester.next_change() {
            VolumeChange::None => return news,
            VolumeChange::CheckAll => {}
            arrived => news.push(arrived),
        }
    }
}

#[test]
fn claims_and_changes_of_requests_are_news_too() {
    let fixture = Fixture::new();
    let mut requester = open(&fixture);
    let stamp = requester.submit(&ExecRequest::new(id(1), "x")).expect("there is room");
    assert!(requester.is_unchanged(&id(1), &stamp));
    fixture.claim_as_other(2);
    // Its coming, once, and that it was closed.
    let news = [
        VolumeChange::Request(id(1)),
        VolumeChange::Entry(Entry::Request(id(1))),
        VolumeChange::Entry(Entry::Claim(id(2))),
    ];
    assert_eq!(news_of(&mut requester), news);
    let mut listed = Vec::new();
    assert!(requester.list(|entry| listed.push(entry)));
    listed.sort_by_key(|entry| format!("{entry:?}"));
    assert_eq!(listed, [Entry::Claim(id(2)), Entry::Request(id(1))]);

    // In place, with the same size: the time of the change tells.
    let path = fixture.tools("exec-request-1.json");
    let content = fs::read(&path).expect("it is there");
    std::thread::sleep(Duration::from_millis(20));
    fs::write(&path, content).expect("there is room");
    assert_eq!(news_of(&mut requester).first(), Some(&VolumeChange::Request(id(1))));
    assert!(!requester.is_unchanged(&id(1), &stamp));
    // Whoever removes it runs nothing else under its name.
    fs::remove_file(&path).expect("it is there");
    assert!(requester.is_unchanged(&id(1), &stamp));
    fixture.put("exec-request-1.json", json(1, "y"));
    assert!(!requester.is_unchanged(&id(1), &stamp));
    requester.discard(&id(1));
    assert!(!path.exists());
}

#[test]
fn a_directory_that_was_moved_is_news_even_when_it_is_back() {
    let fixture = Fixture::new();
    let mut requester = open(&fixture);
    fs::rename(fixture.path("tools"), fixture.path("aside")).expect("it is there");
    fs::rename(fixture.path("aside"), fixture.path("tools")).expect("it is there");
    assert_eq!(news_of(&mut requester), [VolumeChange::Moved]);
    requester.submit(&ExecRequest::new(id(1), "x")).expect("it is the same directory");
}

#[test]
fn lost_events_are_news() {
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("it is there");
    let limit: u64 = limit.trim().parse().expect("it is a number");
    if limit > 100_000 {
        skip!("the queue of inotify is too long to be filled");
    }
    let fixture = Fixture::new();
    let mut requester = open(&fixture);
    for number in 0..=limit {
        // Two in turn, because the same event twice is one.
        fs::File::create(fixture.tools(&format!("other-{}", number % 2))).expect("there is room");
    }
    let news = news_of(&mut requester);
    let is_busy = |arrived: &&VolumeChange| **arrived == VolumeChange::Busy;
    assert_eq!(news.iter().find(|arrived| !is_busy(arrived)), Some(&VolumeChange::Lost), "{news:?}");
}

#[test]
fn a_listing_says_whether_it_is_all() {
    let fixture = Fixture::new();
    let requester = open(&fixture);
    let list = || {
        let mut given = 0;
        (requester.list(|_| given += 1), given)
    };
    for number in 0..4_096 {
        fixture.claim_as_other(number);
    }
    assert_eq!(list(), (true, 4_096));
    fixture.put("exec-request-9999.json", "{}");
    assert_eq!(list(), (false, 4_096));

    let fixture = Fixture::new();
    let requester = open(&fixture);
    let list = || requester.list(|entry| panic!("{entry:?}"));
    // The directory itself and its parent are entries too.
    for number in 2..65_536 {
        fs::File::create(fixture.tools(&format!("other-{number}"))).expect("there is room");
    }
    assert!(list());
    fs::File::create(fixture.tools("one-more")).expect("there is room");
    assert!(!list());
}

#[test]
fn a_directory_that_may_not_be_read_is_not_listed_to_its_end() {
    as_user::run(|| {
        let fixture = Fixture::new();
        let requester = open(&fixture);
        fs::set_permissions(fixture.path("tools"), fs::Permissions::from_mode(0o300)).expect("it is ours");
        assert!(!requester.list(|entry| panic!("{entry:?}")));
    });
}
