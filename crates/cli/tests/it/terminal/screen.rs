//! The screen: wide, narrow, resized, without colours.

use sympozium_testkit::terminal::Terminal;
use sympozium_testkit::wait_until;

use super::{Harness, TIMEOUT};

/// The agent removes U+202E from its answer. U+FE0F is part of symbols, and left to the terminal.
const TURNS: &str = r#"turns:
  - say: I look around.
    call:
      - {tool: execute_command, arguments: {command: "echo one > a.txt"}}
      - {tool: list_directory, arguments: {path: /workspace}}
  - call:
      - {tool: execute_command, arguments: {command: "exit 3"}}
      - {tool: become_root, arguments: {why: "fun \u001b[2J"}}
  - say: "There is one file: a.txt\nand\u202e \ufe0fnothing else."
"#;

const SLEEPING: &str = r#"turns:
  - call: [{tool: execute_command, arguments: {command: "sleep 100 # and this is a long line that no narrow terminal has room for", timeout: 100}}]
"#;

/// The screen with varying parts replaced.
fn steady(screen: &str) -> String {
    let number = regex_lite::Regex::new(r"\d+(\.\d)? (ms|s)\b").unwrap();
    let path = regex_lite::Regex::new(r"/\S+/state/runs/[0-9a-f-]{36}").unwrap();
    let name = regex_lite::Regex::new(r"run-[0-9a-f]{8}").unwrap();
    let space = regex_lite::Regex::new(r" +N").unwrap();
    let screen = path.replace_all(screen, "STATE/UID");
    let screen = name.replace_all(&screen, "run-NAME");
    let screen = number.replace_all(&screen, "N s");
    let screen = space.replace_all(&screen, " N");
    screen.lines().map(|it| format!("{}\n", it.trim_end())).collect()
}

#[test]
fn a_run_is_displayed_as_lines() {
    let harness = Harness::new(TURNS);
    let terminal = Terminal::new(50, 200).unwrap();
    let mut run = harness.spawn_on(&terminal, &[]);
    assert_eq!(run.wait(), 0);
    terminal.wait_for("nothing else.");
    let screen = steady(&terminal.screen());
    for line in [
        "run-NAME  agent worker, model scripted/script\n  skills: shell (from run.yaml)\n  policy: floor (shipped)\n  isolated by: ",
        "\n  > I look around.\n",
        "\n  ok N s  execute_command in shell  echo one > a.txt\n",
        "\n  ok N s  list_directory  /workspace\n",
        "\n  exit 3 N s  execute_command in shell  exit 3\n",
        "  become_root  why=fun \\u{1b}[2J\n",
        "\nsucceeded after N s\n",
        "\n  workspace  STATE/UID/workspace\n  look at it sympozium show run-NAME\n  verify it  sympozium audit verify run-NAME\n",
        "\nThere is one file: a.txt\nand \\u{fe0f}nothing else.\n",
    ] {
        assert!(screen.contains(line), "{line:?} in\n{screen}");
    }
}

#[test]
fn rows_are_truncated_on_a_narrow_terminal() {
    let harness = Harness::new(TURNS);
    let terminal = Terminal::new(120, 20).unwrap();
    let mut run = harness.spawn_on(&terminal, &[]);
    assert_eq!(run.wait(), 0);
    terminal.wait_for("nothing else");
    let screen = terminal.screen();
    let calls: Vec<&str> = screen.lines().filter(|it| it.starts_with("  ok ")).collect();
    // Truncated at the edge, not continued in another row.
    assert_eq!(calls.len(), 2, "{screen}");
    assert!(calls.iter().all(|it| it.ends_with('…')), "{screen}");
    assert!(screen.contains("  > I look around.\n"), "{screen}");
}

#[test]
fn a_resize_redraws_at_once() {
    let harness = Harness::new(SLEEPING);
    let terminal = Terminal::new(30, 100).unwrap();
    let mut run = harness.spawn_on(&terminal, &[]);
    terminal.wait_for("sleep 100 # and this is a long line that no");
    terminal.resize(30, 40).unwrap();
    let fits = || {
        let row = terminal.last_row();
        row.contains("execute_command in shell") && row.ends_with('…') && row.chars().count() < 40
    };
    assert!(wait_until(TIMEOUT, fits), "{}", terminal.screen());
    terminal.resize(30, 120).unwrap();
    terminal.wait_for("that no narrow terminal has room for");
    terminal.type_in("\u{3}").unwrap();
    assert_eq!(run.wait(), 130);
}

#[test]
fn colours_are_not_needed() {
    for (arguments, variable) in
        [(&[][..], Some(("NO_COLOR", "1"))), (&[], Some(("TERM", "dumb"))), (&["--color", "never"], None)]
    {
        let harness = Harness::new(TURNS);
        let terminal = Terminal::new(50, 100).unwrap();
        let mut run = harness.spawn_on_with(&terminal, arguments, |program| {
            program.envs(variable);
        });
        assert_eq!(run.wait(), 0);
        terminal.wait_for("nothing else.");
        let raw = terminal.raw();
        assert!(!raw.contains('\u{1b}'), "{variable:?}: {raw:?}");
        assert!(raw.contains("succeeded after"), "{raw}");
    }
}
