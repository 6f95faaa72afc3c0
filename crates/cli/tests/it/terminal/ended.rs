//! The user or the system ends the run.

use rustix::process::Signal;
use sympozium_testkit::terminal::Terminal;
use sympozium_testkit::wait_until;

use super::{Harness, TIMEOUT};

const SLEEPING: &str = r#"turns:
  - say: I wait.
    call: [{tool: execute_command, arguments: {command: "sleep 100", timeout: 100}}]
  - say: Done.
"#;

fn cancelled(harness: &Harness) {
    assert_eq!(harness.record()["outcome"]["is"], "cancelled");
    assert_eq!(harness.record()["leftovers"], serde_json::json!([]));
}

#[test]
fn one_interrupt_ends_the_run_gently() {
    let harness = Harness::new(SLEEPING);
    let terminal = Terminal::new(40, 100).unwrap();
    let mut run = harness.spawn_on(&terminal, &[]);
    terminal.wait_for("execute_command in shell sleep 100");
    terminal.type_in("\u{3}").unwrap();
    terminal.wait_for("ending the run; press Ctrl-C again to kill it");
    assert_eq!(run.wait(), 130);
    terminal.wait_for("a user ended it");
    terminal.wait_for("sympozium audit verify run-");
    let screen = terminal.screen();
    assert!(screen.contains("cancelled"), "{screen}");
    assert!(!screen.contains("Done."), "{screen}");
    cancelled(&harness);
}

#[test]
fn two_interrupts_kill_the_run() {
    let harness = Harness::new(SLEEPING);
    let terminal = Terminal::new(40, 100).unwrap();
    let mut run = harness.spawn_on(&terminal, &[]);
    terminal.wait_for("execute_command in shell sleep 100");
    terminal.type_in("\u{3}").unwrap();
    terminal.wait_for("ending the run");
    terminal.type_in("\u{3}").unwrap();
    assert_eq!(run.wait(), 130);
    cancelled(&harness);
}

#[test]
fn a_closed_terminal_ends_the_run_with_its_record() {
    let harness = Harness::new(SLEEPING);
    let terminal = Terminal::new(40, 100).unwrap();
    let mut run = harness.spawn_on(&terminal, &[]);
    terminal.wait_for("execute_command in shell sleep 100");
    run.signal(Signal::HUP);
    assert_eq!(run.wait(), 130);
    cancelled(&harness);
}

#[test]
fn sigterm_ends_the_run_like_an_interrupt() {
    let harness = Harness::new(SLEEPING);
    let (mut run, stdout, stderr) = harness.spawn_piped(&[]);
    let text = || std::fs::read_to_string(&stderr).unwrap();
    assert!(wait_until(TIMEOUT, || text().contains("I wait.")), "{}", text());
    run.signal(Signal::TERM);
    assert_eq!(run.wait(), 130);
    assert!(text().contains("ending the run"), "{}", text());
    assert_eq!(std::fs::read_to_string(stdout).unwrap(), "");
    cancelled(&harness);
}
