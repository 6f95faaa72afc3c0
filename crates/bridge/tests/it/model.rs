//! Requests that go out as they should: the formats, the key, the connection.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use sympozium_bridge::model::{ExchangeStats, ModelUsage};
use sympozium_ipc::door::RefusalCode;
use sympozium_testkit::model_server::{Answer, Format, Gate, Reply, Settings, ToolCall};

use crate::model_harness::{HOST, KEY, ModelHarness, Setting, request};
use crate::support::Transport;
use sympozium_harness::TIMEOUT;

const THREADS: &str = "the server has a thread of its own";

fn spent(sent_bytes: u64, received: &str) -> ExchangeStats {
    ExchangeStats {
        status: Some(200),
        sent_bytes,
        received_bytes: received.len() as u64,
        input_tokens: Some(120),
        output_tokens: Some(34),
        estimated: false,
        error: None,
    }
}

#[tokio::test]
async fn both_formats_pass_whole_and_streamed() {
    for (setting, streamed) in [
        (Setting::open_ai(), false),
        (Setting::open_ai(), true),
        (Setting::anthropic(), false),
        (Setting::anthropic(), true),
    ] {
        let wire = setting.wire;
        let harness = setting.start().await;
        let call = ToolCall::new("read_file", &json!({ "path": "/workspace/a" }));
        harness.server.push(Answer::pieces(["Let me ", "look."]).tool(call).usage(120, 34));
        let body = request(streamed);
        let (answer, told) = harness.ask(&body).await;
        let answer = answer.expect(THREADS);
        assert_eq!((answer.status, answer.end), (200, Ok(())));
        let recorded = &harness.server.requests()[0];
        let sent = recorded.body.len() as u64;
        assert_eq!(told, spent(sent, &answer.body), "{wire} {streamed}");
        let usage = ModelUsage { requests: 1, input_tokens: 120, output_tokens: 34, estimated: false };
        assert_eq!(harness.model.usage(), usage);
        let mut expected = body;
        if streamed && wire == "openAi" {
            expected["stream_options"] = json!({ "include_usage": true });
        }
        assert_eq!(recorded.json(), expected);
        let content_type = answer.headers.get("content-type").expect("a type");
        if streamed {
            assert!(content_type.as_bytes().starts_with(b"text/event-stream"));
            let end = if wire == "openAi" { "data: [DONE]\n\n" } else { "\"message_stop\"}\n\n" };
            assert!(answer.body.ends_with(end), "{}", answer.body);
        } else {
            let json: Value = serde_json::from_str(&answer.body).expect("JSON");
            assert!(json["usage"].is_object(), "{json}");
        }
        assert!(answer.body.contains("read_file"), "{}", answer.body);
    }
}

/// The headers of the only request, but for those that say how long it is.
fn headers(harness: &ModelHarness) -> Vec<String> {
    let recorded = &harness.server.requests()[0];
    let headers = recorded.headers.iter();
    let mut headers: Vec<String> = headers.map(|(name, value)| format!("{name}: {value}")).collect();
    headers.sort();
    headers
}

#[tokio::test]
async fn headers_are_ours_and_the_key_is_where_the_provider_wants_it() {
    let body = request(false);
    let length = format!("content-length: {}", body.to_string().len());
    let agent = concat!("user-agent: Sympozium/", env!("CARGO_PKG_VERSION"));
    let usual = |more: &[&str]| {
        let mut all = vec![
            "accept-encoding: identity".to_owned(),
            "accept: application/json".to_owned(),
            length.clone(),
            "content-type: application/json".to_owned(),
            format!("host: {HOST}:8080"),
            agent.to_owned(),
        ];
        all.extend(more.iter().map(|it| (*it).to_owned()));
        all.sort();
        all
    };
    let azure = |mut setting: Setting| {
        setting.provider = "azure";
        setting.path = "/openai/v1/chat/completions?api-version=v1";
        setting.server = Settings::new().route("/openai/v1/chat/completions", Format::AzureOpenAi);
        setting
    };
    for (mut setting, expected) in [
        (Setting::open_ai(), usual(&["authorization: Bearer sk-test-0123456789abcdef"])),
        (Setting::anthropic(), usual(&["x-api-key: sk-test-0123456789abcdef", "anthropic-version: 2023-06-01"])),
        (azure(Setting::open_ai()), usual(&["api-key: sk-test-0123456789abcdef"])),
    ] {
        setting.server = setting.server.key(KEY);
        let query = setting.path.split_once('?').map(|(_, query)| query);
        let path = setting.path.split('?').next();
        let harness = setting.start().await;
        let (answer, _) = harness.ask(&body).await;
        assert_eq!(answer.expect("an answer").status, 200);
        assert_eq!(headers(&harness), expected);
        let recorded = &harness.server.requests()[0];
        assert_eq!((Some(recorded.path.as_str()), recorded.query.as_deref()), (path, query));
    }
    // Headers of the plan and of a Secret, and no key.
    let mut setting = Setting::open_ai();
    setting.key = None;
    setting.headers = vec![("X-Title", "a run"), ("User-Agent", "mine")];
    setting.secret_headers = vec![("x-portal", "Portal very-secret-word"), ("authorization", "Basic abc")];
    let harness = setting.start().await;
    let (answer, _) = harness.ask(&body).await;
    assert_eq!(answer.expect("an answer").status, 200);
    let mut expected =
        usual(&["authorization: Basic abc", "user-agent: mine", "x-portal: Portal very-secret-word", "x-title: a run"]);
    expected.retain(|it| it != agent);
    assert_eq!(headers(&harness), expected);
}

