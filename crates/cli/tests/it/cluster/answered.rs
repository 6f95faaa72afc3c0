//! `approvals`, `approve`, `deny` and `cancel` in a cluster, and the permissions that they need.

use serde_json::json;

use super::{Harness, digest};
use crate::{stderr, stdout};

#[test]
fn questions_are_listed_and_answered_once() {
    let Some(harness) = Harness::new("answers") else {
        return;
    };
    let none = harness.sympozium(&["approvals", "-n", harness.namespace.name()]);
    assert_eq!((none.status.code(), stderr(&none)), (Some(0), "there are no pending questions\n"));
    let simulated = harness.planned();
    simulated.ask("q1", &digest('1'), "shell: echo \u{1b}[2Jone");
    let listed = harness.sympozium(&["approvals", "--cluster"]);
    let text = harness.redact(stdout(&listed), &simulated);
    let one = digest('1');
    let expected = format!(
        "    shell: echo \\u{{1b}}[2Jone\n  to approve: sympozium approve SHORT-UID --action {one} [--for-the-run] --cluster -n NAMESPACE\n  \
         to deny:    sympozium deny SHORT-UID --action {one} --cluster -n NAMESPACE\n"
    );
    assert!(text.starts_with("q1 of nightly (SHORT-UID), expires in ") && text.ends_with(&expected), "{text}");

    // An action that was not shown is not approved.
    let unseen = harness.sympozium(&["approve", "nightly", "--cluster"]);
    assert_eq!(unseen.status.code(), Some(1));
    assert!(stderr(&unseen).contains("without a terminal, the action cannot be shown"));
    let approve = ["approve", "nightly", "--cluster", "--action", one.as_ref(), "--reason", "fine"];
    let approved = harness.sympozium(&approve);
    assert_eq!(harness.redact(stdout(&approved), &simulated), "approved: q1 of nightly (SHORT-UID)\n");
    let status = simulated.decided("q1");
    assert_eq!((&status["decision"], &status["reason"]), (&json!("approved"), &json!("fine")));
    // It is decided, and no longer pending.
    let again = harness.sympozium(&approve);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("error: run `nightly` has no pending question"), "{}", stderr(&again));
    // A question of a run that has ended cannot be decided.
    simulated.ask("q2", &digest('2'), "shell: echo two");
    simulated.end(json!({"phase": "Cancelled"}));
    let over = harness.sympozium(&["deny", "q2", "--cluster"]);
    assert_eq!(over.status.code(), Some(1));
    assert!(stderr(&over).contains("there is no run `q2`"), "{}", stderr(&over));
}

