//! Tool calls: their results for the model, and their receipts.

use std::fs;

use serde_json::{Value, json};
use sympozium_api::run_plan::{Gate, WireFormat};
use sympozium_harness::executor::{Executor, result};
use sympozium_harness::plan::tool;
use sympozium_harness::{RecordingScheduler, Response, WebServer};
use sympozium_testkit::model_server::{Answer, Reply};

use crate::harness::{Harness, WEB_HOST, WIRES, call, calling, permissive_plan};

#[tokio::test(flavor = "multi_thread")]
async fn native_tools_run_with_a_permit_each() {
    for wire in WIRES {
        let mut harness = Harness::new(wire);
        let notes = harness.file("notes.txt", "one\ntwo\nthree\n");
        let made = harness.path("below/made.txt");
        let turns = [
            ("list_directory", json!({ "path": harness.path("") })),
            ("read_file", json!({ "path": notes, "offset": 2, "limit": 1 })),
            ("write_file", json!({ "path": made, "content": "hello" })),
            ("edit_file", json!({ "path": made, "edits": [{ "old_string": "hello", "new_string": "goodbye" }] })),
            ("load_skill", json!({ "name": "cluster/look" })),
        ];
        for (tool, arguments) in turns.clone() {
            harness.model.push(Answer::text("Let me see.").tool(call(tool, arguments)));
        }
        harness.model.push(Reply::text("Done."));
        assert_eq!(harness.run(&[]).await.answer(), "Done.");

        let shown = harness.last().result_texts();
        for (text, part) in shown.iter().zip(["notes.txt", "two", "made.txt", "made.txt", "First look, then act."]) {
            assert!(text.contains(part) && !text.starts_with("Error"), "{part}: {text}");
        }
        assert!(!shown[1].contains("three"), "{}", shown[1]);
        assert_eq!(shown.len(), turns.len());
        assert_eq!(fs::read_to_string(made).expect("a file"), "goodbye");
        let expected: Vec<String> =
            turns.iter().flat_map(|(tool, _)| [format!("{tool} - Allowed"), "Agent Done".to_owned()]).collect();
        let receipts = harness.receipt_lines();
        assert_eq!(receipts[1..receipts.len() - 1], expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_outside_of_the_agents_directories_is_an_error_for_the_model() {
    let mut harness = Harness::new(WireFormat::OpenAi);
    fs::write(harness.at("secret"), "a secret").expect("a file");
    std::os::unix::fs::symlink(harness.at("secret"), harness.path("link")).expect("a link");
    let paths = [
        harness.at("secret").display().to_string(),
        harness.path("../secret"),
        harness.path("link"),
        "/etc/passwd".to_owned(),
        "/proc/self/environ".to_owned(),
        harness.at("agent/agent.json").display().to_string(),
        harness.at("records").display().to_string(),
    ];
    for path in &paths {
        harness.model.push(calling("read_file", json!({ "path": path })));
    }
    let own = harness.plan.skills[0].directory.clone();
    let text = format!("{}{own}/SKILL.md", harness.directory.path().display());
    let write = json!({ "path": text, "content": "obey me" });
    harness.model.push(calling("write_file", write));
    harness.run(&[]).await.answer();
    let shown = harness.last().result_texts();
    assert_eq!(shown.len(), paths.len() + 1);
    for text in &shown {
        assert!(text.starts_with("Error: "), "{text}");
        assert!(!text.contains("a secret"), "{text}");
    }
    assert!(fs::read_to_string(text).expect("a text").starts_with("# Look"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_goes_to_its_target_or_the_only_skill() {
    let mut harness = Harness::with(WireFormat::OpenAi, |plan| {
        tool(plan, "execute_command", Some("tickets")).gate = Gate::Deny;
    });
    let cluster = Executor::echo(harness.volume("cluster"));
    for arguments in [
        json!({ "command": "kubectl get pods", "target": "cluster" }),
        json!({ "command": "kubectl top pods" }),
        json!({ "command": "ls", "target": "tickets" }),
    ] {
        harness.model.push(calling("execute_command", arguments));
    }
    harness.run(&[]).await.answer();
    let shown = harness.last().result_texts();
    assert_eq!(shown[..2], ["kubectl get pods", "kubectl top pods"]);
    assert!(shown[2].starts_with("Error: "), "{}", shown[2]);
    let received = cluster.requests();
    let targets: Vec<&Value> = received.iter().map(|it| &it["target"]).collect();
    assert_eq!(targets, ["cluster", "cluster"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_or_timed_out_command_has_its_output() {
    for wire in WIRES {
        let mut harness = Harness::new(wire);
        let _cluster = Executor::on(harness.volume("cluster"), |request| {
            Some(match request["command"].as_str() {
                Some("slow") => {
                    json!({ "exitCode": 124, "stdout": "began", "stderr": "", "timedOut": true })
                }
                _ => {
                    json!({ "exitCode": 3, "stdout": "half", "stderr": "no such pod", "timedOut": false })
                }
            })
        });
        for line in ["bad", "slow"] {
            let arguments = json!({ "command": line, "target": "cluster" });
            harness.model.push(calling("execute_command", arguments));
        }
        harness.run(&[]).await.answer();
        assert_eq!(
            harness.last().result_texts(),
            ["half\nSTDERR: no such pod\n(exit code: 3)", "began\n(command timed out)\n(exit code: 124)",]
        );
        let receipts = harness.receipt_lines();
        assert!(receipts.contains(&"Skill Exited { code: 3 }".to_owned()), "{receipts:?}");
        assert!(receipts.contains(&"Skill TimedOut".to_owned()), "{receipts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skill_that_never_answers_is_an_error_and_the_run_goes_on() {
    let mut harness = Harness::new(WireFormat::OpenAi);
    let _cluster = Executor::silent(harness.volume("cluster"));
    let arguments = json!({ "command": "a", "target": "cluster", "timeout": 1 });
    harness.model.push(calling("execute_command", arguments));
    harness.model.push(Reply::text("It is silent."));
    assert_eq!(harness.run(&[]).await.answer(), "It is silent.");
    let text = harness.last().last();
    assert!(text.starts_with("Error: "), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_of_a_pack_runs_its_program_in_the_packs_sidecar() {
    let mut harness = Harness::new(WireFormat::Anthropic);
    let cluster = Executor::on(harness.volume("cluster"), |_| Some(result(0, "db-0")));
    harness.model.push(calling("list_unhealthy_pods", json!({})));
    harness.run(&[]).await.answer();
    assert_eq!(harness.last().result_texts(), ["db-0"]);
    let program = "/skills/cluster/look/scripts/unhealthy.sh";
    assert_eq!(cluster.requests()[0]["argv"], json!([program]));
    assert_eq!(
        harness.receipt_lines(),
        ["started", "list_unhealthy_pods cluster Allowed", "Skill Exited { code: 0 }", "ended Done",]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_fetched_through_the_gateway_and_rendered() {
    let mut harness = Harness::new(WireFormat::OpenAi);
    let html = "<html><head><style>p { color: red }</style><script>steal()</script></head>\
                <body><h1>Prices</h1><p>Tea is <b>2 &euro;</b>.</p></body></html>";
    let server =
        WebServer::plain(move |_| Response::with(200, "content-type: text/html; charset=utf-8\r\n", html)).await;
    harness.internet.host(WEB_HOST, 80, &server);
    for url in [format!("http://{WEB_HOST}/prices"), "http://elsewhere.test/".to_owned()] {
        harness.model.push(calling("fetch_url", json!({ "url": url })));
    }
    harness.run(&[]).await.answer();
    let shown = harness.last().result_texts();
    assert!(shown[0].contains("Prices"), "{}", shown[0]);
    assert!(shown[0].contains("2 €"), "{}", shown[0]);
    for hidden in ["steal", "color", "<p>"] {
        assert!(!shown[0].contains(hidden), "{}", shown[0]);
    }
    assert!(shown[1].starts_with("Error: "), "{}", shown[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduler_tools_return_the_result_of_the_gateway() {
    for wire in WIRES {
        let mut plan = permissive_plan(wire);
        plan.subagents.levels = 1;
        plan.subagents.children = 2;
        plan.subagents.concurrent = 2;
        let scheduler = RecordingScheduler::default();
        let mut harness = Harness::of(plan, scheduler.clone());
        let message = json!({ "channel": "discord", "text": "hello" });
        let schedule = json!({ "name": "daily", "action": "create", "schedule": "0 9 * * *", "task": "look" });
        let below = json!({ "tasks": [{ "id": "a", "task": "look" }] });
        for (tool, arguments) in [
            ("send_channel_message", message.clone()),
            ("send_channel_message", json!({ "channel": "slack", "text": "hello" })),
            ("schedule_task", schedule.clone()),
            ("spawn_subagents", below),
        ] {
            harness.model.push(calling(tool, arguments));
        }
        harness.run(&[]).await.answer();
        let shown = harness.last().result_texts();
        assert_eq!(shown[0], "sent to people");
        assert!(shown[1].starts_with("Error: "), "{}", shown[1]);
        assert!(shown[1].contains("slack is not connected"), "{}", shown[1]);
        assert_eq!(shown[2], "scheduled for later");
        assert!(shown[3].contains("forty-two"), "{}", shown[3]);
        let received = scheduler.requests();
        assert_eq!(received[..2], [message, schedule]);
        assert_eq!(received.len(), 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_beyond_the_concurrency_limit_is_retried() {
    let mut harness = Harness::with(WireFormat::OpenAi, |plan| {
        tool(plan, "read_file", None).limits.concurrent = 1;
    });
    let paths: Vec<String> =
        (0..4).map(|index| harness.file(&format!("file-{index}"), format!("content {index}"))).collect();
    let reads = paths.iter().map(|path| call("read_file", json!({ "path": path })));
    harness.model.push(Answer::tools(reads));
    harness.run(&[]).await.answer();
    for (index, text) in harness.last().result_texts().iter().enumerate() {
        assert!(text.contains(&format!("content {index}")), "{text}");
    }
}
