//! Every way in which a run ends.

use std::sync::Arc;

use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use sympozium_api::agent_run::{CostSource, Phase};
use sympozium_plan::prices::Prices;

use super::harness::{Harness, a_run, has_pod, objects};

fn phase(run: &sympozium_api::AgentRun) -> Option<Phase> {
    run.status.as_ref().and_then(|it| it.phase)
}

/// What a bridge reports of a run that asked its model once.
fn answered(result: &str) -> Value {
    let usage = json!({ "inputTokens": 40, "outputTokens": 2, "totalTokens": 42, "toolCalls": 0,
        "modelRequests": 1, "durationMs": 10 });
    json!({ "finished": true, "ending": "answered", "result": result, "reports": 1, "tokenUsage": usage })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    harness.apply(&objects("one")).await;
    let run = harness.wait_until_run("one", "granted", |it| Harness::conditions(it).contains_key("Granted")).await;
    let pod = harness.pod(&run, "agent-run").await;
    let run = harness.wait_until_run("one", "a pod", has_pod).await;
    let status = run.status.as_ref().expect("a status");
    assert_eq!(status.pod_uid.as_ref().map(ToString::to_string), pod.uid());
    harness.start_pod(&pod).await;
    harness.wait_until_run("one", "running", |it| phase(it) == Some(Phase::Running)).await;
    let account = Harness::account(&run);
    harness.wait_for_access(&account, "list", "pods").await;
    harness.wait_for_access(&account, "list", "nodes").await;
    assert!(!harness.has_access(&account, "list", "secrets").await);

    harness.report("one", answered("It is fine.")).await;
    harness.wait_until_run("one", "over", |it| phase(it) == Some(Phase::Succeeded)).await;
    harness.assert_access_lost(&run, &account, "list", "pods").await;
    harness.assert_access_lost(&run, &account, "list", "nodes").await;
    harness.force_delete_pod(&pod).await;
    let run = harness
        .wait_until_run("one", "revoked", |run| {
            Harness::conditions(run).get("Revoked").is_some_and(|(status, _)| status == "True")
        })
        .await;
    let status = run.status.as_ref().expect("a status");
    assert_eq!(status.result.as_deref(), Some("It is fine."));
    assert!(status.started_at.is_some() && status.completed_at.is_some());
    // Its tokens were counted. Without a table of prices nothing is said about what they cost.
    let usage = status.token_usage.as_ref();
    assert_eq!(usage.map(|it| it.total_tokens), Some(42));
    assert_eq!(status.cost_estimate, None);
    // What it was made of, so that nobody has to guess: kind, namespace, UID, and the digest of what it said.
    let resolved: Vec<_> =
        status.resolved.iter().map(|it| format!("{} {} {}", it.kind, it.namespace, it.name)).collect();
    let (here, system) = (harness.namespace.name(), harness.system.name());
    for expected in
        [format!("Agent {here} helper"), format!("SkillPack {here} reader"), format!("SympoziumPolicy {system} floor")]
    {
        assert!(resolved.contains(&expected), "{expected} in {resolved:?}");
    }
    assert!(status.granted_at.is_some() && status.revoked_at.is_some());
    let run = harness.wait_until_run("one", "let go", |it| it.finalizers().is_empty()).await;
    let left = harness.remaining_objects(&run).await;
    assert!(left.iter().all(|it| it.ends_with("-plan")), "{left:?}");
    assert_eq!(left.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_has_its_cost() {
    let Some(mut harness) = Harness::start().await else {
        return;
    };
    let table = r#"{"currency": "USD", "models": {"*": {"input": 1, "output": 2}}}"#;
    let prices = Arc::new(Prices::parse(table).expect("a table"));
    harness.restart(|it| it.prices = Some(prices)).await;
    let [agent, pack, _] = objects("x").try_into().expect("three objects");
    harness.apply(&[agent, pack]).await;
    let mut hooked = a_run("hooked");
    hooked["spec"]["lifecycle"] =
        json!({ "postRun": [{ "name": "after", "image": "example.org/after:1", "command": ["true"] }] });
    for (name, run) in [("plain", a_run("plain")), ("hooked", hooked)] {
        harness.apply(&[run]).await;
        let run = harness.wait_until_run(name, "a pod", has_pod).await;
        let pod = harness.pod(&run, "agent-run").await;
        harness.start_pod(&pod).await;
        harness.report(name, answered("Done.")).await;
        harness.force_delete_pod(&pod).await;
        if name == "hooked" {
            let after = harness.pod(&run, "post-run").await;
            harness.complete_pod(&after).await;
        }
        let over = |it: &sympozium_api::AgentRun| phase(it).is_some_and(Phase::is_terminal);
        let run = harness.wait_until_run(name, "over", over).await;
        let status = run.status.as_ref().expect("a status");
        assert_eq!(status.phase, Some(Phase::Succeeded), "{name}: {:?}", status.error);
        let cost = status.cost_estimate.as_ref().expect("a cost");
        let parts = (cost.input_amount_micro, cost.output_amount_micro);
        assert_eq!((cost.amount_micro, parts), (44, (Some(40), Some(4))), "{name}");
        assert_eq!(cost.currency, "USD", "{name}");
        assert_eq!(cost.price_key.as_deref(), Some("*"), "{name}");
        assert_eq!(cost.source, CostSource::DefaultTable, "{name}");
        assert!(cost.estimated_at.is_some(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_begin_when_nothing_of_the_agent_is_at_work() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    let [agent, pack, mut run] = objects("hooked").try_into().expect("three objects");
    run["spec"]["lifecycle"] =
        json!({ "postRun": [{ "name": "after", "image": "example.org/after:1", "command": ["true"] }] });
    harness.apply(&[agent, pack, run]).await;
    let run = harness.wait_until_run("hooked", "a pod", has_pod).await;
    let pod = harness.pod(&run, "agent-run").await;
    harness.start_pod(&pod).await;
    // It lingers: nothing ends it but the one who says so here.
    let lingers = |finalizers| json!({ "metadata": { "finalizers": finalizers } });
    let name = pod.name_any();
    harness.patch_pod(&name, lingers(json!(["example.org/lingers"]))).await;
    let account = Harness::account(&run);
    harness.wait_for_access(&account, "list", "pods").await;
    harness.report("hooked", json!({ "finished": true, "ending": "answered", "result": "Done.", "reports": 1 })).await;
    harness.wait_until_run("hooked", "afterwards", |it| phase(it) == Some(Phase::PostRunning)).await;
    harness.assert_access_lost(&run, &account, "list", "pods").await;
    // It is told to go, and hooks wait until it has.
    harness
        .eventually("the pod is told to go", || async {
            let pod = harness.pod(&run, "agent-run").await;
            pod.metadata.deletion_timestamp.is_some().then_some(())
        })
        .await;
    let are_suspended = harness.hooks_are_suspended(&run).await;
    // Every 20 seconds the pod collector of the cluster marks deleted pods without a node as failed: that is their end, too.
    let phase = harness.pod(&run, "agent-run").await.status.and_then(|status| status.phase);
    assert!(are_suspended || phase.as_deref() == Some("Failed"));
    harness.patch_pod(&name, lingers(json!(null))).await;
    harness.eventually("hooks begin", || async { (!harness.hooks_are_suspended(&run).await).then_some(()) }).await;
}

/// A pod that somebody makes look like a run's is not waited for, and not taken for its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_somebody_else() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    harness.apply(&objects("one")).await;
    let run = harness.wait_until_run("one", "a pod", has_pod).await;
    let pod = harness.pod(&run, "agent-run").await;
    let mut forged = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "forged",
            "labels": pod.metadata.labels, "ownerReferences": pod.metadata.owner_references },
        "spec": pod.spec });
    // The right name and another object.
    forged["metadata"]["ownerReferences"][0]["uid"] = json!("00000000-0000-4000-8000-000000000000");
    forged["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = json!(false);
    forged["metadata"]["finalizers"] = json!(["example.org/stays"]);
    harness.apply(&[forged]).await;
    harness.start_pod(&pod).await;
    harness.report("one", json!({ "finished": true, "ending": "answered", "result": "Fine.", "reports": 1 })).await;
    harness.force_delete_pod(&pod).await;
    let run = harness.wait_until_run("one", "let go", |it| it.finalizers().is_empty()).await;
    assert_eq!(phase(&run), Some(Phase::Succeeded));
    let patch = json!({ "metadata": { "finalizers": null } });
    harness.patch_pod("forged", patch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_in_the_middle() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    harness.apply(&objects("gone")).await;
    let run = harness.wait_until_run("gone", "granted", |it| Harness::conditions(it).contains_key("Granted")).await;
    let pod = harness.pod(&run, "agent-run").await;
    harness.start_pod(&pod).await;
    harness.runs().delete("gone", &DeleteParams::default()).await.expect("deleted");
    // A kubelet would end it, and then say so by removing it.
    harness.force_delete_pod(&pod).await;
    harness
        .eventually("the run is gone", || async {
            let found = harness.runs().get_opt("gone").await.ok()?;
            found.is_none().then_some(())
        })
        .await;
    harness
        .eventually("nothing is left", || async { harness.remaining_objects(&run).await.is_empty().then_some(()) })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    harness.apply(&objects("stop")).await;
    let run = harness.wait_until_run("stop", "granted", |it| Harness::conditions(it).contains_key("Granted")).await;
    let pod = harness.pod(&run, "agent-run").await;
    harness.start_pod(&pod).await;
    harness.wait_until_run("stop", "running", |it| phase(it) == Some(Phase::Running)).await;
    let patch = json!({ "spec": { "cancel": true } });
    let patched = harness.runs().patch("stop", &PatchParams::default(), &Patch::Merge(&patch)).await;
    patched.expect("cancelled");
    harness.force_delete_pod(&pod).await;
    let run = harness.wait_until_run("stop", "cancelled", |it| phase(it) == Some(Phase::Cancelled)).await;
    assert_eq!(run.status.as_ref().and_then(|it| it.error.clone()), None);
    let run = harness.wait_until_run("stop", "let go", |it| it.finalizers().is_empty()).await;
    let left = harness.remaining_objects(&run).await;
    assert!(left.iter().all(|it| it.ends_with("-plan")), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_that_was_killed() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    harness.apply(&objects("crash")).await;
    let run = harness.wait_until_run("crash", "granted", |it| Harness::conditions(it).contains_key("Granted")).await;
    let pod = harness.pod(&run, "agent-run").await;
    harness.start_pod(&pod).await;
    harness.wait_until_run("crash", "running", |it| phase(it) == Some(Phase::Running)).await;
    harness.end_pod(&pod, 137).await;
    let run = harness.wait_until_run("crash", "failed", |it| phase(it) == Some(Phase::Failed)).await;
    let error = run.status.as_ref().and_then(|it| it.error.clone());
    assert_eq!(error.as_deref(), Some("container `ipc-bridge` failed: ended by signal 9"));
    harness.wait_until_run("crash", "let go", |it| it.finalizers().is_empty()).await;
}

/// Whoever may patch and delete runs cannot keep their rights: not with a finalizer of their own in the place of ours.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_under_a_finalizer_of_somebody_else() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    harness.apply(&objects("held")).await;
    let run = harness.wait_until_run("held", "a pod", has_pod).await;
    let account = Harness::account(&run);
    harness.wait_for_access(&account, "list", "nodes").await;
    let pod = harness.pod(&run, "agent-run").await;
    let finalizers = |list: serde_json::Value| {
        let patch = json!({ "metadata": { "finalizers": list } });
        let runs = harness.runs();
        async move {
            let patch = Patch::Merge(&patch);
            let patched = runs.patch("held", &PatchParams::default(), &patch).await;
            patched.expect("finalizers");
        }
    };
    finalizers(json!(["example.com/mine"])).await;
    let parameters = DeleteParams::background();
    let deleted = harness.runs().delete("held", &parameters).await;
    deleted.expect("it is deleted");
    harness
        .eventually("rights are taken", || async {
            (!harness.has_access(&account, "list", "nodes").await).then_some(())
        })
        .await;
    harness.force_delete_pod(&pod).await;
    harness
        .eventually("nothing but the plan is left", || async {
            let left = harness.remaining_objects(&run).await;
            left.iter().all(|it| it.ends_with("-plan")).then_some(())
        })
        .await;
    assert!(harness.runs().get("held").await.is_ok(), "it is held");
    finalizers(json!(null)).await;
}

/// What an account of a run may still do is found by asking, whoever let it.
#[tokio::test(flavor = "multi_thread")]
async fn rights_that_somebody_else_gave() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    let [agent, pack, _] = objects("x").try_into().expect("three objects");
    harness.apply(&[agent, pack]).await;
    for name in ["told", "gone"] {
        harness.apply(&[a_run(name)]).await;
        let run = harness.wait_until_run(name, "a pod", has_pod).await;
        let account = Harness::account(&run);
        let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" },
            "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": harness.namespace.name() }] });
        harness.apply(&[binding]).await;
        // Not a right of the run's own: the API server knows the binding before the run is looked through.
        harness.wait_for_access(&account, "list", "services").await;
        let pod = harness.pod(&run, "agent-run").await;
        harness.start_pod(&pod).await;
        let report = json!({ "finished": true, "ending": "answered", "result": "Done.", "reports": 1 });
        harness.report(name, report).await;
        harness.force_delete_pod(&pod).await;
        let remaining = ("False".to_owned(), "Remaining".to_owned());
        let told = |it: &sympozium_api::AgentRun| Harness::conditions(it).get("Revoked") == Some(&remaining);
        let run = harness.wait_until_run(name, "told of what is left", told).await;
        let check = run.status.as_ref().and_then(|it| it.revocation.clone());
        let left: Vec<_> = check.expect("a check").remaining;
        let left: Vec<_> = left.iter().map(|it| (it.kind.as_str(), it.name.as_str())).collect();
        assert_eq!(left, [("ServiceAccount", account.as_str())]);
        let kubectl = harness.namespace.kubectl().clone();
        if name == "told" {
            let taken = kubectl.run(&["delete", "rolebinding", name]);
            taken.expect("it is taken back");
            harness
                .wait_until_run(name, "revoked", |run| {
                    let revoked = Harness::conditions(run).get("Revoked").cloned();
                    revoked.is_some_and(|it| it.0 == "True") && run.finalizers().is_empty()
                })
                .await;
        } else {
            // An account that is gone keeps no run.
            let deleted = harness.runs().delete(name, &DeleteParams::default()).await;
            deleted.expect("it is deleted");
            harness
                .eventually("the run is gone", || async {
                    let found = harness.runs().get_opt(name).await.ok()?;
                    found.is_none().then_some(())
                })
                .await;
            let taken = kubectl.run(&["delete", "rolebinding", name]);
            taken.expect("it is taken back");
        }
    }
}
