//! Questions and answers.

use std::process::Stdio;

use sympozium_testkit::terminal::Terminal;
use sympozium_testkit::wait_until;

use super::{PATIENCE, World, wait_for_prompts};

const TURNS: &str = r#"turns:
  - call: [{tool: execute_command, arguments: {command: "echo again >> /workspace/log"}}]
  - call: [{tool: execute_command, arguments: {command: "echo again >> /workspace/log"}}]
  - call: [{tool: execute_command, arguments: {command: "echo no >> /workspace/log"}}]
  - call: [{tool: execute_command, arguments: {command: "echo once >> /workspace/log"}}]
  - say: Done.
"#;

#[test]
fn a_person_allows_refuses_and_looks_again() {
    let world = World::new(TURNS);
    let terminal = Terminal::new(60, 100).unwrap();
    let workspace = world.path("workspace");
    std::fs::create_dir(&workspace).unwrap();
    let mut run = world.on(&terminal, &["--policy", "asking", "--workspace", "workspace"]);
    wait_for_prompts(&terminal, 1);
    let shown = "│ shell: echo again >> /workspace/log";
    assert!(terminal.screen().contains(shown), "{}", terminal.screen());
    // For the rest of the run: the identical action is not asked about a second time.
    terminal.type_in("a\n").unwrap();
    wait_for_prompts(&terminal, 2);
    terminal.wait_for("│ shell: echo no >> /workspace/log");
    terminal.type_in("s\n").unwrap();
    wait_for_prompts(&terminal, 3);
    terminal.type_in("n not that\n").unwrap();
    wait_for_prompts(&terminal, 4);
    terminal.type_in("y\n").unwrap();
    assert_eq!(run.ended(), 0);
    terminal.wait_for("Done.");
    let log = std::fs::read_to_string(workspace.join("log")).unwrap();
    assert_eq!(log, "again\nagain\nonce\n");
    let raw = terminal.raw();
    assert_eq!(raw.matches("shell: echo no ").count(), 2, "{raw}");
    assert_eq!(raw.matches("shell: echo again ").count(), 1, "{raw}");
    let screen = terminal.screen();
    // By the user that this is, whatever the environment calls them.
    assert!(screen.contains(" denied by "), "{screen}");
    assert!(screen.contains(" approved by "), "{screen}");
    assert!(!screen.contains("by ada"), "{screen}");
    // The model was told why.
    let directory = world.record()["uid"].as_str().unwrap().to_owned();
    let transcript = world.path(&format!("state/runs/{directory}/transcript.jsonl"));
    assert!(std::fs::read_to_string(transcript).unwrap().contains("not that"));
}

#[test]
fn nobody_approves_what_they_have_not_read() {
    let world = World::new(TURNS);
    let terminal = Terminal::new(60, 100).unwrap();
    // Before the run begins, and the terminal keeps it: what is typed while the run goes on may come when the first
    // question can be read already.
    terminal.type_in("y\ny\ny\na\na\n").unwrap();
    let mut run = world.on(&terminal, &["--policy", "asking"]);
    for number in 1..=4 {
        wait_for_prompts(&terminal, number);
        terminal.type_in("n\n").unwrap();
    }
    assert_eq!(run.ended(), 0);
    terminal.wait_for("Done.");
    let screen = terminal.screen();
    assert!(!screen.contains("approved"), "{screen}");
}

#[test]
fn a_question_is_answered_from_another_terminal() {
    let world = World::new(TURNS);
    let terminal = Terminal::new(60, 100).unwrap();
    let mut run = world.on(&terminal, &["--policy", "asking"]);
    wait_for_prompts(&terminal, 1);
    let mut deny = sympozium_testkit::command(env!("CARGO_BIN_EXE_sympozium"));
    let run_name = world.record()["name"].as_str().unwrap().to_owned();
    deny.args(["deny", &run_name]).env("SYMPOZIUM_STATE", world.path("state")).env("USER", "ada").stdin(Stdio::null());
    let denied = deny.output().unwrap();
    assert!(denied.status.success(), "{denied:?}");
    terminal.wait_for("no answer is needed here any more");
    for number in 2..=4 {
        wait_for_prompts(&terminal, number);
        terminal.type_in("n\n").unwrap();
    }
    assert_eq!(run.ended(), 0);
}

#[test]
fn without_a_terminal_questions_wait_and_this_is_said_once() {
    let world = World::new(TURNS);
    let (mut run, _, stderr) = world.piped(&["--policy", "asking"]);
    let text = || std::fs::read_to_string(&stderr).unwrap();
    let is_said = || text().contains("hint: questions are pending, to be answered elsewhere");
    assert!(wait_until(PATIENCE, is_said), "{}", text());
    run.signal(rustix::process::Signal::TERM);
    assert_eq!(run.ended(), 130, "{}", text());
    assert_eq!(text().matches("hint: questions are pending").count(), 1);
}
