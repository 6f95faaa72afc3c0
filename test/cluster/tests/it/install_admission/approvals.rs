//! Who votes, and who writes down what runs did.

use super::*;

const TIME: &str = "2026-01-01T10:00:00Z";
const NOT_YOUR_VOTE: &str = "a vote must have your own name in `by`, as the API server knows you";
const NOT_YOUR_DECISION: &str = "`decidedBy` must be your own name, as the API server knows you";
const GIVEN: &str = "a vote that was given cannot be changed or removed";
const NOT_A_PERSON: &str = "neither a skill nor a program of Sympozium's own decides about a run";

fn request(name: &str) -> Value {
    json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "ToolApproval", "metadata": { "name": name },
        "spec": {
            "run": { "name": "a-run", "uid": "0c8d5f0e-7a3b-4c1d-9e2f-60718293a4b5" },
            "tool": "scale_workload", "actionHash": format!("sha256:{}", "1".repeat(64)), "summary": "scale",
            "requestedAt": TIME, "expiresAt": "2026-01-01T11:00:00Z",
        },
    })
}

fn decision(by: &str) -> Value {
    json!({ "decision": "approved", "decidedBy": by, "decidedAt": TIME })
}

fn vote(by: &str) -> Value {
    json!({ "by": by, "decision": "approved", "at": TIME })
}

fn votes(votes: &[Value]) -> Value {
    json!({ "status": { "votes": votes } })
}

/// A request without an answer.
fn open(guarded: &Guarded, name: &str) -> Result<String> {
    guarded.user(GATEWAY).create(&request(name))?;
    Ok(format!("toolapproval/{name}"))
}

#[test]
fn votes_are_in_the_name_of_the_voter() -> Result<()> {
    let Some(guarded) = Guarded::open("vap-decide")? else {
        return Ok(());
    };
    let asked = open(&guarded, "one")?;
    let status = |by: &str| json!({ "status": decision(by) });
    let tries = |user: &str, by: &str| patch_status(&guarded.user(user), &asked, &status(by));
    assert_eq!(tries(BOB, ALICE)?, Tried::refused(NOT_YOUR_DECISION));
    let skill = format!("system:serviceaccount:{}:{}", guarded.name(), skill());
    for user in [skill.as_str(), CONTROLLER, GATEWAY] {
        assert_eq!(tries(user, user)?, Tried::refused(NOT_A_PERSON), "{user}");
    }
    // Not even who may do everything.
    let admin = patch_status(guarded.admin(), &asked, &status(ALICE))?;
    assert_eq!(admin, Tried::refused(NOT_YOUR_DECISION));
    assert_eq!(tries(ALICE, ALICE)?, Tried::Done);

    let reason = json!({ "status": { "reason": "because" } });
    assert_eq!(
        patch_status(&guarded.user(BOB), &asked, &reason)?,
        Tried::refused("the reason of a decision cannot be changed")
    );
    // A vote after it says something about the voter and nothing about the decision.
    let late = votes(&[vote(BOB)]);
    assert_eq!(patch_status(&guarded.user(BOB), &asked, &late)?, Tried::Done);
    Ok(())
}

#[test]
fn votes_are_ones_own_and_stay() -> Result<()> {
    let Some(guarded) = Guarded::open("vap-votes")? else {
        return Ok(());
    };
    let asked = open(&guarded, "two")?;
    let tries = |user: &str, all: &[Value]| patch_status(&guarded.user(user), &asked, &votes(all));
    assert_eq!(tries(BOB, &[vote(ALICE)])?, Tried::refused(NOT_YOUR_VOTE));
    assert_eq!(tries(BOB, &[vote(BOB), vote(ALICE)])?, Tried::refused(NOT_YOUR_VOTE));
    assert_eq!(tries(ALICE, &[vote(ALICE)])?, Tried::Done);

    let mut denied = vote(ALICE);
    denied["decision"] = json!("denied");
    for user in [ALICE, BOB] {
        assert_eq!(tries(user, &[])?, Tried::refused(GIVEN));
        assert_eq!(tries(user, std::slice::from_ref(&denied))?, Tried::refused(GIVEN));
    }
    assert_eq!(tries(BOB, &[vote(BOB)])?, Tried::refused(GIVEN));
    assert_eq!(tries(BOB, &[vote(ALICE), vote(BOB)])?, Tried::Done);
    let all = guarded.admin().json(&["get", &asked])?;
    assert_eq!(all["status"]["votes"], json!([vote(ALICE), vote(BOB)]));
    Ok(())
}

/// Where a policy names groups as approvers, a vote says in whose name it is given; the API server knows who is in them.
#[test]
fn a_vote_names_groups_that_the_voter_is_in() -> Result<()> {
    let Some(guarded) = Guarded::open("vap-groups")? else {
        return Ok(());
    };
    let asked = open(&guarded, "three")?;
    let with_groups = |by: &str, groups: &[&str]| {
        let mut vote = vote(by);
        vote["groups"] = json!(groups);
        vote
    };
    let bob = guarded.user(BOB).in_group("sre");
    let not_in = Tried::refused("a vote may name only groups in `groups` that you are in");
    for groups in [&["owners"][..], &["sre", "owners"]] {
        let wanted = votes(&[with_groups(BOB, groups)]);
        assert_eq!(patch_status(&bob, &asked, &wanted)?, not_in, "{groups:?}");
    }
    let wanted = votes(&[with_groups(BOB, &["sre"])]);
    assert_eq!(patch_status(&bob, &asked, &wanted)?, Tried::Done);
    // The next voter need not be in the groups of the earlier ones.
    let both = votes(&[with_groups(BOB, &["sre"]), vote(ALICE)]);
    assert_eq!(patch_status(&guarded.user(ALICE), &asked, &both)?, Tried::Done);
    Ok(())
}

#[test]
fn records_and_requests_are_the_gateways() -> Result<()> {
    let Some(guarded) = Guarded::open("vap-records")? else {
        return Ok(());
    };
    let only = "only the gateway makes records and requests for approval, and no client changes a record";
    for object in [request("r"), record("r")] {
        for user in [ALICE, CONTROLLER] {
            let tried = guarded.creates(user, &object)?;
            assert_eq!(tried, Tried::refused(only), "{user}");
        }
        assert_eq!(guarded.creates(GATEWAY, &object)?, Tried::Done);
    }
    guarded.user(GATEWAY).create(&record("kept"))?;
    for user in [ALICE, GATEWAY] {
        let change = ["label", "runrecord/kept", "a=b"];
        let tried = Tried::of(guarded.user(user).attempt(&change)?)?;
        assert_eq!(tried, Tried::refused(only), "{user}");
    }
    guarded.user(ALICE).run(&["delete", "runrecord/kept"])?;
    Ok(())
}
