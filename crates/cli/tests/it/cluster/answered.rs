//! `approvals`, `approve`, `deny` and `cancel` in a cluster, and who may.

use serde_json::json;

use super::{World, digest};
use crate::{stderr, stdout};

#[test]
fn questions_are_listed_and_answered_once() {
    let Some(world) = World::new("answers") else {
        return;
    };
    let nobody = world.says(&["approvals", "-n", world.namespace.name()]);
    assert_eq!((nobody.status.code(), stderr(&nobody)), (Some(0), "no run waits for a person\n"));
    let played = world.planned();
    played.ask("q1", &digest('1'), "shell: echo \u{1b}[2Jone");
    let listed = world.says(&["approvals", "--cluster"]);
    let text = world.plain(stdout(&listed), &played);
    let one = digest('1');
    let expected = format!(
        "    shell: echo \\u{{1b}}[2Jone\n  yes: sympozium approve SHORT-UID --action {one} [--for-the-run] --cluster -n NAMESPACE\n  \
         no:  sympozium deny SHORT-UID --action {one} --cluster -n NAMESPACE\n"
    );
    assert!(
        text.starts_with("q1 of nightly (SHORT-UID), to be answered within ") && text.ends_with(&expected),
        "{text}"
    );

    // Nothing is approved that nobody saw.
    let unseen = world.says(&["approve", "nightly", "--cluster"]);
    assert_eq!(unseen.status.code(), Some(1));
    assert!(stderr(&unseen).contains("nobody at a terminal sees what would be approved"));
    let approve = ["approve", "nightly", "--cluster", "--action", one.as_ref(), "--reason", "fine"];
    let approved = world.says(&approve);
    assert_eq!(world.plain(stdout(&approved), &played), "approved: q1 of nightly (SHORT-UID)\n");
    let status = played.decided("q1");
    assert_eq!((&status["decision"], &status["reason"]), (&json!("approved"), &json!("fine")));
    // It is decided, and waits no more.
    let again = world.says(&approve);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("error: run `nightly` waits for nobody"), "{}", stderr(&again));
    // Of a run that is over nobody is asked.
    played.ask("q2", &digest('2'), "shell: echo two");
    played.end(json!({"phase": "Cancelled"}));
    let over = world.says(&["deny", "q2", "--cluster"]);
    assert_eq!(over.status.code(), Some(1));
    assert!(stderr(&over).contains("there is no run `q2`"), "{}", stderr(&over));
}

