use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use sympozium_ipc::receipt::{Chain, Event, verify};

use super::super::super::reports::{ReportStep, check_report};
use super::*;

/// A run that reports to a directory.
struct RecordsHarness {
    directory: tempfile::TempDir,
    facts: Arc<RunFacts>,
    chain: Chain,
    cursor: ReportCursor,
}

impl RecordsHarness {
    fn new(transcript_bytes: u64) -> Self {
        let facts = RunFacts::example(|plan| plan.limits.transcript_bytes = transcript_bytes);
        Self {
            directory: tempfile::tempdir().unwrap(),
            chain: Chain::new(facts.plan.clone()),
            cursor: ReportCursor::start(facts.plan.clone()),
            facts,
        }
    }

    fn records(&self) -> RecordStore {
        RecordStore::open(&self.directory.path().join("records")).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.records().path(self.facts.uid()).join(name)
    }

    fn report(&mut self, change: impl FnOnce(&mut Report)) -> Report {
        let first_receipt = self.chain.len();
        let event = Event::Started { run: self.facts.uid().to_owned(), by: "test".to_owned() };
        let line = self.chain.add(first_receipt, event).unwrap().text;
        let mut report = Report {
            number: self.cursor.reports,
            phase: BridgePhase::Working,
            first_receipt,
            receipts: vec![line],
            head: self.chain.head().clone(),
            progress: None,
            transcript: Vec::new(),
            usage: Usage::default(),
            ending: None,
        };
        change(&mut report);
        report
    }

    async fn take(&mut self, change: impl FnOnce(&mut Report)) -> Result<(), HandlerError> {
        let before = self.chain.clone();
        let report = self.report(change);
        let Ok(ReportStep::Next { cursor, .. }) = check_report(&self.cursor, &report) else {
            panic!("it follows");
        };
        let taken = self.records().store(&self.facts, report, &cursor).await;
        match taken {
            Ok(()) => self.cursor = cursor,
            Err(_) => self.chain = before,
        }
        taken
    }

    fn verified(&self) -> usize {
        let text = fs::read_to_string(self.path(files::RECEIPTS)).unwrap();
        let verified = verify(text.lines(), &self.facts.plan, Some(self.chain.head()));
        verified.unwrap().receipts.len()
    }
}

