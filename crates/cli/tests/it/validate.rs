//! `sympozium validate`: exit code and text for many small manifests.

use std::fs;

use sympozium_testkit::static_build::workspace_root;

use crate::{fixtures, format_output, stderr, stdout, sympozium, sympozium_reading};

/// One snapshot for each fixture, by its name.
#[test]
fn findings_of_every_fixture() {
    let mut names: Vec<String> =
        fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let output = sympozium(&["validate", &name]);
        insta::assert_snapshot!(name, format_output(&output));
    }
}

/// Every error has a hint.
#[test]
fn every_error_of_every_fixture_has_a_hint() {
    for strictness in [&["--strict"][..], &[]] {
        let mut arguments = vec!["validate", "-o", "json", "no-such-file", "."];
        arguments.extend(strictness);
        let output = sympozium(&arguments);
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = answer["findings"].as_array().unwrap();
        assert!(findings.len() > 50);
        let without: Vec<_> = findings.iter().filter(|it| it["hint"].is_null()).collect();
        assert_eq!(without, [] as [&serde_json::Value; 0]);
    }
}

#[test]
fn strict_turns_missing_references_into_errors() {
    let output = sympozium(&["validate", "--strict", "references.yaml"]);
    insta::assert_snapshot!("references-strict", format_output(&output));
    let output = sympozium(&["validate", "--strict", "complete.yaml"]);
    assert_eq!(
        format_output(&output),
        "exit code: 0\n----- stdout -----\n----- stderr -----\nok: 3 objects in 1 file; 1 object of other kinds not checked\n"
    );
}

#[test]
fn objects_without_a_namespace_get_that_of_the_flag() {
    let text = "apiVersion: v1\nkind: Secret\nmetadata: {name: openai-key, namespace: team}\n";
    let run = "---\napiVersion: sympozium.ai/v1alpha1\nkind: AgentRun\nmetadata: {name: r}\nspec: {agentRef: a, model: {provider: openai, model: m, authSecretRef: openai-key}}\n";
    let agent = "---\napiVersion: sympozium.ai/v1alpha1\nkind: Agent\nmetadata: {name: a, namespace: team}\nspec: {agents: {default: {model: m}}}\n";
    let text = format!("{text}{run}{agent}");
    let missing = |arguments: &[&str]| {
        let output = sympozium_reading(arguments, text.as_bytes());
        stdout(&output).matches("missing-reference").count()
    };
    assert_eq!(missing(&["validate", "-"]), 2);
    assert_eq!(missing(&["validate", "-n", "team", "-"]), 0);
}

#[test]
fn programs_get_json_and_the_same_exit_code() {
    let output = sympozium(&["validate", "-o", "json", "unknown-fields.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "");
    insta::assert_snapshot!("unknown-fields-json", stdout(&output));
    let output = sympozium(&["validate", "-o", "json", "complete.yaml"]);
    assert_eq!(output.status.code(), Some(0));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["allowed"], true);
    assert_eq!(answer["objects"], 3);
    assert_eq!(answer["findings"], serde_json::json!([]));
}

#[test]
fn standard_input_directories_and_files_are_read_together() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/er");
    fs::create_dir_all(&path).unwrap();
    let agent = |name: &str| {
        format!(
            "apiVersion: sympozium.ai/v1alpha1\nkind: Agent\nmetadata: {{name: {name}}}\nspec: {{agents: {{default: {{model: m}}}}}}\n"
        )
    };
    fs::write(path.join("a.yml"), agent("one")).unwrap();
    fs::write(directory.path().join("b.json"), r#"{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}"#)
        .unwrap();
    fs::write(directory.path().join("notes.txt"), "not: [a manifest").unwrap();
    let directory = directory.path().to_str().unwrap();
    let output = sympozium_reading(&["validate", "-", directory, "short-form.yaml"], agent("two").as_bytes());
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stderr(&output), "ok: 3 warnings; 3 objects in 4 files; 1 object of other kinds not checked\n");
}

#[test]
fn findings_in_standard_input_name_it() {
    let output = sympozium_reading(&["validate", "-"], b"a: [");
    assert!(stdout(&output).starts_with("<stdin>:1:4: error[syntax]: "), "{}", stdout(&output));
}

