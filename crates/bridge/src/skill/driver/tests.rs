use std::fs;
use std::path::{Path, PathBuf};

use sympozium_ipc::ExecResult;
use sympozium_testkit::skip;
use tempfile::TempDir;
use tokio::time::timeout;

use super::super::findings::{Notice, Verification};
use super::*;
use Verification::{Unverified, Verifies};

/// Against hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// A driver that looks only when it is asked to: whatever is done before that is done while the bridge lags.
struct Lagging {
    directory: TempDir,
    driver: Driver,
    notices: mpsc::UnboundedReceiver<Notice>,
}

impl Lagging {
    fn new(verification: Verification, watch: WatchMode) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let volume = Volume::open(directory.path()).unwrap();
        let (notify, notices) = mpsc::unbounded_channel();
        let findings = Findings::new("tickets", verification, notify);
        let floor = IsolationFloor::default();
        let driver = Driver::new(&volume, Arc::default(), None, floor, findings, watch);
        Self { directory, driver, notices }
    }

    fn root(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn tools(&self, name: &str) -> PathBuf {
        self.root(names::TOOLS).join(name)
    }

    /// Writes a request, as the bridge does for a call.
    fn submit(&mut self) -> (RequestId, oneshot::Receiver<OrderReply>) {
        let id = RequestId::from_nanoseconds(1);
        let (answer, answered) = oneshot::channel();
        let request = Box::new(ExecRequest::new(id.clone(), "harmless"));
        self.driver.handle_order(Order::Submit { request, expires: SystemTime::now() + PATIENCE, answer });
        (id, answered)
    }

    /// Writes a result, as an executor does.
    fn answer(&self, id: &RequestId) {
        fs::write(self.tools("result.tmp"), result(id)).unwrap();
        fs::rename(self.tools("result.tmp"), self.tools(&names::result(id))).unwrap();
    }

    fn give_up(&mut self, id: &RequestId) -> Withdrawal {
        let (found, mut withdrawn) = oneshot::channel();
        self.driver.handle_order(Order::Abandon { id: id.clone(), found });
        withdrawn.try_recv().unwrap()
    }

    /// Takes all news, and gives what was found in it: what it is, under which name, and whether it ends the run.
    fn found(&mut self) -> Vec<(ForeignKind, String, bool)> {
        self.driver.handle_events();
        while self.driver.has_more_events {
            self.driver.handle_events();
        }
        let notices = std::iter::from_fn(|| self.notices.try_recv().ok());
        notices
            .map(|notice| match notice {
                Notice::Foreign(finding) => (finding.kind, finding.name, finding.ends_run.is_some()),
                Notice::BelowFloor(why) => panic!("{why}"),
            })
            .collect()
    }
}

fn result(id: &RequestId) -> Vec<u8> {
    let (stdout, stderr) = (String::new(), String::new());
    let result = ExecResult { id: id.clone(), exit_code: 0, stdout, stderr, timed_out: false, meta: None };
    result.to_json().unwrap()
}

/// What is found where requests may have been hidden from the bridge.
fn unseen(why: &str, verification: Verification) -> (ForeignKind, String, bool) {
    (ForeignKind::Request, format!("exec-request-*.json (possibly: {why})"), verification == Unverified)
}

/// No call waits for a result, and no event comes: what is put there is noticed all the same.
#[tokio::test]
async fn a_polled_volume_is_listed_while_no_call_waits() {
    let Lagging { directory, driver, mut notices } = Lagging::new(Unverified, WatchMode::Polling);
    let (_orders, taken) = mpsc::channel(1);
    let driving = tokio::spawn(driver.run(taken));
    let tools = directory.path().join(names::TOOLS);
    fs::write(tools.join("exec-request-222.json"), "{}").unwrap();
    let notice = timeout(PATIENCE, notices.recv()).await.unwrap();
    let Some(Notice::Foreign(finding)) = notice else {
        panic!("{notice:?}");
    };
    assert_eq!(finding.name, "exec-request-222.json");
    assert!(finding.ends_run.is_some());
    driving.abort();
}

#[tokio::test]
async fn tools_that_another_directory_stood_in_for_are_noticed_when_they_are_back() {
    for verification in [Unverified, Verifies] {
        let mut lagging = Lagging::new(verification, WatchMode::Automatic);
        fs::rename(lagging.root("tools"), lagging.root("aside")).unwrap();
        fs::create_dir(lagging.root("tools")).unwrap();
        fs::write(lagging.tools("exec-request-9.json"), "{}").unwrap();
        fs::remove_dir_all(lagging.root("tools")).unwrap();
        fs::rename(lagging.root("aside"), lagging.root("tools")).unwrap();
        assert_eq!(lagging.found(), [unseen(TOOLS_GONE, verification)]);
    }
}

