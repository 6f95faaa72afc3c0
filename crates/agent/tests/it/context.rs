//! Limits of the conversation, and the variables that configure them.

use serde_json::json;
use sympozium_api::run_plan::WireFormat;
use sympozium_harness::executor::{Executor, result};
use sympozium_testkit::model_server::Reply;

use crate::harness::{Harness, WIRES, calling};

#[tokio::test(flavor = "multi_thread")]
async fn a_long_result_is_cut_and_says_so() {
    for wire in WIRES {
        let mut harness = Harness::new(wire);
        let lines: String = (0..20_000).map(|line| format!("ä line {line}\n")).collect();
        let path = harness.file("long", &lines);
        let output = lines.clone();
        let _cluster = Executor::on(harness.volume("cluster"), move |_| Some(result(0, &output)));
        let command = json!({ "command": "cat", "target": "cluster" });
        for _ in 0..2 {
            harness.model.push(calling("read_file", json!({ "path": path })));
        }
        harness.model.push(calling("execute_command", command));
        let end = harness.run(&[("CONTEXT_TOOL_RESULT_MAX_BYTES", "4096")]).await;
        end.answer();
        let shown = harness.last().result_texts();
        for text in &shown {
            assert!(text.len() <= 4096 && text.len() > 2048, "{}", text.len());
            assert!(text.contains("ä line 0"), "{text}");
        }
        assert!(shown[0].contains("offset"), "{}", shown[0]);
        assert!(shown[2].contains("left out"), "{}", shown[2]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn old_results_are_elided_and_the_newest_stay() {
    for wire in WIRES {
        let mut harness = Harness::new(wire);
        let whole = |index: usize| format!("{index}").repeat(3000);
        for index in 0..8 {
            let path = harness.file(&format!("file-{index}"), whole(index));
            harness.model.push(calling("read_file", json!({ "path": path })));
        }
        harness.model.push(Reply::text("Done."));
        let end = harness
            .run(&[
                ("CONTEXT_HISTORY_BUDGET_BYTES", "13000"),
                ("CONTEXT_HISTORY_BUDGET_LOW_BYTES", "7000"),
                ("CONTEXT_KEEP_RECENT_RESULTS", "1"),
            ])
            .await;
        assert_eq!(end.answer(), "Done.");
        for (round, request) in harness.model_requests().iter().enumerate() {
            let is_whole: Vec<bool> = request
                .result_texts()
                .iter()
                .enumerate()
                .map(|(index, text)| {
                    let is_whole = text.contains(&whole(index));
                    let is_stub = text.starts_with("(The result of `read_file`, ");
                    assert!(is_whole != is_stub, "{text}");
                    is_whole
                })
                .collect();
            assert_eq!(is_whole.len(), round);
            // Old ones first, and never those of the last round.
            assert!(is_whole.is_sorted(), "{is_whole:?}");
            assert!(is_whole.last().is_none_or(|it| *it), "{is_whole:?}");
            let live = is_whole.iter().filter(|it| **it).count();
            assert!(live <= 4, "{is_whole:?}");
        }
        // Eliding is rare, so that providers can cache prefixes.
        let counts: Vec<usize> = harness
            .model_requests()
            .iter()
            .map(|requests| {
                let shown = requests.result_texts();
                shown.iter().filter(|it| it.starts_with("(The")).count()
            })
            .collect();
        assert_eq!(counts, [0, 0, 0, 0, 0, 3, 3, 3, 6]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_variable_ends_the_agent_at_startup() {
    let mut harness = Harness::new(WireFormat::OpenAi);
    for (variable, value) in [
        ("MAX_TOOL_ITERATIONS", "many"),
        ("CONTEXT_TOOL_RESULT_MAX_BYTES", "-1"),
        ("CONTEXT_HISTORY_BUDGET_BYTES", "1e6"),
        ("CONTEXT_KEEP_RECENT_RESULTS", "3.5"),
        ("LLM_MAX_RETRIES", "99999999999999999999"),
        ("LLM_REQUEST_TIMEOUT", "soon"),
    ] {
        harness.start(&[(variable, value)]);
        assert_eq!(harness.wait_for_agent().await, Some(1), "{variable}");
        let log = harness.agent_log();
        let error = format!("error: {variable} is `{value}`, and must be ");
        let hint = format!("hint: correct {variable} in the run's env, or leave it out");
        assert!(log.contains(&error) && log.contains(&hint), "{log}");
    }
    // No agent connected, so the run can still start.
    harness.model.push(Reply::text("Here I am."));
    assert_eq!(harness.run(&[]).await.answer(), "Here I am.");
}
