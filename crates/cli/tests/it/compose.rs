//! The messages and exit codes of `sympozium run` before anything starts.

use std::fs;
use std::process::Output;

use tempfile::TempDir;

use super::*;

const MANIFESTS: &str = "\
apiVersion: sympozium.ai/v1alpha1
kind: Agent
metadata: {name: worker}
spec:
  agents: {default: {model: gpt-4o}}
  authRefs: [{provider: openai, secret: openai-key}]
---
apiVersion: sympozium.ai/v1alpha1
kind: AgentRun
metadata: {name: work}
spec: {agentRef: worker, task: Work., env: {LD_PRELOAD: /x.so}}
";

/// Runs the program without the directories and variables of the current user.
fn composing(machine: &TempDir, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut program = program(arguments);
    program.env_clear().envs(variables.iter().copied());
    for name in ["STATE", "CONFIG", "DATA"] {
        program.env(format!("SYMPOZIUM_{name}"), machine.path().join(name));
    }
    program.output().unwrap()
}

#[test]
fn a_denied_run_prints_the_same_as_explain() {
    let machine = tempfile::tempdir().unwrap();
    let file = machine.path().join("all.yaml");
    fs::write(&file, MANIFESTS).unwrap();
    let file = file.to_str().unwrap();
    let explained = composing(&machine, &["explain", file], &[]);
    let denied = composing(&machine, &["run", file], &[("OPENAI_API_KEY", "sk-hunter2")]);
    for output in [&explained, &denied] {
        assert_eq!(output.status.code(), Some(3), "{}", stderr(output));
    }
    let lines = stderr(&explained).lines().filter(|it| it.contains("denied["));
    let lines: Vec<&str> = lines.collect();
    assert!(!lines.is_empty(), "{}", stderr(&explained));
    for line in lines {
        assert!(stderr(&denied).contains(line), "{}", stderr(&denied));
    }
    assert_eq!(stdout(&denied), "");
    assert!(stderr(&denied).contains("\nerror: the run is denied\nhint: "));
    assert!(!stderr(&denied).contains("hunter2"));
    // Nothing is stored of a run that did not start.
    let runs = machine.path().join("STATE/runs");
    assert_eq!(fs::read_dir(runs).unwrap().count(), 0);
}

#[test]
fn missing_inputs_are_errors_with_hints() {
    let machine = tempfile::tempdir().unwrap();
    for (arguments, code, words) in [
        (&["run"][..], 2, &["there is no task"][..]),
        (&["run", "x"], 1, &["no model is named", "--model ollama/", "sympozium demo"]),
        (&["run", "x", "--model", "groq/a"], 1, &["sympozium secret set groq-key GROQ_API_KEY"]),
        (
            &["run", "x", "--model", "groq/a", "--key-command", "echo no >&2; exit 7"],
            1,
            &["the key command exited with code 7: no"],
        ),
        (&["run", "nowhere-at-all.yaml"], 1, &["nowhere-at-all.yaml:1:1: error[file]", "no such file or directory"]),
        (&["run", "x", "y"], 2, &["there are two tasks"]),
        (&["run", "x", "--skill", "no-such"], 2, &["there is no skill `no-such`"]),
    ] {
        let output = composing(&machine, arguments, &[("PATH", "/usr/bin:/bin")]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        for word in words.iter().chain(&["error: ", "\nhint: "]) {
            assert!(text.contains(word), "{arguments:?}: no {word:?} in {text}");
        }
    }
}
