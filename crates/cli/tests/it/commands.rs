//! `sympozium crds`, `completions` and `version`.

use crate::{format_output, stderr, stdout, sympozium, sympozium_reading};

#[test]
fn crds_prints_every_kind_as_yaml_that_reads_back() {
    let output = sympozium(&["crds"]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
    let yaml = stdout(&output);
    let expected: Vec<serde_json::Value> =
        sympozium_api::crds::all().iter().map(|definition| serde_json::to_value(definition).unwrap()).collect();
    let read: Vec<serde_json::Value> = serde_saphyr::from_multiple(yaml).unwrap();
    assert_eq!(read, expected);
    let json = sympozium(&["crds", "-o", "json"]);
    let list: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(list, serde_json::json!({"apiVersion": "v1", "kind": "List", "items": expected}));
    // `validate` reads them, and does not check them.
    let output = sympozium_reading(&["validate", "-"], yaml.as_bytes());
    assert_eq!(
        format_output(&output),
        "exit code: 0\n----- stdout -----\n----- stderr -----\nok: 0 objects in 1 file; 9 objects of other kinds not checked\n"
    );
}

#[test]
fn crds_prints_the_selected_kinds() {
    let output = sympozium(&["crds", "AgentRun", "-o", "json"]);
    let one: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(one["metadata"]["name"], "agentruns.sympozium.ai");
    let output = sympozium(&["crds", "Agent", "Model"]);
    assert_eq!(stdout(&output).matches("\nkind: CustomResourceDefinition\n").count(), 2);
}

#[test]
fn an_unknown_kind_is_a_usage_error() {
    let output = sympozium(&["crds", "AgentRuns"]);
    insta::assert_snapshot!(format_output(&output), @"
    exit code: 2
    ----- stdout -----
    ----- stderr -----
    error: invalid value 'AgentRuns' for '[KIND]...'
      [possible values: Agent, SympoziumInstance, AgentRun, SkillPack, SympoziumPolicy, SympoziumSchedule, Model, ToolApproval, RunRecord]

      tip: a similar value exists: 'AgentRun'

    For more information, try '--help'.
    ");
}

#[test]
fn every_shell_has_completions() {
    for (shell, word) in [
        ("bash", "complete -F _sympozium"),
        ("zsh", "#compdef sympozium"),
        ("fish", "complete -c sympozium"),
        ("elvish", "edit:completion:arg-completer[sympozium]"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let output = sympozium(&["completions", shell]);
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""), "{shell}");
        assert!(stdout(&output).contains(word), "{shell}");
        assert!(stdout(&output).contains("validate"), "{shell}");
    }
}

#[test]
fn version_prints_the_version() {
    let output = sympozium(&["version"]);
    let first = format!("sympozium {}", env!("CARGO_PKG_VERSION"));
    assert!(stdout(&output).starts_with(&first));
    let output = sympozium(&["version", "-o", "json"]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(answer["apiVersion"], "sympozium.ai/v1alpha1");
    assert_eq!(answer["kinds"].as_array().unwrap().len(), 9);
}
