//! Errors of the provider: which are retried, and the conversation afterwards.

use std::time::Duration;

use serde_json::json;
use sympozium_api::run_plan::WireFormat;
use sympozium_testkit::growing;
use sympozium_testkit::model_server::{Answer, Cut, HttpAnswer, ProviderError, Reply, Then};

use crate::harness::{Harness, WIRES, call, calling};

/// Transient errors.
fn passing(wire: WireFormat) -> Vec<(&'static str, Reply)> {
    let overloaded = match wire {
        WireFormat::OpenAi => ProviderError::new(503, "The engine is currently overloaded"),
        WireFormat::Anthropic => ProviderError::new(529, "Overloaded").kind("overloaded_error"),
    };
    let call = call("become_root", json!({ "path": "/" })).in_pieces_of(2);
    vec![
        ("too many requests", ProviderError::new(429, "Slow down").retry_after("0").into()),
        ("overloaded", overloaded.clone().into()),
        ("an error of theirs", Reply::error(500, "Oops")),
        ("a page of a proxy", ProviderError::new(502, "").body("<h1>Bad gateway</h1>").into()),
        ("a text that breaks off", Reply::pieces(["I will", " say", " more"]).cut(Cut::AfterPieces(2))),
        ("a call that breaks off", Reply::tools([call]).cut(Cut::AfterPieces(3))),
        ("an error in the middle", Answer::pieces(["I will", " say"]).then_error(overloaded).into()),
        ("an event that breaks off", HttpAnswer::events(["data: {\"type\": \"mess"]).into()),
        ("no answer", Reply::Raw { bytes: Vec::new().into(), then: Then::Close }),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn transient_errors_are_retried_and_leave_no_trace_in_the_conversation() {
    let attempt = async |wire| {
        let mut harness = Harness::new(wire);
        let troubles = passing(wire);
        for (index, (_, trouble)) in troubles.iter().enumerate() {
            harness.model.push(trouble.clone());
            // Retries are counted per request.
            let path = harness.file(&format!("file-{index}"), "x");
            harness.model.push(calling("read_file", json!({ "path": path })));
        }
        harness.model.push(Reply::text("Done."));
        let end = harness.run(&[("LLM_MAX_RETRIES", "1")]).await;
        assert_eq!(end.answer(), "Done.");
        let requests = harness.model_requests();
        assert_eq!(requests.len(), troubles.len() * 2 + 1);
        for (index, (name, _)) in troubles.iter().enumerate() {
            let (attempt, retried) = (&requests[index * 2], &requests[index * 2 + 1]);
            assert_eq!(attempt.body, retried.body, "{name}");
            assert_eq!(retried.results().len(), index, "{name}");
        }
        let notes = harness.transcript().into_iter();
        let notes: Vec<_> = notes.filter(|it| it["kind"] == "note").collect();
        assert_eq!(notes.len(), troubles.len(), "{notes:?}");
    };
    tokio::join!(attempt(WireFormat::OpenAi), attempt(WireFormat::Anthropic));
}

#[tokio::test(flavor = "multi_thread")]
async fn permanent_errors_fail_at_once_and_others_after_the_retries() {
    let slow = ProviderError::new(429, "Slow down").retry_after("3600");
    for (name, reply, tries, part) in [
        ("overload", Reply::error(503, "Busy"), 2, "(tried 2 times)"),
        ("a wait of an hour", slow.into(), 1, "which is too long"),
        ("a wrong key", Reply::error(401, "Wrong key"), 1, "Wrong key"),
        ("no such model", Reply::error(404, "No model"), 1, "No model"),
        ("a bad request", Reply::error(400, "Bad field"), 1, "Bad field"),
    ] {
        for wire in WIRES {
            let mut harness = Harness::new(wire);
            harness.model.set_default(reply.clone());
            let end = harness.run(&[("LLM_MAX_RETRIES", "1")]).await;
            assert!(end.failure().contains(part), "{name}: {}", end.failure());
            assert_eq!(harness.model_requests().len(), tries, "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_timeout_is_retried() {
    for time in growing(Duration::from_secs(1)) {
        let mut harness = Harness::new(WireFormat::Anthropic);
        harness.model.push(Reply::Silence);
        harness.model.push(Reply::text("I am back."));
        let limit = format!("{}s", time.as_secs());
        let end = harness.run(&[("LLM_REQUEST_TIMEOUT", limit.as_str())]).await;
        // On a slow machine the second response may time out as well.
        if harness.model_requests().len() > 2 {
            continue;
        }
        assert_eq!(end.answer(), "I am back.");
        harness.model.wait_for_abandoned(1);
        assert_eq!(harness.model.abandoned(), 1);
        return;
    }
    panic!("this machine is too slow");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_that_is_too_long_shrinks_until_it_fits() {
    for wire in WIRES {
        let mut harness = Harness::new(wire);
        let too_long = match wire {
            WireFormat::OpenAi => {
                ProviderError::new(400, "This model's maximum context length").code("context_length_exceeded")
            }
            WireFormat::Anthropic => ProviderError::new(400, "prompt is too long: 200001 tokens > 200000 maximum"),
        };
        for index in 0..8 {
            let path = harness.file(&format!("file-{index}"), format!("{index}").repeat(4000));
            harness.model.push(calling("read_file", json!({ "path": path })));
        }
        for _ in 0..6 {
            harness.model.push(too_long.clone());
        }
        harness.model.push(Reply::text("It fits."));
        assert_eq!(harness.run(&[]).await.answer(), "It fits.");
        let requests = harness.model_requests();
        let sizes: Vec<usize> = requests[8..].iter().map(|it| it.body.to_string().len()).collect();
        assert_eq!(sizes.len(), 7);
        assert!(sizes.is_sorted_by(|one, next| one > next), "{sizes:?}");
        // The task and the last result stay.
        let last = harness.last();
        assert_eq!(
            last.user().join("\n\n"),
            "Why is checkout slow?\n\n(The oldest rounds were left out here to save room.)"
        );
        assert!(last.last().contains(&"7".repeat(4000)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_exceeds_the_context_is_a_failure() {
    let mut harness = Harness::new(WireFormat::OpenAi);
    let too_long = ProviderError::new(400, "too long").code("context_length_exceeded");
    harness.model.set_default(too_long);
    let end = harness.run(&[]).await;
    assert!(end.failure().contains("too long"), "{}", end.failure());
    assert_eq!(harness.model_requests().len(), 1);
}
