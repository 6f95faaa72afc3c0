//! What the skill that the agent has loaded leaves of its tools.

use serde_json::json;
use sympozium_api::names::ToolPattern;
use sympozium_api::run_plan::SkillSource;
use sympozium_harness::executor::Executor;
use sympozium_harness::{Agent, RunHarness};
use sympozium_ipc::door::{Refusal, RefusalCode};
use sympozium_ipc::receipt::{CallDecision, Event};

use super::start;

/// The skill `look` of `cluster` allows these; that of `tickets` allows all.
fn start_with_tools(allowed: &'static [&'static str]) -> RunHarness {
    start(|plan| {
        for skill in &mut plan.skills {
            if matches!(&skill.source, SkillSource::Pack { skill, .. } if skill == "look") {
                skill.allowed_tools = Some(allowed.iter().map(|it| ToolPattern::new(*it)).collect());
            }
        }
    })
}

async fn load(agent: &Agent, name: &str) {
    let permit = agent.permit("load_skill", json!({ "name": name })).await;
    agent.report(permit.expect("a permit")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skill_narrows_native_and_sidecar_tools_while_it_is_active() {
    let mut run = start_with_tools(&["read_file", "cluster/execute_command"]);
    let _cluster = Executor::echo(run.volume("cluster"));
    let tickets = Executor::echo(run.volume("tickets"));
    let agent = run.agent().await;
    let write = json!({ "path": "/workspace/a", "content": "x" });
    let read = json!({ "path": "/workspace/a" });

    // Nothing is loaded: the tool table alone decides.
    let permit = agent.permit("write_file", write.clone()).await;
    agent.report(permit.expect("a permit")).await;
    assert!(agent.execute("tickets", "a").await.is_ok());

    load(&agent, "look").await;
    let denied = |tool: &str| Refusal {
        code: RefusalCode::Denied,
        message: format!(
            "the skill `look` allows only read_file, cluster/execute_command; load another skill with `load_skill` to use `{tool}`"
        ),
        retry_after_ms: None,
    };
    let refused = agent.permit("write_file", write.clone()).await;
    assert_eq!(refused, Err(denied("write_file")));
    let url = json!({ "url": "https://example.org/" });
    let refused = agent.call("fetch_url", url).await;
    assert_eq!(refused, Err(denied("fetch_url")));
    let before = tickets.requests().len();
    let refused = agent.execute("tickets", "b").await;
    assert_eq!(refused, Err(denied("execute_command")));
    assert_eq!(tickets.requests().len(), before);
    assert_eq!(agent.call("list_unhealthy_pods", json!({})).await, Err(denied("list_unhealthy_pods")));
    let permit = agent.permit("read_file", read).await;
    agent.report(permit.expect("it is listed")).await;
    assert!(agent.execute("cluster", "c").await.is_ok());

    // A name that is no skill changes nothing; another skill does.
    load(&agent, "nothing").await;
    assert!(agent.permit("write_file", write.clone()).await.is_err());
    load(&agent, "tickets/tickets").await;
    let permit = agent.permit("write_file", write).await;
    agent.report(permit.expect("a permit")).await;
    assert!(agent.execute("tickets", "d").await.is_ok());

    agent.finish("").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    let refused = run.events().into_iter().filter(|event| {
        matches!(event, Event::Called { decided: CallDecision::Denied, reason: Some(reason), .. } if reason.contains("the skill `look`"))
    });
    assert_eq!(refused.count(), 5);
}

/// However the model writes the name: what the runner loads by it is what the bridge takes for active.
#[tokio::test(flavor = "multi_thread")]
async fn white_space_around_a_name_evades_nothing() {
    let run = start_with_tools(&["read_file"]);
    let agent = run.agent().await;
    let write = json!({ "path": "/workspace/a", "content": "x" });
    for name in ["look", " look", "look\n", "cluster/look ", "\tcluster/look"] {
        load(&agent, "calm").await;
        assert!(agent.permit("write_file", write.clone()).await.is_ok());
        load(&agent, name).await;
        let refused = agent.permit("write_file", write.clone()).await;
        assert!(refused.is_err(), "{name:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_list_leaves_the_way_to_another_skill() {
    let run = start_with_tools(&[]);
    let agent = run.agent().await;
    load(&agent, "cluster/look").await;
    let read = json!({ "path": "/workspace/a" });
    assert!(agent.permit("read_file", read.clone()).await.is_err());
    load(&agent, "calm").await;
    assert!(agent.permit("read_file", read).await.is_ok());
}