#[test]
fn a_forbidden_vote_names_the_missing_role() {
    let Some(harness) = Harness::new("rights") else {
        return;
    };
    let simulated = harness.planned();
    simulated.ask("q1", &digest('1'), "shell: echo one");
    let reads = json!([{"apiGroups": ["sympozium.ai"], "resources": ["agentruns", "toolapprovals"], "verbs": ["get", "list", "watch"]}]);
    harness.write_user("bob", reads);
    let denied = harness.sympozium(&["deny", "nightly", "--kubeconfig", "bob"]);
    assert_eq!(denied.status.code(), Some(1));
    let text = stderr(&denied);
    assert!(text.contains("q1 of nightly") && text.contains("was refused: cannot vote on the question"), "{text}");
    assert!(text.contains("User \"bob\" cannot patch"), "{text}");
    assert!(text.contains("ask for the ClusterRole `sympozium-approver`"), "{text}");
    // The vote has the name under which the API server authenticates the approver.
    let decides = json!([
        {"apiGroups": ["sympozium.ai"], "resources": ["agentruns", "toolapprovals"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["sympozium.ai"], "resources": ["toolapprovals/status"], "verbs": ["patch"]},
    ]);
    harness.write_user("eve", decides);
    let denied = harness.sympozium(&["deny", "nightly", "--kubeconfig", "eve", "--reason", "not on a Friday"]);
    assert_eq!(denied.status.code(), Some(0), "{}", crate::format_output(&denied));
    let status = simulated.decided("q1");
    assert_eq!((&status["decidedBy"], &status["votes"][0]["by"]), (&json!("eve"), &json!("eve")));
    // The number of required approvals is in the plan, which she may not read: her vote alone decides nothing.
    simulated.ask("q2", &digest('2'), "shell: echo two");
    let two = digest('2');
    let approve = ["approve", "nightly", "--action", two.as_ref()];
    let recorded = harness.sympozium(&[&approve[..], &["--kubeconfig", "eve"]].concat());
    assert_eq!(
        harness.redact(stdout(&recorded), &simulated),
        "recorded: q2 of nightly (SHORT-UID): you cannot read the run's plan, which has the number of required approvals\n",
        "{}",
        crate::format_output(&recorded)
    );
    let name = format!("toolapproval/{}", simulated.object("q2"));
    let status = harness.kubectl.json(&["get", &name]).unwrap()["status"].take();
    assert_eq!((&status["decision"], &status["votes"][0]["by"]), (&json!(null), &json!("eve")));
    // A user without permissions cannot list runs.
    harness.write_user("carol", json!([]));
    let listed = harness.sympozium(&["runs", "--kubeconfig", "carol"]);
    assert_eq!(listed.status.code(), Some(1));
    let text = harness.redact(stderr(&listed), &simulated);
    assert!(
        text.starts_with(
            "error: cannot list AgentRuns: agentruns.sympozium.ai is forbidden: User \"carol\" cannot list"
        ) && text.ends_with("--clusterrole sympozium-viewer --user YOU -n NAMESPACE\n"),
        "{text}"
    );
}

#[test]
fn a_run_is_cancelled_and_removed_by_name() {
    let Some(harness) = Harness::new("cancel") else {
        return;
    };
    let simulated = harness.planned();
    let running = harness.sympozium(&["rm", "nightly", "--cluster"]);
    assert_eq!(running.status.code(), Some(1));
    assert!(stderr(&running).contains("is still running; nothing was removed"));
    assert_eq!(
        harness.snapshot(&["cancel", "nightly", "--cluster"], &simulated),
        "exit code: 0\n----- stdout -----\ncancelling nightly (SHORT-UID)\n----- stderr -----\n"
    );
    let run = harness.kubectl.json(&["get", "agentrun", "nightly"]).unwrap();
    assert_eq!(run["spec"]["cancel"], true);
    simulated.end(json!({"phase": "Cancelled"}));
    assert_eq!(
        harness.snapshot(&["cancel", &simulated.uid[..8], "--cluster"], &simulated),
        "exit code: 1\n----- stdout -----\n----- stderr -----\nerror: nightly (SHORT-UID) has already ended: cancelled\n"
    );
    assert_eq!(
        harness.snapshot(&["rm", "nightly", "--cluster"], &simulated),
        "exit code: 0\n----- stdout -----\nremoved nightly (SHORT-UID)\n----- stderr -----\n"
    );
    assert_eq!(
        harness.snapshot(&["show", "nightly", "--cluster"], &simulated),
        "exit code: 1\n----- stdout -----\n----- stderr -----\nerror: there is no run `nightly` in namespace `NAMESPACE`\n\
         hint: `sympozium runs --cluster -n NAMESPACE` lists the runs; -n selects another namespace\n"
    );
}

#[test]
fn an_unreachable_cluster_is_an_error_with_a_hint() {
    let Some(harness) = Harness::new("nowhere") else {
        return;
    };
    harness.write_kubeconfig("nowhere", |config| {
        config["clusters"][0]["cluster"]["server"] = json!("https://127.0.0.1:1");
    });
    let lost = harness.sympozium(&["runs", "--kubeconfig", "nowhere"]);
    assert_eq!(lost.status.code(), Some(1));
    let text = stderr(&lost);
    assert!(
        text.starts_with("error: cannot list AgentRuns: cannot reach the API server at https://127.0.0.1:1/"),
        "{text}"
    );
    assert!(text.contains("hint: check that `kubectl cluster-info` succeeds"), "{text}");
    let unknown = harness.sympozium(&["runs", "--context", "nobody"]);
    assert!(stderr(&unknown).contains("cannot use context `nobody` of the kubeconfig"), "{}", stderr(&unknown));
    let missing = harness.sympozium(&["runs", "--kubeconfig", "missing"]);
    assert!(stderr(&missing).contains("cannot read the kubeconfig"), "{}", stderr(&missing));
}
