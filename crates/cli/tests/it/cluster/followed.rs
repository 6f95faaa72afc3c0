//! `sympozium run` in a cluster, to each of its ends.

use serde_json::{Value, json};
use sympozium_testkit::cluster::eventually;
use sympozium_testkit::terminal::Terminal;
use sympozium_testkit::wait_until;

use super::{PATIENCE, PROMPT, Played, World, acted, digest, modelled, over};
use crate::{stderr, stdout};

/// Plays a run from its plan to its answer.
fn play(world: &World, played: &mut Played) {
    world.plan(played);
    let arguments = json!({"command": "ls"});
    let call = json!({"kind": "answer", "round": 1, "text": "I look.", "message": {"role": "assistant", "content": "I look.",
        "tool_calls": [{"id": "a", "type": "function",
            "function": {"name": "execute_command", "arguments": arguments.to_string()}}]}});
    played.report(&[json!({"kind": "task", "task": "Look around."}), call], vec![modelled(0)], "working");
    let mut receipts = acted(1);
    receipts.push(over());
    played.report(&[json!({"kind": "end", "answer": "Done."})], receipts, "ended");
    played.end(json!({"phase": "Succeeded", "result": "Done."}));
}

#[test]
fn a_run_is_followed_to_its_answer_and_kept() {
    let Some(world) = World::new("followed") else {
        return;
    };
    let mut run = world.piped(&["run", "files.yaml", "--cluster"]);
    let mut played = world.created("nightly");
    play(&world, &mut played);
    let code = run.ended();
    let said = world.read("stderr");
    assert_eq!((code, world.read("stdout").as_str()), (0, "Done.\n"), "{said}");
    for line in [
        "created SympoziumPolicy ",
        "created Secret ",
        "is created; the cluster starts it",
        "nightly  agent worker, model openai/gpt-4o",
        "  > I look.",
        "succeeded after ",
        "1 model request, 30 tokens in, 4 out, 1 tool call",
        &format!("sympozium show nightly --cluster -n {}", world.namespace.name()),
    ] {
        assert!(said.contains(line), "{line:?} is not in:\n{said}");
    }
    assert!(!said.contains("very-secret"), "{said}");
    // A second run of the same name is none; what is the same is left alone.
    let again = world.says(&["run", "files.yaml", "--cluster"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("error: run `nightly` already exists\nhint: give the run a `generateName`"));
    assert!(!stderr(&again).contains("created "), "{}", stderr(&again));
    // Something else under the same name is refused, and nothing of it is made.
    let other = super::MANIFESTS.replace("model: unused", "model: another");
    let other = other.replace("name: nightly", "generateName: later-").replace("name: key", "name: second");
    std::fs::write(world.path("other.yaml"), other).unwrap();
    let refused = world.says(&["run", "other.yaml", "--cluster"]);
    assert_eq!(refused.status.code(), Some(1));
    let text = stderr(&refused);
    assert!(
        text.contains(&format!("the cluster has another Agent {}/worker than the files", world.namespace.name())),
        "{text}"
    );
    assert!(text.contains("kubectl apply -f FILE"), "{text}");
    let secrets = world.kubectl.run(&["get", "secrets", "-o", "name"]).unwrap();
    assert_eq!(secrets.trim(), "secret/key");
}

#[test]
fn programs_get_the_same_events_and_the_same_object() {
    let Some(world) = World::new("events") else {
        return;
    };
    let mut run = world.piped(&["run", "files.yaml", "--cluster", "-o", "jsonl"]);
    let mut played = world.created("nightly");
    play(&world, &mut played);
    assert_eq!(run.ended(), 0, "{}", world.read("stderr"));
    let lines: Vec<Value> = (world.read("stdout").lines()).map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |kind: &str| lines.iter().filter(|it| it["event"] == kind).count();
    assert_eq!([count("planned"), count("receipt"), count("transcript"), count("ended")], [1, 4, 3, 1]);
    assert_eq!(lines.last().unwrap()["outcome"], json!({"is": "succeeded", "answer": "Done."}));
    let head = played.chain.head().clone();
    world.kubectl.run(&["delete", "agentrun", "nightly"]).unwrap();

    let mut run = world.piped(&["run", "files.yaml", "--cluster", "-o", "json", "-n", world.namespace.name()]);
    let mut second = world.created("nightly");
    play(&world, &mut second);
    assert_eq!(run.ended(), 0, "{}", world.read("stderr"));
    let object: Value = serde_json::from_str(&world.read("stdout")).unwrap();
    assert_ne!(second.chain.head(), &head);
    assert_eq!(object["receipts"], json!({"count": 4, "head": second.chain.head()}));
    assert_eq!(object["plan"], json!(second.plan));
    assert_eq!((&object["answer"], &object["exitCode"]), (&json!("Done."), &json!(0)));
    assert_eq!((&object["directory"], &object["leftovers"]), (&json!(null), &json!([])));
}

#[test]
fn each_end_has_its_exit_code() {
    let Some(world) = World::new("ends") else {
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
    for (status, code, said) in ends {
        let detached = world.says(&["run", "files.yaml", "--cluster", "--detach"]);
        assert_eq!((detached.status.code(), stdout(&detached)), (Some(0), "nightly\n"));
        // Followed by somebody who comes later: the same watch.
        let played = world.created("nightly");
        played.end(status.clone());
        let logs = world.says(&["logs", "-f", "nightly", "--cluster"]);
        assert!(stderr(&logs).contains("the run is over: "), "{}", crate::shown(&logs));
        world.kubectl.run(&["delete", "agentrun", "nightly"]).unwrap();

        let mut run = world.piped(&["run", "files.yaml", "--cluster"]);
        let played = world.created("nightly");
        played.end(status);
        assert_eq!(run.ended(), code, "{}", world.read("stderr"));
        let text = world.read("stderr");
        assert!(text.contains(said), "{said:?} is not in {text}");
        assert_eq!(world.read("stdout"), "");
        world.kubectl.run(&["delete", "agentrun", "nightly"]).unwrap();
    }
}

#[test]
fn a_person_is_asked_at_the_terminal_and_heard() {
    let Some(world) = World::new("asked") else {
        return;
    };
    let terminal = Terminal::new(60, 140).unwrap();
    let mut run = world.on(&terminal, &["run", "files.yaml", "--cluster"]);
    let mut played = world.created("nightly");
    world.plan(&mut played);
    played.report(&[], vec![modelled(0)], "working");
    played.ask("q1", &digest('1'), "shell: echo \u{1b}[2Jone");
    terminal.wait_for(PROMPT);
    terminal.wait_for("│ shell: echo \\u{1b}[2Jone");
    terminal.type_in("n not that\n").unwrap();
    let status = played.decided("q1");
    let who = world.kubectl.json(&["auth", "whoami"]).unwrap();
    let who = &who["status"]["userInfo"]["username"];
    assert_eq!(
        (&status["decision"], &status["decidedBy"], &status["reason"]),
        (&json!("denied"), who, &json!("not that"))
    );
    assert_eq!(&status["votes"][0]["by"], who);
    terminal.wait_for("q1 denied by ");
    played.ask("q2", &digest('2'), "shell: echo two");
    terminal.wait_for("│ shell: echo two");
    // For the rest of the run, which the plan of its policy permits. The first question had the same choices, and what is typed before
    // those of the second are shown does not count.
    let choices = "[a]llow the identical action for the rest of this run";
    let is_asked_again = || terminal.raw().matches(choices).count() >= 2;
    assert!(wait_until(PATIENCE, is_asked_again), "{}", terminal.screen());
    terminal.type_in("a\n").unwrap();
    let status = played.decided("q2");
    assert_eq!((&status["decision"], &status["scope"]), (&json!("approved"), &json!("run")));
    // Answered from elsewhere.
    played.ask("q3", &digest('3'), "shell: echo three");
    terminal.wait_for("│ shell: echo three");
    let denied = world.says(&["deny", "nightly", "q3", "--cluster"]);
    assert_eq!(denied.status.code(), Some(0), "{}", crate::shown(&denied));
    terminal.wait_for("no answer is needed here any more");
    played.report(&[], vec![over()], "ended");
    played.end(json!({"phase": "Succeeded", "result": "All done."}));
    assert_eq!(run.ended(), 0, "{}", terminal.screen());
    terminal.wait_for("All done.");
}

#[test]
fn questions_are_answered_by_flag_as_who_we_are() {
    let Some(world) = World::new("flags") else {
        return;
    };
    let mut run = world.piped(&["run", "files.yaml", "--cluster", "--approve", "none"]);
    let mut played = world.created("nightly");
    world.plan(&mut played);
    played.ask("q1", &digest('1'), "shell: echo one");
    assert_eq!(played.decided("q1")["decision"], "denied");
    played.end(json!({"phase": "Succeeded", "result": "Done."}));
    assert_eq!(run.ended(), 0, "{}", world.read("stderr"));
    assert!(world.read("stderr").contains("q1: --approve none denies it"));
}

#[test]
fn an_interrupt_cancels_and_a_second_one_leaves() {
    let Some(world) = World::new("cancelled") else {
        return;
    };
    let cancelled = || {
        eventually("the run to be cancelled", PATIENCE, || {
            let run = world.kubectl.json(&["get", "agentrun", "nightly"])?;
            Ok((run["spec"]["cancel"] == true).then_some(()))
        })
        .unwrap();
    };
    let terminal = Terminal::new(40, 140).unwrap();
    let mut run = world.on(&terminal, &["run", "files.yaml", "--cluster"]);
    let mut played = world.created("nightly");
    world.plan(&mut played);
    terminal.wait_for("agent worker");
    terminal.type_in("\u{3}").unwrap();
    terminal.wait_for("press Ctrl-C again to leave it to the cluster");
    cancelled();
    played.end(json!({"phase": "Cancelled", "error": "somebody cancelled it"}));
    assert_eq!(run.ended(), 130, "{}", terminal.screen());
    terminal.wait_for("cancelled after ");
    world.kubectl.run(&["delete", "agentrun", "nightly"]).unwrap();

    let terminal = Terminal::new(40, 140).unwrap();
    let mut run = world.on(&terminal, &["run", "files.yaml", "--cluster"]);
    world.created("nightly");
    terminal.wait_for("is created");
    terminal.type_in("\u{3}").unwrap();
    terminal.wait_for("press Ctrl-C again");
    terminal.type_in("\u{3}").unwrap();
    assert_eq!(run.ended(), 130, "{}", terminal.screen());
    cancelled();
}

#[test]
fn what_is_in_the_way_of_the_start_is_said() {
    let Some(world) = World::new("waits") else {
        return;
    };
    let mut run = world.piped(&["run", "files.yaml", "--cluster"]);
    let played = world.created("nightly");
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2027-01-15T08:00:00Z"})
    };
    let waits = json!({"phase": "Pending", "conditions":
        [condition("Admitted", "Unknown", "Waiting", "SkillPack `shell` is not there yet")]});
    played.set(waits);
    let is_said = || world.read("stderr").contains("waits  SkillPack `shell` is not there yet");
    assert!(wait_until(PATIENCE, is_said), "{}", world.read("stderr"));
    let shown = world.says(&["show", "nightly", "--cluster"]);
    assert!(stdout(&shown).contains("WHAT IT WAITS FOR\n  SkillPack `shell` is not there yet\n"));
    assert!(stdout(&shown).contains("state      starting: it goes on\n"), "{}", stdout(&shown));
    // Deleted by somebody: over.
    world.kubectl.run(&["delete", "agentrun", "nightly"]).unwrap();
    assert_eq!(run.ended(), 130, "{}", world.read("stderr"));
    assert!(world.read("stderr").contains("warning: the run was deleted in the cluster"));
}
