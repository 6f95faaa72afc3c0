//! When the provider has trouble: what is tried again, what is not, and what the conversation looks like afterwards.

use std::time::Duration;

use serde_json::json;
use sympozium_api::run_plan::WireFormat;
use sympozium_testkit::growing;
use sympozium_testkit::model_server::{Answer, Cut, HttpAnswer, ProviderError, Reply, Then};

use crate::world::{WIRES, World, call, calling};

/// Trouble that passes.
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
async fn trouble_that_passes_is_tried_again_and_leaves_no_trace_in_the_conversation() {
    let tried = async |wire| {
        let mut world = World::new(wire).await;
        let troubles = passing(wire);
        for (index, (_, trouble)) in troubles.iter().enumerate() {
            world.model.push(trouble.clone());
            // Every question begins to count anew.
            let path = world.file(&format!("file-{index}"), "x");
            world.model.push(calling("read_file", json!({ "path": path })));
        }
        world.model.push(Reply::text("Done."));
        let end = world.run(&[("LLM_MAX_RETRIES", "1")]).await;
        assert_eq!(end.answer(), "Done.");
        let said = world.said();
        assert_eq!(said.len(), troubles.len() * 2 + 1);
        for (index, (name, _)) in troubles.iter().enumerate() {
            let (tried, again) = (&said[index * 2], &said[index * 2 + 1]);
            assert_eq!(tried.body, again.body, "{name}");
            assert_eq!(again.results().len(), index, "{name}");
        }
        let notes = world.transcript().into_iter();
        let notes: Vec<_> = notes.filter(|it| it["kind"] == "note").collect();
        assert_eq!(notes.len(), troubles.len(), "{notes:?}");
    };
    tokio::join!(tried(WireFormat::OpenAi), tried(WireFormat::Anthropic));
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_that_stays_is_a_failure_after_so_many_tries_or_at_once() {
    let slow = ProviderError::new(429, "Slow down").retry_after("3600");
    for (name, reply, tries, part) in [
        ("overload", Reply::error(503, "Busy"), 2, "(tried 2 times)"),
        ("a wait of an hour", slow.into(), 1, "which is too long"),
        ("a wrong key", Reply::error(401, "Wrong key"), 1, "Wrong key"),
        ("no such model", Reply::error(404, "No model"), 1, "No model"),
        ("a bad request", Reply::error(400, "Bad field"), 1, "Bad field"),
    ] {
        for wire in WIRES {
            let mut world = World::new(wire).await;
            world.model.set_default(reply.clone());
            let end = world.run(&[("LLM_MAX_RETRIES", "1")]).await;
            assert!(end.failure().contains(part), "{name}: {}", end.failure());
            assert_eq!(world.said().len(), tries, "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_silent_is_asked_again_when_its_time_is_over() {
    for time in growing(Duration::from_secs(1)) {
        let mut world = World::new(WireFormat::Anthropic).await;
        world.model.push(Reply::Silence);
        world.model.push(Reply::text("I am back."));
        let limit = format!("{}s", time.as_secs());
        let end = world.run(&[("LLM_REQUEST_TIMEOUT", limit.as_str())]).await;
        // Where the machine was too slow for the answer, its time was over as well.
        if world.said().len() > 2 {
            continue;
        }
        assert_eq!(end.answer(), "I am back.");
        world.model.wait_for_abandoned(1);
        assert_eq!(world.model.abandoned(), 1);
        return;
    }
    panic!("this machine is too slow");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_that_is_too_long_is_made_shorter_until_it_fits() {
    for wire in WIRES {
        let mut world = World::new(wire).await;
        let too_long = match wire {
            WireFormat::OpenAi => {
                ProviderError::new(400, "This model's maximum context length").code("context_length_exceeded")
            }
            WireFormat::Anthropic => ProviderError::new(400, "prompt is too long: 200001 tokens > 200000 maximum"),
        };
        for index in 0..8 {
            let path = world.file(&format!("file-{index}"), format!("{index}").repeat(4000));
            world.model.push(calling("read_file", json!({ "path": path })));
        }
        for _ in 0..6 {
            world.model.push(too_long.clone());
        }
        world.model.push(Reply::text("It fits."));
        assert_eq!(world.run(&[]).await.answer(), "It fits.");
        let said = world.said();
        let sizes: Vec<usize> = said[8..].iter().map(|it| it.body.to_string().len()).collect();
        assert_eq!(sizes.len(), 7);
        assert!(sizes.is_sorted_by(|one, next| one > next), "{sizes:?}");
        // The task stays, and what was seen last.
        let last = world.last();
        assert_eq!(
            last.user().join("\n\n"),
            "Why is checkout slow?\n\n(The oldest rounds were left out here to save room.)"
        );
        assert!(last.last().contains(&"7".repeat(4000)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_the_model_cannot_read_at_all_is_a_failure() {
    let mut world = World::new(WireFormat::OpenAi).await;
    let too_long = ProviderError::new(400, "too long").code("context_length_exceeded");
    world.model.set_default(too_long);
    let end = world.run(&[]).await;
    assert!(end.failure().contains("too long"), "{}", end.failure());
    assert_eq!(world.said().len(), 1);
}
