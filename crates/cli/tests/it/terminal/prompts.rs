//! Questions at the terminal.

use std::process::Stdio;

use sympozium_testkit::terminal::Terminal;
use sympozium_testkit::wait_until;

use super::{Harness, TIMEOUT, wait_for_prompts};

const TURNS: &str = r#"turns:
  - call: [{tool: execute_command, arguments: {command: "echo again >> /workspace/log"}}]
  - call: [{tool: execute_command, arguments: {command: "echo again >> /workspace/log"}}]
  - call: [{tool: execute_command, arguments: {command: "echo no >> /workspace/log"}}]
  - call: [{tool: execute_command, arguments: {command: "echo once >> /workspace/log"}}]
  - say: Done.
"#;

#[test]
fn questions_are_approved_denied_and_shown_again() {
    let harness = Harness::new(TURNS);
    let terminal = Terminal::new(60, 100).unwrap();
    let workspace = harness.path("workspace");
    std::fs::create_dir(&workspace).unwrap();
    let mut run = harness.spawn_on(&terminal, &["--policy", "asking", "--workspace", "workspace"]);
    wait_for_prompts(&terminal, 1);
    let shown = "│ shell: echo again >> /workspace/log";
    assert!(terminal.screen().contains(shown), "{}", terminal.screen());
    // For the rest of the run: there is no second question about the identical action.
    terminal.type_in("a\n").unwrap();
    wait_for_prompts(&terminal, 2);
    terminal.wait_for("│ shell: echo no >> /workspace/log");
    terminal.type_in("s\n").unwrap();
    wait_for_prompts(&terminal, 3);
    terminal.type_in("n not that\n").unwrap();
    wait_for_prompts(&terminal, 4);
    terminal.type_in("y\n").unwrap();
    assert_eq!(run.wait(), 0);
    terminal.wait_for("Done.");
    let log = std::fs::read_to_string(workspace.join("log")).unwrap();
    assert_eq!(log, "again\nagain\nonce\n");
    let raw = terminal.raw();
    assert_eq!(raw.matches("shell: echo no ").count(), 2, "{raw}");
    assert_eq!(raw.matches("shell: echo again ").count(), 1, "{raw}");
    let screen = terminal.screen();
    // By the current user, whatever USER says.
    assert!(screen.contains(" denied by "), "{screen}");
    assert!(screen.contains(" approved by "), "{screen}");
    assert!(!screen.contains("by ada"), "{screen}");
    // The model gets the reason.
    let directory = harness.record()["uid"].as_str().unwrap().to_owned();
    let transcript = harness.path(&format!("state/runs/{directory}/transcript.jsonl"));
    assert!(std::fs::read_to_string(transcript).unwrap().contains("not that"));
}

#[test]
fn input_before_a_question_does_not_approve_it() {
    let harness = Harness::new(TURNS);
    let terminal = Terminal::new(60, 100).unwrap();
    // Before the run starts, and buffered by the terminal: input during the run could arrive after the first question is
    // displayed.
    terminal.type_in("y\ny\ny\na\na\n").unwrap();
    let mut run = harness.spawn_on(&terminal, &["--policy", "asking"]);
    for number in 1..=4 {
        wait_for_prompts(&terminal, number);
        terminal.type_in("n\n").unwrap();
    }
    assert_eq!(run.wait(), 0);
    terminal.wait_for("Done.");
    let screen = terminal.screen();
    assert!(!screen.contains("approved"), "{screen}");
}

#[test]
fn a_question_is_decided_at_another_terminal() {
    let harness = Harness::new(TURNS);
    let terminal = Terminal::new(60, 100).unwrap();
    let mut run = harness.spawn_on(&terminal, &["--policy", "asking"]);
    wait_for_prompts(&terminal, 1);
    let mut deny = sympozium_testkit::command(env!("CARGO_BIN_EXE_sympozium"));
    let run_name = harness.record()["name"].as_str().unwrap().to_owned();
    deny.args(["deny", &run_name])
        .env("SYMPOZIUM_STATE", harness.path("state"))
        .env("USER", "ada")
        .stdin(Stdio::null());
    let denied = deny.output().unwrap();
    assert!(denied.status.success(), "{denied:?}");
    terminal.wait_for("no answer is needed here any more");
    for number in 2..=4 {
        wait_for_prompts(&terminal, number);
        terminal.type_in("n\n").unwrap();
    }
    assert_eq!(run.wait(), 0);
}

#[test]
fn without_a_terminal_pending_questions_are_reported_once() {
    let harness = Harness::new(TURNS);
    let (mut run, _, stderr) = harness.spawn_piped(&["--policy", "asking"]);
    let text = || std::fs::read_to_string(&stderr).unwrap();
    let is_said = || text().contains("hint: questions are pending, to be answered elsewhere");
    assert!(wait_until(TIMEOUT, is_said), "{}", text());
    run.signal(rustix::process::Signal::TERM);
    assert_eq!(run.wait(), 130, "{}", text());
    assert_eq!(text().matches("hint: questions are pending").count(), 1);
}
