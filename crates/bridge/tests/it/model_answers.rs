//! Answers that are not in order: errors, cuts, floods, silence, and what is no answer at all.

use http_body_util::BodyExt as _;
use sympozium_bridge::model::{ANSWER_TIMEOUT, AnswerError, CHUNK_TIMEOUT, ExchangeStats, MAX_HEAD, ModelUsage};
use sympozium_ipc::door::RefusalCode;
use sympozium_testkit::model_server::{
    Answer, Cut, Gate, HttpAnswer, ModelServer, ProviderError, Reply, Settings, Then,
};

use crate::model_harness::{KEY, Setting, request, text_length};
use sympozium_harness::TIMEOUT;

#[tokio::test]
async fn errors_of_the_provider_are_answers_and_cost_nothing() {
    let harness = Setting::open_ai().start().await;
    let error = ProviderError::new(429, "Rate limit reached").retry_after("7");
    harness.server.push(error);
    let (answer, told) = harness.ask(&request(true)).await;
    let answer = answer.expect("an answer");
    assert_eq!(answer.status, 429);
    assert_eq!(answer.headers["retry-after"], "7");
    assert!(answer.body.contains("Rate limit reached"), "{}", answer.body);
    let sent = harness.server.requests()[0].body.len() as u64;
    let expected = ExchangeStats {
        status: Some(429),
        sent_bytes: sent,
        received_bytes: answer.body.len() as u64,
        input_tokens: None,
        output_tokens: None,
        estimated: false,
        error: None,
    };
    assert_eq!(told, expected);
    let usage = ModelUsage { requests: 1, ..ModelUsage::default() };
    assert_eq!(harness.model.usage(), usage);

    let mut setting = Setting::anthropic();
    setting.server = Settings::new().key("another key");
    let harness = setting.start().await;
    let (answer, told) = harness.ask(&request(false)).await;
    let answer = answer.expect("an answer");
    assert_eq!((answer.status, told.status, told.error), (401, Some(401), None));
    assert!(answer.body.contains("authentication_error"), "{}", answer.body);
}

#[tokio::test]
async fn a_truncated_answer_is_marked_and_counted_by_its_text() {
    let harness = Setting::open_ai().start().await;
    harness.server.push(Reply::pieces(["one", "two", "three"]).cut(Cut::AfterPieces(2)));
    let (answer, told) = harness.ask(&request(true)).await;
    let answer = answer.expect("an answer");
    assert!(answer.body.contains("two") && !answer.body.contains("three"), "{}", answer.body);
    assert_eq!(answer.end, Err(AnswerError::ConnectionLost));
    let sent = harness.server.requests()[0].body.len() as u64;
    let received = answer.body.len() as u64;
    let expected = ExchangeStats {
        status: Some(200),
        sent_bytes: sent,
        received_bytes: received,
        input_tokens: Some(text_length(&harness.server.requests()[0].json()).div_ceil(4)),
        output_tokens: Some(("onetwo".len() as u64).div_ceil(4)),
        estimated: true,
        error: Some("the connection to the model broke".to_owned()),
    };
    assert_eq!(told, expected);
    // The connection is not used again.
    let (answer, _) = harness.ask(&request(true)).await;
    assert_eq!(answer.expect("an answer").end, Ok(()));
    assert_eq!(harness.server.requests()[1].connection, 2);
}

#[tokio::test]
async fn a_request_is_never_sent_twice() {
    let harness = Setting::open_ai().start().await;
    let (answer, _) = harness.ask(&request(false)).await;
    assert_eq!(answer.expect("an answer").status, 200);
    for first in [Reply::text("x").cut(Cut::AfterBytes(0)), Reply::raw("")] {
        let before = harness.server.request_count();
        harness.server.push(first);
        let (message, told) = harness.fails(&request(false)).await;
        assert!(message.starts_with("the model at `model.test:8080` gave no answer: "), "{message}");
        // It may have been read, so it is counted.
        assert_eq!((told.status, told.estimated), (None, true));
        let sent = usize::try_from(before).expect("a count");
        let text = text_length(&harness.server.requests()[sent].json());
        assert_eq!(told.input_tokens, Some(text.div_ceil(4)));
        assert_eq!(harness.server.request_count(), before + 1);
    }
}

