//! `sympozium approvals`, `approve` and `deny`, for runs whose side of the control socket the test plays.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;
use std::slice::from_ref;

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};

use crate::records::{HOSTILE, Run, State, action, question};
use crate::{format_output, program, stdout};

/// A run that waits for approval. The descriptor holds its lock.
fn waiting_run(state: &State, number: u8, name: &str) -> (Run, OwnedFd) {
    let run = state.run(number, name).with(json!({"outcome": null, "endedMs": null, "phase": "waiting"}));
    let alive = run.alive();
    (run, alive)
}

fn questions(all: &[Value]) -> Value {
    json!({"reply": "questions", "questions": all})
}

#[test]
fn no_question_is_pending() {
    let state = State::new();
    state.run(1, "over");
    // Dead, though its record says otherwise and its socket is there.
    let killed = state.run(2, "killed").with(json!({"outcome": null, "endedMs": null, "phase": "waiting"}));
    drop(crate::records::bound(&killed.at("control.sock")));
    insta::assert_snapshot!(state.snapshot(&["approvals"]), @"
    exit code: 0
    ----- stdout -----
    ----- stderr -----
    there are no pending questions
    ");
    insta::assert_snapshot!(state.snapshot(&["approve", "killed"]), @"
    exit code: 1
    ----- stdout -----
    ----- stderr -----
    error: run `killed` has no pending question
    hint: `sympozium approvals` lists the pending questions
    ");
    insta::assert_snapshot!(state.snapshot(&["deny", "--all"]), @"
    exit code: 1
    ----- stdout -----
    ----- stderr -----
    error: there are no pending questions
    hint: the question may be decided or expired; `sympozium approvals` lists the pending questions
    ");
}

#[test]
fn questions_of_all_runs_are_listed() {
    let state = State::new();
    let (first, _first) = waiting_run(&state, 1, "one");
    let (second, _second) = waiting_run(&state, 2, "two");
    let q1 = question("q1", 'a', "tool: execute_command of git\nin: skill-git\nshell: git push");
    let q2 = question("q2", 'b', "tool: fetch_url");
    let listed = [questions(from_ref(&q1)), questions(&[q1])];
    let first = first.answering(listed.to_vec());
    let second = second.answering(vec![questions(from_ref(&q2)), questions(&[q2])]);
    insta::assert_snapshot!(state.snapshot(&["approvals"]), @"
    exit code: 0
    ----- stdout -----
    q1 of one (11111111), expires in 5h 1m:
        tool: execute_command of git
        in: skill-git
        shell: git push
      to approve: sympozium approve 11111111 --action sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa [--for-the-run]
      to deny:    sympozium deny 11111111 --action sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa

    q2 of two (22222222), expires in 5h 1m:
        tool: fetch_url
      to approve: sympozium approve 22222222 --action sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
      to deny:    sympozium deny 22222222 --action sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
    ----- stderr -----
    ");
    let output = state.sympozium(&["approvals", "-o", "json"]);
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(all[0]["question"]["action"], action('a'));
    assert_eq!((&all[1]["run"], &all[1]["question"]["approval"]), (&json!("two"), &json!("q2")));
    first.join().unwrap();
    second.join().unwrap();
}

#[test]
fn an_action_that_was_not_shown_is_not_approved() {
    let state = State::new();
    let (run, _alive) = waiting_run(&state, 1, "one");
    let q1 = question("q1", 'a', "shell: git push");
    let asked = json!({"request": "questions"});
    for arguments in [
        &["approve", "one"][..],
        &["approve", "one", "--yes"],
        &["approve", "one", "q1", "--yes"],
        &["approve", "--all", "--yes"],
    ] {
        let answering = run.answering(vec![questions(from_ref(&q1))]);
        let text = state.snapshot(arguments);
        assert_eq!(
            text,
            "exit code: 1\n----- stdout -----\n----- stderr -----\nerror: nothing was approved: without a terminal, the action cannot be shown before it is approved\n\
             hint: `sympozium approvals` prints the action and its hash; name the hash with --action sha256:…\n"
        );
        assert_eq!(answering.join().unwrap(), from_ref(&asked));
        std::fs::remove_file(run.at("control.sock")).unwrap();
    }
    // Not the action of the pending question.
    let answering = run.answering(vec![questions(&[q1])]);
    let text = state.snapshot(&["approve", "one", "--action", &action('b')]);
    assert!(
        text.starts_with("exit code: 1\n") && text.contains("there is no pending question about action sha256:bbbb"),
        "{text}"
    );
    assert_eq!(answering.join().unwrap(), [asked]);
}

#[test]
fn the_exact_action_is_approved_and_denied() {
    let state = State::new();
    let (run, _alive) = waiting_run(&state, 1, "one");
    let q1 = question("q1", 'a', "shell: git push");
    let decide = |choice: &str, reason: Option<&str>| {
        let mut request = json!({"request": "decide", "approval": "q1", "action": action('a'), "says": choice});
        if let Some(reason) = reason {
            request["reason"] = reason.into();
        }
        request
    };
    let hash = action('a');
    let refused = format!("the policy does not let you {HOSTILE}");
    for (arguments, reply, request, code, expected) in [
        (
            &["approve", "one", "--action", &hash][..],
            json!({"reply": "counted", "more": 0}),
            decide("yes", None),
            0,
            "approved: q1 of one (11111111)\n",
        ),
        (
            &["approve", "--action", &hash, "--for-the-run"],
            json!({"reply": "counted", "more": 0}),
            decide("yesForTheRun", None),
            0,
            "approved: q1 of one (11111111), for every repetition of this action in the run\n",
        ),
        (
            &["approve", "one", "--action", &hash],
            json!({"reply": "counted", "more": 2}),
            decide("yes", None),
            0,
            "recorded: q1 of one (11111111): 2 more approvals are required\n",
        ),
        (
            &["approve", "one", "--action", &hash],
            json!({"reply": "refused", "why": refused}),
            decide("yes", None),
            1,
            "",
        ),
        (
            &["deny", "one", "--reason", "not today"],
            json!({"reply": "counted", "more": 0}),
            decide("no", Some("not today")),
            0,
            "denied: q1 of one (11111111)\n",
        ),
        (
            &["deny", "q1"],
            json!({"reply": "counted", "more": 0}),
            decide("no", None),
            0,
            "denied: q1 of one (11111111)\n",
        ),
    ] {
        let answering = run.answering(vec![questions(from_ref(&q1)), reply]);
        let output = state.sympozium(arguments);
        assert_eq!(
            (output.status.code(), stdout(&output)),
            (Some(code), expected),
            "{arguments:?}: {}",
            format_output(&output)
        );
        assert_eq!(answering.join().unwrap()[1], request, "{arguments:?}");
        assert!(!format_output(&output).contains('\u{1b}'), "{arguments:?}");
        std::fs::remove_file(run.at("control.sock")).unwrap();
    }
    let long = "x".repeat(1001);
    let text = state.snapshot(&["deny", "one", "--reason", &long]);
    assert!(text.starts_with("exit code: 2\n"), "{text}");
}

#[test]
fn a_question_cannot_send_escape_sequences_to_the_terminal() {
    let state = State::new();
    let (run, _alive) = waiting_run(&state, 1, HOSTILE);
    let hostile = question(HOSTILE, 'a', &format!("shell: {HOSTILE}\n  to approve: forged"));
    let answering = run.answering(vec![questions(&[hostile])]);
    let output = state.sympozium(&["approvals"]);
    answering.join().unwrap();
    let text = stdout(&output);
    assert!(!text.contains(['\u{1b}', '\u{202e}', '\r', '\u{9b}']), "{text:?}");
    // The text of the question is indented more than our own lines.
    assert!(text.contains("\n      to approve: forged\n  to approve: sympozium approve 11111111 "), "{text}");
}

#[test]
fn a_run_with_an_invalid_reply_is_skipped() {
    let state = State::new();
    let (run, _alive) = waiting_run(&state, 1, "one");
    let answering = run.answering(vec![json!({"reply": "stopping"})]);
    let text = state.snapshot(&["approvals"]);
    answering.join().unwrap();
    assert!(text.starts_with("exit code: 0\n"), "{text}");
    assert!(
        text.contains("warning: cannot read the questions of one: the reply of the run does not match the request\n"),
        "{text}"
    );
}

/// Runs the program on a terminal and types `typed` at the prompt. Returns the exit code and the screen.
fn at_terminal(state: &State, arguments: &[&str], typed: &str) -> (Option<i32>, String) {
    let mut ours: File = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap().into();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let path = ptsname(&ours, Vec::new()).unwrap();
    let path = OsStr::from_bytes(path.as_bytes());
    // A test binary may lead a session: it must not get a controlling terminal, whose closing sends SIGHUP.
    let theirs = || -> OwnedFd { open(path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap() };
    // Typed before the prompt: the terminal buffers it, and it must not count as an answer.
    ours.write_all(b"y\ny\n").unwrap();
    let mut child = program(arguments);
    child.env("SYMPOZIUM_STATE", state.root());
    child.stdin(Stdio::from(theirs())).stdout(Stdio::from(theirs())).stderr(Stdio::from(theirs()));
    let mut running = child.spawn().unwrap();
    drop(child);
    let mut screen = Vec::new();
    let mut piece = [0; 4096];
    // Reading fails once no process has the other side open.
    let mut has_typed = false;
    while let Ok(read @ 1..) = ours.read(&mut piece) {
        screen.extend_from_slice(&piece[..read]);
        if !has_typed && screen.ends_with(b"[y/N] ") {
            has_typed = true;
            ours.write_all(typed.as_bytes()).unwrap();
        }
    }
    let code = running.wait().unwrap().code();
    (code, String::from_utf8(screen).unwrap().replace("\r\n", "\n"))
}

#[test]
fn on_a_terminal_the_action_is_shown_and_confirmed() {
    let state = State::new();
    let (run, _alive) = waiting_run(&state, 1, "one");
    let q1 = question("q1", 'a', "shell: git push");
    let decided = json!({"request": "decide", "approval": "q1", "action": action('a'), "says": "yes"});
    for (arguments, typed, is_approved) in [
        (&["approve", "one"][..], "y\n", true),
        (&["approve", "one"], "YES\n", true),
        (&["approve", "one"], "n\n", false),
        (&["approve", "one"], "\n", false),
        (&["approve", "one"], "yess\n", false),
        (&["approve", "one", "--yes"], "", true),
    ] {
        let mut answers = vec![questions(from_ref(&q1))];
        if is_approved {
            answers.push(json!({"reply": "counted", "more": 0}));
        }
        let answering = run.answering(answers);
        let (code, screen) = at_terminal(&state, arguments, typed);
        let requests = answering.join().unwrap();
        assert_eq!(code, Some(i32::from(!is_approved)), "{typed:?}: {screen}");
        assert!(screen.contains("    shell: git push\n"), "{typed:?}: {screen}");
        assert_eq!(requests.get(1), is_approved.then_some(&decided), "{typed:?}");
        let last = match is_approved {
            true => "approved: q1 of one (11111111)\n",
            false => "not approved; the question is still pending\n",
        };
        assert!(screen.ends_with(last), "{typed:?}: {screen}");
        std::fs::remove_file(run.at("control.sock")).unwrap();
    }
}
