//! `sympozium run` in a cluster, for each run end.

use serde_json::{Value, json};
use sympozium_testkit::cluster::eventually;
use sympozium_testkit::terminal::Terminal;
use sympozium_testkit::wait_until;

use super::{Harness, PROMPT, SimulatedRun, TIMEOUT, command_receipts, digest, end_receipt, model_receipt};
use crate::{stderr, stdout};

/// Plays the controller and the gateway for a run, from its plan to its answer.
fn play(harness: &Harness, simulated: &mut SimulatedRun) {
    harness.plan(simulated);
    let arguments = json!({"command": "ls"});
    let call = json!({"kind": "answer", "round": 1, "text": "I look.", "message": {"role": "assistant", "content": "I look.",
        "tool_calls": [{"id": "a", "type": "function",
            "function": {"name": "execute_command", "arguments": arguments.to_string()}}]}});
    simulated.report(&[json!({"kind": "task", "task": "Look around."}), call], vec![model_receipt(0)], "working");
    let mut receipts = command_receipts(1);
    receipts.push(end_receipt());
    simulated.report(&[json!({"kind": "end", "answer": "Done."})], receipts, "ended");
    simulated.end(json!({"phase": "Succeeded", "result": "Done."}));
}

#[test]
fn a_run_is_followed_to_its_answer() {
    let Some(harness) = Harness::new("followed") else {
        return;
    };
    let mut run = harness.spawn_piped(&["run", "files.yaml", "--cluster"]);
    let mut simulated = harness.created("nightly");
    play(&harness, &mut simulated);
    let code = run.wait();
    let text = harness.read("stderr");
    assert_eq!((code, harness.read("stdout").as_str()), (0, "Done.\n"), "{text}");
    for line in [
        "created SympoziumPolicy ",
        "created Secret ",
        "is created; the cluster starts it",
        "nightly  agent worker, model openai/gpt-4o",
        "  > I look.",
        "succeeded after ",
        "1 model request, 30 tokens in, 4 out, 1 tool call",
        &format!("sympozium show nightly --cluster -n {}", harness.namespace.name()),
    ] {
        assert!(text.contains(line), "{line:?} is not in:\n{text}");
    }
    assert!(!text.contains("very-secret"), "{text}");
    // A second run of the same name is an error; equal objects are not changed.
    let again = harness.sympozium(&["run", "files.yaml", "--cluster"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("error: run `nightly` already exists\nhint: give the run a `generateName`"));
    assert!(!stderr(&again).contains("created "), "{}", stderr(&again));
    // A different object of the same name is an error, and nothing is created.
    let other = super::MANIFESTS.replace("model: unused", "model: another");
    let other = other.replace("name: nightly", "generateName: later-").replace("name: key", "name: second");
    std::fs::write(harness.path("other.yaml"), other).unwrap();
    let refused = harness.sympozium(&["run", "other.yaml", "--cluster"]);
    assert_eq!(refused.status.code(), Some(1));
    let text = stderr(&refused);
    assert!(
        text.contains(&format!("Agent {}/worker in the cluster differs from the files", harness.namespace.name())),
        "{text}"
    );
    assert!(text.contains("kubectl apply -f FILE"), "{text}");
    let secrets = harness.kubectl.run(&["get", "secrets", "-o", "name"]).unwrap();
    assert_eq!(secrets.trim(), "secret/key");
}

#[test]
fn programs_get_the_same_events_and_the_same_object() {
    let Some(harness) = Harness::new("events") else {
        return;
    };
    let mut run = harness.spawn_piped(&["run", "files.yaml", "--cluster", "-o", "jsonl"]);
    let mut simulated = harness.created("nightly");
    play(&harness, &mut simulated);
    assert_eq!(run.wait(), 0, "{}", harness.read("stderr"));
    let lines: Vec<Value> = (harness.read("stdout").lines()).map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |kind: &str| lines.iter().filter(|it| it["event"] == kind).count();
    assert_eq!([count("planned"), count("receipt"), count("transcript"), count("ended")], [1, 4, 3, 1]);
    assert_eq!(lines.last().unwrap()["outcome"], json!({"is": "succeeded", "answer": "Done."}));
    let head = simulated.chain.head().clone();
    harness.kubectl.run(&["delete", "agentrun", "nightly"]).unwrap();

    let mut run =
        harness.spawn_piped(&["run", "files.yaml", "--cluster", "-o", "json", "-n", harness.namespace.name()]);
    let mut second = harness.created("nightly");
    play(&harness, &mut second);
    assert_eq!(run.wait(), 0, "{}", harness.read("stderr"));
    let object: Value = serde_json::from_str(&harness.read("stdout")).unwrap();
    assert_ne!(second.chain.head(), &head);
    assert_eq!(object["receipts"], json!({"count": 4, "head": second.chain.head()}));
    assert_eq!(object["plan"], json!(second.plan));
    assert_eq!((&object["answer"], &object["exitCode"]), (&json!("Done."), &json!(0)));
    assert_eq!((&object["directory"], &object["leftovers"]), (&json!(null), &json!([])));
}

#[test]
fn each_end_has_its_exit_code() {
    let Some(harness) = Harness::new("ends") else {
        return;
    };
    let ends = [
        (
            json!({"phase": "Failed",
                "error": "the run is denied\ndenied[tool-gating]: AgentRun team/nightly: spec: no such tool (hint: name another)",
                "conditions": [
                    {"type": "Admitted", "status": "False", "reason": "Denied",
                        "message": "denied[tool-gating]: AgentRun team/nightly: spec: no such tool (hint: name another)",
                        "lastTransitionTime": "2027-01-15T08:00:00Z"}]}),
            3,
            "denied after 0 ms: denied[tool-gating]: AgentRun team/nightly: spec: no such tool (hint: name another)",
        ),
        (
            json!({"phase": "Failed", "error": "the cluster has no agent-sandbox", "conditions": [
                {"type": "Admitted", "status": "False", "reason": "Impossible",
                    "message": "the cluster has no agent-sandbox", "lastTransitionTime": "2027-01-15T08:00:00Z"}]}),
            1,
            "refused after 0 ms: the cluster has no agent-sandbox",
        ),
        (
            json!({"phase": "Failed", "error": "the run's time is up"}),
            5,
            "timed out after 0 ms: its deadline has passed",
        ),
        (
            json!({"phase": "Failed", "error": "an image cannot be pulled: \u{1b}[2Jx", "failedContainers":
                [{"name": "agent", "reason": "ErrImagePull", "logTail": "last\u{9b}words"}]}),
            4,
            "failed after 0 ms: an image cannot be pulled: \\u{1b}[2Jx\n  agent: ErrImagePull; the end of its log:\n  last\\u{9b}words",
        ),
    ];
    for (status, code, expected) in ends {
        let detached = harness.sympozium(&["run", "files.yaml", "--cluster", "--detach"]);
        assert_eq!((detached.status.code(), stdout(&detached)), (Some(0), "nightly\n"));
        // `logs -f` uses the same watch.
        let simulated = harness.created("nightly");
        simulated.end(status.clone());
        let logs = harness.sympozium(&["logs", "-f", "nightly", "--cluster"]);
        assert!(stderr(&logs).contains("the run has ended: "), "{}", crate::format_output(&logs));
        harness.kubectl.run(&["delete", "agentrun", "nightly"]).unwrap();

        let mut run = harness.spawn_piped(&["run", "files.yaml", "--cluster"]);
        let simulated = harness.created("nightly");
        simulated.end(status);
        assert_eq!(run.wait(), code, "{}", harness.read("stderr"));
        let text = harness.read("stderr");
        assert!(text.contains(expected), "{expected:?} is not in {text}");
        assert_eq!(harness.read("stdout"), "");
        harness.kubectl.run(&["delete", "agentrun", "nightly"]).unwrap();
    }
}

#[test]
fn a_question_is_decided_at_the_terminal() {
    let Some(harness) = Harness::new("asked") else {
        return;
    };
    let terminal = Terminal::new(60, 140).unwrap();
    let mut run = harness.spawn_on(&terminal, &["run", "files.yaml", "--cluster"]);
    let mut simulated = harness.created("nightly");
    harness.plan(&mut simulated);
    simulated.report(&[], vec![model_receipt(0)], "working");
    simulated.ask("q1", &digest('1'), "shell: echo \u{1b}[2Jone");
    terminal.wait_for(PROMPT);
    terminal.wait_for("│ shell: echo \\u{1b}[2Jone");
    terminal.type_in("n not that\n").unwrap();
    let status = simulated.decided("q1");
    let who = harness.kubectl.json(&["auth", "whoami"]).unwrap();
    let who = &who["status"]["userInfo"]["username"];
    assert_eq!(
        (&status["decision"], &status["decidedBy"], &status["reason"]),
        (&json!("denied"), who, &json!("not that"))
    );
    assert_eq!(&status["votes"][0]["by"], who);
    terminal.wait_for("q1 denied by ");
    simulated.ask("q2", &digest('2'), "shell: echo two");
    terminal.wait_for("│ shell: echo two");
    // For the rest of the run, which its policy permits. The first question had the same choices, and input before the
    // choices of the second are shown does not count.
    let choices = "[a]llow the identical action for the rest of this run";
    let is_asked_again = || terminal.raw().matches(choices).count() >= 2;
    assert!(wait_until(TIMEOUT, is_asked_again), "{}", terminal.screen());
    terminal.type_in("a\n").unwrap();
    let status = simulated.decided("q2");
    assert_eq!((&status["decision"], &status["scope"]), (&json!("approved"), &json!("run")));
    // Decided at another terminal.
    simulated.ask("q3", &digest('3'), "shell: echo three");
    terminal.wait_for("│ shell: echo three");
    let denied = harness.sympozium(&["deny", "nightly", "q3", "--cluster"]);
    assert_eq!(denied.status.code(), Some(0), "{}", crate::format_output(&denied));
    terminal.wait_for("no answer is needed here any more");
    simulated.report(&[], vec![end_receipt()], "ended");
    simulated.end(json!({"phase": "Succeeded", "result": "All done."}));
    assert_eq!(run.wait(), 0, "{}", terminal.screen());
    terminal.wait_for("All done.");
}

#[test]
fn questions_are_decided_by_a_flag_as_the_current_user() {
    let Some(harness) = Harness::new("flags") else {
        return;
    };
    let mut run = harness.spawn_piped(&["run", "files.yaml", "--cluster", "--approve", "none"]);
    let mut simulated = harness.created("nightly");
    harness.plan(&mut simulated);
    simulated.ask("q1", &digest('1'), "shell: echo one");
    assert_eq!(simulated.decided("q1")["decision"], "denied");
    simulated.end(json!({"phase": "Succeeded", "result": "Done."}));
    assert_eq!(run.wait(), 0, "{}", harness.read("stderr"));
    assert!(harness.read("stderr").contains("q1: --approve none denies it"));
}

#[test]
fn an_interrupt_cancels_and_a_second_one_exits() {
    let Some(harness) = Harness::new("cancelled") else {
        return;
    };
    let cancelled = || {
        eventually("the run to be cancelled", TIMEOUT, || {
            let run = harness.kubectl.json(&["get", "agentrun", "nightly"])?;
            Ok((run["spec"]["cancel"] == true).then_some(()))
        })
        .unwrap();
    };
    let terminal = Terminal::new(40, 140).unwrap();
    let mut run = harness.spawn_on(&terminal, &["run", "files.yaml", "--cluster"]);
    let mut simulated = harness.created("nightly");
    harness.plan(&mut simulated);
    terminal.wait_for("agent worker");
    terminal.type_in("\u{3}").unwrap();
    terminal.wait_for("press Ctrl-C again to leave it to the cluster");
    cancelled();
    simulated.end(json!({"phase": "Cancelled", "error": "it was cancelled"}));
    assert_eq!(run.wait(), 130, "{}", terminal.screen());
    terminal.wait_for("cancelled after ");
    harness.kubectl.run(&["delete", "agentrun", "nightly"]).unwrap();

    let terminal = Terminal::new(40, 140).unwrap();
    let mut run = harness.spawn_on(&terminal, &["run", "files.yaml", "--cluster"]);
    harness.created("nightly");
    terminal.wait_for("is created");
    terminal.type_in("\u{3}").unwrap();
    terminal.wait_for("press Ctrl-C again");
    terminal.type_in("\u{3}").unwrap();
    assert_eq!(run.wait(), 130, "{}", terminal.screen());
    cancelled();
}

#[test]
fn what_the_start_waits_for_is_printed() {
    let Some(harness) = Harness::new("waits") else {
        return;
    };
    let mut run = harness.spawn_piped(&["run", "files.yaml", "--cluster"]);
    let simulated = harness.created("nightly");
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2027-01-15T08:00:00Z"})
    };
    let pending = json!({"phase": "Pending", "conditions":
        [condition("Admitted", "Unknown", "Waiting", "the run waits for SkillPack shell")]});
    simulated.set(pending);
    let is_printed = || harness.read("stderr").contains("waits  the run waits for SkillPack shell");
    assert!(wait_until(TIMEOUT, is_printed), "{}", harness.read("stderr"));
    let shown = harness.sympozium(&["show", "nightly", "--cluster"]);
    assert!(stdout(&shown).contains("WAITING FOR\n  the run waits for SkillPack shell\n"));
    assert!(stdout(&shown).contains("state      starting\n"), "{}", stdout(&shown));
    // A deleted run ends the command.
    harness.kubectl.run(&["delete", "agentrun", "nightly"]).unwrap();
    assert_eq!(run.wait(), 130, "{}", harness.read("stderr"));
    assert!(harness.read("stderr").contains("warning: the AgentRun was deleted"));
}
