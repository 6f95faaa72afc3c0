//! What may change in a run, and who writes its status.

use super::*;

const FROZEN: &str = "a run cannot be changed, only cancelled (`cancel: true`): create a new one";
const CREATOR: &str =
    "only Sympozium itself records who created an object: leave the annotation sympozium.ai/created-by alone";

#[test]
fn a_run_stays_what_it_was_and_its_author_cannot_be_claimed() -> Result<()> {
    let Some(guarded) = Guarded::open("vap-runs")? else {
        return Ok(());
    };
    let alice = guarded.user(ALICE);
    assert_eq!(guarded.creates(ALICE, &claimed(run("r")))?, Tried::refused(CREATOR));
    let mut whole = run("r");
    whole["spec"]["volumes"] = json!([{ "name": "data", "emptyDir": {} }]);
    alice.create(&whole)?;
    let tries = |patch: &Value| {
        let patch = patch.to_string();
        Tried::of(alice.attempt(&["patch", "agentrun/r", "--type=merge", "-p", &patch])?)
    };
    for spec in [json!({ "task": "something else" }), json!({ "task": { "text": "something else" } })] {
        let tried = tries(&json!({ "spec": spec })).with_context(|| spec.to_string())?;
        assert_eq!(tried, Tried::refused(FROZEN), "{spec}");
    }
    // What the kind's own rules see, they refuse first.
    let volumes = json!({ "spec": { "volumes": [{ "name": "data", "emptyDir": { "medium": "Memory" } }] } });
    let Err(refused) = tries(&volumes) else {
        bail!("volumes were changed, or only the policy noticed");
    };
    ensure!(refused.to_string().contains(FROZEN), "{refused:#}");
    let annotations = json!({ "metadata": claimed(run("r"))["metadata"] });
    assert_eq!(tries(&annotations)?, Tried::refused(CREATOR));
    // An empty author is refused too: approvers are compared with the author.
    let nobody = json!({ "metadata": { "annotations": { "sympozium.ai/created-by": "" } } });
    assert_eq!(tries(&nobody)?, Tried::refused(CREATOR));
    let mut by_nobody = run("nobodys");
    by_nobody["metadata"]["annotations"] = nobody["metadata"]["annotations"].clone();
    assert_eq!(guarded.creates(ALICE, &by_nobody)?, Tried::refused(CREATOR));
    assert_eq!(tries(&json!({ "metadata": { "labels": { "a": "b" } } }))?, Tried::Done);
    assert_eq!(tries(&json!({ "spec": { "cancel": true } }))?, Tried::Done);
    Ok(())
}

/// Packs may be changed, and their author may not be claimed either.
#[test]
fn the_author_of_a_pack_cannot_be_claimed() -> Result<()> {
    let Some(guarded) = Guarded::open("vap-packs")? else {
        return Ok(());
    };
    let pack = |text: &str| {
        json!({
            "apiVersion": "sympozium.ai/v1alpha1", "kind": "SkillPack", "metadata": { "name": "p" },
            "spec": { "skills": [{ "name": "s", "content": text }] },
        })
    };
    assert_eq!(guarded.creates(ALICE, &claimed(pack("one")))?, Tried::refused(CREATOR));
    guarded.user(ALICE).create(&pack("one"))?;
    let printed = guarded.user(ALICE).feed(&["replace", "-f", "-"], &pack("two"))?;
    assert_eq!(Tried::of(printed)?, Tried::Done);
    Ok(())
}

#[test]
fn the_status_has_two_writers_with_fields_of_their_own() -> Result<()> {
    let Some(guarded) = Guarded::open("vap-status")? else {
        return Ok(());
    };
    guarded.user(ALICE).create(&run("r"))?;
    let tries =
        |user: &str, status: Value| patch_status(&guarded.user(user), "agentrun/r", &json!({ "status": status }));
    let nobody = "the status of a run is written by Sympozium only; to end a run set `spec.cancel`";
    assert_eq!(tries(ALICE, json!({ "phase": "Succeeded" }))?, Tried::refused(nobody));
    let of_gateway = "the gateway writes `status.report` only";
    assert_eq!(tries(GATEWAY, json!({ "phase": "Running" }))?, Tried::refused(of_gateway));
    assert_eq!(tries(CONTROLLER, json!({ "phase": "Pending" }))?, Tried::Done);

    let report = |count: u32| json!({ "report": { "reports": count, "reportedAt": "2026-01-01T10:00:00Z" } });
    let of_controller = "`status.report` is the gateway's";
    assert_eq!(tries(CONTROLLER, report(1))?, Tried::refused(of_controller));
    assert_eq!(tries(GATEWAY, report(1))?, Tried::Done);
    assert_eq!(tries(GATEWAY, report(2))?, Tried::Done);
    for status in [
        json!({ "phase": "Running", "report": { "reports": 3, "reportedAt": "2026-01-01T10:00:00Z" } }),
        json!({ "phase": null }),
        json!({ "result": "done" }),
    ] {
        assert_eq!(tries(GATEWAY, status.clone())?, Tried::refused(of_gateway), "{status}");
    }
    for status in [report(3), json!({ "report": null })] {
        assert_eq!(tries(CONTROLLER, status.clone())?, Tried::refused(of_controller), "{status}");
    }
    assert_eq!(tries(CONTROLLER, json!({ "phase": "Running" }))?, Tried::Done);
    let stored = guarded.admin().json(&["get", "agentrun/r"])?;
    assert_eq!(stored["status"]["phase"], "Running");
    assert_eq!(stored["status"]["report"]["reports"], 2);
    Ok(())
}
