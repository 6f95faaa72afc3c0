//! Events, their loss and their absence; and the size of the directory.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags};
use sympozium_ipc::inbox::INCOMPLETE_TIMEOUT;
use sympozium_ipc::{Arrival, Inbox, InboxError, InboxSettings, PollReason, VolumeError, WatchMode, names};
use sympozium_testkit::{growing, skip, wait_until};

use crate::fixture::{Fixture, TIMEOUT, await_arrival, describe, id, json, ok, pull};
use crate::separate_process;
use crate::volume::readable;

#[test]
fn the_descriptor_is_readable_exactly_while_there_is_news() {
    let fixture = Fixture::new();
    let before = Instant::now();
    let mut inbox = fixture.inbox();
    assert!(pull(&mut inbox).is_none());
    assert!(!readable(inbox.descriptor().expect("inotify is here")));
    fixture.ask(1, "x");
    assert!(readable(inbox.descriptor().expect("inotify is here")));
    assert!(pull(&mut inbox).is_some());
    assert!(pull(&mut inbox).is_none());
    assert!(!readable(inbox.descriptor().expect("inotify is here")));
    let wait = inbox.wake_at().expect("it goes on").duration_since(before);
    assert!(wait > Duration::from_secs(5), "an idle inbox sleeps: {wait:?}");
}

#[test]
fn what_was_announced_or_listed_and_not_pulled_is_not_forgotten() {
    let fixture = Fixture::new();
    fixture.ask(1, "x");
    let mut inbox = fixture.inbox();
    for number in 2..50 {
        fixture.ask(number, "x");
    }
    let mut given = Vec::new();
    while let Some(arrival) = pull(&mut inbox) {
        given.push(arrival);
        assert!(inbox.wake_at().expect("it goes on") <= Instant::now() || given.len() == 49);
    }
    assert_eq!(given.len(), 49);
}

#[test]
fn lost_events_cost_one_more_listing_and_no_request() {
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("it is there");
    let limit: u64 = limit.trim().parse().expect("it is a number");
    if limit > 100_000 {
        skip!("the queue of inotify is too long to be filled");
    }
    let fixture = Fixture::new();
    let mut inbox = fixture.inbox();
    assert!(pull(&mut inbox).is_none(), "the first listing is over");
    // Each is announced twice: made, and closed.
    let count = limit / 2 + 500;
    for number in 0..count {
        fs::write(fixture.tools(&names::request(&id(number))), json(number, "x")).expect("there is room");
    }
    let mut seen = BTreeSet::new();
    assert!(
        wait_until(TIMEOUT, || {
            while let Some(arrival) = pull(&mut inbox) {
                let Arrival::Request(claimed, _) = arrival else { panic!("{arrival:?}") };
                assert!(seen.insert(claimed.id().clone()), "given twice");
                claimed.answer(&ok(claimed.id().as_str().parse().expect("a number"), "")).expect("there is room");
            }
            seen.len() as u64 == count
        }),
        "{} of {count}",
        seen.len()
    );
    assert_eq!(inbox.poll_reason(), None, "inotify does work here");
}

#[test]
fn a_large_directory_is_listed_in_bounded_memory() {
    separate_process::in_a_process(|| {
        let count: u64 = 20_000;
        let fixture = Fixture::new();
        for number in 0..count {
            fs::write(fixture.tools(&names::request(&id(number))), json(number, "x")).expect("there is room");
        }
        let mut inbox = fixture.inbox();
        let mut next = || {
            let Some(Arrival::Request(claimed, _)) = pull(&mut inbox) else { panic!("there are more") };
            claimed.answer(&ok(claimed.id().as_str().parse().expect("a number"), "")).expect("there is room");
        };
        next();
        let before = resident_kib();
        for _ in 1..count {
            next();
        }
        let growth = resident_kib().saturating_sub(before);
        assert!(growth <= 2048, "{growth} KiB");
    });
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("it is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has one");
    line.trim().trim_end_matches(" kB").parse().expect("it is a number")
}

#[test]
fn polling_finds_the_same_requests() {
    let fixture = Fixture::new();
    let mut inbox = fixture.polling_inbox();
    assert_eq!(inbox.take_poll_notice(), Some(PollReason::Requested));
    assert_eq!(inbox.take_poll_notice(), None, "said once");
    assert!(pull(&mut inbox).is_none());
    assert!(inbox.wake_at().expect("it goes on") <= Instant::now() + Duration::from_millis(200));
    fixture.ask(1, "x");
    assert_eq!(describe(&await_arrival(&mut inbox)), "run 1: x");
}

/// An inbox whose inotify says nothing, and that lists the directory this often.
fn deaf(fixture: &Fixture, safety_interval: Duration) -> Inbox {
    Inbox::new(&fixture.volume, InboxSettings { watch: WatchMode::Silent, safety_interval, ..Default::default() })
}

