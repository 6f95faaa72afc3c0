//! What is said again in the next request, and what an author can set about it.

use serde_json::json;
use sympozium_api::run_plan::WireFormat;
use sympozium_testkit::model_server::Reply;

use crate::skills::{Executor, result};
use crate::world::{WIRES, World, calling};

#[tokio::test(flavor = "multi_thread")]
async fn a_long_result_is_cut_and_says_so() {
    for wire in WIRES {
        let mut world = World::new(wire).await;
        let lines: String = (0..20_000).map(|line| format!("ä line {line}\n")).collect();
        let path = world.file("long", &lines);
        let output = lines.clone();
        let _cluster = Executor::on(world.volume("cluster"), move |_| Some(result(0, &output)));
        let command = json!({ "command": "cat", "target": "cluster" });
        for _ in 0..2 {
            world.model.push(calling("read_file", json!({ "path": path })));
        }
        world.model.push(calling("execute_command", command));
        let end = world.run(&[("CONTEXT_TOOL_RESULT_MAX_BYTES", "4096")]).await;
        end.answer();
        let shown = world.last().shown();
        for text in &shown {
            assert!(text.len() <= 4096 && text.len() > 2048, "{}", text.len());
            assert!(text.contains("ä line 0"), "{text}");
        }
        assert!(shown[0].contains("offset"), "{}", shown[0]);
        assert!(shown[2].contains("left out"), "{}", shown[2]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn old_results_are_left_out_and_the_newest_stay() {
    for wire in WIRES {
        let mut world = World::new(wire).await;
        let whole = |index: usize| format!("{index}").repeat(3000);
        for index in 0..8 {
            let path = world.file(&format!("file-{index}"), whole(index));
            world.model.push(calling("read_file", json!({ "path": path })));
        }
        world.model.push(Reply::text("Done."));
        let end = world
            .run(&[
                ("CONTEXT_HISTORY_BUDGET_BYTES", "13000"),
                ("CONTEXT_HISTORY_BUDGET_LOW_BYTES", "7000"),
                ("CONTEXT_KEEP_RECENT_RESULTS", "1"),
            ])
            .await;
        assert_eq!(end.answer(), "Done.");
        for (round, said) in world.said().iter().enumerate() {
            let kept: Vec<bool> = said
                .shown()
                .iter()
                .enumerate()
                .map(|(index, text)| {
                    let kept = text.contains(&whole(index));
                    let stub = text.starts_with("(The result of `read_file`, ");
                    assert!(kept != stub, "{text}");
                    kept
                })
                .collect();
            assert_eq!(kept.len(), round);
            // Old ones first, and never those of the last round.
            assert!(kept.is_sorted(), "{kept:?}");
            assert!(kept.last().is_none_or(|it| *it), "{kept:?}");
            let live = kept.iter().filter(|it| **it).count();
            assert!(live <= 4, "{kept:?}");
        }
        // It is done seldom: providers cache what does not change.
        let counts: Vec<usize> = world
            .said()
            .iter()
            .map(|said| {
                let shown = said.shown();
                shown.iter().filter(|it| it.starts_with("(The")).count()
            })
            .collect();
        assert_eq!(counts, [0, 0, 0, 0, 0, 3, 3, 3, 6]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_variable_that_makes_no_sense_ends_the_agent_before_anything_happens() {
    let mut world = World::new(WireFormat::OpenAi).await;
    for (variable, value) in [
        ("MAX_TOOL_ITERATIONS", "many"),
        ("CONTEXT_TOOL_RESULT_MAX_BYTES", "-1"),
        ("CONTEXT_HISTORY_BUDGET_BYTES", "1e6"),
        ("CONTEXT_KEEP_RECENT_RESULTS", "3.5"),
        ("LLM_MAX_RETRIES", "99999999999999999999"),
        ("LLM_REQUEST_TIMEOUT", "soon"),
    ] {
        world.start(&[(variable, value)]);
        assert_eq!(world.agent_ended().await, Some(1), "{variable}");
        let log = world.log();
        let error = format!("error: {variable} is `{value}`, and must be ");
        let hint = format!("hint: correct {variable} in the run's env, or leave it out");
        assert!(log.contains(&error) && log.contains(&hint), "{log}");
    }
    // Nobody was at the door: the run can still be somebody's.
    world.model.push(Reply::text("Here I am."));
    assert_eq!(world.run(&[]).await.answer(), "Here I am.");
}