#[test]
fn who_may_not_decide_is_told_which_role_is_missing() {
    let Some(world) = World::new("rights") else {
        return;
    };
    let played = world.planned();
    played.ask("q1", &digest('1'), "shell: echo one");
    let reads = json!([{"apiGroups": ["sympozium.ai"], "resources": ["agentruns", "toolapprovals"], "verbs": ["get", "list", "watch"]}]);
    world.write_person("bob", reads);
    let denied = world.says(&["deny", "nightly", "--kubeconfig", "bob"]);
    assert_eq!(denied.status.code(), Some(1));
    let text = stderr(&denied);
    assert!(text.contains("q1 of nightly") && text.contains("is not decided: cannot answer the question"), "{text}");
    assert!(text.contains("User \"bob\" cannot patch"), "{text}");
    assert!(text.contains("ask for the ClusterRole `sympozium-approver`"), "{text}");
    // Who may is written down as the API server knows them.
    let decides = json!([
        {"apiGroups": ["sympozium.ai"], "resources": ["agentruns", "toolapprovals"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["sympozium.ai"], "resources": ["toolapprovals/status"], "verbs": ["patch"]},
    ]);
    world.write_person("eve", decides);
    let denied = world.says(&["deny", "nightly", "--kubeconfig", "eve", "--reason", "not on a Friday"]);
    assert_eq!(denied.status.code(), Some(0), "{}", crate::shown(&denied));
    let status = played.decided("q1");
    assert_eq!((&status["decidedBy"], &status["votes"][0]["by"]), (&json!("eve"), &json!("eve")));
    // How many must say yes is in the plan, which she may not read: her yes is a vote, and decides nothing.
    played.ask("q2", &digest('2'), "shell: echo two");
    let two = digest('2');
    let approve = ["approve", "nightly", "--action", two.as_ref()];
    let noted = world.says(&[&approve[..], &["--kubeconfig", "eve"]].concat());
    assert_eq!(
        world.plain(stdout(&noted), &played),
        "noted: q2 of nightly (SHORT-UID): whether that is enough is decided by the run's plan, which you may not read\n",
        "{}",
        crate::shown(&noted)
    );
    let name = format!("toolapproval/{}", played.object("q2"));
    let status = world.kubectl.json(&["get", &name]).unwrap()["status"].take();
    assert_eq!((&status["decision"], &status["votes"][0]["by"]), (&json!(null), &json!("eve")));
    // Runs are somebody else's to see.
    world.write_person("carol", json!([]));
    let listed = world.says(&["runs", "--kubeconfig", "carol"]);
    assert_eq!(listed.status.code(), Some(1));
    let text = world.plain(stderr(&listed), &played);
    assert!(
        text.starts_with(
            "error: cannot list AgentRuns: agentruns.sympozium.ai is forbidden: User \"carol\" cannot list"
        ) && text.ends_with("--clusterrole sympozium-viewer --user YOU -n NAMESPACE\n"),
        "{text}"
    );
}

#[test]
fn a_run_is_cancelled_and_removed_by_name() {
    let Some(world) = World::new("cancel") else {
        return;
    };
    let played = world.planned();
    let goes_on = world.says(&["rm", "nightly", "--cluster"]);
    assert_eq!(goes_on.status.code(), Some(1));
    assert!(stderr(&goes_on).contains("goes on; nothing was removed"));
    assert_eq!(
        world.shown(&["cancel", "nightly", "--cluster"], &played),
        "exit code: 0\n----- stdout -----\nending nightly (SHORT-UID)\n----- stderr -----\n"
    );
    let run = world.kubectl.json(&["get", "agentrun", "nightly"]).unwrap();
    assert_eq!(run["spec"]["cancel"], true);
    played.end(json!({"phase": "Cancelled"}));
    assert_eq!(
        world.shown(&["cancel", &played.uid[..8], "--cluster"], &played),
        "exit code: 1\n----- stdout -----\n----- stderr -----\nerror: nightly (SHORT-UID) is over already: cancelled\n"
    );
    assert_eq!(
        world.shown(&["rm", "nightly", "--cluster"], &played),
        "exit code: 0\n----- stdout -----\nremoved nightly (SHORT-UID)\n----- stderr -----\n"
    );
    assert_eq!(
        world.shown(&["show", "nightly", "--cluster"], &played),
        "exit code: 1\n----- stdout -----\n----- stderr -----\nerror: there is no run `nightly` in namespace `NAMESPACE`\n\
         hint: `sympozium runs --cluster -n NAMESPACE` lists them; -n names another namespace\n"
    );
}

#[test]
fn a_cluster_that_is_not_there_is_said_so() {
    let Some(world) = World::new("nowhere") else {
        return;
    };
    world.write_kubeconfig("nowhere", |config| {
        config["clusters"][0]["cluster"]["server"] = json!("https://127.0.0.1:1");
    });
    let lost = world.says(&["runs", "--kubeconfig", "nowhere"]);
    assert_eq!(lost.status.code(), Some(1));
    let text = stderr(&lost);
    assert!(
        text.starts_with("error: cannot list AgentRuns: the cluster does not answer at https://127.0.0.1:1/"),
        "{text}"
    );
    assert!(text.contains("hint: see that `kubectl cluster-info` answers"), "{text}");
    let unknown = world.says(&["runs", "--context", "nobody"]);
    assert!(stderr(&unknown).contains("context `nobody` of the kubeconfig cannot be used"), "{}", stderr(&unknown));
    let missing = world.says(&["runs", "--kubeconfig", "missing"]);
    assert!(stderr(&missing).contains("cannot read the kubeconfig"), "{}", stderr(&missing));
}
