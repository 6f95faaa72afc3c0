//! A person, or the system, ends the run.

use rustix::process::Signal;
use sympozium_testkit::terminal::Terminal;
use sympozium_testkit::wait_until;

use super::{PATIENCE, World};

const SLEEPING: &str = r#"turns:
  - say: I wait.
    call: [{tool: execute_command, arguments: {command: "sleep 100", timeout: 100}}]
  - say: Done.
"#;

fn cancelled(world: &World) {
    assert_eq!(world.record()["outcome"]["is"], "cancelled");
    assert_eq!(world.record()["leftovers"], serde_json::json!([]));
}

#[test]
fn once_is_gently() {
    let world = World::new(SLEEPING);
    let terminal = Terminal::new(40, 100).unwrap();
    let mut run = world.on(&terminal, &[]);
    terminal.wait_for("execute_command in shell sleep 100");
    terminal.type_in("\u{3}").unwrap();
    terminal.wait_for("ending the run; press Ctrl-C again to kill it");
    assert_eq!(run.ended(), 130);
    terminal.wait_for("a user ended it");
    terminal.wait_for("sympozium audit verify run-");
    let screen = terminal.screen();
    assert!(screen.contains("cancelled"), "{screen}");
    assert!(!screen.contains("Done."), "{screen}");
    cancelled(&world);
}

#[test]
fn twice_is_at_once() {
    let world = World::new(SLEEPING);
    let terminal = Terminal::new(40, 100).unwrap();
    let mut run = world.on(&terminal, &[]);
    terminal.wait_for("execute_command in shell sleep 100");
    terminal.type_in("\u{3}").unwrap();
    terminal.wait_for("ending the run");
    terminal.type_in("\u{3}").unwrap();
    assert_eq!(run.ended(), 130);
    cancelled(&world);
}

#[test]
fn a_terminal_that_is_closed_ends_the_run_and_leaves_its_record() {
    let world = World::new(SLEEPING);
    let terminal = Terminal::new(40, 100).unwrap();
    let mut run = world.on(&terminal, &[]);
    terminal.wait_for("execute_command in shell sleep 100");
    run.signal(Signal::HUP);
    assert_eq!(run.ended(), 130);
    cancelled(&world);
}

#[test]
fn other_programs_end_it_as_a_person_does() {
    let world = World::new(SLEEPING);
    let (mut run, stdout, stderr) = world.piped(&[]);
    let text = || std::fs::read_to_string(&stderr).unwrap();
    assert!(wait_until(PATIENCE, || text().contains("I wait.")), "{}", text());
    run.signal(Signal::TERM);
    assert_eq!(run.ended(), 130);
    assert!(text().contains("ending the run"), "{}", text());
    assert_eq!(std::fs::read_to_string(stdout).unwrap(), "");
    cancelled(&world);
}
