//! The loop ends and reports the reason, whatever the model does.

use std::time::{Duration, Instant};

use serde_json::json;
use sympozium_api::run_plan::{Gate, WireFormat};
use sympozium_harness::executor::{Executor, result};
use sympozium_harness::plan::tool;
use sympozium_ipc::run_api::AgentEnd;
use sympozium_testkit::growing;
use sympozium_testkit::model_server::{Answer, Reply, Stop, ToolCall};

use crate::harness::{Harness, WIRES, call, calling};

/// The prompt of the last round.
const LAST_ROUND: &str = "There is no more room for tools in this run.";

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_a_failure_with_the_models_words() {
    for wire in WIRES {
        let mut harness = Harness::new(wire);
        let answer = Answer::text("I would rather not.").stop(Stop::Refused);
        harness.model.push(answer);
        let end = harness.run(&[]).await;
        let why = end.failure();
        assert!(why.starts_with("the model refused: "), "{why}");
        assert!(why.contains("I would rather not."), "{why}");
        assert_eq!(harness.model_requests().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_answer_is_continued() {
    for wire in WIRES {
        let mut harness = Harness::new(wire);
        for text in ["One, ", "two, "] {
            harness.model.push(Answer::text(text).stop(Stop::Length));
        }
        harness.model.push(Reply::text("three."));
        assert_eq!(harness.run(&[]).await.answer(), "One, two, three.");
        let requests = harness.last();
        assert_eq!(requests.user().len(), 3);
        assert!(requests.user()[2].contains("Go on exactly where it stopped"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_answer_is_returned_with_a_note() {
    let mut harness = Harness::new(WireFormat::OpenAi);
    let part = Answer::text("and so on ").stop(Stop::Length);
    harness.model.set_default(part);
    let end = harness.run(&[]).await;
    assert!(end.answer().contains("its answer was longer than it may be"));
    assert_eq!(harness.model_requests().len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_answers_are_retried_and_then_a_failure() {
    for wire in WIRES {
        let mut harness = Harness::new(wire);
        for _ in 0..2 {
            harness.model.push(Answer::default());
        }
        harness.model.push(Reply::text("At last."));
        assert_eq!(harness.run(&[]).await.answer(), "At last.");
        let user = harness.last().user();
        assert!(user[1..].iter().all(|it| it.contains("answer was empty")));

        let mut harness = Harness::new(wire);
        harness.model.set_default(Answer::text("  \n"));
        let end = harness.run(&[]).await;
        assert_eq!(end.failure(), "the model gave no answer");
        assert_eq!(harness.model_requests().len(), 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_and_denied_tools_are_errors_with_receipts() {
    for wire in WIRES {
        let mut harness = Harness::with(wire, |plan| {
            tool(plan, "write_file", None).gate = Gate::Deny;
        });
        let path = harness.path("a");
        harness.model.push(Answer::tools([
            call("become_root", json!({})),
            call("write_file", json!({ "path": path, "content": "x" })),
        ]));
        harness.run(&[]).await.answer();
        let requests = harness.last();
        assert!(!requests.tools().contains(&"write_file"));
        let shown = requests.result_texts();
        assert!(shown[0].starts_with("Error: there is no tool \"become_root\"; you have "), "{}", shown[0]);
        assert!(shown[1].starts_with("Error: "), "{}", shown[1]);
        assert!(std::fs::metadata(path).is_err());
        let receipts = harness.receipt_lines();
        for receipt in ["become_root - Refused", "write_file - Denied"] {
            assert!(receipts.iter().any(|it| it == receipt), "{receipts:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_arguments_are_errors_that_the_model_can_correct() {
    for wire in WIRES {
        let mut harness = Harness::new(wire);
        let path = harness.file("a", "inside");
        for broken in [
            format!("{{\"path\": \"{path}\""),
            "[1, 2]".to_owned(),
            "\"a\"".to_owned(),
            "read it".to_owned(),
            json!({ "path": 7 }).to_string(),
            json!({ "path": path, "as": "root" }).to_string(),
            json!({}).to_string(),
        ] {
            harness.model.push(Answer::tools([ToolCall {
                id: None,
                name: "read_file".to_owned(),
                arguments: vec![broken],
            }]));
        }
        harness.model.push(calling("read_file", json!({ "path": path })));
        harness.run(&[]).await.answer();
        let mut shown = harness.last().result_texts();
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
async fn a_repeated_call_is_warned_about_then_refused_then_ends_the_run() {
    for wire in WIRES {
        let mut harness = Harness::new(wire);
        let path = harness.file("a", "inside");
        let answer = calling("read_file", json!({ "path": path }));
        harness.model.set_default(answer);
        let end = harness.run(&[]).await;
        assert_eq!(end.failure(), "the model asked for the same call of `read_file` 9 times and made no progress");
        let shown = harness.last().result_texts();
        assert_eq!(shown.len(), 9);
        let status = |text: &String| {
            let warned = text.contains("with the same result each time");
            let refused = text.starts_with("Error: you made this call");
            (warned, refused)
        };
        let statuses: Vec<(bool, bool)> = shown.iter().map(status).collect();
        let (plain, warned, refused) = ((false, false), (true, false), (false, true));
        assert_eq!(statuses, [plain, plain, warned, warned, warned, refused, refused, refused, refused]);
        let reads = harness.receipt_lines().iter().filter(|it| *it == "Agent Done").count();
        assert_eq!(reads, 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_round_has_no_tools() {
    for wire in WIRES {
        let mut harness = Harness::with(wire, |plan| plan.limits.iterations = 3);
        for name in ["a", "b"] {
            let path = harness.file(name, name);
            harness.model.push(calling("read_file", json!({ "path": path })));
        }
        harness.model.push(Reply::text("As far as I came."));
        // The variable cannot widen the plan's limit.
        let end = harness.run(&[("MAX_TOOL_ITERATIONS", "50")]).await;
        assert_eq!(end.answer(), "As far as I came.");
        let requests = harness.model_requests();
        let may: Vec<bool> = requests.iter().map(|it| it.may_call()).collect();
        assert_eq!(may, [true, true, false]);
        let last = requests[2].user().pop().expect("a note");
        assert!(last.starts_with(LAST_ROUND), "{last}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_calls_tools_in_the_last_round_has_no_answer() {
    for wire in WIRES {
        let mut harness = Harness::new(wire);
        let path = harness.file("a", "inside");
        let answer = Answer::text("I look.").tool(call("read_file", json!({ "path": path })));
        harness.model.set_default(answer);
        let end = harness.run(&[("MAX_TOOL_ITERATIONS", "2")]).await;
        assert_eq!(end.failure(), "exceeded maximum tool-call iterations (2); its last text was: I look.");
        let reads = harness.receipt_lines().iter().filter(|it| *it == "Agent Done").count();
        // The model is asked to answer, then once more without tools, and then the run ends.
        assert_eq!((harness.model_requests().len(), reads), (3, 1));
        if wire == WireFormat::OpenAi {
            assert_eq!(harness.last().body["tools"], json!(null));
        }
        assert!(!harness.last().may_call());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn near_the_token_limit_the_model_must_answer() {
    for wire in WIRES {
        let mut harness = Harness::with(wire, |plan| plan.limits.model_tokens = Some(100_000));
        let look = json!({ "path": harness.path("") });
        harness.model.push(calling("list_directory", look.clone()).usage(90_000, 900));
        harness.model.push(Reply::text("In short."));
        assert_eq!(harness.run(&[]).await.answer(), "In short.");
        let requests = harness.last();
        assert!(!requests.may_call());
        assert!(requests.user()[1].starts_with(LAST_ROUND));

        let mut harness = Harness::with(wire, |plan| plan.limits.model_tokens = Some(100_000));
        harness.model.push(calling("list_directory", look).usage(100_000, 900));
        let end = harness.run(&[]).await;
        assert!(end.failure().contains("may use 100000 tokens"), "{}", end.failure());
        assert_eq!(harness.model_requests().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn near_the_time_limit_the_model_must_answer() {
    // In a long run the last minute is for the answer; it begins when the bridge reports so. The time before it grows
    // on machines that are too slow for the first request.
    for before in growing(Duration::from_secs(2)) {
        let mut harness = Harness::with(WireFormat::OpenAi, |plan| {
            plan.deadlines.run_seconds = 60 + before.as_secs();
        });
        harness.view.run_seconds = 3600;
        let cluster = Executor::silent(harness.volume("cluster"));
        let command = json!({ "command": "a", "target": "cluster" });
        harness.model.push(calling("execute_command", command));
        harness.model.push(Reply::text("In short."));
        harness.start(&[]);
        if !harness.requests(1).await[0].may_call() {
            continue;
        }
        harness.wait_until("the skill has the request", || !cluster.requests().is_empty()).await;
        let asked = Instant::now();
        harness.wait_until("the minute has begun", || asked.elapsed() > before).await;
        cluster.answer(0, &result(0, "late"));
        assert_eq!(harness.wait_for_end().await.answer(), "In short.");
        let requests = harness.last();
        assert!(!requests.may_call());
        assert!(requests.user()[1].starts_with(LAST_ROUND));
        return;
    }
    panic!("this machine is too slow");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_model_is_ended_by_the_run_timeout() {
    let mut harness = Harness::with(WireFormat::Anthropic, |plan| plan.deadlines.run_seconds = 2);
    harness.model.push(Reply::Silence);
    let end = harness.run(&[]).await;
    assert_eq!(end.code, Some(1), "{}", end.log);
    // Agent and bridge measure the same time, and either may report first.
    match &end.ending {
        AgentEnd::TimedOut => {}
        AgentEnd::Failed { error } => assert!(error.contains("time of 2 s ended"), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_task_no_request_is_sent() {
    let mut harness = Harness::new(WireFormat::OpenAi);
    harness.view.task.task = None;
    let end = harness.run(&[]).await;
    assert!(end.failure().contains("there is no task"), "{end:?}");
    assert_eq!(harness.model.request_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tools_calls_have_no_effect() {
    for wire in WIRES {
        let mut harness = Harness::with(wire, |plan| plan.tools.clear());
        let path = harness.file("a", "inside");
        harness.model.push(calling("read_file", json!({ "path": path })));
        harness.model.push(Reply::text("I have no tools."));
        assert_eq!(harness.run(&[]).await.answer(), "I have no tools.");
        let requests = harness.last();
        assert!(requests.tools().is_empty());
        assert!(!requests.last().contains("inside"), "{}", requests.last());
    }
}