fn cause(taken: Result<(), HandlerError>) -> String {
    match taken {
        Err(HandlerError::Failed { cause: Some(cause), .. }) => cause.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_run_is_written_down_and_read_again() {
    let mut harness = RecordsHarness::new(1000);
    assert_eq!(harness.records().read_report(harness.facts.uid()).unwrap(), None);
    assert_eq!(harness.records().cursor(&harness.facts).await.unwrap(), None);
    harness.take(|report| report.progress = Some("first".to_owned())).await.unwrap();
    harness.take(|report| report.transcript = vec!["{\"a\":1}".to_owned(), "no\nJSON".to_owned()]).await.unwrap();
    let ending = AgentEnd::Answered { text: "done".to_owned() };
    harness
        .take(|report| {
            report.phase = BridgePhase::Ended;
            report.ending = Some(ending.clone());
            report.usage.tool_calls = 7;
        })
        .await
        .unwrap();
    assert_eq!(harness.verified(), 3);
    let transcript = fs::read_to_string(harness.path(files::TRANSCRIPT)).unwrap();
    assert_eq!(transcript, "{\"a\":1}\n\"no\\nJSON\"\n");
    let cursor = harness.records().cursor(&harness.facts).await.unwrap();
    assert_eq!(cursor.as_ref(), Some(&harness.cursor));
    let report = harness.records().read_report(harness.facts.uid()).unwrap().unwrap();
    let expected = StoredReport {
        run: harness.facts.uid().to_owned(),
        plan: harness.facts.plan.clone(),
        phase: BridgePhase::Ended,
        progress: Some("first".to_owned()),
        usage: Usage { tool_calls: 7, ..Usage::default() },
        receipts: 3,
        head: harness.chain.head().clone(),
        ending: Some(ending),
        reports: 3,
        last_report: harness.cursor.last.clone().unwrap(),
        receipts_bytes: fs::metadata(harness.path(files::RECEIPTS)).unwrap().len(),
        transcript_bytes: transcript.len() as u64,
        transcript_cut: false,
    };
    assert_eq!(report, expected);
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(harness.records().path(harness.facts.uid())), 0o700);
    for name in [files::RECEIPTS, files::TRANSCRIPT, files::REPORT] {
        assert_eq!(mode(harness.path(name)), 0o600, "{name}");
    }
}

#[tokio::test]
async fn a_transcript_is_kept_up_to_its_bound_and_has_no_holes() {
    let mut harness = RecordsHarness::new(10);
    harness
        .take(|report| report.transcript = vec!["1234".to_owned(), "12345".to_owned(), "1".to_owned()])
        .await
        .unwrap();
    harness.take(|report| report.transcript = vec!["2".to_owned()]).await.unwrap();
    let transcript = fs::read_to_string(harness.path(files::TRANSCRIPT)).unwrap();
    assert_eq!(transcript, "1234\n");
    let report = harness.records().read_report(harness.facts.uid()).unwrap().unwrap();
    assert!(report.transcript_cut);

    let mut whole = RecordsHarness::new(5);
    whole.take(|report| report.transcript = vec!["1234".to_owned()]).await.unwrap();
    let report = whole.records().read_report(whole.facts.uid()).unwrap().unwrap();
    assert_eq!((report.transcript_bytes, report.transcript_cut), (5, false));
}

#[tokio::test]
async fn what_a_crash_left_behind_is_cut_off() {
    let mut harness = RecordsHarness::new(1000);
    harness.take(|_| {}).await.unwrap();
    let written = fs::read(harness.path(files::RECEIPTS)).unwrap();
    let torn = [&written[..], b"{\"torn"].concat();
    fs::write(harness.path(files::RECEIPTS), torn).unwrap();
    fs::write(harness.path(files::NEW_REPORT), b"torn").unwrap();
    harness.take(|_| {}).await.unwrap();
    assert_eq!(harness.verified(), 2);
    assert!(!harness.path(files::NEW_REPORT).exists());
}

#[tokio::test]
async fn what_others_changed_is_not_gone_on_with() {
    let mut harness = RecordsHarness::new(1000);
    harness.take(|_| {}).await.unwrap();
    let receipts = fs::read(harness.path(files::RECEIPTS)).unwrap();
    fs::write(harness.path(files::RECEIPTS), &receipts[..9]).unwrap();
    let text = cause(harness.take(|_| {}).await);
    assert!(text.contains("receipts.jsonl was changed"), "{text}");
    fs::write(harness.path(files::RECEIPTS), &receipts).unwrap();

    fs::write(harness.path(files::REPORT), "{}").unwrap();
    let text = cause(harness.take(|_| {}).await);
    assert!(text.contains("report.json was changed"), "{text}");
    assert!(harness.records().cursor(&harness.facts).await.is_err());
    // A report of another plan.
    let mut other = RecordsHarness::new(77);
    other.directory = tempfile::tempdir().unwrap();
    other.take(|_| {}).await.unwrap();
    let of_other = fs::read(other.path(files::REPORT)).unwrap();
    fs::write(harness.path(files::REPORT), of_other).unwrap();
    assert!(harness.records().cursor(&harness.facts).await.is_err());
}

#[tokio::test]
async fn no_link_is_followed_and_nothing_is_waited_for() {
    let mut harness = RecordsHarness::new(1000);
    let elsewhere = tempfile::tempdir().unwrap();
    let run = harness.records().path(harness.facts.uid());
    symlink(elsewhere.path(), &run).unwrap();
    let text = cause(harness.take(|_| {}).await);
    assert!(text.contains("not a file or directory of ours"), "{text}");
    fs::remove_file(&run).unwrap();
    for name in [files::RECEIPTS, files::TRANSCRIPT, files::REPORT] {
        let mut harness = RecordsHarness::new(1000);
        let target = elsewhere.path().join(name);
        fs::write(&target, "").unwrap();
        let run = harness.records().path(harness.facts.uid());
        fs::create_dir(&run).unwrap();
        fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
        symlink(&target, harness.path(name)).unwrap();
        let text = cause(harness.take(|_| {}).await);
        assert!(text.contains("not a file or directory of ours"), "{name}: {text}");
        assert_eq!(fs::read(&target).unwrap(), b"", "{name}");
        fs::remove_file(harness.path(name)).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, harness.path(name), mode).unwrap();
        assert!(harness.take(|_| {}).await.is_err(), "{name}");
    }
}

#[tokio::test]
async fn a_directory_that_others_may_open_is_not_used() {
    let mut harness = RecordsHarness::new(1000);
    let run = harness.records().path(harness.facts.uid());
    fs::create_dir(&run).unwrap();
    fs::set_permissions(&run, fs::Permissions::from_mode(0o750)).unwrap();
    let text = cause(harness.take(|_| {}).await);
    assert!(text.contains("ours alone"), "{text}");
    for uid in ["", ".", "..", "a/b", "a\0"] {
        let report = harness.records().read_report(uid);
        assert!(matches!(report, Err(RecordStoreError::Uid(_))), "{uid:?}");
    }
}
