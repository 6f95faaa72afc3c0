//! Whose request it is: established before anything else, and revealed to no unauthenticated client.

use std::time::Duration;

use http::header::AUTHORIZATION;
use sympozium_gateway::run_api::MAX_CONNECTIONS_OF_RUN;
use sympozium_harness::plan::{Public, credential};
use sympozium_ipc::credential::KeyRing;
use tokio::io::AsyncReadExt as _;

use super::*;

#[tokio::test]
async fn whatever_is_wrong_with_a_token_the_answer_is_one() {
    let harness = RunApiHarness::new(|_| {});
    let other = plan(OTHER, |_| {});
    harness.gateway.plans().add(&other).expect("a plan");
    let over = "22222222-77f4-4c62-9f0e-0123456789ab";
    harness.gateway.plans().add(&plan(over, |_| {})).expect("a plan");
    assert!(harness.gateway.plans().end(over));
    let half = "33333333-77f4-4c62-9f0e-0123456789ab";
    let planned = [credential("c", Public::Closed, &[])];
    let added = harness.gateway.plans().add_credentials(half, &planned);
    added.expect("credentials");

    let client = harness.client().await;
    client.report(&harness.reports().next(1)).await.expect("taken");
    let forged = token(UID, RUN_CREDENTIAL).replace(UID, OTHER);
    let wrong = [
        String::new(),
        "x".to_owned(),
        "x:y".to_owned(),
        forged,
        token_until(UID, RUN_CREDENTIAL, now() - 1),
        token(UID, "model"),
        token(UID, "skill-tickets"),
        // Good, and another run's than the connection.
        token(OTHER, RUN_CREDENTIAL),
        token(over, RUN_CREDENTIAL),
        token(half, RUN_CREDENTIAL),
        token("unknown", RUN_CREDENTIAL),
    ];
    let mut answers = Vec::new();
    for token in &wrong {
        let client = client.with_token(token);
        let report = harness.reports().next(0);
        answers.push(client.post(path::REPORTS, &report).await);
        // Nor is anything told of what there is.
        answers.push(client.post("/nothing", &report).await);
    }
    answers.dedup();
    let message = "the gateway wants the token of a run that is not over\nhint: it ends with the run";
    assert_eq!(answers, [(401, json!({ "code": "token", "message": message }))]);
    // The log knows better, and holds no token.
    let reasons: Vec<String> =
        harness.events(1, None).iter().filter_map(|it| it["reason"].as_str().map(str::to_owned)).collect();
    for reason in ["credential-missing", "credential-forged", "run-over", "run-unknown"] {
        assert!(reasons.iter().any(|it| it == reason), "{reason}: {reasons:?}");
    }
    let told = serde_json::to_string(&harness.events(1, None)).expect("JSON");
    let password = |token: &str| token.rsplit(':').next().unwrap_or_default().to_owned();
    for token in wrong.iter().chain([&client.token]).filter(|it| it.len() > 9) {
        assert!(!told.contains(&password(token)), "{told}");
    }
}

#[tokio::test]
async fn two_tokens_are_none_and_other_schemes_neither() {
    let harness = RunApiHarness::new(|_| {});
    let client = harness.client().await;
    let bearer = format!("Bearer {}", client.token);
    for values in [
        vec![],
        vec![bearer.clone(), bearer.clone()],
        vec![bearer.replace("Bearer", "Basic")],
        vec![client.token.clone()],
    ] {
        let mut request = http::Request::post(format!("http://gateway{}", path::REPORTS));
        for value in values {
            request = request.header(AUTHORIZATION, value);
        }
        let request = request.body(Full::default()).expect("a request");
        let answer = client.sender.clone().send_request(request).await;
        assert_eq!(answer.expect("an answer").status(), 401);
    }
}

#[tokio::test]
async fn the_body_of_an_unauthenticated_request_is_not_read() {
    let harness = RunApiHarness::new(|_| {});
    let client = harness.client().await.with_token("nobody");
    // More than all windows together: it could be sent only if the server read it.
    let answer = client.send(path::REPORTS, vec![b' '; 8 << 20]).await;
    let (status, _) = answer.expect("an answer");
    assert_eq!(status, 401);
}

