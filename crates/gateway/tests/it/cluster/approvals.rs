//! Questions to people, decided through the status of a ToolApproval.

use std::time::Duration;

use serde_json::{Value, json};
use sympozium_api::policy::{Approver, ApproverKind};
use sympozium_ipc::run_api::path;
use sympozium_testkit::daemon::Daemon;
use sympozium_testkit::{growing, wait_until};

use super::{ClusterHarness, Run, blocking, probe};
use crate::harness::TIMEOUT;
use crate::run_api::{Client, hash, question};

/// A question that is put, and its object.
struct Put {
    answer: tokio::task::JoinHandle<(u16, Value)>,
    object: String,
}

async fn put(harness: &ClusterHarness, run: &Run, bridge: &Client, name: &str) -> Put {
    let (bridge, asked) = (bridge.clone(), question(name));
    let answer = tokio::spawn(async move { bridge.post(path::APPROVALS, &asked).await });
    let object = run.name(name);
    let there = || harness.list("toolapprovals").iter().any(|it| it["metadata"]["name"] == object[..]);
    assert!(blocking(|| wait_until(TIMEOUT, there)), "{object}");
    Put { answer, object }
}

fn decided(decision: &str, by: &str) -> Value {
    json!({
        "decision": decision, "decidedBy": by, "decidedAt": "2026-01-01T00:00:00Z",
        "reason": "because", "scope": "run",
    })
}

fn vote(by: &str, groups: &[&str]) -> Value {
    json!({ "by": by, "decision": "approved", "at": "2026-01-01T00:00:00Z", "groups": groups })
}

fn answer(name: &str, decision: &str, more: Value) -> (u16, Value) {
    let mut answer = json!({
        "approval": name, "action": hash("0"), "decision": decision, "forTheRun": false,
    });
    for (field, value) in more.as_object().expect("fields") {
        answer[field] = value.clone();
    }
    (200, answer)
}

async fn ended(put: Put) -> (u16, Value) {
    let answer = tokio::time::timeout(TIMEOUT, put.answer).await;
    answer.expect("in time").expect("an answer")
}

