//! Requests that are verified: an inbox with a key, and how it gets the key.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use sympozium_ipc::volume::{Announcement, MAX_START_BYTES};
use sympozium_ipc::{
    Arrival, ExecRequest, Inbox, RequestKey, Requester, Signer, StartNonce, StartReport, Verifier, WatchMode, names,
};
use sympozium_testkit::wait_until;

use crate::fixture::{Fixture, TIMEOUT, await_arrival, describe, id, json, ok, pull, stays_empty};

fn new_start() -> StartReport {
    StartReport {
        nonce: StartNonce::generate().expect("randomness"),
        isolation: serde_json::json!({ "profile": "container", "guarantees": {} }),
    }
}

/// A volume whose two sides have handed over a key.
struct Keyed {
    fixture: Fixture,
    signer: Signer,
    verifier: Option<Verifier>,
}

impl Keyed {
    fn new() -> Self {
        let fixture = Fixture::new();
        let start = new_start();
        fixture.volume.announce_start(&start).expect("room");
        let start = start.nonce;
        let signer = Signer::new(RequestKey::generate().expect("randomness"));
        fixture.volume.hand_over_key(&start, signer.key()).expect("there is room");
        let key = fixture.volume.take_key(&start).expect("it can be read");
        Self { fixture, signer, verifier: Some(Verifier::new(key.expect("it was handed over"))) }
    }

    fn authenticate(&mut self, mut inbox: Inbox) -> Inbox {
        inbox.authenticate(self.verifier.take().expect("one inbox"));
        inbox
    }

    /// The file of a request that is signed now.
    fn sign(&mut self, number: u64, command: &str) -> Vec<u8> {
        let mut request = ExecRequest::new(id(number), command);
        let expires = SystemTime::now() + Duration::from_secs(3600);
        self.signer.sign(&mut request, expires).expect("a counter");
        request.to_json().expect("a good request")
    }

    fn put(&self, number: u64, content: &[u8]) {
        self.fixture.put(&names::request(&id(number)), content);
    }

    /// As the bridge does once it has a result.
    fn clear(&self, number: u64) {
        let remove = |name: String| drop(fs::remove_file(self.fixture.tools(&name)));
        remove(names::request(&id(number)));
        remove(names::result(&id(number)));
        let _ = fs::remove_dir(self.fixture.tools(&names::claim(&id(number))));
    }
}

/// Serves one request as an executor does.
fn serve(inbox: &mut Inbox) -> String {
    let arrival = await_arrival(inbox);
    let told = describe(&arrival);
    if let Arrival::Request(claimed, _) = arrival {
        let number = claimed.id().as_str().parse().expect("a number");
        claimed.answer(&ok(number, "")).expect("there is room");
    }
    told
}

#[test]
fn only_what_was_signed_is_served_and_nothing_else_is_touched() {
    let mut keyed = Keyed::new();
    let mut inbox = {
        let inbox = keyed.fixture.inbox();
        keyed.authenticate(inbox)
    };
    let other_key = Signer::new(RequestKey::generate().expect("randomness"));
    let genuine = keyed.sign(111, "genuine");
    let mut forged = ExecRequest::new(id(4), "by another key");
    let mut other_key = other_key;
    let expires = SystemTime::now() + Duration::from_secs(3600);
    other_key.sign(&mut forged, expires).expect("a counter");
    let forgeries = [
        (1, json(1, "unsigned")),
        (2, genuine.clone()),
        (3, b"[]".to_vec()),
        (4, forged.to_json().expect("a good request")),
    ];
    for (number, content) in &forgeries {
        keyed.put(*number, content);
    }
    keyed.put(111, &genuine);
    let mut told: Vec<String> = (0..5).map(|_| serve(&mut inbox)).collect();
    told.sort();
    let refused = [
        "ignored exec-request-1.json: refused: it carries no MAC of the bridge",
        "ignored exec-request-2.json: refused: it is not a request of the bridge: the field `id` does not equal the id in the file's name",
        "ignored exec-request-3.json: refused: it is not a request of the bridge: the request must be a JSON object",
        "ignored exec-request-4.json: refused: its MAC is wrong: the bridge did not write it, or not for this executor",
        "run 111: genuine",
    ];
    assert_eq!(told, refused);
    // Neither claimed nor answered, and told once.
    for (number, _) in &forgeries {
        assert!(!keyed.fixture.has_claim(*number), "{number}");
        assert_eq!(keyed.fixture.result(*number), None);
    }
    assert!(stays_empty(&mut inbox, Duration::from_millis(50)));
    keyed.clear(111);
    let next = keyed.sign(112, "next");
    keyed.put(112, &next);
    assert_eq!(serve(&mut inbox), "run 112: next");
}

