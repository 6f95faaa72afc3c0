//! A hook after the run that decides whether the answer goes out.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use sympozium_api::AgentRun;
use sympozium_api::agent_run::{GateVerdict, Phase};

use super::world::{World, a_run, objects};

/// What becomes of the gate.
#[derive(Debug, Clone, Copy)]
enum Gate {
    Ends(i32),
    TakesTooLong,
    IsNotWaitedFor,
}

fn phase(run: &AgentRun) -> Option<Phase> {
    run.status.as_ref().and_then(|it| it.phase)
}

/// A run whose agent has answered, and whose gate has begun.
async fn answered(world: &World, name: &str) -> (AgentRun, Pod) {
    let mut run = a_run(name);
    run["spec"]["lifecycle"] = json!({ "postRun": [
        { "name": "judge", "image": "example.org/judge:1", "command": ["/judge"], "gate": true },
    ] });
    world.apply(&[run]).await;
    let has_pod = |it: &AgentRun| it.status.as_ref().is_some_and(|it| it.pod_uid.is_some());
    let run = world.until(name, "a pod", has_pod).await;
    let pod = world.pod(&run, "agent-run").await;
    world.start_pod(&pod).await;
    let report = json!({ "finished": true, "ending": "answered", "result": "Done.", "reports": 1 });
    world.report(name, report).await;
    world.vanish(&pod).await;
    let judge = world.pod(&run, "post-run").await;
    (run, judge)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_goes_out_when_its_gate_says_so() {
    let Some(world) = World::start().await else {
        return;
    };
    world.apply(&objects("x")[..2]).await;
    let held = "the answer is held back: ";
    let failed = format!("{held}container `post-judge` failed: exit code 3");
    let late = format!("{held}its hooks took too long");
    for (name, gate, expected, verdict, result, error) in [
        ("yes", Gate::Ends(0), Phase::Succeeded, Some(GateVerdict::Approved), Some("Done."), None),
        ("no", Gate::Ends(3), Phase::Failed, Some(GateVerdict::Rejected), None, Some(failed)),
        ("late", Gate::TakesTooLong, Phase::Failed, Some(GateVerdict::Timeout), None, Some(late)),
        ("unwanted", Gate::IsNotWaitedFor, Phase::Cancelled, None, None, None),
    ] {
        let (run, judge) = answered(&world, name).await;
        let now = world.runs().get(name).await.expect("it is there");
        assert_eq!(phase(&now), Some(Phase::PostRunning));
        assert_eq!(World::conditions(&now).get("AgentEnded").map(|it| it.0.as_str()), Some("True"));
        let enforced = World::conditions(&now).get("NetworkEnforced").cloned();
        assert_eq!(enforced.map(|it| it.0).as_deref(), Some("True"), "{name}");
        match gate {
            Gate::Ends(code) => {
                let container = |it: &k8s_openapi::api::core::v1::Container| {
                    let code = if it.name.contains("judge") { code } else { 0 };
                    json!({ "name": it.name, "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                        "state": { "terminated": { "exitCode": code } } })
                };
                let spec = judge.spec.as_ref().expect("a spec");
                let before: Vec<_> = spec.init_containers.iter().flatten().map(container).collect();
                let containers: Vec<_> = spec.containers.iter().map(container).collect();
                let phase = if code == 0 { "Succeeded" } else { "Failed" };
                let status = json!({ "phase": phase, "initContainerStatuses": before,
                    "containerStatuses": containers });
                world.say(&judge, status).await;
            }
            Gate::TakesTooLong => {
                let job = run.status.as_ref().and_then(|it| it.post_run_job_name.clone());
                let job = job.expect("hooks").as_str().to_owned();
                let patch = r#"{"spec":{"activeDeadlineSeconds":1}}"#;
                let words = ["patch", "job", &job, "--type=merge", "-p", patch];
                world.namespace.kubectl().run(&words).expect("a short time");
            }
            Gate::IsNotWaitedFor => {
                let patch = json!({ "spec": { "cancel": true } });
                let patch = Patch::Merge(&patch);
                let parameters = PatchParams::default();
                let cancelled = world.runs().patch(name, &parameters, &patch).await;
                cancelled.expect("cancelled");
            }
        }
        let over = |it: &AgentRun| phase(it).is_some_and(Phase::is_terminal);
        let run = world.until(name, "over", over).await;
        world.vanish(&judge).await;
        let status = run.status.as_ref().expect("a status");
        assert_eq!(phase(&run), Some(expected), "{name}: {:?}", status.error);
        assert_eq!(status.gate_verdict, verdict, "{name}");
        assert_eq!(status.result.as_deref(), result, "{name}");
        assert_eq!(status.error, error, "{name}");
    }
}
