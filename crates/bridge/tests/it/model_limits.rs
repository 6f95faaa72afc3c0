//! How much of its model a run may use.

use serde_json::json;
use sympozium_bridge::model::{MAX_CONCURRENT, ModelUsage};
use sympozium_ipc::door::{Refusal, RefusalCode};
use sympozium_testkit::model_server::{Answer, Gate, HttpAnswer, Reply};

use crate::model_harness::{Setting, request, text_length};

#[tokio::test]
async fn tokens_are_a_budget() {
    let harness = Setting::open_ai().limit("modelTokens", 30).start().await;
    harness.server.set_default(Answer::text("x").usage(10, 5));
    for _ in 0..2 {
        let (answer, told) = harness.ask(&request(true)).await;
        assert_eq!(answer.expect("an answer").status, 200);
        assert_eq!(told.error, None);
    }
    let (answer, told) = harness.ask(&request(true)).await;
    let message = "the run may use 30 tokens of its model, and 30 are used or under way".to_owned();
    let expected = Refusal { code: RefusalCode::Budget, message: message.clone(), retry_after_ms: None };
    assert_eq!(answer.expect_err("no more"), expected);
    assert_eq!((told.sent_bytes, told.error), (0, Some(message)));
    let usage = ModelUsage { requests: 2, input_tokens: 20, output_tokens: 10, estimated: false };
    assert_eq!(harness.model.usage(), usage);
    assert_eq!(harness.server.request_count(), 2);
}

#[tokio::test]
async fn requests_under_way_are_part_of_the_budget() {
    let text = text_length(&request(true));
    let harness = Setting::open_ai().limit("modelTokens", text / 4).start().await;
    let gate = Gate::new();
    harness.server.push(Reply::text("x").gated(&gate));
    let (first, _ended) = harness.begin(&request(true)).await;
    let (second, _) = harness.ask(&request(true)).await;
    assert_eq!(second.expect_err("there is no room beside it").code, RefusalCode::Budget);
    drop(first);
}

/// A budget is not used up by envelopes, and is by what a model wrote, whatever its server says of it.
#[tokio::test]
async fn a_budget_is_of_text() {
    // 2,000 bytes of text, in events of some hundred bytes each.
    let spoken = Answer::pieces(["word "; 400]);
    let event = json!({
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_763_000_000, "model": "m-1",
        "choices": [{ "index": 0, "delta": { "content": "word " }, "finish_reason": null }],
    });
    let silent = HttpAnswer::events(vec![format!("data: {event}\n\n"); 400]);
    for (answer, output, estimated) in [
        (Reply::from(silent), 500, true),
        (spoken.clone().usage(10, 450).into(), 450, false),
        // Fewer than any tokenizer could make of it.
        (spoken.usage(10, 1).into(), 15, true),
    ] {
        let harness = Setting::open_ai().limit("modelTokens", 1000).start().await;
        harness.server.push(answer);
        let (answer, told) = harness.ask(&request(true)).await;
        assert_eq!(answer.expect("an answer").end, Ok(()));
        assert_eq!((told.output_tokens, told.estimated), (Some(output), estimated));
        assert!(told.received_bytes > 20_000, "{}", told.received_bytes);
        // There is room for more.
        let (answer, _) = harness.ask(&request(true)).await;
        assert_eq!(answer.expect("an answer").status, 200);
    }
}

#[tokio::test]
async fn requests_are_counted_whatever_comes_of_them() {
    let harness = Setting::open_ai().limit("modelRequests", 2).start().await;
    harness.server.push(Reply::error(500, "no"));
    for status in [500, 200] {
        let (answer, _) = harness.ask(&request(false)).await;
        assert_eq!(answer.expect("an answer").status, status);
    }
    let (answer, _) = harness.ask(&request(false)).await;
    let expected = Refusal {
        code: RefusalCode::Budget,
        message: "the run may make 2 requests to its model".to_owned(),
        retry_after_ms: None,
    };
    assert_eq!(answer.expect_err("no more"), expected);
    assert_eq!(harness.server.request_count(), 2);
}

#[tokio::test]
async fn a_minute_has_room_for_so_many() {
    let harness = Setting::open_ai().limit("modelRequestsPerMinute", 2).start().await;
    for _ in 0..2 {
        let (answer, _) = harness.ask(&request(false)).await;
        assert_eq!(answer.expect("an answer").status, 200);
    }
    let (answer, _) = harness.ask(&request(false)).await;
    let refusal = answer.expect_err("too soon");
    assert_eq!(refusal.code, RefusalCode::Rate);
    let wait = refusal.retry_after_ms.expect("a time");
    assert!((1..=60_001).contains(&wait), "{wait}");
}

#[tokio::test]
async fn so_many_at_a_time() {
    let harness = Setting::open_ai().start().await;
    let gate = Gate::new();
    harness.server.set_default(Reply::text("x").gated(&gate));
    let mut under_way = Vec::new();
    for _ in 0..MAX_CONCURRENT {
        under_way.push(harness.begin(&request(true)).await);
    }
    let (answer, _) = harness.ask(&request(true)).await;
    let expected = Refusal {
        code: RefusalCode::Busy,
        message: "4 requests to the model are under way".to_owned(),
        retry_after_ms: None,
    };
    assert_eq!(answer.expect_err("there is no room"), expected);
    // One that is dropped makes room.
    under_way.pop();
    gate.open();
    let (answer, _) = harness.ask(&request(true)).await;
    assert_eq!(answer.expect("there is room").status, 200);
}

#[tokio::test]
async fn a_request_has_so_many_bytes() {
    let bytes = request(false).to_string().len() as u64;
    for (most, code) in [(bytes, None), (bytes - 1, Some(RefusalCode::Size))] {
        let harness = Setting::open_ai().limit("modelRequestBytes", most).start().await;
        let (answer, _) = harness.ask(&request(false)).await;
        assert_eq!(answer.err().map(|it| it.code), code);
    }
}
