//! Calls that a person is asked about.

use std::fs;

use serde_json::json;
use sympozium_api::run_plan::{Gate, WireFormat};
use sympozium_gateway::run_api::local::Vote;

use crate::skills::Executor;
use crate::world::{World, calling, tool};

async fn asking(seconds: u64) -> World {
    let world = World::with(WireFormat::OpenAi, |plan| {
        tool(plan, "execute_command", Some("cluster")).gate = Gate::Ask;
        tool(plan, "write_file", None).gate = Gate::Ask;
        plan.deadlines.approval_seconds = seconds;
    })
    .await;
    let command = json!({ "command": "kubectl delete pod a", "target": "cluster" });
    world.model.push(calling("execute_command", command));
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn a_yes_lets_it_happen_and_a_no_is_told() {
    for (says, told) in [(Vote::Approve, "kubectl delete pod a"), (Vote::Deny, "Error: a person was asked and said no")]
    {
        let mut world = asking(60).await;
        let cluster = Executor::echo(world.volume("cluster"));
        world.start(&[]);
        let pending = world.asked().await;
        assert!(cluster.seen().is_empty(), "nothing happens before the answer");
        world.say(&pending, says);
        world.ended().await.answer();
        assert_eq!(world.last().shown(), [told]);
        assert_eq!(cluster.seen().len(), usize::from(says == Vote::Approve));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_a_no() {
    let mut world = asking(1).await;
    let cluster = Executor::echo(world.volume("cluster"));
    world.run(&[]).await.answer();
    let told = world.last().last();
    assert!(told.starts_with("Error: ") && told.contains("nobody answered in time"), "{told}");
    assert!(cluster.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_does_not_act_itself_before_a_person_has_said_yes() {
    let mut world = asking(60).await;
    // The command first, which nobody minds.
    let _cluster = Executor::echo(world.volume("cluster"));
    let path = world.path("made");
    let write = json!({ "path": path, "content": "x" });
    world.model.push(calling("write_file", write));
    world.start(&[]);
    let pending = world.asked().await;
    world.say(&pending, Vote::Approve);
    world.requests(2).await;
    let pending = world.asked().await;
    assert!(pending.request.shown.contains("write_file"));
    assert!(fs::metadata(&path).is_err());
    world.say(&pending, Vote::Approve);
    world.ended().await.answer();
    assert_eq!(fs::read_to_string(path).expect("a file"), "x");
}