#[test]
fn what_was_served_is_not_served_again_under_any_circumstances() {
    let mut keyed = Keyed::new();
    let mut inbox = {
        let inbox = keyed.fixture.inbox();
        keyed.authenticate(inbox)
    };
    let (first, second) = (keyed.sign(1, "first"), keyed.sign(2, "second"));
    keyed.put(1, &first);
    assert_eq!(serve(&mut inbox), "run 1: first");
    keyed.clear(1);
    keyed.put(1, &first);
    assert_eq!(
        serve(&mut inbox),
        "ignored exec-request-1.json: refused: its counter 1 is not above 1: it is replayed or out of order"
    );
    // With an abandoned claim it counts as taken by an executor that never answered: it still does not run.
    keyed.fixture.claim_as_other(1);
    keyed.put(1, &first);
    assert!(stays_empty(&mut inbox, Duration::from_millis(50)));
    keyed.put(2, &second);
    assert_eq!(serve(&mut inbox), "run 2: second");
}

#[test]
fn what_was_held_back_until_a_later_one_was_served_is_not_served() {
    let mut keyed = Keyed::new();
    let mut inbox = {
        let inbox = keyed.fixture.inbox();
        keyed.authenticate(inbox)
    };
    let (held_back, later) = (keyed.sign(1, "held back"), keyed.sign(2, "later"));
    keyed.put(2, &later);
    assert_eq!(serve(&mut inbox), "run 2: later", "a gap is no obstacle");
    keyed.put(1, &held_back);
    assert_eq!(
        serve(&mut inbox),
        "ignored exec-request-1.json: refused: its counter 1 is not above 2: it is replayed or out of order"
    );
}

#[test]
fn what_has_expired_is_not_served() {
    let mut keyed = Keyed::new();
    let mut inbox = {
        let inbox = keyed.fixture.inbox();
        keyed.authenticate(inbox)
    };
    let mut request = ExecRequest::new(id(1), "too late");
    let signed = keyed.signer.sign(&mut request, SystemTime::now());
    signed.expect("a counter");
    keyed.put(1, &request.to_json().expect("a good request"));
    assert_eq!(
        serve(&mut inbox),
        "ignored exec-request-1.json: refused: it has expired: the bridge no longer waits for it"
    );
}

/// A listing has no order: names are chosen so that every order of them comes up.
#[test]
fn requests_are_served_in_the_order_they_were_signed_however_they_are_found() {
    for mode in [WatchMode::Automatic, WatchMode::Polling] {
        let mut keyed = Keyed::new();
        // Every third was withdrawn.
        let numbers: Vec<u64> = (1..=60).map(|number| number * 7_919 % 61).collect();
        let mut written = Vec::new();
        for (place, number) in numbers.iter().enumerate() {
            let content = keyed.sign(*number, &format!("{number}"));
            if place % 3 != 1 {
                keyed.put(*number, &content);
                written.push(*number);
            }
        }
        let inbox = match mode {
            WatchMode::Polling => keyed.fixture.polling_inbox(),
            _ => keyed.fixture.inbox(),
        };
        let mut inbox = keyed.authenticate(inbox);
        let served: Vec<String> = written.iter().map(|_| serve(&mut inbox)).collect();
        let expected = written.iter().map(|it| format!("run {it}: {it}"));
        assert_eq!(served, expected.collect::<Vec<_>>(), "{mode:?}");
    }
}

/// Several at a time, as a bridge with concurrent calls writes them, while the other side looks.
#[test]
fn none_of_many_concurrent_requests_is_refused() {
    const REQUESTS: u64 = 300;
    for mode in [WatchMode::Automatic, WatchMode::Polling] {
        let mut keyed = Keyed::new();
        let inbox = match mode {
            WatchMode::Polling => keyed.fixture.polling_inbox(),
            _ => keyed.fixture.inbox(),
        };
        let mut inbox = keyed.authenticate(inbox);
        let requester = Requester::open(&keyed.fixture.volume, WatchMode::Polling);
        let signer = &mut keyed.signer;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 1..=REQUESTS {
                    let mut request = ExecRequest::new(id(number * 7_919 % 100_003), "x");
                    let expires = SystemTime::now() + Duration::from_secs(3600);
                    signer.sign(&mut request, expires).expect("a counter");
                    requester.submit(&request).expect("there is room");
                }
            });
            let mut served = 0;
            let all = wait_until(TIMEOUT, || {
                while let Some(arrival) = pull(&mut inbox) {
                    assert!(matches!(arrival, Arrival::Request(..)), "{}", describe(&arrival));
                    served += 1;
                }
                served == REQUESTS
            });
            assert!(all, "{mode:?}: {served}");
        });
    }
}