/// Where one event comes, of the root: there is none of a directory that is removed while it is open. And where none comes.
#[tokio::test]
async fn tools_that_were_replaced_are_noticed_without_an_event_of_their_own() {
    type MoveAway = fn(&Path);
    type Look = fn(&mut Driver);
    let ways: [(WatchMode, MoveAway, Look); 2] = [
        (WatchMode::Automatic, |tools| fs::remove_dir(tools).unwrap(), Driver::check_control_files),
        (WatchMode::Polling, |tools| fs::rename(tools, tools.with_extension("aside")).unwrap(), Driver::poll),
    ];
    for (watch, move_away, look) in ways {
        for verification in [Unverified, Verifies] {
            let mut lagging = Lagging::new(verification, watch);
            look(&mut lagging.driver);
            assert_eq!(lagging.found(), []);
            move_away(&lagging.root("tools"));
            fs::create_dir(lagging.root("tools")).unwrap();
            look(&mut lagging.driver);
            let found = lagging.found();
            assert_eq!(found.first(), Some(&unseen(TOOLS_GONE, verification)), "{watch:?}");
            assert!(found.iter().all(|(.., ends_run)| *ends_run == (verification == Unverified)), "{found:?}");
        }
    }
}

/// Each leaves nothing behind that could be looked at.
#[tokio::test]
async fn a_request_that_was_forged_under_an_issued_id_is_noticed_although_it_is_gone() {
    let forge: [fn(&Path); 4] = [
        |place| {
            fs::rename(place, place.with_extension("aside")).unwrap();
            fs::write(place, "forged").unwrap();
        },
        |place| {
            fs::write(place.with_extension("aside"), "forged").unwrap();
            fs::rename(place.with_extension("aside"), place).unwrap();
        },
        |place| {
            fs::remove_file(place).unwrap();
            fs::write(place.with_extension("aside"), "forged").unwrap();
            fs::hard_link(place.with_extension("aside"), place).unwrap();
        },
        |place| fs::write(place, "forged").unwrap(),
    ];
    for (way, forge) in forge.into_iter().enumerate() {
        for verification in [Unverified, Verifies] {
            let mut lagging = Lagging::new(verification, WatchMode::Automatic);
            let (id, _answered) = lagging.submit();
            let name = names::request(&id);
            forge(&lagging.tools(&name));
            fs::remove_file(lagging.tools(&name)).unwrap();
            lagging.answer(&id);
            let expected = (ForeignKind::Request, name, verification == Unverified);
            assert_eq!(lagging.found(), [expected], "way {way}");
        }
    }
}

/// Where requests are verified too: what the bridge has signed is authentic until it expires.
#[tokio::test]
async fn a_request_that_came_again_after_its_answer_ends_the_run_although_it_is_gone() {
    for verification in [Unverified, Verifies] {
        let mut lagging = Lagging::new(verification, WatchMode::Automatic);
        let (id, mut answered) = lagging.submit();
        let place = lagging.tools(&names::request(&id));
        let genuine = fs::read(&place).unwrap();
        lagging.answer(&id);
        assert_eq!(lagging.found(), []);
        assert!(matches!(answered.try_recv(), Ok(OrderReply::Result(Ok(_)))));
        fs::write(&place, genuine).unwrap();
        fs::remove_file(&place).unwrap();
        assert_eq!(lagging.found(), [(ForeignKind::Request, names::request(&id), true)]);
    }
}

/// An id that the bridge could not use, because something had its name, is none of its own.
#[tokio::test]
async fn a_request_that_was_there_before_the_bridge_wrote_it_is_noticed() {
    let mut lagging = Lagging::new(Unverified, WatchMode::Polling);
    fs::write(lagging.tools("exec-request-1.json"), "forged").unwrap();
    let (id, mut answered) = lagging.submit();
    assert!(matches!(answered.try_recv(), Ok(OrderReply::NotSubmitted(_))));
    lagging.driver.scan_all();
    assert_eq!(lagging.found(), [(ForeignKind::Request, names::request(&id), true)]);
}

