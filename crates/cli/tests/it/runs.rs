//! `sympozium runs`, `show`, `rm` and `prune`.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use crate::records::{HOSTILE, State, attend, bound, now_ms, question};
use crate::{format_output, stderr, stdout};

#[test]
fn without_runs_there_is_a_hint() {
    let state = State::new();
    insta::assert_snapshot!(state.snapshot(&["runs"]), @r#"
    exit code: 0
    ----- stdout -----
    ----- stderr -----
    there are no runs
    hint: start one with `sympozium run "TASK"`, or try `sympozium demo`
    "#);
    assert_eq!(stdout(&state.sympozium(&["runs", "-o", "json"])), "[]\n");
}

#[test]
fn runs_are_listed_newest_first() {
    let state = State::new();
    state.run(1, "count-files");
    let second = state.run(2, "was-killed");
    second.with(json!({"outcome": null, "endedMs": null, "phase": "working"}));
    let third = state.run(3, "goes-on");
    let started = now_ms() - 190_000;
    let third = third
        .with(json!({"outcome": null, "endedMs": null, "phase": "waiting", "startedMs": started, "workspace": null}));
    let _alive = third.alive();
    let fourth = state.run(4, "failed");
    fourth.with(json!({"outcome": {"is": "failed", "why": "x"}, "usage": {"modelRequests": 1, "inputTokens": 5, "outputTokens": 0, "estimated": true, "toolCalls": 0}}));
    let text = state.snapshot(&["runs"]);
    // The run is running, so its duration changes.
    let text = regex_lite::Regex::new(r"3m [1-5]\ds").unwrap().replace(&text, "3m 20s").into_owned();
    insta::assert_snapshot!(text, @"
    exit code: 0
    ----- stdout -----
    NAME         UID       AGENT      MODEL             STATE                 AGE  TOOK    TOKENS  WORKSPACE
    goes-on      33333333  assistant  scripted/counter  waiting for approval  3m   3m 20s  1234    -
    count-files  11111111  assistant  scripted/counter  succeeded             3d   12s     1234    STATE/runs/11111111-0000-4000-8000-000000000000/workspace
    was-killed   22222222  assistant  scripted/counter  interrupted           3d   -       1234    STATE/runs/22222222-0000-4000-8000-000000000000/workspace
    failed       44444444  assistant  scripted/counter  failed                3d   12s     ~5      STATE/runs/44444444-0000-4000-8000-000000000000/workspace
    ----- stderr -----
    ");
    insta::assert_snapshot!(state.snapshot(&["runs", "--limit", "1"]).lines().skip(5).collect::<Vec<_>>().join("\n"), @"
    3 older runs are not listed; --all lists every run
    ");
    let all = state.sympozium(&["runs", "--all", "-o", "json"]);
    let all: Vec<Value> = serde_json::from_slice(&all.stdout).unwrap();
    let states: Vec<&str> = all.iter().map(|it| it["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["waiting for approval", "succeeded", "interrupted", "failed"]);
}

#[test]
fn hostile_names_are_escaped() {
    let state = State::new();
    let run = state.run(1, HOSTILE);
    let record = json!({
        "agent": HOSTILE, "model": HOSTILE, "skills": [HOSTILE], "task": HOSTILE, "namespace": HOSTILE,
        "workspace": format!("/{HOSTILE}"), "leftovers": [HOSTILE], "outcome": {"is": "succeeded", "answer": HOSTILE},
    });
    let run = run.with(record);
    run.transcript(&[json!({"kind": "note", "text": HOSTILE})]);
    fs::write(run.at("logs").join("agent.log"), format!("{HOSTILE}\n")).unwrap();
    for arguments in [
        &["runs"][..],
        &["runs", "-o", "json"],
        &["show", "1111"],
        &["show", "1111", "-o", "json"],
        &["logs", "1111"],
        &["logs", "1111", "-o", "jsonl"],
        &["logs", "1111", "--part", "agent"],
        &["logs", "1111", "--part", HOSTILE],
        &["audit", "1111"],
        &["audit", "verify", "1111"],
        &["audit", HOSTILE],
        &["prune", "--dry-run", "--older-than", "0s"],
        &["show", "\u{1b}[2J"],
        &["rm", "1111"],
    ] {
        let output = state.sympozium(arguments);
        let raw: String = (format_output(&output).chars())
            .filter(|it| *it != '\n' && (it.is_control() || ('\u{202a}'..='\u{202e}').contains(it)))
            .collect();
        assert_eq!(raw, "", "{arguments:?}");
    }
}

#[test]
fn a_run_is_shown_by_name_and_by_uid() {
    let state = State::new();
    let run = state.run(1, "count-files");
    let isolation = json!({"agent": {
        "profile": "host-user",
        "layers": {"seccomp": ""},
        "guarantees": {
            "filesystem": {"state": "enforced", "by": ["landlock-filesystem"]},
            "network": {"state": "enforced", "by": ["seccomp"]},
            "memory": {"state": "not-held", "missing": ["cgroup-memory"], "why": "no control group may be made here"},
            "kernel": {"state": "delegated", "to": "the host"},
        },
    }});
    let cost = json!({"amountMicro": 44, "currency": "USD", "source": "defaultTable", "priceKey": "scripted/*"});
    let run = run.with(json!({"isolation": isolation, "cost": cost}));
    let text = state.snapshot(&["show", "count-files"]);
    let text = regex_lite::Regex::new(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
        .unwrap()
        .replace_all(&text, "TIME")
        .into_owned();
    insta::assert_snapshot!(text, @"
    exit code: 0
    ----- stdout -----
    run        count-files
    uid        11111111-0000-4000-8000-000000000000
    state      succeeded: the run has an answer
    agent      assistant in namespace default
    model      scripted/counter
    skills     files, git
    started    TIME, 3d ago
    ended      TIME, after 12s
    used       2 model requests, 1200 input tokens, 34 output tokens, 1 tool call
    cost       0.000044 USD by scripted/*
    plan       sha256:0c8f2c64fbf3088a3377522b49c002d1e49fb67f47ddf0f2e895f5d282c0e3fa
    workspace  STATE/runs/11111111-0000-4000-8000-000000000000/workspace

    TASK
      Count the files.
      Then say how many.

    ANSWER
      There are 3 files.
      That is all.

    ISOLATION
      agent (host-user): enforced: filesystem, network
        - memory: not held: cgroup-memory missing (no control group may be made
          here)
        - kernel: delegated to the host

    FILES
      directory  STATE/runs/11111111-0000-4000-8000-000000000000
      logs       logs
      plan       plan.json
      receipts   receipts.jsonl
      report     report.json

    NEXT
      print the transcript: sympozium logs 11111111
      print the receipts: sympozium audit 11111111
      verify the receipts: sympozium audit verify 11111111
      remove it: sympozium rm 11111111
    ----- stderr -----
    ");
    let json = state.sympozium(&["show", &run.uid, "-o", "json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["outcome"], run.record["outcome"]);
    assert_eq!(json["isolation"], run.record["isolation"]);
    assert_eq!(json["cost"], cost);
    assert_eq!(json["state"], "succeeded");
}

#[test]
fn a_waiting_run_is_shown_with_its_question() {
    let state = State::new();
    let run = state.run(1, "waits");
    let run = run.with(json!({"outcome": null, "endedMs": null, "phase": "waiting", "leftovers": null}));
    let _alive = run.alive();
    let asked = question("q1", 'a', "tool: execute_command of git\nshell: git push\n");
    let answering = run.answering(vec![json!({"reply": "questions", "questions": [asked]})]);
    let text = state.snapshot(&["show", "waits"]);
    assert_eq!(answering.join().unwrap(), [json!({"request": "questions"})]);
    assert!(text.contains("state      waiting for approval\n"), "{text}");
    assert!(
        text.contains("PENDING QUESTIONS\n  q1:\n    tool: execute_command of git\n    shell: git push\n"),
        "{text}"
    );
    assert!(text.contains("  approve its pending question: sympozium approve 11111111\n"), "{text}");
}

#[test]
fn an_unknown_run_is_an_error() {
    let state = State::new();
    state.run(1, "count-files");
    insta::assert_snapshot!(state.snapshot(&["show", "111"]), @"
    exit code: 1
    ----- stdout -----
    ----- stderr -----
    error: there is no run `111`
    hint: `sympozium runs` lists the runs
    ");
}

#[test]
fn only_ended_runs_are_removed() {
    let state = State::new();
    let over = state.run(1, "over");
    let alive = state.run(2, "alive").with(json!({"outcome": null}));
    let lock = alive.alive();
    let outside = state.root().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "").unwrap();
    fs::create_dir(over.at("workspace")).unwrap();
    symlink(&outside, over.at("workspace/link")).unwrap();

    insta::assert_snapshot!(state.snapshot(&["rm", "over", "alive"]), @"
    exit code: 1
    ----- stdout -----
    ----- stderr -----
    error: alive (22222222) is still running; nothing was removed
    hint: wait until it has ended, or end it first with --force
    ");
    assert!(over.directory.exists() && alive.directory.exists());
    insta::assert_snapshot!(state.snapshot(&["rm", "over", "1111", "over"]), @"
    exit code: 0
    ----- stdout -----
    removed over (11111111)
    ----- stderr -----
    ");
    assert!(!over.directory.exists() && outside.join("kept").exists());

    // The run is first asked to end through its socket.
    let listener = bound(&alive.at("control.sock"));
    let run = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let request = attend(&stream, &[json!({"reply": "stopping"})]);
        drop(lock);
        request
    });
    insta::assert_snapshot!(state.snapshot(&["rm", "--force", "alive"]), @"
    exit code: 0
    ----- stdout -----
    removed alive (22222222)
    ----- stderr -----
    ");
    assert_eq!(run.join().unwrap(), json!({"request": "stop", "how": "gently"}));
    assert!(!alive.directory.exists());
}

#[test]
fn prune_removes_old_runs_and_leftovers() {
    let state = State::new();
    let old = state.run(1, "old");
    let young = state.run(2, "young").with(json!({"endedMs": now_ms()}));
    let killed = state.run(3, "killed").with(json!({"outcome": null, "endedMs": null}));
    fs::create_dir_all(killed.at("live/a/b")).unwrap();
    drop(bound(&killed.at("control.sock")));
    let alive = state.run(4, "alive").with(json!({"outcome": null, "endedMs": null}));
    fs::create_dir_all(alive.at("live")).unwrap();
    let _lock = alive.alive();

    let dry = state.snapshot(&["prune", "--older-than", "2d", "--dry-run"]);
    insta::assert_snapshot!(dry, @"
    exit code: 0
    ----- stdout -----
    would remove old (11111111)
    would remove 1 directory of a killed run
    would remove 1 stale socket
    ----- stderr -----
    ");
    assert!(old.directory.exists() && killed.at("live").exists());

    let output = state.sympozium(&["prune", "--older-than", "2d", "-o", "json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["runs"][0]["uid"], old.uid);
    assert_eq!(answer["runs"].as_array().unwrap().len(), 1);
    assert_eq!(answer["leftovers"], json!({"live": 1, "sockets": 1, "failed": []}));
    assert!(!old.directory.exists() && young.directory.exists());
    assert!(killed.at("run.json").exists() && !killed.at("live").exists() && !killed.at("control.sock").exists());
    assert!(alive.at("live").exists());

    let all = state.sympozium(&["prune", "--older-than", "0s"]);
    assert!(stdout(&all).contains("removed young (22222222)\n"), "{}", format_output(&all));
    assert!(!young.directory.exists() && !killed.directory.exists() && alive.directory.exists());
}

#[test]
fn runs_removes_leftovers_and_reports_unreadable_records() {
    let state = State::new();
    let killed = state.run(1, "killed").with(json!({"outcome": null, "endedMs": null}));
    fs::create_dir_all(killed.at("live/a/b")).unwrap();
    let broken = state.run(2, "broken");
    fs::write(broken.at("run.json"), "{").unwrap();
    let output = state.sympozium(&["runs"]);
    assert!(stdout(&output).contains("interrupted"), "{}", format_output(&output));
    assert!(stderr(&output).starts_with("1 more in "), "{}", format_output(&output));
    assert!(!killed.at("live").exists());
}
