//! `sympozium audit`, `audit verify` and `logs`.

use std::fs;

use serde_json::{Value, json};

use crate::records::{Run, State, attend, bound, events};
use crate::{format_output, program, stderr, stdout};

fn lines(run: &Run) -> Vec<String> {
    let text = fs::read_to_string(run.at("receipts.jsonl")).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Replaces the receipts, and their length in the report.
fn rewrite(run: &Run, lines: &[String]) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(run.at("receipts.jsonl"), &text).unwrap();
    let mut report: Value = serde_json::from_slice(&fs::read(run.at("report.json")).unwrap()).unwrap();
    report["receiptsBytes"] = text.len().into();
    fs::write(run.at("report.json"), report.to_string()).unwrap();
}

#[test]
fn receipts_are_printed_as_text() {
    let state = State::new();
    state.run(1, "verify");
    insta::assert_snapshot!(state.snapshot(&["audit", "1111"]), @"
    exit code: 0
    ----- stdout -----
       0  2026-11-16T13:44:01.042Z  started: run 11111111-0000-4000-8000-000000000000, by ipc-bridge 0.1.0
       1  2026-11-16T13:44:01.043Z  model request 0: status 200, 2048 bytes sent, 512 received, tokens: 1200 input, 34 output, in 1.5s
       2  2026-11-16T13:44:01.044Z  call 0: execute_command of git with arguments sha256:bbbbbbbbbbbb: waiting for approval
       3  2026-11-16T13:44:01.045Z  call 0: action sha256:aaaaaaaaaaaa needs approval (q1)
       4  2026-11-16T13:44:01.046Z  call 0: action sha256:aaaaaaaaaaaa: allowed by ada
       5  2026-11-16T13:44:01.047Z  call 0: the skill executed action sha256:aaaaaaaaaaaa: exit code 0, 42 bytes of output (truncated) in 12ms; enforced (host-user): filesystem, network
       6  2026-11-16T13:44:01.048Z  call 1: rm_everything with arguments sha256:cccccccccccc: refused: there is no such tool
       7  2026-11-16T13:44:01.049Z  ended: done, with answer sha256:dddddddddddd
    ----- stderr -----
    ok: verify (11111111): 8 receipts, head sha256:0085168d18906d882737c2809dc5190053d2a6a74e9246bef7935c92a55e1ca8
    ");
    let jsonl = state.sympozium(&["audit", "1111", "-o", "jsonl"]);
    let written = fs::read_to_string(state.runs().join("11111111-0000-4000-8000-000000000000/receipts.jsonl"));
    assert_eq!(stdout(&jsonl), written.unwrap());
}

/// `sympozium audit RUN | head`: receipts after a closed pipe were not verified, and are not reported as missing.
#[test]
fn a_closed_pipe_reports_no_missing_receipt() {
    let state = State::new();
    state.run(1, "verify");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let audit = program(&["audit", "1111"]).env("SYMPOZIUM_STATE", state.root()).stdout(writer).output().unwrap();
    assert_eq!(stderr(&audit), "");
    assert_eq!(audit.status.code(), Some(0));
}

#[test]
fn valid_receipts_are_verified() {
    let state = State::new();
    let first = state.run(1, "one");
    state.run(2, "two").report(Vec::new());
    insta::assert_snapshot!(state.snapshot(&["audit", "verify", "one", "two"]), @"
    exit code: 0
    ----- stdout -----
    ok: one (11111111): 8 receipts, head sha256:0085168d18906d882737c2809dc5190053d2a6a74e9246bef7935c92a55e1ca8
    ok: two (22222222): 0 receipts, head sha256:ec90d98744a35b9ed38b2e497fb2bc6c1f767bcf9f22ce98f442af38df71c2b1
    ----- stderr -----
    ");
    assert_eq!(state.snapshot(&["audit", "verify", "--all"]), state.snapshot(&["audit", "verify", "one", "two"]));

    let file = first.at("receipts.jsonl");
    let file = file.to_str().unwrap();
    let plan = first.plan().to_string();
    let text = state.snapshot(&["audit", "verify", "--file", file, "--plan", &plan]);
    assert!(text.contains("8 receipts") && text.contains("without --head"), "{text}");
    let other = format!("sha256:{}", "0".repeat(64));
    let text = state.snapshot(&["audit", "verify", "--file", file, "--plan", &other]);
    assert!(text.contains("line 1: it does not follow from the line before, or the run has another plan"), "{text}");
    let text = state.snapshot(&["audit", "verify", "--file", file, "--plan", &plan, "--head", &other]);
    assert!(text.starts_with("exit code: 1") && text.contains("line 8: the last line has hash"), "{text}");
    let text = state.snapshot(&["audit", "verify", "--file", file, "--plan", &plan, "--count", "9"]);
    assert!(text.contains("line 9: missing: there are 8 receipts, but 9 were reported"), "{text}");
    let text = state.snapshot(&["audit", "verify", "--file", file, "--plan", &plan, "--count", "7"]);
    assert!(text.contains("line 8: unexpected: there are 8 receipts, but 7 were reported"), "{text}");
}

#[test]
fn every_change_is_reported_with_its_line() {
    let state = State::new();
    let run = state.run(1, "one");
    let good = lines(&run);
    let swapped = |a: usize, b: usize| {
        let mut lines = good.clone();
        lines.swap(a, b);
        lines
    };
    let changed = |at: usize, from: &str, to: &str| {
        let mut lines = good.clone();
        assert!(lines[at].contains(from), "{}", lines[at]);
        lines[at] = lines[at].replace(from, to);
        lines
    };
    let without = |at: usize| {
        let mut lines = good.clone();
        lines.remove(at);
        lines
    };
    let long = {
        let mut lines = good.clone();
        lines[3] = "x".repeat(100_000);
        lines
    };
    for (lines, wrong) in [
        (changed(4, "\"ada\"", "\"eve\""), "line 6: it does not follow from the line before"),
        (changed(7, "\"done\"", "\"timedOut\""), "line 8: the last line has hash"),
        (changed(2, "execute_command", "execute_command\u{1b}[2J"), "line 3: it is not a receipt"),
        (changed(0, "{", "{ "), "line 1: it is not written as receipts are"),
        (changed(5, "\"number\":5", "\"number\":6"), "line 6: it is number 6, and 5 was expected"),
        (swapped(2, 3), "line 3: it is number 3, and 2 was expected"),
        (without(0), "line 1: it is number 1, and 0 was expected"),
        (without(7), "line 8: missing: there are 7 receipts, but 8 were reported"),
        (Vec::new(), "line 1: missing: there are 0 receipts, but 8 were reported"),
        (long, "line 4: it has 100000 bytes"),
        ([good.clone(), vec!["{}".into()]].concat(), "line 9: it is not a receipt"),
        ([good.clone(), vec![String::new()]].concat(), "line 9: it is not a receipt"),
    ] {
        rewrite(&run, &lines);
        for arguments in [&["audit", "verify", "one"][..], &["audit", "one"]] {
            let text = state.snapshot(arguments);
            assert!(text.starts_with("exit code: 1\n"), "{wrong}: {text}");
            assert!(text.contains(&format!("receipts.jsonl: {wrong}")), "{wrong}: {text}");
        }
    }
    rewrite(&run, &good);
    assert!(state.snapshot(&["audit", "verify", "one"]).starts_with("exit code: 0\n"));
}

#[test]
fn truncated_receipts_are_detected() {
    let state = State::new();
    let run = state.run(1, "one");
    let whole = fs::read(run.at("receipts.jsonl")).unwrap();
    // In the middle of a line, and at the end of one.
    fs::write(run.at("receipts.jsonl"), &whole[..whole.len() - 10]).unwrap();
    let text = state.snapshot(&["audit", "verify", "one"]);
    assert!(text.contains("receipts.jsonl: line 8: truncated: it has no line break"), "{text}");
    let first = whole.iter().position(|it| *it == b'\n').unwrap() + 1;
    fs::write(run.at("receipts.jsonl"), &whole[..first]).unwrap();
    let text = state.snapshot(&["audit", "verify", "one"]);
    assert!(text.contains("receipts.jsonl: line 2: missing: there are 1 receipts, but 8 were reported"), "{text}");
    fs::remove_file(run.at("receipts.jsonl")).unwrap();
    assert!(state.snapshot(&["audit", "verify", "one"]).starts_with("exit code: 1\n"));

    // What a crash left after the last report is ignored.
    let mut more = whole.clone();
    more.extend_from_slice(b"{\"number\":8");
    fs::write(run.at("receipts.jsonl"), &more).unwrap();
    let text = state.snapshot(&["audit", "verify", "one"]);
    assert!(
        text.starts_with("exit code: 0\n")
            && text.contains("; 11 bytes after them were never reported, and are ignored"),
        "{text}"
    );
}

#[test]
fn plans_and_reports_of_other_runs_are_detected() {
    let state = State::new();
    let run = state.run(1, "one");
    let other = state.run(2, "two");
    let plan = fs::read(run.at("plan.json")).unwrap();
    fs::write(run.at("plan.json"), "{\"number\":3}").unwrap();
    let text = state.snapshot(&["audit", "verify", "one"]);
    assert!(text.starts_with("exit code: 1\n") && text.contains("plan.json has digest sha256:"), "{text}");
    fs::write(run.at("plan.json"), plan).unwrap();
    let report = fs::read(run.at("report.json")).unwrap();
    fs::copy(other.at("report.json"), run.at("report.json")).unwrap();
    let text = state.snapshot(&["audit", "verify", "one"]);
    assert!(text.contains("report.json belongs to another run"), "{text}");
    fs::remove_file(run.at("report.json")).unwrap();
    let text = state.snapshot(&["audit", "verify", "one"]);
    assert!(text.starts_with("exit code: 1\n") && text.contains("there is no report.json"), "{text}");
    fs::write(run.at("report.json"), report).unwrap();
    // One broken run of two fails the command.
    fs::remove_file(other.at("plan.json")).unwrap();
    let text = state.snapshot(&["audit", "verify", "--all"]);
    assert!(text.starts_with("exit code: 1\n"), "{text}");
    assert!(text.contains("ok: one (11111111)") && text.contains("broken: two (22222222): cannot read"), "{text}");
}

#[test]
fn a_running_run_is_verified_up_to_its_last_report() {
    let state = State::new();
    let run = state.run(1, "one").with(json!({"outcome": null, "endedMs": null}));
    let _alive = run.alive();
    let text = state.snapshot(&["audit", "verify", "one"]);
    assert!(text.starts_with("exit code: 0\n") && text.contains("; the run is still running"), "{text}");
    fs::remove_file(run.at("report.json")).unwrap();
    let text = state.snapshot(&["audit", "verify", "one"]);
    assert!(text.starts_with("exit code: 0\n") && text.contains(": 0 receipts"), "{text}");
}

#[test]
fn verify_requires_exactly_one_subject() {
    let state = State::new();
    for arguments in [
        &["audit"][..],
        &["audit", "verify"],
        &["audit", "verify", "--all", "one"],
        &["audit", "verify", "--file", "x"],
        &["audit", "verify", "one", "--head", "sha256:0"],
    ] {
        let output = state.sympozium(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", format_output(&output));
    }
    let help = state.sympozium(&["audit", "--help"]);
    assert!(stdout(&help).contains("sympozium audit verify RUN..."), "{}", stdout(&help));
    assert!(stdout(&help).contains("sympozium audit [-o FORMAT] RUN"), "{}", stdout(&help));
}

fn transcript_lines() -> Vec<Value> {
    vec![
        json!({"atMs": 0, "kind": "task", "system": "You are careful.", "task": "Count the files."}),
        json!({"atMs": 5, "kind": "answer", "round": 0, "durationMs": 1500, "inputTokens": 1200, "outputTokens": 34,
            "message": {"role": "assistant", "content": [
                {"type": "text", "text": "I list them."},
                {"type": "tool_use", "id": "t", "name": "execute_command", "input": {"command": "ls | wc -l"}}]}}),
        json!({"atMs": 9, "kind": "result", "round": 0, "id": "t", "tool": "execute_command", "failed": false, "text": "3\n", "durationMs": 12}),
        json!({"atMs": 10, "kind": "note", "text": "nearly done"}),
        json!({"atMs": 11, "kind": "end", "answer": "There are 3 files."}),
    ]
}

#[test]
fn the_transcript_is_printed() {
    let state = State::new();
    let run = state.run(1, "one");
    run.transcript(&transcript_lines());
    insta::assert_snapshot!(state.snapshot(&["logs", "one"]), @r#"
    exit code: 0
    ----- stdout -----
    task (after 16 characters of instructions):
      Count the files.
    model (round 0, 1.5s, 1200 input tokens, 34 output tokens):
      I list them.
      calls execute_command {"command":"ls | wc -l"}
    execute_command (12ms):
      | 3
    note: nearly done
    answer:
      There are 3 files.
    ----- stderr -----
    the run has ended: succeeded
    "#);
    // A run that has ended is not waited for.
    assert_eq!(state.snapshot(&["logs", "-f", "one"]), state.snapshot(&["logs", "one"]));
    let jsonl = state.sympozium(&["logs", "one", "-o", "jsonl"]);
    assert_eq!(stdout(&jsonl), fs::read_to_string(run.at("transcript.jsonl")).unwrap());
    run.report(events());
    fs::remove_file(run.at("transcript.jsonl")).unwrap();
    assert!(state.snapshot(&["logs", "one"]).contains("the transcript is empty so far"));
}

#[test]
fn a_run_is_followed_to_its_end() {
    let state = State::new();
    let run = state.run(1, "one").with(json!({"outcome": null, "endedMs": null}));
    let alive = run.alive();
    let mut events: Vec<Value> =
        (transcript_lines().into_iter()).map(|line| json!({"atMs": 1, "event": "transcript", "line": line})).collect();
    events
        .push(json!({"atMs": 2, "event": "asked", "question": crate::records::question("q1", 'a', "shell: git push")}));
    events.push(json!({"atMs": 3, "event": "answered", "approval": "q1", "decision": "approved", "by": "ada"}));
    events.push(json!({"atMs": 4, "event": "warning", "text": "careful\u{1b}"}));
    let ended = json!({"atMs": 9, "event": "ended", "outcome": {"is": "timedOut"}, "leftovers": [],
        "usage": {"modelRequests": 0, "inputTokens": 0, "outputTokens": 0, "estimated": false, "toolCalls": 0}});
    events.push(ended);
    let listener = bound(&run.at("control.sock"));
    let served = std::thread::spawn(move || {
        let _alive = alive;
        for events in [&events[..], &events[..], &events[..2]] {
            let (stream, _) = listener.accept().unwrap();
            assert_eq!(attend(&stream, events), json!({"request": "follow"}));
        }
    });
    insta::assert_snapshot!(state.snapshot(&["logs", "-f", "one"]), @r#"
    exit code: 0
    ----- stdout -----
    task (after 16 characters of instructions):
      Count the files.
    model (round 0, 1.5s, 1200 input tokens, 34 output tokens):
      I list them.
      calls execute_command {"command":"ls | wc -l"}
    execute_command (12ms):
      | 3
    note: nearly done
    answer:
      There are 3 files.
    question q1 is pending; decide it with `sympozium approve`:
      shell: git push
    question q1: approved by ada
    warning: careful\u{1b}
    ----- stderr -----
    the run has ended: timed out
    "#);
    let jsonl = state.sympozium(&["logs", "-f", "one", "-o", "jsonl"]);
    let lines: Vec<Value> = stdout(&jsonl).lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    assert_eq!(lines, transcript_lines());
    let text = state.snapshot(&["logs", "-f", "one"]);
    assert!(text.starts_with("exit code: 1\n"), "{text}");
    assert!(text.contains("error: the process of the run was killed\n"), "{text}");
    served.join().unwrap();
}

#[test]
fn a_run_that_ends_without_its_last_event_is_read_to_its_end() {
    let state = State::new();
    let run = state.run(1, "one");
    run.transcript(&transcript_lines());
    let alive = run.alive();
    let first: Vec<Value> = (transcript_lines().into_iter().take(2))
        .map(|line| json!({"atMs": 1, "event": "transcript", "line": line}))
        .collect();
    let listener = bound(&run.at("control.sock"));
    let served = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        attend(&stream, &first);
        drop(alive);
    });
    let followed = state.snapshot(&["logs", "-f", "one"]);
    served.join().unwrap();
    assert_eq!(followed, state.snapshot(&["logs", "one"]));
}

#[test]
fn the_log_of_a_part_is_printed() {
    let state = State::new();
    let run = state.run(1, "one");
    fs::write(run.at("logs").join("agent.log"), "one\ntwo\u{1b}[2J\nno end").unwrap();
    fs::write(run.at("logs").join("bridge.log"), "").unwrap();
    insta::assert_snapshot!(state.snapshot(&["logs", "one", "--part", "agent"]), @r#"
    exit code: 0
    ----- stdout -----
    one
    two\u{1b}[2J
    no end
    ----- stderr -----
    "#);
    for part in ["../run.json", "nobody", "", "../logs/agent"] {
        let text = state.snapshot(&["logs", "one", "--part", part]);
        assert!(text.starts_with("exit code: 1\n") && text.contains("the parts with logs are agent, bridge"), "{text}");
    }
}
