//! Streaming, and concurrent calls.

use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::json;
use sympozium_api::run_plan::WireFormat;
use sympozium_harness::executor::{Executor, result};
use sympozium_testkit::model_server::{Answer, Gate, HttpAnswer, Reply};

use crate::harness::{Harness, WIRES, call};

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_calls_is_the_result_of_the_run() {
    for wire in WIRES {
        let mut harness = Harness::new(wire);
        harness.model.push(Reply::pieces(["It is ", "the ", "data", "base ☃."]));
        let end = harness.run(&[]).await;
        assert_eq!(end.answer(), "It is the database ☃.");
        let requests = harness.model_requests();
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0].user(), ["Why is checkout slow?"]);
        assert!(requests[0].may_call());
        assert_eq!(harness.receipt_lines(), ["started", "ended Done"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fragmented_calls_are_assembled() {
    for wire in WIRES {
        let mut harness = Harness::new(wire);
        let (one, two) = (harness.path("ein ☃.txt"), harness.path("zwei"));
        let first = json!({ "path": one, "content": "ä \"quoted\" \\ \u{1f600}\n" });
        let second = json!({ "path": two, "content": "2" });
        let answer = Answer::pieces(["I ", "write."])
            .tool(call("write_file", first).in_pieces_of(1))
            .tool(call("write_file", second).in_pieces_of(3));
        harness.model.push(answer);
        harness.run(&[]).await.answer();
        let read = |path| std::fs::read_to_string(path).expect("a file");
        assert_eq!(read(one), "ä \"quoted\" \\ \u{1f600}\n");
        assert_eq!(read(two), "2");
        assert_eq!(harness.last().results().len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_stream_is_supported() {
    for wire in WIRES {
        let mut harness = Harness::new(wire);
        let path = harness.file("a", "inside");
        let arguments = json!({ "path": path });
        let (calling, answer) = match wire {
            WireFormat::OpenAi => {
                let function = json!({ "name": "read_file", "arguments": arguments.to_string() });
                let call = json!({ "id": "c1", "type": "function", "function": function });
                let message =
                    |message| json!({ "choices": [{ "index": 0, "finish_reason": "stop", "message": message }] });
                (
                    message(json!({ "role": "assistant", "content": null, "tool_calls": [call] })),
                    message(json!({ "role": "assistant", "content": "Whole." })),
                )
            }
            WireFormat::Anthropic => {
                let message = |block, stop| json!({ "id": "m", "type": "message", "role": "assistant", "model": "m", "content": [block], "stop_reason": stop, "usage": { "input_tokens": 1, "output_tokens": 1 } });
                let call = json!({ "type": "tool_use", "id": "c1", "name": "read_file", "input": arguments });
                (message(call, "tool_use"), message(json!({ "type": "text", "text": "Whole." }), "end_turn"))
            }
        };
        for body in [calling, answer] {
            harness.model.push(HttpAnswer {
                status: 200,
                headers: vec![("content-type".into(), "application/json".into())],
                pieces: vec![body.to_string().into()],
            });
        }
        assert_eq!(harness.run(&[]).await.answer(), "Whole.");
        assert!(harness.last().last().contains("inside"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn model_output_is_reported_while_it_streams() {
    for wire in WIRES {
        let mut harness = Harness::new(wire);
        let gate = Gate::new();
        let pieces = ["I have begun", " and ended."];
        harness.model.push(Reply::pieces(pieces).gated(&gate));
        harness.start(&[]);
        gate.release(1);
        let records = harness.records.clone();
        let run = harness.plan.run.uid.as_str().to_owned();
        harness
            .wait_until("progress is reported", || {
                let report = records.read_report(&run).ok().flatten();
                report.and_then(|it| it.progress).as_deref() == Some("I have begun")
            })
            .await;
        gate.open();
        assert_eq!(harness.wait_for_end().await.answer(), "I have begun and ended.");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_two_skills_run_concurrently_with_results_in_order() {
    for wire in WIRES {
        let mut harness = Harness::new(wire);
        let cluster = Executor::silent(harness.volume("cluster"));
        let tickets = Executor::silent(harness.volume("tickets"));
        let to = |pack: &str| call("execute_command", json!({ "command": "a", "target": pack }));
        harness.model.push(Answer::tools([to("cluster"), to("tickets")]));
        harness.start(&[]);
        harness
            .wait_until("both skills have their request", || cluster.requests().len() + tickets.requests().len() == 2)
            .await;
        // The second call finishes first.
        tickets.answer(0, &result(0, "from tickets"));
        cluster.answer(0, &result(0, "from cluster"));
        harness.wait_for_end().await.answer();
        assert_eq!(harness.last().result_texts(), ["from cluster", "from tickets"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dependent_calls_run_in_order() {
    let mut harness = Harness::new(WireFormat::OpenAi);
    let path = harness.file("a", "before");
    let read = || call("read_file", json!({ "path": path }));
    let write = call("write_file", json!({ "path": path, "content": "after" }));
    let edit = json!({ "path": path, "edits": [{ "old_string": "after", "new_string": "last" }] });
    // Open requests of the skill at each request.
    let open: Arc<Mutex<Vec<usize>>> = Arc::default();
    let _cluster = {
        let (open, volume) = (Arc::clone(&open), harness.volume("cluster"));
        Executor::on(harness.volume("cluster"), move |_| {
            open.lock().expect("not poisoned").push(unanswered(&volume));
            Some(result(0, ""))
        })
    };
    let command = |line: &str| call("execute_command", json!({ "command": line, "target": "cluster" }));
    harness.model.push(Answer::tools([
        read(),
        write,
        call("edit_file", edit),
        call("list_directory", json!({ "path": harness.path("") })),
        command("1"),
        command("2"),
        command("3"),
    ]));
    harness.model.push(Answer::tools([read().id("again")]));
    harness.run(&[]).await.answer();
    let shown = harness.last().result_texts();
    assert!(shown[0].contains("before"), "{}", shown[0]);
    assert!(shown[7].contains("last"), "{}", shown[7]);
    assert_eq!(*open.lock().expect("not poisoned"), [1, 1, 1]);
}

/// Requests without a result.
fn unanswered(volume: &Path) -> usize {
    let names = std::fs::read_dir(volume.join("tools")).expect("a directory");
    let names: Vec<String> = names.flatten().filter_map(|it| it.file_name().into_string().ok()).collect();
    let of = |kind: &str| names.iter().filter(|it| it.starts_with(kind)).count();
    of("exec-request-") - of("exec-result-")
}
