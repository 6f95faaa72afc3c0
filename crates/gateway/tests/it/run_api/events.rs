//! What watchers are told of runs, and what they are not.

use sympozium_gateway::run_api::local::{Vote, VoteRequest, Voter};

use super::*;

#[tokio::test]
async fn a_run_is_told_from_its_first_report_to_its_end_and_again_from_any_number() {
    let harness = RunApiHarness::new(|_| {});
    harness.gateway.plans().add(&plan(OTHER, |_| {})).expect("a plan");
    let client = harness.client().await;
    let mut reports = harness.reports();
    let first = Report {
        transcript: vec!["{\"secret\":\"transcript\"}".to_owned()],
        progress: Some("secret progress".to_owned()),
        ..reports.next(1)
    };
    client.report(&first).await.expect("taken");
    client.report(&reports.next(0)).await.expect("taken");
    let asking = {
        let client = client.clone();
        tokio::spawn(async move { client.post(path::APPROVALS, &question("q")).await })
    };
    harness.pending(1).await;
    let by = Voter { name: "someone".to_owned(), groups: Vec::new(), is_author: true };
    let decided = harness.desk.vote(&VoteRequest {
        run: UID,
        approval: "q",
        action: &Digest::new(hash("0")),
        vote: Vote::Approve,
        by: &by,
        reason: Some("secret reason"),
    });
    decided.expect("it counts");
    asking.await.expect("an answer");
    let unknown = json!({ "secret field": 1 });
    client.post(path::MESSAGES, &unknown).await;
    client.report(&reports.last()).await.expect("taken");
    // Another run's, on a connection of its own.
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let gateway = Arc::clone(&harness.gateway);
    tokio::spawn(async move { gateway.serve(theirs).await });
    let other = Client::from_stream(ours, &token(OTHER, RUN_CREDENTIAL)).await;
    other.post("/nothing", &json!({})).await;

    let receipt = |line: &str| -> Value { serde_json::from_str(line).expect("JSON") };
    let last = {
        let mut again = harness.reports();
        again.next(1);
        again.next(0);
        again.last()
    };
    let outcomes = [
        json!({ "outcome": "receipt", "receipt": receipt(&first.receipts[0]) }),
        json!({ "outcome": "phase", "phase": "working" }),
        json!({
            "outcome": "asked", "approval": "q", "tool": "execute_command", "pack": "cluster",
            "action": hash("0"), "shown": "shell: ls", "waitSeconds": 300,
        }),
        json!({
            "outcome": "answered", "approval": "q", "action": hash("0"), "decision": "approved",
            "by": "someone", "forTheRun": false,
        }),
        json!({ "outcome": "request-refused", "request": "message", "code": "request" }),
        json!({ "outcome": "receipt", "receipt": receipt(&last.receipts[0]) }),
        json!({ "outcome": "phase", "phase": "ended" }),
        json!({ "outcome": "run-ended", "ending": "answered" }),
    ];
    let expected: Vec<Value> = (1..)
        .zip(outcomes)
        .map(|(sequence, mut event)| {
            event["sequence"] = sequence.into();
            event["connection"] = 1.into();
            event["who"] = json!({ "run": UID, "credential": "run" });
            event
        })
        .collect();
    assert_eq!(harness.events(1, Some(UID)), expected);
    assert_eq!(harness.events(6, Some(UID)), expected[5..]);
    assert_eq!(harness.events(1, Some(OTHER)).len(), 1);
    assert_eq!(harness.events(1, None).len(), 9);
    let all = serde_json::to_string(&harness.events(1, None)).expect("JSON");
    let password = client.token.rsplit(':').next().expect("a password");
    assert!(!all.contains("secret") && !all.contains(password), "{all}");
}
