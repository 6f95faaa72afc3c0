//! What becomes of a call.

use serde_json::json;
use sympozium_api::run_plan::{Gate, PartName, ToolHandler};
use sympozium_api::skill_pack::InputMode;
use sympozium_harness::executor::{Executor, result};
use sympozium_harness::plan::{PACKS, tool};
use sympozium_ipc::door::{REMAINING_HEADER, RefusalCode, ToolAnswer};
use sympozium_ipc::receipt::{Actor, CallDecision, Event, Outcome};

use super::start;

fn printed(stdout: &str) -> ToolAnswer {
    ToolAnswer::Command {
        exit_code: 0,
        stdout: stdout.to_owned(),
        stderr: String::new(),
        timed_out: false,
        truncated: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_says_how_long_the_run_may_work() {
    let run = start(|plan| plan.deadlines.run_seconds = 600);
    let agent = run.agent().await;
    // Taken, refused, and unknown.
    for path in ["/v1/progress", "/v1/tools/nothing", "/v1/nothing"] {
        let body = r#"{"text":"a"}"#;
        let answer = agent.send(path, body).await.expect("an answer");
        let left = answer.headers()[REMAINING_HEADER].to_str().expect("a text");
        let left: u64 = left.parse().expect("a number");
        assert!(left > 0 && left < 600_000, "{path}: {left}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_goes_to_its_skill_and_comes_back_with_its_receipts() {
    let mut run = start(|_| ());
    let cluster = Executor::echo(run.volume("cluster"));
    let tickets = Executor::echo(run.volume("tickets"));
    let agent = run.agent().await;
    assert_eq!(agent.execute("cluster", "kubectl get pods").await, Ok(printed("kubectl get pods")));
    // As sidecars compare targets.
    assert_eq!(agent.execute(" TICK ets", "ls").await, Ok(printed("ls")));
    let refused = agent.execute("nobody", "ls").await.expect_err("no such pack");
    assert_eq!(refused.code, RefusalCode::Arguments);
    assert!(refused.message.contains("cluster, tickets"), "{}", refused.message);
    assert_eq!(agent.finish("done").await.status, 204);
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());

    let request = &cluster.requests()[0];
    assert_eq!(request["target"], "cluster");
    assert_eq!(request["timeout"], 30);
    assert_eq!(tickets.requests().len(), 1);
    let events: Vec<String> = run.events().iter().map(short).collect();
    assert_eq!(
        events,
        [
            "started",
            "0 execute_command cluster Allow Allowed",
            "0 Skill Exited { code: 0 }",
            "1 execute_command tickets Allow Allowed",
            "1 Skill Exited { code: 0 }",
            "2 execute_command - Allow Refused",
            "ended Done",
        ]
    );
    for pack in PACKS {
        assert_eq!(std::fs::read(run.volume(pack).join("done")).expect("it is there"), b"done\n");
        let left: Vec<_> = std::fs::read_dir(run.volume(pack).join("tools")).expect("tools").collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// A receipt in a line.
pub fn short(event: &Event) -> String {
    match event {
        Event::Started { .. } => "started".to_owned(),
        Event::Called { call, tool, pack, gate, decided, .. } => {
            let gate = gate.map_or("-".to_owned(), |gate| format!("{gate:?}"));
            format!("{call} {tool} {} {gate} {decided:?}", pack.as_deref().unwrap_or("-"))
        }
        Event::Asked { call, .. } => format!("{call} asked"),
        Event::Answered { call, decided, by, .. } => {
            format!("{call} answered {decided:?} by {}", by.as_deref().unwrap_or("-"))
        }
        Event::Acted { call, by, outcome, .. } => format!("{call} {by:?} {outcome:?}"),
        Event::Model { request, status, .. } => format!("model {request} {status:?}"),
        Event::Foreign { pack, what, .. } => format!("foreign {what:?} of {pack}"),
        Event::Ended { outcome, .. } => format!("ended {outcome:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_and_unknown_tools_and_invalid_arguments_reach_no_executor() {
    let mut run = start(|plan| {
        tool(plan, "execute_command", Some("cluster")).gate = Gate::Deny;
        tool(plan, "fetch_url", None).gate = Gate::Deny;
    });
    let cluster = Executor::echo(run.volume("cluster"));
    let tickets = Executor::echo(run.volume("tickets"));
    let agent = run.agent().await;
    let cases = [
        ("fetch_url", json!({ "url": "http://a.example/" }), RefusalCode::Denied),
        ("execute_command", json!({ "target": "cluster", "command": "id" }), RefusalCode::Arguments),
        ("no_such_tool", json!({}), RefusalCode::UnknownTool),
        ("../tools/execute_command", json!({}), RefusalCode::UnknownTool),
        ("execute_command", json!({ "target": "tickets" }), RefusalCode::Arguments),
        ("execute_command", json!({ "target": "tickets", "command": 7 }), RefusalCode::Arguments),
        ("execute_command", json!({ "target": "tickets", "command": "a", "as": "root" }), RefusalCode::Arguments),
        ("execute_command", json!({ "target": ["tickets"], "command": "a" }), RefusalCode::Arguments),
        ("execute_command", json!("id"), RefusalCode::Arguments),
        // The agent acts on these itself, with a permit.
        ("read_file", json!({ "path": "/workspace/a" }), RefusalCode::Request),
    ];
    for (name, arguments, code) in cases {
        let refused = agent.call(name, arguments.clone()).await.expect_err("refused");
        assert_eq!(refused.code, code, "{name} {arguments}: {}", refused.message);
    }
    let refused = agent.permit("execute_command", json!({ "target": "tickets", "command": "a" })).await;
    assert_eq!(refused.expect_err("refused").code, RefusalCode::Request);
    agent.finish("").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0);
    assert_eq!((cluster.requests(), tickets.requests()), (Vec::new(), Vec::new()));
    let acted = run.events().iter().any(|it| matches!(it, Event::Acted { .. }));
    assert!(!acted);
    assert!(run.internet.resolved().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declared_tool_is_a_program_with_its_words_and_its_input() {
    let run = start(|plan| {
        let declared = tool(plan, "list_unhealthy_pods", Some("cluster"));
        let schema = json!({
            "type": "object", "additionalProperties": false,
            "properties": { "namespace": { "type": "string" }, "limit": { "type": "integer" } },
        });
        declared.parameters = serde_json::from_value(schema).expect("a schema");
        declared.acts = ToolHandler::Program {
            part: PartName("skill-cluster".to_owned()),
            exec: vec!["pods".to_owned(), "list".to_owned()],
            input_mode: InputMode::Stdin,
            positional_args: vec!["namespace".to_owned()],
        };
    });
    let cluster = Executor::echo(run.volume("cluster"));
    let agent = run.agent().await;
    let hostile = "--all; rm -rf /";
    let arguments = json!({ "namespace": hostile, "limit": 3 });
    let answer = agent.call("list_unhealthy_pods", arguments).await;
    assert!(answer.is_ok(), "{answer:?}");
    let request = &cluster.requests()[0];
    assert_eq!(request["command"], "printf '%s' '{\"limit\":3}' | 'pods' 'list' '--' '--all; rm -rf /'");
    assert_eq!(request["argv"], json!(["pods", "list", "--", hostile]));
    assert_eq!(request["stdin"], "{\"limit\":3}");
    assert_eq!(request["timeout"], 120);
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_are_given_once_reported_once_and_say_by_agent() {
    let mut run = start(|_| ());
    let agent = run.agent().await;
    let permit = agent.permit("read_file", json!({ "path": "/workspace/a" })).await.expect("a permit");
    assert_eq!(agent.report(permit).await.status, 204);
    assert_eq!(agent.report(permit).await.status, 400, "a permit is reported on once");
    assert_eq!(agent.report(permit + 1).await.status, 400);
    let open = agent.permit("read_file", json!({ "path": "/workspace/b" })).await.expect("a permit");
    assert_ne!(open, permit);
    agent.finish("").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0);
    let acted: Vec<(Actor, Outcome)> = run
        .events()
        .into_iter()
        .filter_map(|event| match event {
            Event::Acted { by, outcome, .. } => Some((by, outcome)),
            _ => None,
        })
        .collect();
    let never = Outcome::Failed { why: "the agent did not report the outcome".to_owned() };
    assert_eq!(acted, [(Actor::Agent, Outcome::Done), (Actor::Agent, never)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_have_a_pace() {
    let mut run = start(|plan| {
        plan.limits.tool_calls = 5;
        plan.limits.concurrent_tool_calls = 2;
        tool(plan, "execute_command", Some("tickets")).limits.per_minute = 1;
    });
    // Never answers, so that calls stay under way.
    let cluster = Executor::on(run.volume("cluster"), |_| None);
    let tickets = Executor::echo(run.volume("tickets"));
    let agent = run.agent().await;
    assert!(agent.execute("tickets", "a").await.is_ok());
    let refused = agent.execute("tickets", "b").await.expect_err("too often");
    assert_eq!(refused.code, RefusalCode::Rate);
    assert!(refused.retry_after_ms.is_some_and(|it| it > 0 && it <= 60_000));
    let call = json!({ "id": "1", "arguments": { "target": "cluster", "command": "sleep" } }).to_string();
    let path = "/v1/tools/execute_command";
    let mut first = Box::pin(agent.send(path, call.clone()));
    let mut second = Box::pin(agent.send(path, call.clone()));
    let both = async {
        while cluster.requests().len() < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    };
    tokio::select! {
        _ = &mut first => panic!("it was never answered"),
        _ = &mut second => panic!("it was never answered"),
        () = both => {}
    }
    let busy = agent.permit("read_file", json!({ "path": "/workspace/a" })).await.expect_err("two at a time");
    assert_eq!(busy.code, RefusalCode::Busy);
    assert_eq!(tickets.requests().len(), 1);
    drop((first, second));
    agent.leave();
    run.wait_exit().await;
    let decided: Vec<CallDecision> = run
        .events()
        .into_iter()
        .filter_map(|event| match event {
            Event::Called { decided, .. } => Some(decided),
            _ => None,
        })
        .collect();
    use CallDecision::{Allowed, Refused};
    assert_eq!(decided, [Allowed, Refused, Allowed, Allowed, Refused]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_has_only_so_many_calls() {
    let run = start(|plan| plan.limits.tool_calls = 2);
    let _cluster = Executor::echo(run.volume("cluster"));
    let agent = run.agent().await;
    for _ in 0..2 {
        assert!(agent.execute("cluster", "a").await.is_ok());
    }
    let refused = agent.execute("cluster", "a").await.expect_err("no more");
    assert_eq!(refused.code, RefusalCode::Budget);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_without_a_target_is_for_the_skill_that_was_read() {
    let run = start(|_| ());
    let tickets = Executor::on(run.volume("tickets"), |_| Some(result(0, "")));
    let agent = run.agent().await;
    let refused = agent.call("execute_command", json!({ "command": "a" })).await.expect_err("for whom?");
    assert!(refused.message.contains("cluster, tickets"), "{}", refused.message);
    let skill = run
        .plan
        .skills
        .iter()
        .find_map(|it| match &it.source {
            sympozium_api::run_plan::SkillSource::Pack { pack, skill, .. } if pack == "tickets" => Some(skill.clone()),
            _ => None,
        })
        .expect("a skill of tickets");
    let permit = agent.permit("load_skill", json!({ "name": format!("tickets/{skill}") })).await.expect("a permit");
    agent.report(permit).await;
    assert!(agent.call("execute_command", json!({ "command": "a" })).await.is_ok());
    assert_eq!(tickets.requests().len(), 1);
}
