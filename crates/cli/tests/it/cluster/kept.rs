//! `runs`, `show`, `logs` and `audit` of what is kept in a cluster.

use serde_json::{Value, json};

use super::{Played, World, acted, modelled, over};
use crate::{stderr, stdout};

/// A run that is over, in two reports.
fn ended(world: &World) -> Played {
    let mut played = world.planned();
    played.report(&[json!({"kind": "task", "task": "Look around."})], vec![modelled(0)], "working");
    let mut receipts = acted(1);
    receipts.push(over());
    let said = json!({"kind": "end", "answer": "Done\u{1b}[2J."});
    played.report(&[said], receipts, "ended");
    played.end(json!({
        "phase": "Succeeded", "result": "Done\u{1b}[2J.",
        "isolation": [{"part": "agent", "profile": "container", "guarantees": ["filesystem", "network"]}],
        "failedContainers": [{"name": "ipc-bridge", "reason": "Error", "exitCode": 1, "logTail": "one\ntwo\u{9b}\n"}],
    }));
    played
}

#[test]
fn a_run_that_is_over_is_shown_as_one_of_this_machine() {
    let Some(world) = World::new("kept") else {
        return;
    };
    let played = ended(&world);
    let listed = world.says(&["runs", "--cluster", "-o", "json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed[0]["name"], "nightly");
    assert_eq!((&listed[0]["state"], &listed[0]["uid"]), (&json!("succeeded"), &json!(played.uid)));
    let text = world.says(&["runs", "--cluster"]);
    assert!(stdout(&text).starts_with("NAME     UID       AGENT   MODEL          STATE      AGE"), "{}", stdout(&text));

    let shown = world.shown(&["show", &played.uid[..8], "--cluster"], &played);
    for line in [
        "run        nightly\n",
        "state      succeeded: it has an answer\n",
        "agent      worker in namespace NAMESPACE\n",
        "model      openai/gpt-4o\n",
        "pod        nightly-pod\n",
        "TASK\n  Look around.\n",
        "ANSWER\n  Done\\u{1b}[2J.\n",
        "agent (container): enforced: filesystem, network\n",
        "what was done: sympozium audit nightly --cluster -n NAMESPACE\n",
    ] {
        assert!(shown.contains(line), "{line:?} is not in {shown}");
    }
    let object = world.says(&["show", "nightly", "--cluster", "-o", "json"]);
    let object: Value = serde_json::from_slice(&object.stdout).unwrap();
    assert_eq!(object["outcome"], json!({"is": "succeeded", "answer": "Done\u{1b}[2J."}));
    assert_eq!((&object["leftovers"], &object["plan"]), (&json!([]), &json!(played.plan)));

    let logs = world.shown(&["logs", "nightly", "--cluster"], &played);
    assert_eq!(
        logs,
        "exit code: 0\n----- stdout -----\ntask:\n  Look around.\nanswer:\n  Done\\u{1b}[2J.\n----- stderr -----\n\
         the run is over: succeeded\n"
    );
    let followed = world.shown(&["logs", "-f", "nightly", "--cluster"], &played);
    assert_eq!(followed, logs);
    // The pod is gone: the ends of logs are in the status.
    assert_eq!(
        world.shown(&["logs", "nightly", "--part", "bridge", "--cluster"], &played),
        "exit code: 0\n----- stdout -----\none\ntwo\\u{9b}\n----- stderr -----\n\
         the pod is gone; this is the end of the log, as the run's status keeps it\n"
    );
    let other = world.says(&["logs", "nightly", "--part", "agent", "--cluster"]);
    assert_eq!(other.status.code(), Some(1));
    assert!(stderr(&other).contains("of part `agent` no log was kept; it was of ipc-bridge"), "{}", stderr(&other));
}

#[test]
fn receipts_are_verified_to_the_reported_head() {
    let Some(world) = World::new("audit") else {
        return;
    };
    let played = ended(&world);
    let head = played.chain.head().clone();
    let whole = format!("ok: nightly (SHORT-UID): 4 receipts, head {head}\n");
    assert_eq!(
        world.shown(&["audit", "verify", "nightly", "--cluster"], &played),
        format!("exit code: 0\n----- stdout -----\n{whole}----- stderr -----\n")
    );
    assert_eq!(
        world.shown(&["audit", "verify", "--all", "--cluster"], &played),
        format!("exit code: 0\n----- stdout -----\n{whole}----- stderr -----\n")
    );
    let printed = world.says(&["audit", "nightly", "--cluster"]);
    assert_eq!((printed.status.code(), stdout(&printed).lines().count()), (Some(0), 4), "{}", crate::shown(&printed));
    assert_eq!(world.plain(stderr(&printed), &played), whole);
    let lines = world.says(&["audit", "nightly", "--cluster", "-o", "jsonl"]);
    assert_eq!(stdout(&lines).lines().count(), 4);

    // The last piece is taken away: what is missing is told.
    let last = played.object("r1");
    let second = world.kubectl.json(&["get", "runrecord", &last]).unwrap();
    world.kubectl.run(&["delete", "runrecord", &last]).unwrap();
    let cut = world.says(&["audit", "verify", "nightly", "--cluster"]);
    assert_eq!(cut.status.code(), Some(1));
    assert_eq!(
        world.plain(stdout(&cut), &played),
        "broken: nightly (SHORT-UID): RunRecords: line 2: it is missing: there are 1 receipts, and 4 were reported\n"
    );
    // Another in its place, as somebody would have to make it: the chain does not hold.
    let mut forged = second;
    let line = forged["spec"]["lines"][1].as_str().unwrap().replace("\"code\":0", "\"code\":1");
    forged["spec"]["lines"][1] = json!(line);
    forged["metadata"] = played.metadata(&last);
    world.kubectl.create(&forged).unwrap();
    let broken = world.says(&["audit", "verify", "nightly", "--cluster"]);
    assert_eq!(broken.status.code(), Some(1));
    assert!(stdout(&broken).contains("line 4: "), "{}", stdout(&broken));
    // One under another name is none of the run's.
    forged["metadata"] = played.metadata("something-else");
    world.kubectl.create(&forged).unwrap();
    let same = world.says(&["audit", "verify", "nightly", "--cluster"]);
    assert_eq!(stdout(&same), stdout(&broken));
}
