//! However the model behaves, the loop comes to an end, and says why.

use std::time::{Duration, Instant};

use serde_json::json;
use sympozium_api::run_plan::{Gate, WireFormat};
use sympozium_ipc::run_api::AgentEnd;
use sympozium_testkit::growing;
use sympozium_testkit::model_server::{Answer, Reply, Stop, ToolCall};

use crate::skills::{Executor, result};
use crate::world::{WIRES, World, call, calling, tool};

/// What the model is told when it has to answer.
const LAST_ROUND: &str = "There is no more room for tools in this run.";

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_a_failure_with_the_models_words() {
    for wire in WIRES {
        let mut world = World::new(wire).await;
        let answer = Answer::text("I would rather not.").stop(Stop::Refused);
        world.model.push(answer);
        let end = world.run(&[]).await;
        let why = end.failure();
        assert!(why.starts_with("the model refused: "), "{why}");
        assert!(why.contains("I would rather not."), "{why}");
        assert_eq!(world.said().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_cut_is_taken_up_where_it_stopped() {
    for wire in WIRES {
        let mut world = World::new(wire).await;
        for text in ["One, ", "two, "] {
            world.model.push(Answer::text(text).stop(Stop::Length));
        }
        world.model.push(Reply::text("three."));
        assert_eq!(world.run(&[]).await.answer(), "One, two, three.");
        let said = world.last();
        assert_eq!(said.user().len(), 3);
        assert!(said.user()[2].contains("Go on exactly where it stopped"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_never_ends_is_given_with_a_word_about_it() {
    let mut world = World::new(WireFormat::OpenAi).await;
    let part = Answer::text("and so on ").stop(Stop::Length);
    world.model.set_default(part);
    let end = world.run(&[]).await;
    assert!(end.answer().contains("its answer was longer than it may be"));
    assert_eq!(world.said().len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_says_nothing_is_nudged_and_then_a_failure() {
    for wire in WIRES {
        let mut world = World::new(wire).await;
        for _ in 0..2 {
            world.model.push(Answer::default());
        }
        world.model.push(Reply::text("At last."));
        assert_eq!(world.run(&[]).await.answer(), "At last.");
        let user = world.last().user();
        assert!(user[1..].iter().all(|it| it.contains("answer was empty")));

        let mut world = World::new(wire).await;
        world.model.set_default(Answer::text("  \n"));
        let end = world.run(&[]).await;
        assert_eq!(end.failure(), "the model gave no answer");
        assert_eq!(world.said().len(), 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_that_are_unknown_or_denied_are_told_and_have_receipts() {
    for wire in WIRES {
        let mut world = World::with(wire, |plan| {
            tool(plan, "write_file", None).gate = Gate::Deny;
        })
        .await;
        let path = world.path("a");
        world.model.push(Answer::tools([
            call("become_root", json!({})),
            call("write_file", json!({ "path": path, "content": "x" })),
        ]));
        world.run(&[]).await.answer();
        let said = world.last();
        assert!(!said.tools().contains(&"write_file"));
        let shown = said.shown();
        assert!(shown[0].starts_with("Error: there is no tool \"become_root\"; you have "), "{}", shown[0]);
        assert!(shown[1].starts_with("Error: "), "{}", shown[1]);
        assert!(std::fs::metadata(path).is_err());
        let receipts = world.receipts();
        for receipt in ["become_root - Refused", "write_file - Denied"] {
            assert!(receipts.iter().any(|it| it == receipt), "{receipts:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_do_not_fit_are_told_and_can_be_put_right() {
    for wire in WIRES {
        let mut world = World::new(wire).await;
        let path = world.file("a", "inside");
        for broken in [
            format!("{{\"path\": \"{path}\""),
            "[1, 2]".to_owned(),
            "\"a\"".to_owned(),
            "read it".to_owned(),
            json!({ "path": 7 }).to_string(),
            json!({ "path": path, "as": "root" }).to_string(),
            json!({}).to_string(),
        ] {
            world.model.push(Answer::tools([ToolCall {
                id: None,
                name: "read_file".to_owned(),
                arguments: vec![broken],
            }]));
        }
        world.model.push(calling("read_file", json!({ "path": path })));
        world.run(&[]).await.answer();
        let mut shown = world.last().shown();
        let last = shown.pop().expect("a result");
        assert!(last.contains("inside"), "{last}");
        assert_eq!(shown.len(), 7);
        for text in shown {
            assert!(text.starts_with("Error: "), "{text}");
            assert!(!text.contains("inside"), "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_call_again_and_again_is_told_then_refused_then_the_end() {
    for wire in WIRES {
        let mut world = World::new(wire).await;
        let path = world.file("a", "inside");
        let answer = calling("read_file", json!({ "path": path }));
        world.model.set_default(answer);
        let end = world.run(&[]).await;
        assert_eq!(end.failure(), "the model asked for the same call of `read_file` 9 times and did not get on");
        let shown = world.last().shown();
        assert_eq!(shown.len(), 9);
        let told = |text: &String| {
            let told = text.contains("with the same result each time");
            let refused = text.starts_with("Error: you asked for this very call");
            (told, refused)
        };
        let told: Vec<(bool, bool)> = shown.iter().map(told).collect();
        let (made, aware, refused) = ((false, false), (true, false), (false, true));
        assert_eq!(told, [made, made, aware, aware, aware, refused, refused, refused, refused]);
        let reads = world.receipts().iter().filter(|it| *it == "Agent Done").count();
        assert_eq!(reads, 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_last_round_there_are_no_tools_and_the_model_knows() {
    for wire in WIRES {
        let mut world = World::with(wire, |plan| plan.limits.iterations = 3).await;
        for name in ["a", "b"] {
            let path = world.file(name, name);
            world.model.push(calling("read_file", json!({ "path": path })));
        }
        world.model.push(Reply::text("As far as I came."));
        // It cannot be widened.
        let end = world.run(&[("MAX_TOOL_ITERATIONS", "50")]).await;
        assert_eq!(end.answer(), "As far as I came.");
        let said = world.said();
        let may: Vec<bool> = said.iter().map(|it| it.may_call()).collect();
        assert_eq!(may, [true, true, false]);
        let last = said[2].user().pop().expect("a note");
        assert!(last.starts_with(LAST_ROUND), "{last}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_calls_tools_in_the_last_round_has_no_answer() {
    for wire in WIRES {
        let mut world = World::new(wire).await;
        let path = world.file("a", "inside");
        let answer = Answer::text("I look.").tool(call("read_file", json!({ "path": path })));
        world.model.set_default(answer);
        let end = world.run(&[("MAX_TOOL_ITERATIONS", "2")]).await;
        assert_eq!(end.failure(), "exceeded maximum tool-call iterations (2); the last thing that it said: I look.");
        let reads = world.receipts().iter().filter(|it| *it == "Agent Done").count();
        // Told to answer, told once more in a request without tools, and then it is over.
        assert_eq!((world.said().len(), reads), (3, 1));
        if wire == WireFormat::OpenAi {
            assert_eq!(world.last().body["tools"], json!(null));
        }
        assert!(!world.last().may_call());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn near_the_end_of_its_tokens_the_model_is_to_answer_and_after_it_there_is_none() {
    for wire in WIRES {
        let mut world = World::with(wire, |plan| plan.limits.model_tokens = Some(100_000)).await;
        let look = json!({ "path": world.path("") });
        world.model.push(calling("list_directory", look.clone()).usage(90_000, 900));
        world.model.push(Reply::text("In short."));
        assert_eq!(world.run(&[]).await.answer(), "In short.");
        let said = world.last();
        assert!(!said.may_call());
        assert!(said.user()[1].starts_with(LAST_ROUND));

        let mut world = World::with(wire, |plan| plan.limits.model_tokens = Some(100_000)).await;
        world.model.push(calling("list_directory", look).usage(100_000, 900));
        let end = world.run(&[]).await;
        assert!(end.failure().contains("may use 100000 tokens"), "{}", end.failure());
        assert_eq!(world.said().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn near_the_end_of_its_time_the_model_is_to_answer() {
    // For a long run the last minute is for the answer, and it has begun when the bridge says so. There is little before it:
    // more where the machine is too slow for the first request.
    for before in growing(Duration::from_secs(2)) {
        let mut world = World::with(WireFormat::OpenAi, |plan| {
            plan.deadlines.run_seconds = 60 + before.as_secs();
        })
        .await;
        world.view.run_seconds = 3600;
        let cluster = Executor::silent(world.volume("cluster"));
        let command = json!({ "command": "a", "target": "cluster" });
        world.model.push(calling("execute_command", command));
        world.model.push(Reply::text("In short."));
        world.start(&[]);
        if !world.requests(1).await[0].may_call() {
            continue;
        }
        world.until("it is asked", || !cluster.seen().is_empty()).await;
        let asked = Instant::now();
        world.until("the minute has begun", || asked.elapsed() > before).await;
        cluster.answer(0, &result(0, "late"));
        assert_eq!(world.ended().await.answer(), "In short.");
        let said = world.last();
        assert!(!said.may_call());
        assert!(said.user()[1].starts_with(LAST_ROUND));
        return;
    }
    panic!("this machine is too slow");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_never_answers_has_the_time_of_the_run() {
    let mut world = World::with(WireFormat::Anthropic, |plan| plan.deadlines.run_seconds = 2).await;
    world.model.push(Reply::Silence);
    let end = world.run(&[]).await;
    assert_eq!(end.code, Some(1), "{}", end.log);
    // Agent and bridge count the same time, and either may say so first.
    match &end.ending {
        AgentEnd::TimedOut => {}
        AgentEnd::Failed { error } => assert!(error.contains("time of 2 s was over"), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_task_nobody_is_asked() {
    let mut world = World::new(WireFormat::OpenAi).await;
    world.view.task.task = None;
    let end = world.run(&[]).await;
    assert!(end.failure().contains("there is no task"), "{end:?}");
    assert_eq!(world.model.request_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_offered_no_tools_can_answer_and_gets_nothing_by_calling() {
    for wire in WIRES {
        let mut world = World::with(wire, |plan| plan.tools.clear()).await;
        let path = world.file("a", "inside");
        world.model.push(calling("read_file", json!({ "path": path })));
        world.model.push(Reply::text("I have no tools."));
        assert_eq!(world.run(&[]).await.answer(), "I have no tools.");
        let said = world.last();
        assert!(said.tools().is_empty());
        assert!(!said.last().contains("inside"), "{}", said.last());
    }
}
