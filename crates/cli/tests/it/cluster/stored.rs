//! `runs`, `show`, `logs` and `audit` of runs that have ended in a cluster.

use serde_json::{Value, json};

use super::{Harness, SimulatedRun, command_receipts, end_receipt, model_receipt};
use crate::{stderr, stdout};

/// A run that has ended after two reports.
fn ended_run(harness: &Harness) -> SimulatedRun {
    let mut simulated = harness.planned();
    simulated.report(&[json!({"kind": "task", "task": "Look around."})], vec![model_receipt(0)], "working");
    let mut receipts = command_receipts(1);
    receipts.push(end_receipt());
    let line = json!({"kind": "end", "answer": "Done\u{1b}[2J."});
    simulated.report(&[line], receipts, "ended");
    simulated.end(json!({
        "phase": "Succeeded", "result": "Done\u{1b}[2J.",
        "isolation": [{"part": "agent", "profile": "container", "guarantees": ["filesystem", "network"]}],
        "failedContainers": [{"name": "ipc-bridge", "reason": "Error", "exitCode": 1, "logTail": "one\ntwo\u{9b}\n"}],
    }));
    simulated
}

#[test]
fn a_terminal_run_is_shown_like_a_local_one() {
    let Some(harness) = Harness::new("kept") else {
        return;
    };
    let simulated = ended_run(&harness);
    let listed = harness.sympozium(&["runs", "--cluster", "-o", "json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed[0]["name"], "nightly");
    assert_eq!((&listed[0]["state"], &listed[0]["uid"]), (&json!("succeeded"), &json!(simulated.uid)));
    let text = harness.sympozium(&["runs", "--cluster"]);
    assert!(stdout(&text).starts_with("NAME     UID       AGENT   MODEL          STATE      AGE"), "{}", stdout(&text));

    let shown = harness.snapshot(&["show", &simulated.uid[..8], "--cluster"], &simulated);
    for line in [
        "run        nightly\n",
        "state      succeeded: the run has an answer\n",
        "agent      worker in namespace NAMESPACE\n",
        "model      openai/gpt-4o\n",
        "pod        nightly-pod\n",
        "TASK\n  Look around.\n",
        "ANSWER\n  Done\\u{1b}[2J.\n",
        "agent (container): enforced: filesystem, network\n",
        "print the receipts: sympozium audit nightly --cluster -n NAMESPACE\n",
    ] {
        assert!(shown.contains(line), "{line:?} is not in {shown}");
    }
    let object = harness.sympozium(&["show", "nightly", "--cluster", "-o", "json"]);
    let object: Value = serde_json::from_slice(&object.stdout).unwrap();
    assert_eq!(object["outcome"], json!({"is": "succeeded", "answer": "Done\u{1b}[2J."}));
    assert_eq!((&object["leftovers"], &object["plan"]), (&json!([]), &json!(simulated.plan)));

    let logs = harness.snapshot(&["logs", "nightly", "--cluster"], &simulated);
    assert_eq!(
        logs,
        "exit code: 0\n----- stdout -----\ntask:\n  Look around.\nanswer:\n  Done\\u{1b}[2J.\n----- stderr -----\n\
         the run has ended: succeeded\n"
    );
    let followed = harness.snapshot(&["logs", "-f", "nightly", "--cluster"], &simulated);
    assert_eq!(followed, logs);
    // There is no pod: the ends of logs are in the status.
    assert_eq!(
        harness.snapshot(&["logs", "nightly", "--part", "bridge", "--cluster"], &simulated),
        "exit code: 0\n----- stdout -----\none\ntwo\\u{9b}\n----- stderr -----\n\
         the run has no pod any more; this is the end of the log, from the run's status\n"
    );
    let other = harness.sympozium(&["logs", "nightly", "--part", "agent", "--cluster"]);
    assert_eq!(other.status.code(), Some(1));
    assert!(
        stderr(&other).contains(
            "part `agent` has no log: the run has no pod any more, and its status has only the logs of ipc-bridge"
        ),
        "{}",
        stderr(&other)
    );
}

#[test]
fn receipts_are_verified_to_the_reported_head() {
    let Some(harness) = Harness::new("audit") else {
        return;
    };
    let simulated = ended_run(&harness);
    let head = simulated.chain.head().clone();
    let whole = format!("ok: nightly (SHORT-UID): 4 receipts, head {head}\n");
    assert_eq!(
        harness.snapshot(&["audit", "verify", "nightly", "--cluster"], &simulated),
        format!("exit code: 0\n----- stdout -----\n{whole}----- stderr -----\n")
    );
    assert_eq!(
        harness.snapshot(&["audit", "verify", "--all", "--cluster"], &simulated),
        format!("exit code: 0\n----- stdout -----\n{whole}----- stderr -----\n")
    );
    let printed = harness.sympozium(&["audit", "nightly", "--cluster"]);
    assert_eq!(
        (printed.status.code(), stdout(&printed).lines().count()),
        (Some(0), 4),
        "{}",
        crate::format_output(&printed)
    );
    assert_eq!(harness.redact(stderr(&printed), &simulated), whole);
    let lines = harness.sympozium(&["audit", "nightly", "--cluster", "-o", "jsonl"]);
    assert_eq!(stdout(&lines).lines().count(), 4);

    // The last record is deleted: the missing line is reported.
    let last = simulated.object("r1");
    let second = harness.kubectl.json(&["get", "runrecord", &last]).unwrap();
    harness.kubectl.run(&["delete", "runrecord", &last]).unwrap();
    let cut = harness.sympozium(&["audit", "verify", "nightly", "--cluster"]);
    assert_eq!(cut.status.code(), Some(1));
    assert_eq!(
        harness.redact(stdout(&cut), &simulated),
        "broken: nightly (SHORT-UID): RunRecords: line 2: missing: there are 1 receipts, but 4 were reported\n"
    );
    // A forged record in its place breaks the chain.
    let mut forged = second;
    let line = forged["spec"]["lines"][1].as_str().unwrap().replace("\"code\":0", "\"code\":1");
    forged["spec"]["lines"][1] = json!(line);
    forged["metadata"] = simulated.metadata(&last);
    harness.kubectl.create(&forged).unwrap();
    let broken = harness.sympozium(&["audit", "verify", "nightly", "--cluster"]);
    assert_eq!(broken.status.code(), Some(1));
    assert!(stdout(&broken).contains("line 4: "), "{}", stdout(&broken));
    // A record with another name does not belong to the run.
    forged["metadata"] = simulated.metadata("something-else");
    harness.kubectl.create(&forged).unwrap();
    let same = harness.sympozium(&["audit", "verify", "nightly", "--cluster"]);
    assert_eq!(stdout(&same), stdout(&broken));
}