#[tokio::test]
async fn headers_that_are_ours_cannot_be_set() {
    for name in ["Host", "content-length", "Transfer-Encoding", "proxy-authorization", "Accept-Encoding", "expect"] {
        let mut setting = Setting::open_ai();
        setting.headers = vec![(name, "x")];
        let error = setting.try_start().await.err().expect("it is refused");
        assert_eq!(error.to_string(), format!("the header `{name}` of the model is not one, or not for a plan to set"));
    }
    let mut setting = Setting::open_ai();
    setting.secret_headers = vec![("host", "x")];
    assert!(setting.try_start().await.is_err());
}

#[tokio::test]
async fn a_server_that_says_everything_back_does_not_give_the_key_away() {
    for streamed in [false, true] {
        let mut setting = Setting::open_ai();
        setting.secret_headers = vec![("x-portal", "Portal very-secret-word")];
        let harness = setting.start().await;
        harness.server.push(Reply::Echo);
        let (answer, told) = harness.ask(&request(streamed)).await;
        let answer = answer.expect("an answer");
        assert!(harness.server.requests()[0].header("authorization").is_some_and(|it| it.contains(KEY)));
        assert!(answer.body.contains("authorization: Bearer ************************"), "{}", answer.body);
        assert!(answer.body.contains("x-portal: ***********************"), "{}", answer.body);
        for secret in [KEY, "very-secret-word"] {
            let seen = format!("{answer:?} {told:?} {:?}", harness.gateway.outcomes());
            assert!(!seen.contains(secret), "{seen}");
        }
    }
}

#[tokio::test]
async fn a_key_in_pieces_and_in_headers_does_not_pass_either() {
    let harness = Setting::open_ai().start().await;
    let pieces = ["data: sk-test-01", "23456789a", "bcdef and sk-test-", "\n\n"];
    let mut reply = sympozium_testkit::model_server::HttpAnswer::events(pieces);
    reply.headers.push(("x-request-id".to_owned(), format!("id {KEY}")));
    reply.headers.push(("request-id".to_owned(), "r-1".to_owned()));
    reply.headers.push(("set-cookie".to_owned(), "c=1".to_owned()));
    harness.server.push(reply);
    let (answer, _) = harness.ask(&request(true)).await;
    let answer = answer.expect("an answer");
    assert_eq!(answer.body, "data: ************************ and sk-test-\n\n");
    let names: Vec<&str> = answer.headers.keys().map(|it| it.as_str()).collect();
    assert_eq!(names, ["content-type", "request-id"]);
}

#[tokio::test]
async fn each_piece_is_seen_before_the_next_is_sent() {
    for setting in [Setting::open_ai(), Setting::anthropic()] {
        let harness = setting.start().await;
        let gate = Gate::new();
        harness.server.push(Reply::pieces(["one", "two", "three"]).gated(&gate));
        let (answer, ended) = harness.begin(&request(true)).await;
        let mut body = answer.expect("an answer").into_body();
        let mut seen = String::new();
        for piece in ["one", "two", "three"] {
            assert!(!seen.contains(piece), "{piece} is held by the gate: {seen}");
            gate.release(1);
            while !seen.contains(piece) {
                let frame = tokio::time::timeout(TIMEOUT, body.frame()).await;
                let frame = frame.expect("nothing is kept back").expect("more").expect("no error");
                seen.push_str(std::str::from_utf8(frame.data_ref().expect("data")).expect("UTF-8"));
            }
        }
        assert!(ended.try_recv().is_err(), "it has not ended");
        gate.open();
        while let Some(frame) = body.frame().await {
            frame.expect("no error");
        }
        assert_eq!(ended.try_recv().expect("it has ended").error, None);
    }
}

#[tokio::test]
async fn a_connection_is_used_again_as_long_as_it_works() {
    let harness = Setting::open_ai().start().await;
    for streamed in [false, true, false] {
        let (answer, _) = harness.ask(&request(streamed)).await;
        assert_eq!(answer.expect("an answer").status, 200);
    }
    // This one closes the connection after its answer.
    harness.server.push(Reply::raw("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"));
    let (answer, told) = harness.ask(&request(false)).await;
    assert_eq!(answer.expect("an answer").body, "{}");
    assert!(told.estimated, "it did not say what it cost");
    // Until that is known here: a request that meets the end on its way is not sent twice, but an error.
    let ended = || harness.gateway.outcomes().iter().any(|it| it.contains("ended"));
    let closed = async {
        while !ended() {
            tokio::task::yield_now().await;
        }
        // What the gateway closed is seen by those who read it in the next rounds.
        for _ in 0..16 {
            tokio::task::yield_now().await;
        }
    };
    let closed = tokio::time::timeout(TIMEOUT, closed).await;
    closed.expect("the connection ends");
    let (answer, _) = harness.ask(&request(false)).await;
    assert_eq!(answer.expect("an answer").status, 200);
    let connections: Vec<(u64, u64)> =
        harness.server.requests().iter().map(|it| (it.connection, it.earlier_on_connection)).collect();
    assert_eq!(connections, [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]);
    assert_eq!(harness.gateway.outcomes().iter().filter(|it| it.contains("allowed")).count(), 2);
}