#[tokio::test]
async fn what_honest_executors_do_is_not_noticed() {
    let serve: [fn(&Lagging, &RequestId); 3] = [
        // Ours, and the scripts.
        |lagging, id| {
            fs::create_dir(lagging.tools(&names::claim(id))).unwrap();
            lagging.answer(id);
        },
        // Locks the request instead of a claim, and writes the result in its place.
        |lagging, id| {
            drop(fs::OpenOptions::new().append(true).open(lagging.tools(&names::request(id))).unwrap());
            fs::write(lagging.tools(&names::result(id)), result(id)).unwrap();
        },
        // Removes the request itself.
        |lagging, id| {
            fs::remove_file(lagging.tools(&names::request(id))).unwrap();
            lagging.answer(id);
        },
    ];
    for (way, serve) in serve.into_iter().enumerate() {
        for looks_first in [true, false] {
            let mut lagging = Lagging::new(Unverified, WatchMode::Automatic);
            let (id, mut answered) = lagging.submit();
            if looks_first {
                assert_eq!(lagging.found(), []);
            }
            serve(&lagging, &id);
            // Before the events are read.
            if !looks_first {
                lagging.driver.scan_all();
            }
            assert_eq!(lagging.found(), [], "way {way}");
            assert!(matches!(answered.try_recv(), Ok(OrderReply::Result(Ok(_)))), "way {way}");
        }
    }
}

#[tokio::test]
async fn a_late_result_is_ours_and_a_second_one_is_foreign() {
    for is_late in [false, true] {
        let mut lagging = Lagging::new(Unverified, WatchMode::Automatic);
        let (id, _answered) = lagging.submit();
        fs::create_dir(lagging.tools(&names::claim(&id))).unwrap();
        if is_late {
            assert_eq!(lagging.give_up(&id), Withdrawal::Started);
        }
        lagging.answer(&id);
        assert_eq!(lagging.found(), []);
        assert!(!lagging.tools(&names::result(&id)).exists());
        lagging.answer(&id);
        assert_eq!(lagging.found(), [(ForeignKind::Result, names::result(&id), false)]);
    }
    // Of a request without a claim, which the bridge does not expect to be answered any more.
    let mut lagging = Lagging::new(Unverified, WatchMode::Automatic);
    let (id, _answered) = lagging.submit();
    assert_eq!(lagging.give_up(&id), Withdrawal::NotStarted);
    lagging.answer(&id);
    assert_eq!(lagging.found(), []);
}

#[tokio::test]
async fn lost_events_may_have_been_of_a_request() {
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: u32 = limit.trim().parse().unwrap();
    if limit > 100_000 {
        skip!("the queue of inotify is too long to be filled");
    }
    for verification in [Unverified, Verifies] {
        let mut lagging = Lagging::new(verification, WatchMode::Automatic);
        // Two names in turn: an event that is the same as the one before is not queued.
        for number in 0..=limit {
            fs::File::create(lagging.tools(&format!("junk-{}", number % 2))).unwrap();
        }
        fs::write(lagging.tools("exec-request-9.json"), "{}").unwrap();
        fs::remove_file(lagging.tools("exec-request-9.json")).unwrap();
        assert_eq!(lagging.found(), [unseen(EVENTS_LOST, verification)]);
    }
}

/// All that is queued is read, however much of it is none of ours: the descriptor tells of it once.
#[tokio::test]
async fn a_request_behind_many_other_events_is_noticed() {
    let mut lagging = Lagging::new(Unverified, WatchMode::Automatic);
    for number in 0..2_000 {
        let name = format!("{number:0>200}");
        fs::write(lagging.tools(&name), "").unwrap();
        fs::remove_file(lagging.tools(&name)).unwrap();
    }
    fs::write(lagging.tools("exec-request-9.json"), "{}").unwrap();
    fs::remove_file(lagging.tools("exec-request-9.json")).unwrap();
    assert_eq!(lagging.found(), [(ForeignKind::Request, "exec-request-9.json".to_owned(), true)]);
}

/// A result that was found by looking may have been announced; that question must not use up other news.
#[tokio::test]
async fn a_request_behind_the_event_of_a_result_is_noticed() {
    let mut lagging = Lagging::new(Unverified, WatchMode::Automatic);
    let (id, _answered) = lagging.submit();
    lagging.answer(&id);
    fs::write(lagging.tools("exec-request-9.json"), "{}").unwrap();
    fs::remove_file(lagging.tools("exec-request-9.json")).unwrap();
    lagging.driver.scan_all();
    assert!(lagging.driver.result_announced());
    assert!(lagging.driver.has_more_events);
    assert_eq!(lagging.found(), [(ForeignKind::Request, "exec-request-9.json".to_owned(), true)]);
}

#[tokio::test]
async fn a_listing_that_is_cut_short_may_lack_a_request() {
    for verification in [Unverified, Verifies] {
        let mut lagging = Lagging::new(verification, WatchMode::Polling);
        for number in 0..5_000 {
            fs::create_dir(lagging.tools(&format!(".claim-{number}"))).unwrap();
        }
        lagging.driver.check_control_files();
        let found = lagging.found();
        let requests: Vec<_> = found.into_iter().filter(|(what, ..)| *what == ForeignKind::Request).collect();
        assert_eq!(requests, [unseen(LIST_CUT, verification)]);
    }
}
