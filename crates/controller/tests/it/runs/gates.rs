//! A hook after the run that decides whether the answer goes out.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use sympozium_api::AgentRun;
use sympozium_api::agent_run::{GateVerdict, Phase};

use super::harness::{Harness, a_run, has_pod, objects};

/// What becomes of the gate.
#[derive(Debug, Clone, Copy)]
enum Gate {
    Ends(i32),
    /// The kernel ends it for its memory.
    IsKilled,
    TakesTooLong,
    IsNotWaitedFor,
}

fn phase(run: &AgentRun) -> Option<Phase> {
    run.status.as_ref().and_then(|it| it.phase)
}

/// A run whose agent has answered, and whose gate has begun.
async fn answered(harness: &Harness, name: &str, default: &str) -> (AgentRun, Pod) {
    let mut run = a_run(name);
    run["spec"]["lifecycle"] = json!({ "gateDefault": default, "postRun": [
        { "name": "judge", "image": "example.org/judge:1", "command": ["/judge"], "gate": true },
    ] });
    harness.apply(&[run]).await;
    let run = harness.wait_until_run(name, "a pod", has_pod).await;
    let pod = harness.pod(&run, "agent-run").await;
    harness.start_pod(&pod).await;
    // Watches of different kinds do not wait for each other: what a pod said is known before its run reports the end.
    let is_checked =
        |run: &AgentRun| Harness::conditions(run).get("NetworkEnforced").is_some_and(|condition| condition.0 == "True");
    harness.wait_until_run(name, "its network checked", is_checked).await;
    let report = json!({ "finished": true, "ending": "answered", "result": "Done.", "reports": 1 });
    harness.report(name, report).await;
    harness.force_delete_pod(&pod).await;
    let judge = harness.pod(&run, "post-run").await;
    (run, judge)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_goes_out_when_its_gate_says_so() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    harness.apply(&objects("x")[..2]).await;
    let held = "the answer is withheld: ";
    let failed = format!("{held}container `post-judge` failed: exit code 3");
    let late = format!("{held}the hooks after the run exceeded their time");
    let killed = format!("{held}container `post-judge` failed: it ran out of memory");
    for (name, default, gate, expected, verdict, result, error) in [
        ("yes", "block", Gate::Ends(0), Phase::Succeeded, Some(GateVerdict::Approved), Some("Done."), None),
        ("no", "block", Gate::Ends(3), Phase::Failed, Some(GateVerdict::Rejected), None, Some(failed.clone())),
        // A verdict counts whatever the default is; only its absence is the default's business.
        ("no-despite-default", "allow", Gate::Ends(3), Phase::Failed, Some(GateVerdict::Rejected), None, Some(failed)),
        ("killed", "block", Gate::IsKilled, Phase::Failed, Some(GateVerdict::Error), None, Some(killed)),
        (
            "killed-allowed",
            "allow",
            Gate::IsKilled,
            Phase::Succeeded,
            Some(GateVerdict::AllowedByDefault),
            Some("Done."),
            None,
        ),
        (
            "late-allowed",
            "allow",
            Gate::TakesTooLong,
            Phase::Succeeded,
            Some(GateVerdict::AllowedByDefault),
            Some("Done."),
            None,
        ),
        ("unwanted-allowed", "allow", Gate::IsNotWaitedFor, Phase::Cancelled, None, None, None),
        ("late", "block", Gate::TakesTooLong, Phase::Failed, Some(GateVerdict::Timeout), None, Some(late)),
        ("unwanted", "block", Gate::IsNotWaitedFor, Phase::Cancelled, None, None, None),
    ] {
        let (run, judge) = answered(&harness, name, default).await;
        let now = harness.runs().get(name).await.expect("it is there");
        assert_eq!(phase(&now), Some(Phase::PostRunning));
        assert_eq!(Harness::conditions(&now).get("AgentEnded").map(|it| it.0.as_str()), Some("True"));
        let enforced = Harness::conditions(&now).get("NetworkEnforced").cloned();
        assert_eq!(enforced.map(|it| it.0).as_deref(), Some("True"), "{name}");
        match gate {
            Gate::Ends(_) | Gate::IsKilled => {
                let (code, reason) = match gate {
                    Gate::Ends(code) => (code, "Error"),
                    _ => (137, "OOMKilled"),
                };
                let container = |container: &k8s_openapi::api::core::v1::Container| {
                    let ended = if container.name.contains("judge") && code != 0 {
                        json!({ "exitCode": code, "reason": reason })
                    } else {
                        json!({ "exitCode": 0 })
                    };
                    json!({ "name": container.name, "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                        "state": { "terminated": ended } })
                };
                let spec = judge.spec.as_ref().expect("a spec");
                let before: Vec<_> = spec.init_containers.iter().flatten().map(container).collect();
                let containers: Vec<_> = spec.containers.iter().map(container).collect();
                let phase = if code == 0 { "Succeeded" } else { "Failed" };
                let status = json!({ "phase": phase, "initContainerStatuses": before,
                    "containerStatuses": containers });
                harness.set_pod_status(&judge, status).await;
            }
            Gate::TakesTooLong => {
                let job = run.status.as_ref().and_then(|it| it.post_run_job_name.clone());
                let job = job.expect("hooks").as_str().to_owned();
                let patch = r#"{"spec":{"activeDeadlineSeconds":1}}"#;
                let words = ["patch", "job", &job, "--type=merge", "-p", patch];
                harness.namespace.kubectl().run(&words).expect("a short time");
            }
            Gate::IsNotWaitedFor => {
                let patch = json!({ "spec": { "cancel": true } });
                let patch = Patch::Merge(&patch);
                let parameters = PatchParams::default();
                let cancelled = harness.runs().patch(name, &parameters, &patch).await;
                cancelled.expect("cancelled");
            }
        }
        let over = |it: &AgentRun| phase(it).is_some_and(Phase::is_terminal);
        let run = harness.wait_until_run(name, "over", over).await;
        harness.force_delete_pod(&judge).await;
        let status = run.status.as_ref().expect("a status");
        assert_eq!(phase(&run), Some(expected), "{name}: {:?}", status.error);
        assert_eq!(status.gate_verdict, verdict, "{name}");
        assert_eq!(status.result.as_deref(), result, "{name}");
        assert_eq!(status.error, error, "{name}");
    }
}
