//! The transcript and progress reports.

use serde_json::{Value, json};
use sympozium_api::run_plan::WireFormat;
use sympozium_harness::KEY;
use sympozium_harness::executor::{Executor, result};
use sympozium_testkit::model_server::{Answer, Reply};

use crate::harness::{Harness, WIRES, call, calling};

fn kinds(lines: &[Value]) -> Vec<&str> {
    let kind = |line: &'_ Value| line["kind"].as_str().map(str::len);
    assert!(lines.iter().all(|it| kind(it).is_some()));
    lines.iter().filter_map(|it| it["kind"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_transcript_has_everything_in_order() {
    for wire in WIRES {
        let mut harness = Harness::new(wire);
        let path = harness.file("a", "inside\n");
        let read = call("read_file", json!({ "path": path })).id("one");
        let bad = call("become_root", json!({})).id("two");
        harness.model.push(Answer::text("I look.").tool(read).tool(bad).usage(120, 34));
        harness.model.push(Reply::text("It is inside."));
        harness.run(&[]).await.answer();
        let lines = harness.transcript();
        assert_eq!(kinds(&lines), ["task", "answer", "result", "result", "answer", "end"]);
        assert!(lines.iter().map(|it| it["atMs"].as_u64()).is_sorted());
        let requests = harness.model_requests();
        assert_eq!(lines[0]["system"], json!(requests[0].system()[0]));
        assert_eq!(lines[0]["task"], "Why is checkout slow?");
        assert_eq!(lines[1]["text"], "I look.");
        let counted = ["inputTokens", "outputTokens", "round"].map(|it| lines[1][it].as_u64());
        assert_eq!(counted, [Some(120), Some(34), Some(1)]);
        // The assistant message of the next request.
        let said_again = requests[1].messages().iter();
        let mut said_again = said_again.filter(|it| it["role"] == "assistant");
        assert_eq!(said_again.next(), Some(&lines[1]["message"]));
        for (line, shown, failed) in
            [(&lines[2], &requests[1].results()[0], false), (&lines[3], &requests[1].results()[1], true)]
        {
            let text = (&line["id"], &line["text"], &line["failed"]);
            assert_eq!(text, (&json!(shown.id), &json!(shown.text), &json!(failed)));
        }
        assert_eq!(lines[5]["answer"], "It is inside.");
        let whole = format!("{lines:?}");
        assert!(!whole.contains(KEY));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_texts_are_cut_in_the_transcript_only() {
    let mut harness = Harness::new(WireFormat::OpenAi);
    // Twice as long in JSON.
    let long = "\"ä".repeat(80_000);
    harness.model.push(calling("read_file", json!({ "path": harness.file("a", "x".repeat(400_000)) })));
    harness.model.push(Answer::text(long.clone()));
    let end = harness.run(&[("CONTEXT_TOOL_RESULT_MAX_BYTES", "1000000")]).await;
    assert!(end.answer().len() > 200_000);
    assert!(harness.last().last().contains(&"x".repeat(400_000)));
    let lines = harness.transcript();
    assert_eq!(kinds(&lines), ["task", "answer", "result", "answer", "end"]);
    for (line, name) in [(2, "text"), (3, "text"), (4, "answer")] {
        let text = lines[line][name].as_str().expect("a text");
        assert!(text.len() > 10_000 && text.len() < 200_000, "{}", text.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_transcript_does_not_stop_the_run() {
    let mut harness = Harness::with(WireFormat::Anthropic, |plan| plan.limits.transcript_bytes = 20_000);
    for index in 0..20 {
        let path = harness.file(&format!("file-{index}"), "x".repeat(3000));
        harness.model.push(calling("read_file", json!({ "path": path })));
    }
    harness.model.push(Reply::text("Done."));
    assert_eq!(harness.run(&[]).await.answer(), "Done.");
    let lines = harness.transcript();
    assert_eq!(kinds(&lines)[..3], ["task", "answer", "result"]);
    assert!(harness.report().transcript_bytes <= 20_000);
    assert!(lines.len() > 5, "{}", lines.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_reported() {
    let mut harness = Harness::new(WireFormat::OpenAi);
    let cluster = Executor::silent(harness.volume("cluster"));
    let command = json!({ "command": "kubectl\nget   pods", "target": "cluster" });
    harness.model.push(calling("execute_command", command));
    harness.start(&[]);
    harness.wait_until("the skill has the request", || !cluster.requests().is_empty()).await;
    let (records, run) = (harness.records.clone(), harness.plan.run.uid.clone());
    harness
        .wait_until("progress is reported", || {
            let report = records.read_report(run.as_str()).ok().flatten();
            report.and_then(|it| it.progress).as_deref() == Some("execute_command kubectl get pods")
        })
        .await;
    cluster.answer(0, &result(0, "none"));
    harness.wait_for_end().await.answer();
}
