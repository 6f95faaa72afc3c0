//! What a pack's own commands may plant on the volume.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode};
use sympozium_ipc::{
    Arrival, ExecResult, FileKind, Inbox, InboxSettings, RequestError, Requester, ResultError, Volume, WatchMode, names,
};
use sympozium_testkit::as_user::is_root;
use sympozium_testkit::skip;

use crate::fixture::{Fixture, TIMEOUT, describe, id, json, ok, pull};
use crate::volume::make_fifo;

fn requester(fixture: &Fixture) -> Requester {
    Requester::open(&fixture.volume, WatchMode::Automatic)
}

type Expected = fn(&ResultError) -> bool;

/// Plants one thing.
fn plant(fixture: &Fixture, name: &str, kind: FileKind) {
    let path = fixture.tools(name);
    match kind {
        FileKind::Link => symlink("/proc/self/environ", path).expect("it is free"),
        FileKind::Directory => fs::create_dir(path).expect("it is free"),
        FileKind::Fifo => make_fifo(&path),
        FileKind::Socket => drop(UnixListener::bind(path).expect("it is free")),
        other => panic!("{other} is not planted here"),
    }
}

const PLANTED: [FileKind; 4] = [FileKind::Link, FileKind::Directory, FileKind::Fifo, FileKind::Socket];

#[test]
fn a_request_that_is_no_file_is_refused_and_never_waited_for() {
    for without_openat2 in [false, true] {
        let fixture = Fixture::new();
        let volume = match without_openat2 {
            false => fixture.volume.clone(),
            true => Volume::open_without_openat2(&fixture.path("")).expect("it can be opened"),
        };
        let mut inbox = Inbox::new(&volume, InboxSettings::default());
        assert!(pull(&mut inbox).is_none());
        for (number, kind) in PLANTED.into_iter().enumerate() {
            let number = number as u64;
            plant(&fixture, &names::request(&id(number)), kind);
            let Some(Arrival::Refused(claimed, problem)) = pull(&mut inbox) else { panic!("{kind}") };
            assert_eq!(problem, RequestError::NotAFile(kind));
            claimed.answer(&ok(number, "")).expect("there is room");
            assert_eq!(fixture.result(number), Some(ok(number, "")));
        }
    }
}

#[test]
fn a_device_is_refused() {
    if !is_root() {
        skip!("making a device needs root");
    }
    let fixture = Fixture::new();
    let zero = rustix::fs::makedev(1, 5);
    for name in ["exec-request-1.json", "exec-result-2.json"] {
        let path = fixture.tools(name);
        rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, Mode::from(0o666), zero).expect("root may");
    }
    let Some(Arrival::Refused(_, problem)) = pull(&mut fixture.inbox()) else { panic!("it is no file") };
    assert_eq!(problem, RequestError::NotAFile(FileKind::Device));
    assert_eq!(requester(&fixture).take(&id(2)), Err(ResultError::NotAFile(FileKind::Device)));
}

#[test]
fn a_result_that_is_no_file_is_an_error_and_everything_is_cleared_away() {
    let fixture = Fixture::new();
    for (number, kind) in PLANTED.into_iter().enumerate() {
        let number = number as u64;
        fixture.ask(number, "x");
        fixture.claim_as_other(number);
        plant(&fixture, &names::result(&id(number)), kind);
        assert_eq!(requester(&fixture).take(&id(number)), Err(ResultError::NotAFile(kind)));
        assert_eq!(fixture.listing(), [""; 0], "{kind}");
    }
    assert!(fs::metadata("/proc/self/environ").is_ok());
}

#[test]
fn a_directory_in_the_place_of_a_result_stops_the_answer_and_nothing_is_left() {
    let fixture = Fixture::new();
    fixture.ask(1, "x");
    let Some(Arrival::Request(claimed, _)) = pull(&mut fixture.inbox()) else { panic!("it lay there") };
    fs::create_dir(fixture.tools("exec-result-1.json")).expect("it is free");
    let error = claimed.answer(&ok(1, "")).expect_err("it is in the way");
    assert_eq!(error.to_string(), "cannot write exec-result-1.json");
    assert_eq!(fixture.listing(), [".claim-1", "exec-request-1.json", "exec-result-1.json"]);
}