async fn harness(label: &str) -> Option<(ClusterHarness, Daemon)> {
    let harness = ClusterHarness::open(label)?;
    let gateway = harness.gateway("gateway");
    Some((harness, gateway))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_people_decide() {
    let Some((harness, gateway)) = harness("approvals").await else {
        return;
    };
    let run = harness.run("one", |plan| plan.approval.run_scope = true);
    let bridge = harness.served(&gateway, &run).await;

    let yes = put(&harness, &run, &bridge, "yes").await;
    let object = harness.get("toolapproval", &yes.object);
    let uid = run.plan.run.uid.as_str();
    assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], uid);
    let mut spec = object["spec"].clone();
    let fields = spec.as_object_mut().expect("a spec");
    let times = (fields.remove("requestedAt"), fields.remove("expiresAt"));
    assert!(times.0.is_some() && times.1.is_some());
    assert_eq!(
        spec,
        json!({
            "run": { "name": "one", "uid": uid }, "tool": "execute_command", "pack": "cluster",
            "actionHash": hash("0"), "summary": "shell: ls",
        })
    );
    assert!(probe(&gateway, "/metrics").1.contains("approvals_waiting 1"));
    harness.set_status("toolapproval", &yes.object, &decided("approved", "jo"));
    let expected = answer("yes", "approved", json!({ "by": "jo", "reason": "because", "forTheRun": true }));
    assert_eq!(ended(yes).await, expected);

    let no = put(&harness, &run, &bridge, "no").await;
    harness.set_status("toolapproval", &no.object, &decided("denied", "al"));
    let expected = answer("no", "denied", json!({ "by": "al", "reason": "because" }));
    assert_eq!(ended(no).await, expected);

    let mut expired = None;
    for time in growing(Duration::from_secs(1)) {
        let name = format!("late{}", time.as_secs());
        let mut late = question(&name);
        late["waitSeconds"] = json!(time.as_secs());
        assert_eq!(bridge.post(path::APPROVALS, &late).await, answer(&name, "expired", json!({})));
        // The API server may have taken longer than that to make the object, or not have made it at all.
        if harness.list("toolapprovals").iter().any(|it| it["metadata"]["name"] == run.name(&name)[..]) {
            expired = Some((name, late));
            break;
        }
    }
    let (name, late) = expired.expect("a question that was put in time");
    // What is said after that changes nothing, also where the gateway has forgotten that it asked.
    harness.set_status("toolapproval", &run.name(&name), &decided("approved", "jo"));
    let second = harness.gateway("second");
    let other = harness.served(&second, &run).await;
    assert_eq!(other.post(path::APPROVALS, &late).await, answer(&name, "expired", json!({})));

    // Put to one gateway and, after the connection was lost, to another: one question, and one answer for both.
    let twice = put(&harness, &run, &bridge, "twice").await;
    let again = put(&harness, &run, &other, "twice").await;
    harness.set_status("toolapproval", &twice.object, &decided("approved", "jo"));
    let expected = answer("twice", "approved", json!({ "by": "jo", "reason": "because", "forTheRun": true }));
    assert_eq!(ended(twice).await, expected);
    assert_eq!(ended(again).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rule_of_the_plan_is_kept() {
    let Some((harness, gateway)) = harness("rules").await else {
        return;
    };
    let named = |kind, name: &str| Approver { kind, name: name.to_owned() };
    let run = harness.run("two", |plan| {
        plan.approval.required = 2;
        plan.approval.approvers = Some(vec![named(ApproverKind::User, "jo"), named(ApproverKind::Group, "sre")]);
    });
    let bridge = harness.served(&gateway, &run).await;
    let asked = put(&harness, &run, &bridge, "q").await;
    // One of those who may, twice; one who may not; and one who is in the group.
    let votes = json!({ "votes": [vote("jo", &[]), vote("x", &["dev"])] });
    harness.set_status("toolapproval", &asked.object, &votes);
    let mut both = decided("approved", "jo");
    both["votes"] = votes["votes"].clone();
    harness.set_status("toolapproval", &asked.object, &both);
    let votes = json!({ "votes": [vote("jo", &[]), vote("x", &["dev"]), vote("al", &["sre"])] });
    harness.set_status("toolapproval", &asked.object, &votes);
    let (status, said) = ended(asked).await;
    assert_eq!((status, &said["decision"], &said["by"]), (200, &json!("approved"), &json!("al, jo")));
    // The plan does not permit it for the run, whatever they say.
    assert_eq!(said["forTheRun"], false);

    let asked = put(&harness, &run, &bridge, "r").await;
    harness.set_status("toolapproval", &asked.object, &decided("approved", "x"));
    let (_, said) = ended(asked).await;
    let reason = "x approved, but the policy of this run does not name them as an approver";
    assert_eq!((&said["decision"], &said["reason"]), (&json!("denied"), &json!(reason)));

    // Its author was not recorded, so no approver can be distinguished from the author.
    let run = harness.run("author", |plan| plan.approval.run_author = false);
    let bridge = harness.served(&gateway, &run).await;
    let (_, said) = bridge.post(path::APPROVALS, &question("q")).await;
    assert_eq!(said["decision"], "denied");
    assert!(said["reason"].as_str().is_some_and(|it| it.contains("who started it was not recorded")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_another_user_does_not_count() {
    let Some((harness, gateway)) = harness("forged").await else {
        return;
    };
    let run = harness.run("one", |_| {});
    let bridge = harness.served(&gateway, &run).await;
    let forged = |name: &str, digit: &str| {
        harness.create(&json!({
            "apiVersion": "sympozium.ai/v1alpha1", "kind": "ToolApproval",
            "metadata": { "name": run.name(name) },
            "spec": {
                "run": { "name": "one", "uid": run.plan.run.uid },
                "tool": "execute_command", "pack": "cluster", "actionHash": hash(digit),
                "summary": "shell: ls",
                "requestedAt": "2026-01-01T00:00:00Z", "expiresAt": "2099-01-01T00:00:00Z",
            },
        }));
        harness.set_status("toolapproval", &run.name(name), &decided("approved", "jo"));
    };
    // A yes that waits for the question, and is about something else.
    forged("before", "1");
    let (status, refusal) = bridge.post(path::APPROVALS, &question("before")).await;
    assert_eq!((status, &refusal["code"]), (403, &json!("denied")));

    // The question is taken away, and another put in its place.
    let asked = put(&harness, &run, &bridge, "after").await;
    harness.kubectl(&["delete", "toolapproval", &asked.object]);
    forged("after", "0");
    let (status, said) = ended(asked).await;
    assert_eq!((status, &said["decision"]), (200, &json!("denied")));
    let reason = "the request for approval was deleted, or replaced by another";
    assert_eq!(said["reason"], reason);
}
