//! Hostile files: each is rejected or read in bounded memory.

use std::fs;
use std::process::Output;

use sympozium_testkit::{cases, command};

use crate::{fixtures, stdout, sympozium_reading};

/// The address space of the program in KiB: its own mappings, and a few times the largest file.
const ADDRESS_SPACE: &str = "524288";

/// The program with a limit of its address space.
pub fn bounded(arguments: &[&str]) -> Output {
    command("sh")
        .args(["-c", "ulimit -v \"$0\"; exec \"$@\"", ADDRESS_SPACE])
        .arg(env!("CARGO_BIN_EXE_sympozium"))
        .args(arguments)
        .current_dir(fixtures())
        .output()
        .unwrap()
}

/// Repeats `piece`. In `make test-full` to the maximum size of a file; otherwise large enough to notice cost that is not
/// linear.
fn repeated(piece: &str) -> String {
    let size = if cases::is_full() { 8 * 1024 * 1024 } else { 256 * 1024 };
    piece.repeat(size / piece.len())
}

#[test]
fn endless_repetition_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hostile.yaml");
    for (input, rule) in [
        (repeated("["), "too-deep"),
        (repeated("{a: "), "too-deep"),
        (repeated("- "), "too-deep"),
        (repeated("? "), "key"),
        (repeated("[?"), "too-deep"),
        (repeated("--- x\n"), "too-large"),
        (repeated("a: 1\n"), "duplicate-key"),
        (format!("[{}", repeated("1,")), "syntax"),
        (repeated("&a "), "syntax"),
        (repeated("!a "), "syntax"),
        (repeated("*a "), "alias"),
        (repeated("- &a x\n"), "not-an-object"),
        (repeated("a"), "not-an-object"),
        (format!("{}: 1", repeated("k")), "syntax"),
        (format!("\"{}", repeated("x\n")), "syntax"),
        (format!("\"{}\": 1", repeated("x")), "syntax"),
        (format!("a: |\n{}", repeated("  x\n")), "required"),
        (format!("a: >\n{}", repeated("\n")), "required"),
        (repeated("# comment\n"), "empty"),
        (repeated("\n"), "empty"),
        (repeated("%"), "syntax"),
        (repeated("---\n"), "too-large"),
        (repeated("a:\n- "), "required"),
        (repeated("a: b: "), "syntax"),
        (repeated("'"), "not-an-object"),
        (repeated("\t"), "empty"),
        (repeated("x: {<<: &a {k: v}}\n"), "duplicate-key"),
    ] {
        fs::write(&path, &input).unwrap();
        let output = bounded(&["validate", path.to_str().unwrap()]);
        let start = &input[..input.len().min(20)];
        let text = stdout(&output);
        match rule {
            "empty" => {
                assert_eq!(output.status.code(), Some(0), "{start:?}: {output:?}");
                let found: Vec<&str> = text.matches("warning[empty]").collect();
                assert_eq!((found.len(), text.lines().count()), (1, 2), "{text}");
            }
            _ => {
                assert_eq!(output.status.code(), Some(1), "{start:?}: {output:?}");
                // The largest files exceed a bound before their own error is found.
                let is_found = text.contains(&format!("[{rule}]")) || cases::is_full() && text.contains("[too-large]");
                assert!(is_found, "{start:?}: {text:.300}");
            }
        }
    }
}

/// Similar names of the maximum length, none of which exists.
#[test]
fn cost_is_linear_in_the_number_of_objects() {
    let name = |number: usize| format!("{}{number:05}", "a".repeat(43));
    let object = |kind: &str, name: &str, spec: &str| {
        format!("---\napiVersion: sympozium.ai/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n")
    };
    let count = if cases::is_full() { 4_500 } else { 300 };
    let mut text = String::new();
    for number in 0..count {
        let model = "{agents: {default: {model: m}}}";
        text += &object("Agent", &name(number), model);
        let missing = name(number + 50_000);
        text += &object("AgentRun", &format!("r{number}"), &format!("{{agentRef: {missing}, task: t}}"));
    }
    let output = sympozium_reading(&["validate", "-"], text.as_bytes());
    let expected = match cases::is_full() {
        true => {
            "failed: 1 error, 4500 warnings; 9000 objects in 1 file; 2000 runs undecided because objects are missing; 3501 more findings not listed\n"
        }
        false => "ok: 300 warnings; 600 objects in 1 file; 300 runs undecided because objects are missing\n",
    };
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
}

#[test]
fn a_file_of_100_mb_is_refused_without_being_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large.yaml");
    fs::File::create(&path).unwrap().set_len(100_000_000).unwrap();
    let output = bounded(&["validate", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output).replace(directory.path().to_str().unwrap(), "DIR");
    assert_eq!(
        text,
        "DIR/large.yaml:1:1: error[too-large]: the file is larger than 8 MiB and is not read\n  \
         hint: split the file; Kubernetes does not accept objects of that size\n"
    );
}

#[test]
fn endless_standard_input_is_truncated() {
    let output = sympozium_reading(&["validate", "-"], &vec![b' '; 9 * 1024 * 1024]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).starts_with("<stdin>:1:1: error[too-large]: the file is larger than 8 MiB"));
}

#[test]
fn alias_bombs_take_little_memory() {
    for name in ["billion-laughs.yaml", "cycles.yaml", "deep.yaml", "question-marks.yaml"] {
        let output = bounded(&["validate", name]);
        assert_eq!(output.status.code(), Some(1), "{name}: {output:?}");
        assert!(stdout(&output).contains("error["), "{name}");
    }
}

#[test]
fn a_closed_pipe_is_not_a_failure() {
    let output = command("sh")
        .args(["-c", "\"$0\" crds | head -c 10; exit ${PIPESTATUS:-0}"])
        .arg(env!("CARGO_BIN_EXE_sympozium"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
