//! Reports: taken once, in order, with receipts that follow, or not at all.

use std::convert::Infallible;
use std::fs;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame};
use sympozium_gateway::plans::RunFacts;
use sympozium_gateway::run_api::{HandlerError, MAX_BODIES_OF_RUN, MAX_BODY_BYTES, ReportCursor};
use sympozium_ipc::receipt::verify;
use sympozium_ipc::run_api::{MAX_RECEIPTS, MAX_REQUEST};
use tokio::sync::Semaphore;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_run_reports_to_its_end_over_a_socket() {
    let harness = RunApiHarness::new(|_| {});
    let client = harness.unix_client(&harness.socket()).await;
    let mut reports = harness.reports();
    let first = reports.next(2);
    assert_eq!(client.report(&first).await, Ok(2));
    // The answer was lost; then with another content, and with a gap.
    assert_eq!(client.report(&first).await, Ok(2));
    let other = Report { progress: Some("other".to_owned()), ..first.clone() };
    assert_eq!(client.report(&other).await, Err("chain".to_owned()));
    let second = reports.next(MAX_RECEIPTS as u64);
    let third = reports.next(1);
    assert_eq!(client.report(&third).await, Err("chain".to_owned()));
    assert_eq!(client.report(&second).await, Ok(130));
    assert_eq!(client.report(&third).await, Ok(131));
    let last = reports.last();
    assert_eq!(client.report(&last).await, Ok(132));
    assert_eq!(client.report(&last).await, Ok(132));
    let more = reports.next(0);
    assert_eq!(client.report(&more).await, Err("chain".to_owned()));
    // Nothing else either.
    let (status, body) = client.post(path::APPROVALS, &question("late")).await;
    assert_eq!((status, code(&body).as_str()), (403, "denied"));

    let kept = harness.records().read_report(UID).expect("readable").expect("kept");
    assert_eq!((kept.phase, kept.ending), (BridgePhase::Ended, last.ending));
    let receipts = harness.records().path(UID).join("receipts.jsonl");
    let receipts = fs::read_to_string(receipts).expect("a file");
    let verified = verify(receipts.lines(), &harness.plan_digest(), Some(&kept.head));
    assert_eq!(verified.expect("a whole chain").receipts.len(), 132);
}

#[tokio::test]
async fn what_does_not_follow_is_not_kept() {
    let harness = RunApiHarness::new(|_| {});
    let client = harness.client().await;
    let mut reports = harness.reports();
    client.report(&reports.next(2)).await.expect("taken");
    let good = reports.next(3);
    let with = |change: fn(&mut Report)| {
        let mut report = good.clone();
        change(&mut report);
        report
    };
    for wrong in [
        with(|it| it.receipts[1] = it.receipts[1].replace("test 1", "test 9")),
        with(|it| drop(it.receipts.pop())),
        with(|it| drop(it.receipts.remove(0))),
        with(|it| it.receipts.swap(0, 1)),
        with(|it| it.receipts[0].push(' ')),
        with(|it| it.first_receipt = 1),
        with(|it| it.number = 0),
    ] {
        assert_eq!(client.report(&wrong).await, Err("chain".to_owned()));
    }
    let too_many = with(|it| it.receipts = vec![String::new(); MAX_RECEIPTS + 1]);
    assert_eq!(client.report(&too_many).await, Err("request".to_owned()));
    let silent = with(|it| it.phase = BridgePhase::Ended);
    assert_eq!(client.report(&silent).await, Err("request".to_owned()));
    let kept = harness.records().read_report(UID).expect("readable").expect("kept");
    assert_eq!((kept.reports, kept.receipts), (1, 2));
    assert_eq!(client.report(&good).await, Ok(5));
}

#[tokio::test]
async fn the_chain_goes_on_after_a_restart() {
    let harness = RunApiHarness::new(|_| {});
    let client = harness.client().await;
    let mut reports = harness.reports();
    let first = reports.next(2);
    client.report(&first).await.expect("taken");
    let (again, client) = {
        let gateway = gateway(ApprovalQueue::new(), harness.records(), NoScheduler);
        gateway.plans().add(&harness.plan).expect("a plan");
        let again = RunApiHarness { gateway, ..harness };
        let client = again.client().await;
        (again, client)
    };
    assert_eq!(client.report(&first).await, Ok(2));
    assert_eq!(client.report(&reports.next(1)).await, Ok(3));
    let kept = again.records().read_report(UID).expect("readable").expect("kept");
    assert_eq!((kept.reports, kept.receipts), (2, 3));
}

/// Fails for as long as it is told to.
struct Failing(Arc<AtomicBool>);

impl ReportStore for Failing {
    async fn cursor(&self, _: &Arc<RunFacts>) -> Result<Option<ReportCursor>, HandlerError> {
        self.answer().map(|()| None)
    }

    async fn store(&self, _: &Arc<RunFacts>, _: Report, _: &ReportCursor) -> Result<(), HandlerError> {
        self.answer()
    }
}