#[test]
fn missing_files_do_not_hide_others() {
    let output = sympozium(&["validate", "no-such-file.yaml", "duplicate-keys.yaml"]);
    insta::assert_snapshot!(format_output(&output), @"
    exit code: 1
    ----- stdout -----
    no-such-file.yaml:1:1: error[file]: no such file or directory
      hint: check the path, or name the directory of the manifests

    duplicate-keys.yaml:6:13: warning[missing-reference]: spec.agentRef: Agent or SympoziumInstance `one` is not among the files
      hint: it must exist in the cluster or in one of the files
    duplicate-keys.yaml:8:3: error[duplicate-key]: duplicate key `agentRef`; the first one is on line 6
      hint: keep one of the two
    ----- stderr -----
    failed: 2 errors, 1 warning; 1 object in 2 files; 1 run undecided because objects are missing
    ");
}

#[test]
fn validate_requires_a_file() {
    let output = sympozium(&["validate"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).starts_with("error: the following required arguments were not provided:\n  <FILE>..."));
}

#[test]
fn an_invalid_namespace_is_refused() {
    let output = sympozium(&["validate", "-n", "Bad_NS", "agent.yaml"]);
    insta::assert_snapshot!(format_output(&output), @"
    exit code: 2
    ----- stdout -----
    ----- stderr -----
    error: invalid value 'Bad_NS' for '--namespace <NAMESPACE>': invalid name of a namespace
      hint: use lower-case letters, digits and `-`, at most 63 characters

    For more information, try '--help'.
    ");
}

#[test]
fn input_without_objects_gets_a_warning_once() {
    let output = sympozium_reading(&["validate", "-", "empty.yaml"], b"");
    insta::assert_snapshot!(format_output(&output), @"
    exit code: 0
    ----- stdout -----
    <stdin>:1:1: warning[empty]: there is no object to check
      hint: name a file with manifests, or check why this one is empty
    ----- stderr -----
    ok: 1 warning; 0 objects in 2 files
    ");
}

/// As a shell creates it for `<(…)`.
#[test]
fn an_anonymous_pipe_is_read() {
    let agent = fs::read(crate::fixtures().join("agent.yaml")).unwrap();
    let by_descriptor = sympozium_reading(&["validate", "/dev/fd/0"], &agent);
    assert_eq!(by_descriptor.status.code(), Some(0));
    assert!(stderr(&by_descriptor).contains("1 object in 1 file"));
}

#[test]
fn help_has_examples_and_the_exit_codes() {
    let output = sympozium(&["validate", "--help"]);
    let help = stdout(&output);
    assert!(help.contains("helm template my-agents ./chart | sympozium validate -\n"));
    assert!(help.contains("Exit codes:\n  0  "));
    let denied = "no errors, but the cluster would reject an object or deny a run";
    assert!(help.contains(&format!("\n  3  {denied}\n")));
    let page = fs::read_to_string(workspace_root().join("docs/validate.md")).unwrap();
    assert!(page.contains(&format!("\n| 3 | {denied} |\n")));
}

#[test]
fn the_floor_flag_requires_one_policy() {
    let output = sympozium(&["validate", "agent.yaml"]);
    assert_eq!(output.status.code(), Some(0));
    let output = sympozium(&["validate", "--floor", "floor.yaml", "agent.yaml"]);
    insta::assert_snapshot!("floor-denies", format_output(&output));
    let output = sympozium(&["validate", "--floor", "complete.yaml", "agent.yaml"]);
    insta::assert_snapshot!("floor-is-not-a-policy", format_output(&output));
}

#[test]
fn errors_come_before_denials_in_the_exit_code() {
    assert_eq!(sympozium(&["validate", "denied.yaml"]).status.code(), Some(3));
    let both = sympozium(&["validate", "denied.yaml", "unknown-fields.yaml"]);
    assert_eq!(both.status.code(), Some(1));
    let json = sympozium(&["validate", "-o", "json", "denied.yaml"]);
    assert_eq!(json.status.code(), Some(3));
    let answer: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(answer["allowed"], false);
    assert_eq!(answer["errors"], 0);
}

/// The example in the docs has the fields and texts of the real output.
#[test]
fn the_validate_page_has_the_output_of_the_program() {
    let page = workspace_root().join("docs/validate.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once("```json\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let example: serde_json::Value = serde_json::from_str(example).unwrap();
    let output = sympozium(&["validate", "-o", "json", "denied.yaml"]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let fields = |value: &serde_json::Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    assert_eq!(fields(&answer), fields(&example));
    assert_eq!(fields(&answer["findings"][0]), fields(&example["findings"][0]));
    let denied = answer["findings"].as_array().unwrap().iter();
    let mut messages = denied.map(|finding| finding["message"].as_str().unwrap());
    assert!(messages.any(|it| it == example["findings"][0]["message"]));
}