#[tokio::test]
async fn requests_at_a_time_have_connections_of_their_own() {
    let harness = Setting::open_ai().start().await;
    let gate = Gate::new();
    for _ in 0..2 {
        harness.server.push(Reply::text("x").gated(&gate));
    }
    let (first, _) = harness.begin(&request(true)).await;
    let (second, _) = harness.begin(&request(true)).await;
    gate.open();
    for answer in [first, second] {
        let answer = crate::model_harness::read(answer.expect("an answer")).await;
        assert_eq!(answer.end, Ok(()));
    }
    let connections: Vec<u64> = harness.server.requests().iter().map(|it| it.connection).collect();
    assert_eq!(connections, [1, 2]);
}

#[tokio::test]
async fn tls_ends_in_the_bridge_and_knows_the_server() {
    let encrypted = || {
        let mut setting = Setting::open_ai();
        setting.encrypted = true;
        setting.reach = "model.test 443";
        setting.server = Settings::new().tls(HOST).key(KEY);
        setting
    };
    for transport in [Transport::Unix, Transport::Tls] {
        let mut setting = encrypted();
        setting.transport = transport;
        let harness = setting.start().await;
        for _ in 0..2 {
            let (answer, told) = harness.ask(&request(true)).await;
            assert_eq!(answer.expect("an answer").status, 200);
            assert_eq!((told.error, told.estimated), (None, false));
        }
        assert_eq!(harness.server.requests()[0].header("host"), Some(HOST));
        assert_eq!(harness.server.requests()[1].connection, 1);
    }

    // A certificate for another name, and one of an untrusted authority.
    let mut other = encrypted();
    other.server = Settings::new().tls("another.test");
    let mut plain = encrypted();
    plain.server = Settings::new();
    let mut named = encrypted();
    named.host = "other.test";
    named.reach = "other.test 443";
    for setting in [other, plain, named] {
        let harness = setting.start().await;
        let (message, told) = harness.fails(&request(false)).await;
        let begin = "cannot be reached: no TLS could be agreed on with the server";
        assert!(message.contains(begin), "{message}");
        assert_eq!((told.sent_bytes, told.input_tokens), (0, None));
        assert_eq!(harness.server.request_count(), 0);
    }
}

#[tokio::test]
async fn a_refusal_of_the_gateway_is_reported_with_its_reason() {
    let mut setting = Setting::open_ai();
    setting.reach = "somewhere.test 8080";
    let harness = setting.start().await;
    let (message, told) = harness.fails(&request(false)).await;
    assert!(message.starts_with("the gateway refuses `model.test:8080`: "), "{message}");
    assert!(!message.contains(&*harness.gateway.credential("model").password), "{message}");
    assert_eq!((told.sent_bytes, told.received_bytes, told.input_tokens), (0, 0, None));
    assert_eq!(harness.server.request_count(), 0);

    let harness = Setting::open_ai().start().await;
    harness.gateway.kill_gateway();
    let (message, _) = harness.fails(&request(false)).await;
    assert!(message.starts_with("the model at `model.test:8080` cannot be reached: "), "{message}");
}

#[tokio::test]
async fn what_is_refused_here_never_goes_out() {
    let harness = Setting::open_ai().start().await;
    let mut body = request(false);
    body["web_search_options"] = json!({});
    let (answer, told) = harness.ask(&body).await;
    let refusal = answer.expect_err("it is refused");
    assert_eq!(refusal.code, RefusalCode::Request);
    assert!(refusal.message.contains("`web_search_options`"), "{}", refusal.message);
    let expected = ExchangeStats {
        status: None,
        sent_bytes: 0,
        received_bytes: 0,
        input_tokens: None,
        output_tokens: None,
        estimated: false,
        error: Some(refusal.message),
    };
    assert_eq!(told, expected);
    assert_eq!(harness.model.usage(), ModelUsage::default());
    assert_eq!(harness.gateway.outcomes(), Vec::<String>::new());
}

/// As the door does it: each request in a task of its own.
#[tokio::test]
async fn asking_can_be_given_to_a_task() {
    let harness = Setting::open_ai().start().await;
    let model = Arc::clone(&harness.model);
    let task = tokio::spawn(async move {
        let asking = model.ask(Bytes::from(request(true).to_string()), |_| {});
        let body = asking.await.expect("an answer").into_body();
        body.collect().await.expect("all of it").to_bytes()
    });
    let body = task.await.expect("it does not panic");
    assert!(body.ends_with(b"data: [DONE]\n\n"));
}