impl Failing {
    fn answer(&self) -> Result<(), HandlerError> {
        if self.0.load(Ordering::Relaxed) {
            Err(HandlerError::Failed { message: "no room".to_owned(), cause: None })
        } else {
            Ok(())
        }
    }
}

#[tokio::test]
async fn what_could_not_be_kept_comes_again() {
    let fails = Arc::new(AtomicBool::new(true));
    let harness = RunApiHarness::new(|_| {});
    let gateway = gateway(ApprovalQueue::new(), Failing(Arc::clone(&fails)), NoScheduler);
    gateway.plans().add(&harness.plan).expect("a plan");
    let harness = RunApiHarness { gateway, ..harness };
    let client = harness.client().await;
    let mut reports = harness.reports();
    let first = reports.next(1);
    assert_eq!(client.report(&first).await, Err("failed".to_owned()));
    fails.store(false, Ordering::Relaxed);
    assert_eq!(client.report(&first).await, Ok(1));
    fails.store(true, Ordering::Relaxed);
    let second = reports.next(1);
    assert_eq!(client.report(&second).await, Err("failed".to_owned()));
    fails.store(false, Ordering::Relaxed);
    assert_eq!(client.report(&second).await, Ok(2));
    // What was not kept was not told of.
    let receipts = harness.outcomes();
    assert_eq!(receipts.iter().filter(|it| *it == "receipt").count(), 2);
}

/// What two gateways keep together: each takes a report only when the other has taken none in between.
#[derive(Clone, Default)]
struct Shared(Arc<std::sync::Mutex<Option<ReportCursor>>>);

impl ReportStore for Shared {
    async fn cursor(&self, _: &Arc<RunFacts>) -> Result<Option<ReportCursor>, HandlerError> {
        Ok(self.0.lock().expect("whole").clone())
    }

    async fn store(&self, _: &Arc<RunFacts>, _: Report, kept: &ReportCursor) -> Result<(), HandlerError> {
        let mut known = self.0.lock().expect("whole");
        if known.as_ref().map_or(0, |it| it.reports) + 1 != kept.reports {
            return Err(HandlerError::Conflict);
        }
        *known = Some(kept.clone());
        Ok(())
    }
}

#[tokio::test]
async fn two_gateways_that_keep_reports_together_agree_on_what_is_kept() {
    let shared = Shared::default();
    let first = RunApiHarness::new(|_| {});
    let (gateways, plan) =
        ([(); 2].map(|()| gateway(ApprovalQueue::new(), shared.clone(), NoScheduler)), first.plan.clone());
    let mut clients = Vec::new();
    for gateway in gateways {
        gateway.plans().add(&plan).expect("a plan");
        let harness = RunApiHarness { gateway, ..RunApiHarness::new(|_| {}) };
        clients.push((harness.client().await, harness));
    }
    let mut reports = first.reports();
    for number in 0..4 {
        let report = reports.next(1);
        let (here, there) = (&clients[number % 2].0, &clients[(number + 1) % 2].0);
        let count = Ok(number as u64 + 1);
        assert_eq!(here.report(&report).await, count);
        assert_eq!(there.report(&report).await, count);
    }
    // What does not follow is refused by both.
    reports.number += 1;
    let gap = reports.next(1);
    for (client, _) in &clients {
        assert_eq!(client.report(&gap).await, Err("chain".to_owned()));
    }
    let kept = shared.0.lock().expect("whole").clone();
    assert_eq!(kept.map(|it| (it.reports, it.receipts)), Some((4, 4)));
}

/// Says when it begins, and goes on when it is let.
#[derive(Clone)]
struct Slow {
    began: Arc<Semaphore>,
    lets: Arc<Semaphore>,
}

impl ReportStore for Slow {
    async fn cursor(&self, _: &Arc<RunFacts>) -> Result<Option<ReportCursor>, HandlerError> {
        Ok(None)
    }

    async fn store(&self, _: &Arc<RunFacts>, _: Report, _: &ReportCursor) -> Result<(), HandlerError> {
        self.began.add_permits(1);
        self.lets.acquire().await.expect("open").forget();
        Ok(())
    }
}

fn slow_harness() -> (RunApiHarness, Slow) {
    let slow = Slow { began: Arc::new(Semaphore::new(0)), lets: Arc::new(Semaphore::new(0)) };
    let harness = RunApiHarness::new(|_| {});
    let gateway = gateway(ApprovalQueue::new(), slow.clone(), NoScheduler);
    gateway.plans().add(&harness.plan).expect("a plan");
    (RunApiHarness { gateway, ..harness }, slow)
}

