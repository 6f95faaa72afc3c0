use serde_json::{Value, json};

use super::super::fake_api_server::{FakeApiServer, list_page, not_found};
use super::*;

fn run() -> AgentRun {
    let mut run = AgentRun::new("nightly", sympozium_api::AgentRunSpec::default());
    run.metadata.uid = Some("uid".to_owned());
    run
}

fn connection_error() -> watcher::Error {
    watcher::Error::WatchFailed(kube::Error::LinesCodecMaxLineLengthExceeded)
}

#[tokio::test]
async fn an_outage_is_reported_once() {
    let connection = FakeApiServer::new(|_, _| None).connection();
    let mut errors = WatchErrors::default();
    let start = Instant::now();
    let fail = |errors: &mut WatchErrors, after: u64| {
        let now = start + Duration::from_secs(after);
        let events = errors.handle(&connection, WatchedKind::Records, connection_error(), now);
        events.map_err(|error| error.summary()).unwrap().len()
    };
    assert_eq!(fail(&mut errors, 0), 1);
    // A new list request does not mean that the server responds.
    errors.observe(&WatchEvent::Listing);
    assert_eq!(fail(&mut errors, 40), 0);
    assert_eq!(fail(&mut errors, 100), 0);
    assert_eq!(fail(&mut errors, 200), 0);
    // The watch recovered silently, and fails again much later.
    assert_eq!(fail(&mut errors, 400), 1);
    // The server has responded: the next failure is another outage.
    errors.observe(&WatchEvent::Responded);
    assert_eq!(fail(&mut errors, 401), 1);
    errors.observe(&WatchEvent::Run(Box::new(run())));
    assert_eq!(fail(&mut errors, 402), 1);
}

#[tokio::test]
async fn a_silent_api_server_fails_the_watches() {
    let fake = FakeApiServer::new(|_, _| None);
    for mut watch in start_watches(&fake.connection(), &run()) {
        let event = async {
            loop {
                match watch.next().await {
                    Some(WatchEvent::Listing) => {}
                    other => break other,
                }
            }
        };
        let event = tokio::time::timeout(Duration::from_secs(60), event).await;
        assert!(matches!(event, Ok(Some(WatchEvent::Failed(..)))), "{event:?}");
    }
}

#[tokio::test]
async fn a_reader_from_the_start_gets_every_event_of_a_long_run() {
    const LINES: usize = 3_000;
    const SEGMENTS: usize = 12;
    let digest = format!("sha256:{}", "1".repeat(64));
    let run = json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun",
        "metadata": {"name": "nightly", "namespace": "team", "uid": "uid"},
        "spec": {"agentRef": "worker", "task": "Report."},
        "status": {"phase": "Succeeded", "result": "Done.", "planDigest": digest,
            "report": {"reportedAt": "2027-01-15T08:00:00Z", "transcriptSegments": SEGMENTS}},
    });
    let run: AgentRun = serde_json::from_value(run).unwrap();
    let names = plan::object_names(&run);
    let record = |segment: usize| {
        let lines: Vec<String> = (0..LINES).map(|it| it.to_string()).collect();
        json!({
            "apiVersion": "sympozium.ai/v1alpha1", "kind": "RunRecord",
            "metadata": {"name": names.with_suffix(&format!("t{segment}")), "resourceVersion": "1"},
            "spec": {"run": {"name": "nightly", "uid": "uid"}, "kind": "transcript", "segment": segment,
                "firstLine": segment * LINES, "lines": lines, "head": digest},
        })
    };
    // The first segment arrives last, and with it all others become ready.
    let records: Vec<Value> = (0..SEGMENTS).rev().map(record).collect();
    let listed = serde_json::to_value(&run).unwrap();
    let fake = FakeApiServer::new(move |_, path| {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        if query.contains("watch=true") {
            return None;
        }
        Some(match path.rsplit('/').next().unwrap_or_default() {
            "agentruns" => (200, list_page(std::slice::from_ref(&listed), "")),
            "runrecords" => (200, list_page(&records, "")),
            "toolapprovals" => (200, list_page(&[], "")),
            other => not_found(other),
        })
    });
    let connection = fake.connection();
    let events = EventLog::default();
    let mut reader = events.reader();
    let watching = watch_run(&connection, run, &events, ApprovalMode::Ask);
    let watching = async {
        watching.await.map_err(|error| error.summary()).unwrap();
        std::future::pending::<()>().await;
    };
    tokio::pin!(watching);
    let mut lines = 0;
    loop {
        let timed = tokio::select! {
            biased;
            timed = reader.next() => timed,
            () = &mut watching => unreachable!("it is pending"),
        };
        match &timed.event {
            Event::Transcript { .. } => lines += 1,
            Event::Ended { .. } => break,
            Event::Warning { text } => assert!(!text.contains("missed"), "{text}"),
            _ => {}
        }
    }
    assert_eq!(lines, LINES * SEGMENTS);
}