#[tokio::test]
async fn a_flood_is_broken_off_at_its_bound() {
    for streamed in [false, true] {
        let harness = Setting::open_ai().limit("modelAnswerBytes", 100_000).start().await;
        harness.server.push(Reply::Huge { bytes: 1 << 40 });
        let (answer, told) = harness.ask(&request(streamed)).await;
        let answer = answer.expect("an answer");
        assert_eq!(answer.end, Err(AnswerError::TooLarge(100_000)));
        assert!(answer.body.len() <= 100_000 && answer.body.len() > 10_000, "{}", answer.body.len());
        assert_eq!(told.received_bytes, answer.body.len() as u64);
        assert_eq!(told.error.as_deref(), Some("the model's answer has more than 100000 bytes"));
        assert!(told.estimated);
        gone(&harness.server).await;
    }
    // Exactly as much as is allowed passes.
    let harness = Setting::open_ai().start().await;
    let (answer, _) = harness.ask(&request(false)).await;
    let bytes = answer.expect("an answer").body.len() as u64;
    for (most, end) in [(bytes, Ok(())), (bytes - 1, Err(AnswerError::TooLarge(bytes - 1)))] {
        let harness = Setting::open_ai().limit("modelAnswerBytes", most).start().await;
        let (answer, _) = harness.ask(&request(false)).await;
        assert_eq!(answer.expect("an answer").end, end);
    }
}

/// Waits until the server has seen that an answer is not wanted any more.
async fn gone(server: &ModelServer) {
    let seen = async {
        while server.abandoned() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, seen).await.expect("the server is told");
}

#[tokio::test]
async fn what_the_agent_drops_ends_at_the_provider_too() {
    // While it waits for the answer, and in the middle of it.
    let harness = Setting::open_ai().start().await;
    harness.server.push(Reply::Silence);
    let (sender, ended) = std::sync::mpsc::channel();
    let body = request(true).to_string().into();
    let asking = harness.model.ask(body, move |spent| {
        let _ = sender.send(spent);
    });
    let arrived = async {
        while harness.server.request_count() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        answer = asking => panic!("it never answers: {:?}", answer.err()),
        () = arrived => {}
    }
    let told = ended.recv().expect("it was told of");
    let left = "the agent did not wait for the end of the answer";
    assert_eq!((told.error.as_deref(), told.status, told.estimated), (Some(left), None, true));
    gone(&harness.server).await;

    let harness = Setting::open_ai().start().await;
    harness.server.push(Reply::pieces(["one", "two"]).gated(&Gate::new()));
    let (answer, ended) = harness.begin(&request(true)).await;
    let mut body = answer.expect("an answer").into_body();
    let first = body.frame().await.expect("a beginning").expect("no error");
    let received = first.data_ref().map_or(0, |it| it.len() as u64);
    drop(body);
    let told = ended.recv().expect("it was told of");
    assert_eq!((told.error.as_deref(), told.received_bytes), (Some(left), received));
    gone(&harness.server).await;
    assert_eq!(harness.model.usage().requests, 1);
}

#[tokio::test]
async fn what_was_counted_counts_though_the_agent_leaves_early() {
    let harness = Setting::anthropic().start().await;
    harness.server.push(Answer::text("x").usage(120, 34));
    let (answer, ended) = harness.begin(&request(true)).await;
    let mut body = answer.expect("an answer").into_body();
    let mut seen = String::new();
    while !seen.contains("message_stop") {
        let frame = body.frame().await.expect("more").expect("no error");
        let data = frame.data_ref().expect("data");
        seen.push_str(std::str::from_utf8(data).expect("UTF-8"));
    }
    drop(body);
    let told = ended.recv().expect("it was told of");
    assert_eq!((told.input_tokens, told.output_tokens, told.estimated), (Some(120), Some(34), false));
}

