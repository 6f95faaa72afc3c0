//! Output for programs: streams that are not terminals, or closed.

use std::fs;
use std::process::Stdio;

use serde_json::{Value, json};
use sympozium_testkit::command;

use super::{Harness, Running};

const TURNS: &str = r#"turns:
  - call: [{tool: execute_command, arguments: {command: "true"}}]
    usage: {input: 40, output: 2}
  - say: "Done.\nReally."
    usage: {input: 50, output: 3}
"#;

#[test]
fn only_the_answer_is_on_stdout() {
    let harness = Harness::new(TURNS);
    let (mut run, stdout, stderr) = harness.spawn_piped(&["--approve", "all", "--policy", "asking"]);
    assert_eq!(run.wait(), 0, "{}", fs::read_to_string(&stderr).unwrap());
    assert_eq!(fs::read_to_string(stdout).unwrap(), "Done.\nReally.\n");
    let told = fs::read_to_string(stderr).unwrap();
    assert!(!told.contains('\u{1b}') && !told.contains('\r'), "{told:?}");
    assert!(told.contains("--approve all approves it\n"), "{told}");
    assert!(told.contains(" approved by ") && !told.contains("by ada"), "{told}");
    assert!(told.contains("  execute_command in shell  true\n"), "{told}");
    assert!(told.contains("2 model requests, 90 tokens in, 5 out, 1 tool call\n"), "{told}");
}

#[test]
fn the_json_output_is_one_object() {
    let harness = Harness::new(TURNS);
    let (mut run, stdout, stderr) = harness.spawn_piped(&["-o", "json"]);
    assert_eq!(run.wait(), 0, "{}", fs::read_to_string(&stderr).unwrap());
    assert_eq!(fs::read_to_string(stderr).unwrap(), "");
    let told: Value = serde_json::from_slice(&fs::read(stdout).unwrap()).unwrap();
    let record = harness.record();
    for (name, expected) in [
        ("run", &record["name"]),
        ("uid", &record["uid"]),
        ("plan", &record["plan"]),
        ("outcome", &record["outcome"]),
        ("usage", &record["usage"]),
        ("workspace", &record["workspace"]),
        ("isolation", &record["isolation"]),
        ("leftovers", &json!([])),
        ("exitCode", &json!(0)),
        ("answer", &json!("Done.\nReally.")),
    ] {
        assert_eq!(told[name], *expected, "{name}");
    }
    let directory = told["directory"].as_str().unwrap();
    let receipts = fs::read_to_string(format!("{directory}/receipts.jsonl")).unwrap();
    assert_eq!(told["receipts"]["count"], receipts.lines().count());
    let report: Value = serde_json::from_slice(&fs::read(format!("{directory}/report.json")).unwrap()).unwrap();
    assert_eq!(told["receipts"]["head"], report["head"]);
    assert!(told["durations"]["totalMs"].as_u64() >= told["durations"]["startingMs"].as_u64());
}

#[test]
fn each_event_is_one_line() {
    let harness = Harness::new(TURNS);
    let (mut run, stdout, _) = harness.spawn_piped(&["-o", "jsonl"]);
    assert_eq!(run.wait(), 0);
    let text = fs::read_to_string(stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    let kinds: Vec<&str> = lines.iter().map(|it| it["event"].as_str().unwrap()).collect();
    assert_eq!((kinds.first(), kinds.last()), (Some(&"planned"), Some(&"ended")));
    for kind in ["isolated", "phase", "receipt", "transcript", "usage"] {
        assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
    }
    assert!(lines.iter().map(|it| it["atMs"].as_u64()).is_sorted());
}

#[test]
fn a_closed_pipe_does_not_end_the_run() {
    for output in ["text", "json", "jsonl"] {
        let harness = Harness::new(TURNS);
        let mut program = command(env!("CARGO_BIN_EXE_sympozium"));
        harness.prepare(&mut program, &["-o", output]);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = program.stdin(Stdio::null()).stdout(writer).stderr(Stdio::null()).spawn().unwrap();
        let mut run = Running { child, code: None };
        assert_eq!(run.wait(), 0, "{output}");
        assert_eq!(harness.record()["outcome"]["is"], "succeeded", "{output}");
    }
}