#[test]
fn a_link_in_the_place_of_a_result_is_replaced_and_not_followed() {
    let fixture = Fixture::new();
    fs::write(fixture.path("precious"), "kept").expect("there is room");
    fixture.ask(1, "x");
    let Some(Arrival::Request(claimed, _)) = pull(&mut fixture.inbox()) else { panic!("it lay there") };
    symlink(fixture.path("precious"), fixture.tools("exec-result-1.json")).expect("it is free");
    claimed.answer(&ok(1, "hi")).expect("there is room");
    assert_eq!(fs::read_to_string(fixture.path("precious")).expect("it is there"), "kept");
    assert!(fixture.tools("exec-result-1.json").symlink_metadata().expect("it is there").is_file());
    assert_eq!(fixture.result(1), Some(ok(1, "hi")));
}

#[test]
fn forged_and_malformed_results_are_errors_and_are_cleared_away() {
    let fixture = Fixture::new();
    let other = ok(2, "forged").to_json().expect("it is good");
    let whole = ok(1, "whole").to_json().expect("it is good");
    let cases: [(&[u8], Expected); 4] = [
        (&other, |problem| *problem == ResultError::OtherId),
        (&whole[..20], |problem| matches!(problem, ResultError::NotJson(_))),
        (b"", |problem| matches!(problem, ResultError::NotJson(_))),
        (b"{\"id\":\"1\",\"exitCode\":\"0\"}", |problem| {
            matches!(problem, ResultError::WrongType { field: "exitCode", .. })
        }),
    ];
    for (content, expected) in cases {
        fixture.ask(1, "x");
        fixture.put("exec-result-1.json", content);
        let problem = requester(&fixture).take(&id(1)).expect_err("it is bad");
        assert!(expected(&problem), "{problem}");
        assert_eq!(fixture.listing(), [""; 0]);
    }
    fs::write(fixture.path("elsewhere"), &whole).expect("there is room");
    fs::hard_link(fixture.path("elsewhere"), fixture.tools("exec-result-1.json")).expect("it is free");
    assert_eq!(requester(&fixture).take(&id(1)), Err(ResultError::HardLinked { links: 2 }));
    assert!(fixture.path("elsewhere").exists());
}

#[test]
fn huge_files_are_refused_unread() {
    let fixture = Fixture::new();
    let bytes = 1 << 30;
    for name in ["exec-request-1.json", "exec-result-2.json"] {
        let file = File::create(fixture.tools(name)).expect("there is room");
        file.set_len(bytes).expect("holes cost nothing");
    }
    let Some(Arrival::Refused(_, problem)) = pull(&mut fixture.inbox()) else { panic!("too large") };
    assert_eq!(problem, RequestError::TooLarge { bytes });
    assert_eq!(requester(&fixture).take(&id(2)), Err(ResultError::TooLarge { bytes }));
}

#[test]
fn bad_names_are_reported_once_and_nothing_else_is_done() {
    let fixture = Fixture::new();
    let long = format!("exec-request-{}.json", "x".repeat(237));
    let names: [&[u8]; 7] = [
        b"exec-request-.json",
        b"exec-request-..json",
        b"exec-request-.claim-1.json",
        b"exec-request-a\nb.json",
        b"exec-request-\xff\x01;$(reboot).json",
        b"exec-request--rf.json",
        long.as_bytes(),
    ];
    let mut inbox = fixture.inbox();
    for name in names {
        fs::write(fixture.tools("").join(OsStr::from_bytes(name)), json(1, "x")).expect("there is room");
        let given = pull(&mut inbox).expect("it is for the log");
        let text = describe(&given);
        assert!(matches!(given, Arrival::Ignored { .. }), "{text}");
        assert!(text.starts_with(&format!("ignored {}: the request id ", name.escape_ascii())), "{text}");
        // It was announced twice: made, and closed.
        assert!(pull(&mut inbox).is_none());
    }
    assert_eq!(fixture.listing().len(), names.len(), "nothing was claimed");
}

