//! Calls of tools: what the model is told of each, and what the receipts say.

use std::fs;

use serde_json::{Value, json};
use sympozium_api::run_plan::{Gate, WireFormat};
use sympozium_testkit::model_server::{Answer, Reply};

use crate::skills::{Executor, result};
use crate::world::{WEB_HOST, WIRES, World, call, calling, tool};

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_acts_on_its_own_tools_with_a_permit_for_each() {
    for wire in WIRES {
        let mut world = World::new(wire).await;
        let notes = world.file("notes.txt", "one\ntwo\nthree\n");
        let made = world.path("below/made.txt");
        let turns = [
            ("list_directory", json!({ "path": world.path("") })),
            ("read_file", json!({ "path": notes, "offset": 2, "limit": 1 })),
            ("write_file", json!({ "path": made, "content": "hello" })),
            ("edit_file", json!({ "path": made, "edits": [{ "old_string": "hello", "new_string": "goodbye" }] })),
            ("load_skill", json!({ "name": "cluster/look" })),
        ];
        for (tool, arguments) in turns.clone() {
            world.model.push(Answer::text("Let me see.").tool(call(tool, arguments)));
        }
        world.model.push(Reply::text("Done."));
        assert_eq!(world.run(&[]).await.answer(), "Done.");

        let shown = world.last().shown();
        for (text, part) in shown.iter().zip(["notes.txt", "two", "made.txt", "made.txt", "First look, then act."]) {
            assert!(text.contains(part) && !text.starts_with("Error"), "{part}: {text}");
        }
        assert!(!shown[1].contains("three"), "{}", shown[1]);
        assert_eq!(shown.len(), turns.len());
        assert_eq!(fs::read_to_string(made).expect("a file"), "goodbye");
        let expected: Vec<String> =
            turns.iter().flat_map(|(tool, _)| [format!("{tool} - Allowed"), "Agent Done".to_owned()]).collect();
        let receipts = world.receipts();
        assert_eq!(receipts[1..receipts.len() - 1], expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_outside_of_the_agents_directories_is_an_error_for_the_model() {
    let mut world = World::new(WireFormat::OpenAi).await;
    fs::write(world.at("secret"), "a secret").expect("a file");
    std::os::unix::fs::symlink(world.at("secret"), world.path("link")).expect("a link");
    let paths = [
        world.at("secret").display().to_string(),
        world.path("../secret"),
        world.path("link"),
        "/etc/passwd".to_owned(),
        "/proc/self/environ".to_owned(),
        world.at("agent/agent.json").display().to_string(),
        world.at("records").display().to_string(),
    ];
    for path in &paths {
        world.model.push(calling("read_file", json!({ "path": path })));
    }
    let own = world.plan.skills[0].directory.clone();
    let text = format!("{}{own}/SKILL.md", world.directory.path().display());
    let write = json!({ "path": text, "content": "obey me" });
    world.model.push(calling("write_file", write));
    world.run(&[]).await.answer();
    let shown = world.last().shown();
    assert_eq!(shown.len(), paths.len() + 1);
    for text in &shown {
        assert!(text.starts_with("Error: "), "{text}");
        assert!(!text.contains("a secret"), "{text}");
    }
    assert!(fs::read_to_string(text).expect("a text").starts_with("# Look"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_goes_to_the_skill_that_is_named_and_to_the_only_one_where_none_is() {
    let mut world = World::with(WireFormat::OpenAi, |plan| {
        tool(plan, "execute_command", Some("tickets")).gate = Gate::Deny;
    })
    .await;
    let cluster = Executor::echo(world.volume("cluster"));
    for arguments in [
        json!({ "command": "kubectl get pods", "target": "cluster" }),
        json!({ "command": "kubectl top pods" }),
        json!({ "command": "ls", "target": "tickets" }),
    ] {
        world.model.push(calling("execute_command", arguments));
    }
    world.run(&[]).await.answer();
    let shown = world.last().shown();
    assert_eq!(shown[..2], ["kubectl get pods", "kubectl top pods"]);
    assert!(shown[2].starts_with("Error: "), "{}", shown[2]);
    let seen = cluster.seen();
    let targets: Vec<&Value> = seen.iter().map(|it| &it["target"]).collect();
    assert_eq!(targets, ["cluster", "cluster"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_fails_or_is_ended_is_told_with_everything_it_wrote() {
    for wire in WIRES {
        let mut world = World::new(wire).await;
        let _cluster = Executor::on(world.volume("cluster"), |request| {
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
            world.model.push(calling("execute_command", arguments));
        }
        world.run(&[]).await.answer();
        assert_eq!(
            world.last().shown(),
            ["half\nSTDERR: no such pod\n(exit code: 3)", "began\n(command timed out)\n(exit code: 124)",]
        );
        let receipts = world.receipts();
        assert!(receipts.contains(&"Skill Exited { code: 3 }".to_owned()), "{receipts:?}");
        assert!(receipts.contains(&"Skill TimedOut".to_owned()), "{receipts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skill_that_never_answers_is_an_error_and_the_run_goes_on() {
    let mut world = World::new(WireFormat::OpenAi).await;
    let _cluster = Executor::silent(world.volume("cluster"));
    let arguments = json!({ "command": "a", "target": "cluster", "timeout": 1 });
    world.model.push(calling("execute_command", arguments));
    world.model.push(Reply::text("It is silent."));
    assert_eq!(world.run(&[]).await.answer(), "It is silent.");
    let told = world.last().last();
    assert!(told.starts_with("Error: "), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_of_a_pack_runs_its_program_in_the_packs_sidecar() {
    let mut world = World::new(WireFormat::Anthropic).await;
    let cluster = Executor::on(world.volume("cluster"), |_| Some(result(0, "db-0")));
    world.model.push(calling("list_unhealthy_pods", json!({})));
    world.run(&[]).await.answer();
    assert_eq!(world.last().shown(), ["db-0"]);
    let program = "/skills/cluster/look/scripts/unhealthy.sh";
    assert_eq!(cluster.seen()[0]["argv"], json!([program]));
    assert_eq!(
        world.receipts(),
        ["started", "list_unhealthy_pods cluster Allowed", "Skill Exited { code: 0 }", "ended Done",]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_fetched_through_the_gateway_and_made_readable() {
    let mut world = World::new(WireFormat::OpenAi).await;
    let html = "<html><head><style>p { color: red }</style><script>steal()</script></head>\
                <body><h1>Prices</h1><p>Tea is <b>2 &euro;</b>.</p></body></html>";
    world.internet.page(WEB_HOST, "text/html; charset=utf-8", html).await;
    for url in [format!("http://{WEB_HOST}/prices"), "http://elsewhere.test/".to_owned()] {
        world.model.push(calling("fetch_url", json!({ "url": url })));
    }
    world.run(&[]).await.answer();
    let shown = world.last().shown();
    assert!(shown[0].contains("Prices"), "{}", shown[0]);
    assert!(shown[0].contains("2 €"), "{}", shown[0]);
    for hidden in ["steal", "color", "<p>"] {
        assert!(!shown[0].contains(hidden), "{}", shown[0]);
    }
    assert!(shown[1].starts_with("Error: "), "{}", shown[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_elsewhere_is_told_and_never_said_to_be_done_where_nobody_is() {
    for wire in WIRES {
        let mut world = World::with(wire, |plan| {
            plan.subagents.levels = 1;
            plan.subagents.children = 2;
            plan.subagents.concurrent = 2;
        })
        .await;
        let message = json!({ "channel": "discord", "text": "hello" });
        let schedule = json!({ "name": "daily", "action": "create", "schedule": "0 9 * * *", "task": "look" });
        let below = json!({ "tasks": [{ "id": "a", "task": "look" }] });
        for (tool, arguments) in [
            ("send_channel_message", message.clone()),
            ("send_channel_message", json!({ "channel": "slack", "text": "hello" })),
            ("schedule_task", schedule.clone()),
            ("spawn_subagents", below),
        ] {
            world.model.push(calling(tool, arguments));
        }
        world.run(&[]).await.answer();
        let shown = world.last().shown();
        assert_eq!(shown[0], "sent to people");
        assert!(shown[1].starts_with("Error: "), "{}", shown[1]);
        assert!(shown[1].contains("slack is not connected"), "{}", shown[1]);
        assert_eq!(shown[2], "scheduled for later");
        assert!(shown[3].contains("forty-two"), "{}", shown[3]);
        let seen = world.doing.seen();
        assert_eq!(seen[..2], [message, schedule]);
        assert_eq!(seen.len(), 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_there_is_no_room_for_is_made_when_there_is() {
    let mut world = World::with(WireFormat::OpenAi, |plan| {
        tool(plan, "read_file", None).limits.concurrent = 1;
    })
    .await;
    let paths: Vec<String> =
        (0..4).map(|index| world.file(&format!("file-{index}"), format!("content {index}"))).collect();
    let reads = paths.iter().map(|path| call("read_file", json!({ "path": path })));
    world.model.push(Answer::tools(reads));
    world.run(&[]).await.answer();
    for (index, text) in world.last().shown().iter().enumerate() {
        assert!(text.contains(&format!("content {index}")), "{text}");
    }
}