#[tokio::test]
async fn what_is_there_is_told_to_runs_only() {
    let harness = RunApiHarness::new(|_| {});
    let client = harness.client().await;
    for target in ["/", "/v1/run/reports/", "/v1/run/reports?x", "/v2/run/reports"] {
        let (status, body) = client.post(target, &json!({})).await;
        let message = "there is no such request at the gateway\nhint: the bridge may be of another release";
        let expected = json!({ "code": "request", "message": message });
        assert_eq!((status, body), (400, expected), "{target}");
    }
    let request = http::Request::get(format!("http://gateway{}", path::REPORTS))
        .header(AUTHORIZATION, format!("Bearer {}", client.token))
        .body(Full::default())
        .expect("a request");
    let answer = client.sender.clone().send_request(request).await;
    assert_eq!(answer.expect("an answer").status(), 400);
}

#[tokio::test]
async fn keys_that_change_are_those_of_tokens_too() {
    let harness = RunApiHarness::new(|_| {});
    let client = harness.client().await;
    let mut reports = harness.reports();
    client.report(&reports.next(0)).await.expect("taken");
    let other = KeyRing::single("k2", [7; 32]).expect("a key");
    harness.gateway.set_keys(other);
    assert_eq!(client.report(&reports.next(0)).await, Err("token".to_owned()));
}

#[tokio::test]
async fn a_run_has_so_many_connections() {
    let harness = RunApiHarness::new(|_| {});
    let mut clients = Vec::new();
    for _ in 0..MAX_CONNECTIONS_OF_RUN {
        let client = harness.client().await;
        let (status, _) = client.post(path::MESSAGES, &json!({})).await;
        assert_eq!(status, 400);
        clients.push(client);
    }
    let one_more = harness.client().await;
    let (status, body) = one_more.post(path::MESSAGES, &json!({})).await;
    assert_eq!((status, code(&body).as_str()), (429, "busy"));
    clients.pop();
    // Another run has room of its own, and so has this one again.
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while one_more.post(path::MESSAGES, &json!({})).await.0 != 400 {
        assert!(tokio::time::Instant::now() < deadline, "no room came back");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_a_run_may_stay_idle_and_one_without_a_run_may_not() {
    let harness = RunApiHarness::new(|_| {});
    let mut reports = harness.reports();
    let client = harness.client().await;
    client.report(&reports.next(1)).await.expect("taken");
    tokio::time::advance(Duration::from_secs(100 * 3600)).await;
    client.report(&reports.next(1)).await.expect("taken");

    // One that speaks HTTP/2 and never says whose it is; one that says it wrongly.
    let silent = harness.client().await;
    let nobody = harness.client().await.with_token("nobody");
    let (status, _) = nobody.post(path::REPORTS, &json!({})).await;
    assert_eq!(status, 401);
    for gone in [silent, nobody] {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while !gone.sender.is_closed() {
            assert!(tokio::time::Instant::now() < deadline, "it is still there");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
    client.report(&reports.next(1)).await.expect("taken");
}

#[tokio::test]
async fn connections_count_with_the_proxy_s_and_end_with_the_gateway() {
    let settings = Settings { connections: 1, ..Settings::default() };
    let harness = RunApiHarness::new(|_| {});
    let gateway = gateway_with(settings, ApprovalQueue::new(), harness.records(), NoScheduler);
    gateway.plans().add(&harness.plan).expect("a plan");
    let harness = RunApiHarness { gateway, ..harness };
    let client = harness.client().await;
    client.report(&harness.reports().next(1)).await.expect("taken");
    let (mut ours, theirs) = tokio::io::duplex(1 << 16);
    let gateway = Arc::clone(&harness.gateway);
    tokio::spawn(async move { gateway.serve(theirs).await });
    let mut answer = [0; 13];
    ours.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 503 ");

    let asking = {
        let client = client.clone();
        tokio::spawn(async move {
            let question = serde_json::to_vec(&question("q")).expect("JSON");
            client.send(path::APPROVALS, question).await
        })
    };
    harness.gateway.shut_down();
    let answered = asking.await.expect("an end");
    assert!(answered.is_err(), "{answered:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_run_api_there_is_the_proxy_only() {
    let gateway = Gateway::new(keys(), Settings::default(), Nowhere);
    let (mut ours, theirs) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move { gateway.serve(theirs).await });
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut ours, preface).await.expect("it reads");
    let mut answer = String::new();
    ours.read_to_string(&mut answer).await.expect("text");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
}
