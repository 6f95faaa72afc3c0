//! What is kept for people.

use serde_json::{Value, json};
use sympozium_api::run_plan::WireFormat;
use sympozium_testkit::model_server::{Answer, Reply};

use crate::world::{KEY, WIRES, World, call, calling};

fn kinds(lines: &[Value]) -> Vec<&str> {
    let kind = |line: &'_ Value| line["kind"].as_str().map(str::len);
    assert!(lines.iter().all(|it| kind(it).is_some()));
    lines.iter().filter_map(|it| it["kind"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_was_said_is_kept_in_its_order() {
    for wire in WIRES {
        let mut world = World::new(wire).await;
        let path = world.file("a", "inside\n");
        let read = call("read_file", json!({ "path": path })).id("one");
        let bad = call("become_root", json!({})).id("two");
        world.model.push(Answer::text("I look.").tool(read).tool(bad).usage(120, 34));
        world.model.push(Reply::text("It is inside."));
        world.run(&[]).await.answer();
        let lines = world.transcript();
        assert_eq!(kinds(&lines), ["task", "answer", "result", "result", "answer", "end"]);
        assert!(lines.iter().map(|it| it["atMs"].as_u64()).is_sorted());
        let said = world.said();
        assert_eq!(lines[0]["system"], json!(said[0].system()[0]));
        assert_eq!(lines[0]["task"], "Why is checkout slow?");
        assert_eq!(lines[1]["text"], "I look.");
        let counted = ["inputTokens", "outputTokens", "round"].map(|it| lines[1][it].as_u64());
        assert_eq!(counted, [Some(120), Some(34), Some(1)]);
        // The very message that the model is shown again.
        let said_again = said[1].messages().iter();
        let mut said_again = said_again.filter(|it| it["role"] == "assistant");
        assert_eq!(said_again.next(), Some(&lines[1]["message"]));
        for (line, shown, failed) in
            [(&lines[2], &said[1].results()[0], false), (&lines[3], &said[1].results()[1], true)]
        {
            let told = (&line["id"], &line["text"], &line["failed"]);
            assert_eq!(told, (&json!(shown.id), &json!(shown.text), &json!(failed)));
        }
        assert_eq!(lines[5]["answer"], "It is inside.");
        let whole = format!("{lines:?}");
        assert!(!whole.contains(KEY));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_longer_than_a_line_may_be_is_cut_in_it_and_the_model_has_all_of_it() {
    let mut world = World::new(WireFormat::OpenAi).await;
    // Twice as long in JSON.
    let long = "\"ä".repeat(80_000);
    world.model.push(calling("read_file", json!({ "path": world.file("a", "x".repeat(400_000)) })));
    world.model.push(Answer::text(long.clone()));
    let end = world.run(&[("CONTEXT_TOOL_RESULT_MAX_BYTES", "1000000")]).await;
    assert!(end.answer().len() > 200_000);
    assert!(world.last().last().contains(&"x".repeat(400_000)));
    let lines = world.transcript();
    assert_eq!(kinds(&lines), ["task", "answer", "result", "answer", "end"]);
    for (line, name) in [(2, "text"), (3, "text"), (4, "answer")] {
        let text = lines[line][name].as_str().expect("a text");
        assert!(text.len() > 10_000 && text.len() < 200_000, "{}", text.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_transcript_keeps_nobody_from_working() {
    let mut world = World::with(WireFormat::Anthropic, |plan| plan.limits.transcript_bytes = 20_000).await;
    for index in 0..20 {
        let path = world.file(&format!("file-{index}"), "x".repeat(3000));
        world.model.push(calling("read_file", json!({ "path": path })));
    }
    world.model.push(Reply::text("Done."));
    assert_eq!(world.run(&[]).await.answer(), "Done.");
    let lines = world.transcript();
    assert_eq!(kinds(&lines)[..3], ["task", "answer", "result"]);
    assert!(world.report().transcript_bytes <= 20_000);
    assert!(lines.len() > 5, "{}", lines.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_agent_is_doing_can_be_seen_from_outside() {
    let mut world = World::new(WireFormat::OpenAi).await;
    let cluster = crate::skills::Executor::silent(world.volume("cluster"));
    let command = json!({ "command": "kubectl\nget   pods", "target": "cluster" });
    world.model.push(calling("execute_command", command));
    world.start(&[]);
    world.until("it is asked", || !cluster.seen().is_empty()).await;
    let (records, run) = (world.records.clone(), world.plan.run.uid.clone());
    world
        .until("it is seen", || {
            let report = records.read_report(run.as_str()).ok().flatten();
            report.and_then(|it| it.progress).as_deref() == Some("execute_command kubectl get pods")
        })
        .await;
    cluster.answer(0, &crate::skills::result(0, "none"));
    world.ended().await.answer();
}
