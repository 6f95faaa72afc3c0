//! Runs that wait, are denied, or outlive their controller.

use std::time::{Duration, Instant};

use serde_json::json;
use sympozium_api::AgentRun;
use sympozium_api::agent_run::Phase;

use super::harness::{Harness, a_run, has_pod, objects};

fn phase(run: &AgentRun) -> Option<Phase> {
    run.status.as_ref().and_then(|it| it.phase)
}

fn error(run: &AgentRun) -> String {
    let error = run.status.as_ref().and_then(|it| it.error.clone());
    error.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_come_in_any_order() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    let [agent, pack, run] = objects("early").try_into().expect("three objects");
    harness.apply(&[run]).await;
    let waiting = |run: &AgentRun| {
        let said = ("Unknown".to_owned(), "Waiting".to_owned());
        phase(run) == Some(Phase::Pending) && Harness::conditions(run).get("Admitted") == Some(&said)
    };
    let run = harness.wait_until_run("early", "waiting", waiting).await;
    assert_eq!(harness.remaining_objects(&run).await, Vec::<String>::new());
    harness.apply(&[agent, pack]).await;
    let granted = |it: &AgentRun| Harness::conditions(it).contains_key("Granted");
    harness.wait_until_run("early", "granted", granted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_has_an_end() {
    let Some(mut harness) = Harness::start().await else {
        return;
    };
    harness.restart(|it| it.resolve_timeout = Duration::from_secs(2)).await;
    harness.apply(&[a_run("never")]).await;
    let run = harness.wait_until_run("never", "denied", |it| phase(it) == Some(Phase::Failed)).await;
    assert!(error(&run).contains("denied[agent-missing]"), "{}", error(&run));
    assert_eq!(harness.remaining_objects(&run).await, Vec::<String>::new());
}

/// Where there is no agent-sandbox, a run that wants one says so; it is not made of something else.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_cannot_be_had() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    let [agent, pack, mut run] = objects("boxed").try_into().expect("three objects");
    run["spec"]["agentSandbox"] = json!({ "enabled": true });
    harness.apply(&[agent, pack, run]).await;
    let over = |it: &AgentRun| phase(it).is_some_and(Phase::is_terminal);
    let run = harness.wait_until_run("boxed", "over", over).await;
    let said = ("False".to_owned(), "Impossible".to_owned());
    assert_eq!(Harness::conditions(&run).get("Admitted"), Some(&said), "{}", error(&run));
    assert_eq!(harness.remaining_objects(&run).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pack_of_nobody_gets_no_rights() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    let floor = harness.floor();
    let patch = json!({ "spec": { "rbacPolicy": { "clusterRBACNamespaces": [] } } });
    harness.patch_floor(&floor, patch).await;
    harness.apply(&objects("strange")).await;
    let run = harness.wait_until_run("strange", "denied", |it| phase(it) == Some(Phase::Failed)).await;
    let error = error(&run);
    assert!(error.contains("the pack's author"), "{error}");
    assert_eq!(harness.remaining_objects(&run).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_comes_back_goes_on() {
    let Some(mut harness) = Harness::start().await else {
        return;
    };
    harness.apply(&objects("kept")).await;
    let run = harness.wait_until_run("kept", "a pod", has_pod).await;
    let pod = harness.pod(&run, "agent-run").await;
    harness.restart(|_| ()).await;
    harness.start_pod(&pod).await;
    harness.wait_until_run("kept", "running", |it| phase(it) == Some(Phase::Running)).await;
    harness.restart(|_| ()).await;
    let report = json!({ "finished": true, "ending": "failed", "error": "I cannot.", "reports": 1 });
    harness.report("kept", report).await;
    let run = harness.wait_until_run("kept", "failed", |it| phase(it) == Some(Phase::Failed)).await;
    assert_eq!(error(&run), "I cannot.");
    harness.force_delete_pod(&pod).await;
    let revoked = |it: &AgentRun| Harness::conditions(it).get("Revoked").is_some_and(|(status, _)| status == "True");
    harness.wait_until_run("kept", "revoked", revoked).await;
}

/// Those that neither wait nor are over.
fn going(runs: &[AgentRun]) -> Vec<String> {
    let goes_on = |run: &&AgentRun| {
        let status = run.status.as_ref();
        let has_job = status.is_some_and(|it| it.plan_digest.is_some());
        let over = status.is_some_and(|it| it.phase.is_some_and(Phase::is_terminal));
        has_job && !over
    };
    runs.iter().filter(goes_on).filter_map(|run| run.metadata.name.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_go_on_than_may() {
    const NAMES: [&str; 4] = ["q-0", "q-1", "q-2", "q-3"];
    let Some(mut harness) = Harness::start().await else {
        return;
    };
    harness.restart(|it| it.max_active_runs = 2).await;
    let [agent, pack, _] = objects("x").try_into().expect("three objects");
    harness.apply(&[agent, pack]).await;
    harness.apply(&NAMES.map(a_run)).await;
    let queued = |run: &AgentRun| {
        let said = ("Unknown".to_owned(), "Queued".to_owned());
        Harness::conditions(run).get("Admitted") == Some(&said)
    };
    for round in 0..2 {
        let names = harness
            .eventually("two go on and the rest waits", || async {
                // All as they are at one moment: one may end, and the next begin, while they are asked for one by one.
                let runs = harness.runs().list(&Default::default()).await.ok()?.items;
                let going = going(&runs);
                assert!(going.len() <= 2, "{going:?}");
                let is_waiting = |it: &&AgentRun| queued(it) && phase(it) == Some(Phase::Pending);
                let waiting = runs.iter().filter(is_waiting).count();
                (going.len() == 2 && waiting == 2 - 2 * round).then_some(going)
            })
            .await;
        for name in names {
            let run = harness.wait_until_run(&name, "a pod", has_pod).await;
            let pod = harness.pod(&run, "agent-run").await;
            let patch = json!({ "spec": { "cancel": true } });
            let patch = kube::api::Patch::Merge(&patch);
            let cancelled = harness.runs().patch(&name, &Default::default(), &patch).await;
            cancelled.expect("cancelled");
            harness.force_delete_pod(&pod).await;
        }
    }
}

/// The next in the queue is woken when a run is deleted, and does not wait until it looks by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_deleted_makes_room() {
    // Less than a queued run waits between two looks, by what starting a run takes.
    const SOON: Duration = Duration::from_secs(20);
    // A machine that is slow once is asked again; a run that nobody wakes takes longer every time.
    const ATTEMPTS: usize = 4;
    let Some(mut harness) = Harness::start().await else {
        return;
    };
    harness.restart(|it| it.max_active_runs = 1).await;
    harness.apply(&objects("run-0")).await;
    let queued = |run: &AgentRun| {
        let said = ("Unknown".to_owned(), "Queued".to_owned());
        Harness::conditions(run).get("Admitted") == Some(&said)
    };
    let mut times = Vec::new();
    for number in 0..ATTEMPTS {
        let (first, second) = (format!("run-{number}"), format!("run-{}", number + 1));
        let run = harness.wait_until_run(&first, "a pod", has_pod).await;
        let pod = harness.pod(&run, "agent-run").await;
        harness.apply(&[a_run(&second)]).await;
        harness.wait_until_run(&second, "queued", queued).await;
        let since = Instant::now();
        let deleted = harness.runs().delete(&first, &Default::default()).await;
        deleted.expect("it is deleted");
        harness.force_delete_pod(&pod).await;
        let has_begun = |it: &AgentRun| Harness::conditions(it).contains_key("Granted");
        harness.wait_until_run(&second, "begun", has_begun).await;
        times.push(since.elapsed());
        if since.elapsed() < SOON {
            return;
        }
    }
    panic!("it was not woken: {times:?}");
}

/// A skill is toggled as the guide says. The run that goes on has what it began with, whoever looks after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_skill_that_is_toggled_is_for_the_next_run() {
    let Some(mut harness) = Harness::start().await else {
        return;
    };
    harness.apply(&objects("first")).await;
    let first = harness.wait_until_run("first", "a pod", has_pod).await;
    let account = Harness::account(&first);
    let kubectl = harness.namespace.kubectl().clone();
    let toggled = r#"{"spec":{"skills":[]}}"#;
    let words = ["patch", "agent", "helper", "--type=merge", "-p", toggled];
    kubectl.run(&words).expect("it is toggled");
    harness.restart(|_| {}).await;

    let patch = json!({ "spec": { "cancel": true } });
    let patch = kube::api::Patch::Merge(&patch);
    for number in 0.. {
        assert!(number < 20, "the next runs have it still");
        let name = format!("next-{number}");
        harness.apply(&[a_run(&name)]).await;
        let next = harness.wait_until_run(&name, "a pod", has_pod).await;
        let has_skill = next.status.iter().flat_map(|status| &status.grants).any(|grant| grant.skill.is_some());
        let cancelled = harness.runs().patch(&name, &Default::default(), &patch).await;
        cancelled.expect("cancelled");
        // Watches of different kinds do not wait for each other: one run may come too early.
        if !has_skill {
            break;
        }
    }
    let now = harness.runs().get("first").await.expect("it is there");
    let made_of = |run: &AgentRun| {
        let status = run.status.as_ref().expect("a status");
        (status.plan_digest.clone(), status.grants.clone())
    };
    assert_eq!(made_of(&now), made_of(&first));
    harness.wait_for_access(&account, "list", "pods").await;
    let pod = harness.pod(&now, "agent-run").await;
    harness.start_pod(&pod).await;
    let report = json!({ "finished": true, "ending": "answered", "result": "Done.", "reports": 1 });
    harness.report("first", report).await;
    harness.force_delete_pod(&pod).await;
    let over = |it: &AgentRun| phase(it).is_some_and(Phase::is_terminal);
    let ended = harness.wait_until_run("first", "over", over).await;
    assert_eq!(phase(&ended), Some(Phase::Succeeded), "{}", error(&ended));
    harness.assert_access_lost(&ended, &account, "list", "pods").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_runs_have_their_time() {
    let Some(mut harness) = Harness::start().await else {
        return;
    };
    harness.restart(|it| it.resolve_timeout = Duration::from_secs(1)).await;
    harness.apply(&[a_run("brief")]).await;
    harness.wait_until_run("brief", "denied", |it| phase(it) == Some(Phase::Failed)).await;
    harness.restart(|it| it.retention = Some(Duration::from_secs(1))).await;
    harness
        .eventually("it is gone", || async {
            let found = harness.runs().get_opt("brief").await.ok()?;
            found.is_none().then_some(())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_runs_go() {
    let Some(mut harness) = Harness::start().await else {
        return;
    };
    harness.restart(|it| it.history_limit = 2).await;
    // An agent that names a pack that nobody may have: each of its runs is over at once.
    let [mut agent, pack, _] = objects("x").try_into().expect("three objects");
    agent["spec"]["agents"]["default"]["env"] = json!({ "LD_PRELOAD": "x" });
    harness.apply(&[agent, pack]).await;
    for number in 0..4 {
        let name = format!("old-{number}");
        harness.apply(&[a_run(&name)]).await;
        harness
            .eventually("it is over", || async {
                let run = harness.runs().get_opt(&name).await.ok()?;
                run.is_none_or(|it| phase(&it) == Some(Phase::Failed)).then_some(())
            })
            .await;
    }
    harness
        .eventually("two are left", || async {
            let runs = harness.runs().list(&Default::default()).await.ok()?;
            let names: Vec<_> = runs.iter().filter_map(|it| it.metadata.name.clone()).collect();
            (names == ["old-2", "old-3"]).then_some(())
        })
        .await;
}
