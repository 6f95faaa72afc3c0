//! Answers as they come: in pieces, in fragments, all at once; and calls side by side or one after the other.

use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::json;
use sympozium_api::run_plan::WireFormat;
use sympozium_testkit::model_server::{Answer, Gate, HttpAnswer, Reply};

use crate::skills::{Executor, result};
use crate::world::{WIRES, World, call};

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_at_once_is_the_result_of_the_run() {
    for wire in WIRES {
        let mut world = World::new(wire).await;
        world.model.push(Reply::pieces(["It is ", "the ", "data", "base ☃."]));
        let end = world.run(&[]).await;
        assert_eq!(end.answer(), "It is the database ☃.");
        let said = world.said();
        assert_eq!(said.len(), 1);
        assert_eq!(said[0].user(), ["Why is checkout slow?"]);
        assert!(said[0].may_call());
        assert_eq!(world.receipts(), ["started", "ended Done"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_in_fragments_are_put_together() {
    for wire in WIRES {
        let mut world = World::new(wire).await;
        let (one, two) = (world.path("ein ☃.txt"), world.path("zwei"));
        let first = json!({ "path": one, "content": "ä \"quoted\" \\ \u{1f600}\n" });
        let second = json!({ "path": two, "content": "2" });
        let answer = Answer::pieces(["I ", "write."])
            .tool(call("write_file", first).in_pieces_of(1))
            .tool(call("write_file", second).in_pieces_of(3));
        world.model.push(answer);
        world.run(&[]).await.answer();
        let read = |path| std::fs::read_to_string(path).expect("a file");
        assert_eq!(read(one), "ä \"quoted\" \\ \u{1f600}\n");
        assert_eq!(read(two), "2");
        assert_eq!(world.last().results().len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_stream_is_understood() {
    for wire in WIRES {
        let mut world = World::new(wire).await;
        let path = world.file("a", "inside");
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
            world.model.push(HttpAnswer {
                status: 200,
                headers: vec![("content-type".into(), "application/json".into())],
                pieces: vec![body.to_string().into()],
            });
        }
        assert_eq!(world.run(&[]).await.answer(), "Whole.");
        assert!(world.last().last().contains("inside"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_model_writes_can_be_watched_while_it_writes() {
    for wire in WIRES {
        let mut world = World::new(wire).await;
        let gate = Gate::new();
        let pieces = ["I have begun", " and ended."];
        world.model.push(Reply::pieces(pieces).gated(&gate));
        world.start(&[]);
        gate.release(1);
        let records = world.records.clone();
        let run = world.plan.run.uid.as_str().to_owned();
        world
            .until("it is shown", || {
                let report = records.read_report(&run).ok().flatten();
                report.and_then(|it| it.progress).as_deref() == Some("I have begun")
            })
            .await;
        gate.open();
        assert_eq!(world.ended().await.answer(), "I have begun and ended.");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_two_skills_are_under_way_at_a_time_and_told_in_the_models_order() {
    for wire in WIRES {
        let mut world = World::new(wire).await;
        let cluster = Executor::silent(world.volume("cluster"));
        let tickets = Executor::silent(world.volume("tickets"));
        let to = |pack: &str| call("execute_command", json!({ "command": "a", "target": pack }));
        world.model.push(Answer::tools([to("cluster"), to("tickets")]));
        world.start(&[]);
        world.until("both are asked", || cluster.seen().len() + tickets.seen().len() == 2).await;
        // The second is over before the first.
        tickets.answer(0, &result(0, "from tickets"));
        cluster.answer(0, &result(0, "from cluster"));
        world.ended().await.answer();
        assert_eq!(world.last().shown(), ["from cluster", "from tickets"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_could_see_each_other_are_made_one_after_the_other() {
    let mut world = World::new(WireFormat::OpenAi).await;
    let path = world.file("a", "before");
    let read = || call("read_file", json!({ "path": path }));
    let write = call("write_file", json!({ "path": path, "content": "after" }));
    let edit = json!({ "path": path, "edits": [{ "old_string": "after", "new_string": "last" }] });
    // How many were open in the skill when each was seen.
    let open: Arc<Mutex<Vec<usize>>> = Arc::default();
    let _cluster = {
        let (open, volume) = (Arc::clone(&open), world.volume("cluster"));
        Executor::on(world.volume("cluster"), move |_| {
            open.lock().expect("not poisoned").push(unanswered(&volume));
            Some(result(0, ""))
        })
    };
    let command = |line: &str| call("execute_command", json!({ "command": line, "target": "cluster" }));
    world.model.push(Answer::tools([
        read(),
        write,
        call("edit_file", edit),
        call("list_directory", json!({ "path": world.path("") })),
        command("1"),
        command("2"),
        command("3"),
    ]));
    world.model.push(Answer::tools([read().id("again")]));
    world.run(&[]).await.answer();
    let shown = world.last().shown();
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
