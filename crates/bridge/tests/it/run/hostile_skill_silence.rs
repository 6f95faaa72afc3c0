//! Skills that do not answer, or too late. A command that is not answered is waited for as long as it may take and a little
//! longer, so these run beside each other.

use std::fs;

use serde_json::json;
use sympozium_harness::executor::{requests, result, write_result};
use sympozium_harness::{Agent, POLL_INTERVAL, RunHarness};
use sympozium_ipc::door::{RefusalCode, ToolAnswer};
use sympozium_ipc::receipt::{Event, Outcome};
use tokio::time::sleep;

use super::hostile_skill::requested;
use super::{PROGRAM, open_plan, start};

/// A command that may take a second.
async fn short(agent: &Agent, line: &str) -> Result<ToolAnswer, sympozium_ipc::door::Refusal> {
    let arguments = json!({ "target": "cluster", "command": line, "timeout": 1 });
    agent.call("execute_command", arguments).await
}

#[tokio::test(flavor = "multi_thread")]
async fn b27_b34_no_answer_in_time() {
    let mut run = start(|_| ());
    let pod = RunHarness::setup(open_plan()).env("KUBERNETES_SERVICE_HOST", "10.0.0.1").start(PROGRAM);
    let (agent, in_pod) = (run.agent().await, pod.agent().await);
    let volume = run.volume("cluster");
    let claim = |id: &str| volume.join(format!("tools/.claim-{id}"));
    let skill = async {
        let ids = requested(&volume, &["nobody", "claimed", "deleted", "squatted"]).await;
        // An executor that claims and dies; one that throws a request away; a command that claims what is not its own.
        fs::create_dir(claim(&ids[1])).expect("a claim");
        fs::remove_file(volume.join(format!("tools/exec-request-{}.json", ids[2]))).expect("the request");
        fs::write(claim(&ids[3]), "").expect("a claim that is none");
        ids
    };
    let (nobody, claimed, deleted, squatted, kubernetes, ids) = tokio::join!(
        short(&agent, "nobody"),
        short(&agent, "claimed"),
        short(&agent, "deleted"),
        short(&agent, "squatted"),
        short(&in_pod, "nobody"),
        skill
    );
    let name = &run.plan.run.name;
    let message =
        format!("timed out waiting for command execution result; see `sympozium logs {name} --part skill-cluster`");
    use RefusalCode::{Unavailable, Unknown};
    for (answer, code) in [(nobody, Unavailable), (claimed, Unknown), (deleted, Unavailable), (squatted, Unknown)] {
        let refused = answer.expect_err("there was no answer");
        assert_eq!((refused.code, refused.message), (code, message.clone()));
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let refused = kubernetes.expect_err("there was no answer");
    let hint = format!("timed out waiting for command execution result; see `kubectl logs {host} -c skill-cluster`");
    assert_eq!(refused.message, hint);
    // No executor can begin it any more, so that nothing is run that was given up.
    assert_eq!(requests(&volume), Vec::new());

    // The one who had claimed answers after all: it has no effect, and does not stay.
    let late = volume.join(format!("tools/exec-result-{}.json", ids[1]));
    write_result(&volume, &ids[1], &result(0, "too late"));
    let next = async {
        let id = requested(&volume, &["next"]).await.remove(0);
        assert!(!ids.contains(&id));
        write_result(&volume, &id, &result(0, "in time"));
    };
    let (answer, ()) = tokio::join!(short(&agent, "next"), next);
    assert!(matches!(&answer, Ok(ToolAnswer::Command { stdout, .. }) if stdout == "in time"), "{answer:?}");
    while late.exists() || claim(&ids[1]).exists() {
        sleep(POLL_INTERVAL).await;
    }
    agent.finish("").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    let mut outcomes: Vec<Outcome> = (run.events().into_iter())
        .filter_map(|event| match event {
            Event::Acted { outcome, .. } => Some(outcome),
            _ => None,
        })
        .collect();
    assert_eq!(outcomes.pop(), Some(Outcome::Exited { code: 0 }));
    assert_eq!(outcomes, vec![Outcome::Failed { why: message }; 4]);
}