#[tokio::test]
async fn what_is_no_answer_is_refused() {
    let head = "the model at `model.test:8080` ";
    let events = |name: &str, value: &str| {
        let mut answer = HttpAnswer::events(["data: x\n\n"]);
        answer.headers.push((name.to_owned(), value.to_owned()));
        Reply::from(answer)
    };
    let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(MAX_HEAD));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(200));
    for (reply, expected, status) in [
        (
            Reply::redirect(307, "http://169.254.169.254/latest"),
            "answers 307, which leads elsewhere and is not followed\nhint: write the address that it leads to as the model's `baseURL`",
            Some(307),
        ),
        (
            Reply::raw("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"),
            "wants another protocol",
            Some(101),
        ),
        (events("content-encoding", "gzip"), "packs its answer, which was not asked for", Some(200)),
        (
            Reply::raw("SSH-2.0-OpenSSH\r\n\r\n"),
            "gave no answer: its answer is not HTTP, or its head is too large",
            None,
        ),
        (Reply::raw(long), "gave no answer: its answer is not HTTP, or its head is too large", None),
        (Reply::raw(many), "gave no answer: its answer is not HTTP, or its head is too large", None),
        (
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx"),
            "gave no answer: its answer is not HTTP, or its head is too large",
            None,
        ),
    ] {
        let harness = Setting::open_ai().start().await;
        harness.server.push(reply);
        let (message, told) = harness.fails(&request(false)).await;
        assert_eq!(message, format!("{head}{expected}"));
        assert_eq!(told.status, status, "{message}");
        assert!(!message.contains(KEY));
        // Nothing of that connection is used again.
        let (answer, _) = harness.ask(&request(false)).await;
        assert_eq!(answer.expect("an answer").status, 200, "{message}");
        assert_eq!(harness.server.requests()[1].connection, 2);
    }
    // Before an answer there may be others that say to go on.
    let harness = Setting::open_ai().start().await;
    harness
        .server
        .push(Reply::raw("HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"));
    let (answer, _) = harness.ask(&request(false)).await;
    assert_eq!(answer.expect("an answer").body, "{}");
}

#[tokio::test]
async fn a_provider_that_says_nothing_is_given_up() {
    let harness = Setting::open_ai().start().await;
    harness.server.push(Reply::Silence);
    let asking = harness.fails_after_request();
    let (message, told) = asking.await;
    assert_eq!(
        message,
        format!("the model at `model.test:8080` did not begin to answer in {} seconds", ANSWER_TIMEOUT.as_secs())
    );
    assert_eq!((told.status, told.estimated), (None, true));
}

impl crate::model_harness::ModelHarness {
    /// Stops the clock once the request is there, so that deadlines pass at once.
    async fn fails_after_request(&self) -> (String, ExchangeStats) {
        let (sender, ended) = std::sync::mpsc::channel();
        let body = request(false).to_string().into();
        let asking = self.model.ask(body, move |spent| {
            let _ = sender.send(spent);
        });
        let mut asking = std::pin::pin!(asking);
        let arrived = async {
            while self.server.request_count() == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            answer = &mut asking => panic!("it never answers: {:?}", answer.err()),
            () = arrived => {}
        }
        tokio::time::pause();
        let refusal = asking.await.err().expect("no answer");
        assert_eq!(refusal.code, RefusalCode::Model);
        (refusal.message, ended.recv().expect("it was told of"))
    }
}

#[tokio::test]
async fn an_answer_that_does_not_go_on_is_given_up() {
    let harness = Setting::open_ai().start().await;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100\r\n\r\ndata: x\n\n";
    harness.server.push(Reply::Raw { bytes: head.into(), then: Then::Hang });
    let (answer, ended) = harness.begin(&request(true)).await;
    let mut body = answer.expect("an answer").into_body();
    let first = body.frame().await.expect("a beginning").expect("no error");
    assert_eq!(first.data_ref().map(|it| it.as_ref()), Some(&b"data: x\n\n"[..]));
    tokio::time::pause();
    let before = tokio::time::Instant::now();
    let error = body.frame().await.expect("an end").expect_err("it does not go on");
    assert_eq!(error, AnswerError::Timeout);
    assert!(before.elapsed() >= CHUNK_TIMEOUT);
    assert!(body.frame().await.is_none());
    let told = ended.recv().expect("it was told of");
    assert_eq!(told.error.as_deref(), Some("the model's answer did not go on for 300 seconds"));
}