#[test]
fn a_key_is_handed_over_once_and_for_one_start() {
    let fixture = Fixture::new();
    let volume = &fixture.volume;
    assert_eq!(volume.read_start().expect("fine"), Announcement::Absent);
    let (first, second) = (new_start(), new_start());
    volume.announce_start(&first).expect("there is room");
    assert_eq!(volume.read_start().expect("fine"), Announcement::Start(first.clone()));
    let first = first.nonce;
    assert!(volume.take_key(&first).expect("fine").is_none());
    let key = RequestKey::generate().expect("randomness");
    volume.hand_over_key(&first, &key).expect("there is room");
    let path = fixture.path(names::KEY);
    assert!(path.exists());
    assert!(volume.take_key(&first).expect("fine").is_some());
    assert!(!path.exists(), "it is unlinked");
    assert!(volume.take_key(&first).expect("fine").is_none());

    // Restarted: what is for another start is none, and does not stay.
    volume.announce_start(&second).expect("there is room");
    assert_eq!(volume.read_start().expect("fine"), Announcement::Start(second.clone()));
    let second = second.nonce;
    volume.hand_over_key(&first, &key).expect("there is room");
    assert!(volume.take_key(&second).expect("fine").is_none());
    assert!(!path.exists());
}

#[test]
fn what_is_no_key_or_no_announcement_is_not_taken_for_one() {
    let fixture = Fixture::new();
    let volume = &fixture.volume;
    let report = new_start();
    let start = report.nonce.clone();
    let key = "0".repeat(64);
    let good = format!("{} {key}\n", start.to_hex());
    let path = fixture.path(names::KEY);
    for content in [
        String::new(),
        good.trim_end().to_owned(),
        format!("{good}\n"),
        good.replace(' ', "x"),
        good.to_uppercase(),
        good.replace('0', "g"),
    ] {
        fs::write(&path, &content).expect("there is room");
        // Upper case is the same text where there are no letters.
        if content != good {
            assert!(volume.take_key(&start).expect("fine").is_none(), "{content:?}");
        }
    }
    // Links are not followed, and whatever it is does not stay.
    fs::write(fixture.path("elsewhere"), &good).expect("there is room");
    symlink(fixture.path("elsewhere"), &path).expect("there is room");
    assert!(volume.take_key(&start).expect("fine").is_none());
    assert!(fs::symlink_metadata(&path).is_err());
    fs::hard_link(fixture.path("elsewhere"), &path).expect("there is room");
    assert!(volume.take_key(&start).expect("fine").is_none());
    fs::write(&path, &good).expect("there is room");
    assert!(volume.take_key(&start).expect("fine").is_some());

    let announcement = fixture.path(names::START);
    let good = report.to_line();
    let digits = start.to_hex();
    for content in [
        String::new(),
        "x".to_owned(),
        "\n".to_owned(),
        format!("{digits}\n"),
        good.trim_end().to_owned(),
        format!("{good}{good}"),
        good.replace(&digits, &"g".repeat(32)),
        good.replace(&digits, &digits[1..]),
        good.replace("isolation", "insulation"),
        good.replacen('{', r#"{"more":1,"#, 1),
        good.replacen('{', r#"{"isolation":{},"#, 1),
        good.replace('\n', &format!("{}\n", " ".repeat(MAX_START_BYTES))),
    ] {
        fs::write(&announcement, &content).expect("there is room");
        assert_eq!(volume.read_start().expect("fine"), Announcement::Unusable, "{content:?}");
    }
    fs::remove_file(&announcement).expect("it is there");
    fs::create_dir(&announcement).expect("there is room");
    assert_eq!(volume.read_start().expect("fine"), Announcement::Unusable);
    assert!(volume.announce_start(&report).is_err());
}