#[tokio::test]
async fn a_report_that_is_being_stored_is_stored_after_a_disconnection() {
    let (harness, slow) = slow_harness();
    let client = harness.client().await;
    let mut reports = harness.reports();
    let first = reports.next(2);
    let sending = {
        let (client, first) = (client.clone(), first.clone());
        tokio::spawn(async move { client.report(&first).await })
    };
    slow.began.acquire().await.expect("open").forget();
    sending.abort();
    drop(client);
    assert!(sending.await.is_err());
    slow.lets.add_permits(1);
    // Sent again, it is not kept again.
    let client = harness.client().await;
    assert_eq!(client.report(&first).await, Ok(2));
    assert_eq!(slow.began.available_permits(), 0);

    // The run is over while its last report is being kept: it is kept and answered.
    let last = reports.last();
    let sending = tokio::spawn(async move { client.report(&last).await });
    slow.began.acquire().await.expect("open").forget();
    assert!(harness.gateway.plans().end(UID));
    slow.lets.add_permits(1);
    assert_eq!(sending.await.expect("an answer"), Ok(3));
    assert_eq!(harness.outcomes().last().map(String::as_str), Some("run-ended"));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_too_long_is_told_to_retry() {
    let (harness, slow) = slow_harness();
    let client = harness.client().await;
    let first = harness.reports().next(1);
    // More often than there is room for reports: the rest of the run is served meanwhile.
    for _ in 0..=MAX_BODIES_OF_RUN {
        assert_eq!(client.report(&first).await, Err("failed".to_owned()));
    }
    let (status, _) = client.post(path::MESSAGES, &json!({})).await;
    assert_eq!(status, 400);
    slow.lets.add_permits(1);
    assert_eq!(client.report(&first).await, Ok(1));
    assert_eq!(slow.began.available_permits(), 1);
}

#[tokio::test]
async fn a_body_has_so_many_bytes_and_no_more() {
    let harness = RunApiHarness::new(|_| {});
    let client = harness.client().await;
    let mut body = serde_json::to_vec(&harness.reports().next(1)).expect("JSON");
    body.resize(MAX_REQUEST, b' ');
    let (status, _) = client.send(path::REPORTS, body.clone()).await.expect("an answer");
    assert_eq!(status, 200);
    body.push(b' ');
    // Announced, it is not read at all.
    let (status, refusal) = client.send(path::REPORTS, body.clone()).await.expect("an answer");
    assert_eq!((status, code(&refusal).as_str()), (413, "size"));

    // Not announced, it is read up to the bound.
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let gateway = Arc::clone(&harness.gateway);
    tokio::spawn(async move { gateway.serve(theirs).await });
    let (mut sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(ours)).await.expect("a handshake");
    tokio::spawn(connection);
    let pieces: Vec<Bytes> = body.chunks(1 << 16).map(Bytes::copy_from_slice).collect();
    let request = http::Request::post(format!("http://gateway{}", path::REPORTS))
        .header("authorization", format!("Bearer {}", token(UID, RUN_CREDENTIAL)))
        .body(Pieces(pieces.into_iter()))
        .expect("a request");
    let answer = sender.send_request(request).await.expect("an answer");
    assert_eq!(answer.status(), 413);
    let refusal = answer.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(code(&serde_json::from_slice(&refusal).expect("JSON")), "size");
    assert!(harness.outcomes().contains(&"request-refused".to_owned()));
}

/// A body that does not say how long it is.
struct Pieces(std::vec::IntoIter<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|it| Ok(Frame::data(it))))
    }
}

/// A report is in memory until it is kept, so that long it takes its room of what all runs have.
#[tokio::test(start_paused = true)]
async fn reports_that_are_being_kept_have_so_many_bytes_together() {
    let (harness, slow) = slow_harness();
    let at_once = MAX_BODY_BYTES / MAX_REQUEST;
    let mut sending = Vec::new();
    for number in 0..=at_once {
        let uid = format!("{number:08}-77f4-4c62-9f0e-0123456789ab");
        // Each of another namespace: one has only a part of it.
        let namespace = NamespaceName::new(format!("team-{number}"));
        let plan = plan(&uid, |it| it.run.namespace = namespace);
        harness.gateway.plans().add(&plan).expect("a plan");
        let mut reports =
            Reporting { chain: Chain::new(RunPlan::digest_of(&plan.to_bytes().expect("JSON"))), number: 0 };
        let mut body = serde_json::to_vec(&reports.next(1)).expect("JSON");
        body.resize(MAX_REQUEST, b' ');
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let gateway = Arc::clone(&harness.gateway);
        tokio::spawn(async move { gateway.serve(theirs).await });
        let client = Client::from_stream(ours, &token(&uid, RUN_CREDENTIAL)).await;
        sending.push(tokio::spawn(async move { client.send(path::REPORTS, body).await.map(|it| it.0) }));
    }
    let begun = u32::try_from(at_once).expect("a number");
    slow.began.acquire_many(begun).await.expect("open").forget();
    // Time passes when nothing else happens.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(slow.began.available_permits(), 0);
    slow.lets.add_permits(1);
    slow.began.acquire().await.expect("open").forget();
    slow.lets.add_permits(at_once);
    for sent in sending {
        assert_eq!(sent.await.expect("it ends").expect("an answer"), 200);
    }
}