#[test]
fn the_number_of_reports_is_bounded() {
    let fixture = Fixture::new();
    for number in 0..1_100 {
        fs::write(fixture.tools(&format!("exec-request-a b{number}.json")), "").expect("there is room");
    }
    let mut inbox = fixture.inbox();
    let mut reports = 0;
    while pull(&mut inbox).is_some() {
        reports += 1;
    }
    assert_eq!(reports, 1_024);
}

#[test]
fn squatted_claims_are_answered_after_the_lease_and_never_run() {
    let fixture = Fixture::new();
    symlink("/tmp", fixture.tools(".claim-1")).expect("it is free");
    fs::write(fixture.tools(".claim-2"), "").expect("there is room");
    make_fifo(&fixture.tools(".claim-3"));
    fixture.claim_as_other(4);
    for number in 1..=4 {
        fixture.ask(number, "x");
    }
    assert!(pull(&mut fixture.inbox()).is_none());
    let mut inbox = fixture.inbox_with_short_lease();
    let mut given = Vec::new();
    while let Some(arrival) = pull(&mut inbox) {
        given.push(describe(&arrival));
        let Arrival::Abandoned(abandoned) = arrival else { panic!("{given:?}") };
        let result = ExecResult::failed(abandoned.id().clone(), "ambiguous", "");
        abandoned.answer(&result).expect("there is room");
    }
    given.sort();
    assert_eq!(given, ["abandoned 1", "abandoned 2", "abandoned 3", "abandoned 4"]);
    for number in 1..=4 {
        assert!(requester(&fixture).take(&id(number)).expect("it is good").is_some());
    }
    assert_eq!(fixture.listing(), [""; 0]);
    assert!(fs::metadata("/tmp").is_ok());
}

#[test]
fn a_claim_that_is_touched_or_from_the_future_has_no_longer_lease() {
    let fixture = Fixture::new();
    let settings = InboxSettings {
        max_timeout: Duration::from_millis(100),
        lease_grace: Duration::from_millis(200),
        ..InboxSettings::default()
    };
    let mut inbox = Inbox::new(&fixture.volume, settings);
    fixture.ask(1, "x");
    fixture.claim_as_other(1);
    let claim = File::open(fixture.tools(".claim-1")).expect("it is there");
    let mut arrival = None;
    assert!(sympozium_testkit::wait_until(TIMEOUT, || {
        let future = std::time::SystemTime::now() + Duration::from_secs(1_000_000);
        claim.set_modified(future).expect("it is ours");
        fixture.ask(1, "x");
        arrival = pull(&mut inbox);
        arrival.is_some()
    }));
    assert_eq!(describe(&arrival.expect("it came")), "abandoned 1");
}

#[test]
fn a_request_that_never_stops_changing_is_refused_in_the_end() {
    let fixture = Fixture::new();
    let mut inbox = fixture.inbox();
    let path = fixture.tools("exec-request-1.json");
    fs::write(&path, "{").expect("there is room");
    let mut arrival = None;
    assert!(sympozium_testkit::wait_until(crate::fixture::TIMEOUT, || {
        fs::write(&path, "{").expect("there is room");
        arrival = pull(&mut inbox);
        arrival.is_some()
    }));
    assert!(matches!(arrival, Some(Arrival::Refused(_, RequestError::EndsEarly))));
}

#[test]
fn temporary_files_are_new_private_to_the_group_and_have_unpredictable_names() {
    use std::os::unix::fs::PermissionsExt as _;
    let fixture = Fixture::new();
    // The names that scripts use for files in the making are planted, and stay as they are.
    fs::write(fixture.path("precious"), "kept").expect("there is room");
    for name in ["exec-result-1.json.tmp", ".exec-result-1.json.tmp"] {
        symlink(fixture.path("precious"), fixture.tools(name)).expect("it is free");
    }
    fixture.ask(1, "x");
    let Some(Arrival::Request(claimed, _)) = pull(&mut fixture.inbox()) else { panic!("it lay there") };
    claimed.answer(&ok(1, "hi")).expect("there is room");
    assert_eq!(fs::read_to_string(fixture.path("precious")).expect("it is there"), "kept");
    let mode = fs::metadata(fixture.tools("exec-result-1.json")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777 & !0o640, 0, "{mode:o}");
}
