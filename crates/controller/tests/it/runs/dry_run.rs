//! Runs with `dryRun`: planned, and nothing else.

use serde_json::json;
use sympozium_api::AgentRun;
use sympozium_api::agent_run::Phase;

use super::harness::{Harness, a_run, objects};

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_has_a_plan_and_nothing_of_it_is_made() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    harness.apply(&objects("x")[..2]).await;
    let mut run = a_run("planned");
    run["spec"]["dryRun"] = json!(true);
    harness.apply(&[run]).await;
    let phase = |run: &AgentRun| run.status.as_ref().and_then(|status| status.phase);
    let over = |it: &AgentRun| phase(it).is_some_and(Phase::is_terminal);
    let run = harness.wait_until_run("planned", "over", over).await;
    let status = run.status.as_ref().expect("a status");
    assert_eq!(status.phase, Some(Phase::Skipped), "{:?}", status.error);
    assert!(status.plan_digest.is_some());
    let resolved: Vec<&str> = status.resolved.iter().map(|it| it.kind.as_str()).collect();
    assert!(resolved.contains(&"Agent") && resolved.contains(&"SkillPack"), "{resolved:?}");
    assert_eq!((&status.pod_name, &status.job_name), (&None, &None));
    assert_eq!((&status.started_at, &status.granted_at), (&None, &None));
    assert!(status.grants.is_empty(), "{:?}", status.grants);
    let admitted = Harness::conditions(&run).get("Admitted").cloned();
    assert_eq!(admitted.map(|it| it.0).as_deref(), Some("True"));
    // The plan stays to be looked at, as that of every run does.
    let left = harness.remaining_objects(&run).await;
    let others: Vec<_> = left.iter().filter(|it| !it.starts_with("configmap/")).collect();
    assert_eq!(others, Vec::<&String>::new());
    assert_eq!(left.len(), 1, "{left:?}");

    // A dry run is denied as any other.
    let mut denied = a_run("denied");
    denied["spec"]["dryRun"] = json!(true);
    denied["spec"]["mode"] = json!("server");
    harness.apply(&[denied]).await;
    let run = harness.wait_until_run("denied", "over", over).await;
    let error = run.status.as_ref().and_then(|it| it.error.clone());
    let error = error.unwrap_or_default();
    assert_eq!(phase(&run), Some(Phase::Failed));
    assert!(error.contains("denied[server-mode-unserved]"), "{error}");
}