/// What an inbox gives, and whether it was asked often enough for a request to be found before it is old.
fn await_young(inbox: &mut Inbox) -> (Arrival, bool) {
    let (mut last, mut often) = (Instant::now(), true);
    let mut arrival = None;
    let came = wait_until(TIMEOUT, || {
        arrival = pull(inbox);
        often &= last.elapsed() < INCOMPLETE_TIMEOUT / 2;
        last = Instant::now();
        arrival.is_some()
    });
    assert!(came, "nothing arrived");
    (arrival.expect("it was waited for"), often)
}

/// One that was not for us for a while is no proof. `false` when the machine was too slow to tell.
fn young_requests_prove_nothing() -> bool {
    let fixture = Fixture::new();
    let mut inbox = deaf(&fixture, Duration::from_millis(50));
    assert!(pull(&mut inbox).is_none());
    assert_eq!(inbox.take_poll_notice(), None);
    let asked = Instant::now();
    let path = fixture.ask(1, "x");
    let old = std::time::SystemTime::now() - Duration::from_secs(5);
    fs::File::open(path).and_then(|file| file.set_modified(old)).expect("it is ours");
    drop(await_arrival(&mut inbox));
    if asked.elapsed() >= INCOMPLETE_TIMEOUT {
        return false;
    }
    assert_eq!(inbox.poll_reason(), None, "it is too young to tell, whatever it says");

    let asked = Instant::now();
    fixture.put("exec-request-2.json", "{");
    let is_young = asked.elapsed() < INCOMPLETE_TIMEOUT / 2;
    let (arrival, often) = await_young(&mut inbox);
    assert!(matches!(arrival, Arrival::Refused(..)));
    if !(is_young && often) {
        return false;
    }
    assert_eq!(inbox.poll_reason(), None, "it was known and waited for");
    true
}

#[test]
fn an_inotify_that_says_nothing_is_found_out() {
    assert!((0..50).any(|_| young_requests_prove_nothing()));

    // An inbox that comes to look only when the request has been there for a while, unless the machine is too slow to
    // put it there long before.
    let found = growing(Duration::from_millis(1_500)).find_map(|interval| {
        let fixture = Fixture::new();
        let settled = fixture.tools("exec-request-3.json");
        fs::write(fixture.path("aside"), json(3, "x")).expect("there is room");
        let mut inbox = deaf(&fixture, interval);
        let listed = Instant::now();
        assert!(pull(&mut inbox).is_none());
        fs::rename(fixture.path("aside"), settled).expect("it is there");
        (listed.elapsed() + INCOMPLETE_TIMEOUT + INCOMPLETE_TIMEOUT / 10 < interval).then_some((fixture, inbox))
    });
    let (fixture, mut inbox) = found.expect("in time");
    assert_eq!(describe(&await_arrival(&mut inbox)), "run 3: x");
    assert_eq!(inbox.poll_reason(), Some(&PollReason::Silent));
    assert_eq!(inbox.take_poll_notice(), Some(PollReason::Silent));
    assert!(inbox.wake_at().expect("it goes on") <= Instant::now() + Duration::from_millis(1_500));
    fixture.ask(4, "y");
    assert_eq!(describe(&await_arrival(&mut inbox)), "run 4: y");
}

#[test]
fn the_safety_listing_of_a_working_inotify_proves_nothing_against_it() {
    let fixture = Fixture::new();
    let safety_interval = Duration::from_millis(10);
    let mut inbox = Inbox::new(&fixture.volume, InboxSettings { safety_interval, ..Default::default() });
    for number in 0..20 {
        fixture.ask(number, "x");
        drop(await_arrival(&mut inbox));
    }
    assert_eq!(inbox.poll_reason(), None);
}

#[test]
fn an_inbox_ends_when_its_directory_is_removed_or_replaced() {
    let swap = |fixture: &Fixture| {
        fs::create_dir(fixture.path("other")).expect("it is free");
        let (a, b) = (fixture.path("other"), fixture.path("tools"));
        rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).expect("it can be swapped");
    };
    let ways: [fn(&Fixture); 3] = [
        |fixture| fs::remove_dir(fixture.path("tools")).expect("it is empty"),
        |fixture| fs::rename(fixture.path("tools"), fixture.path("moved")).expect("it is there"),
        swap,
    ];
    for (way, replace) in ways.into_iter().enumerate() {
        for mode in [WatchMode::Automatic, WatchMode::Polling] {
            let fixture = Fixture::new();
            let mut inbox = Inbox::new(&fixture.volume, InboxSettings { watch: mode, ..Default::default() });
            assert!(pull(&mut inbox).is_none());
            replace(&fixture);
            let mut error = None;
            assert!(
                wait_until(TIMEOUT, || {
                    error = inbox.next().err();
                    error.is_some()
                }),
                "way {way}"
            );
            assert!(matches!(error, Some(InboxError::Volume(VolumeError::Gone { .. }))), "{error:?}");
            assert!(matches!(inbox.next(), Err(InboxError::Ended)));
            assert_eq!(inbox.wake_at(), None);
        }
    }
}
