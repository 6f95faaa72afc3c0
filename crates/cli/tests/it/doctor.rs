//! `sympozium doctor`, on the machine that runs the tests.

use crate::{stderr, stdout, sympozium};

#[test]
fn doctor_prints_text() {
    let output = sympozium(&["doctor"]);
    let text = stdout(&output);
    for section in ["Machine\n", "\nLayers (", "\nLimits\n", "\nProfile: ", "\nWhat to fix\n"] {
        assert!(text.contains(section), "{section:?} in {text}");
    }
    assert!(!text.contains('\u{1b}'), "no escape codes in a pipe");
    assert_eq!(stderr(&output), "");
}

#[test]
fn doctor_prints_the_same_as_json() {
    let output = sympozium(&["doctor", "-o", "json"]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let holds = answer["belowFloor"].as_object().unwrap().is_empty();
    assert_eq!(output.status.code(), Some(if holds { 0 } else { 1 }));
    assert_eq!(answer["layers"].as_array().unwrap().len(), 23);
    assert_eq!(answer["matrix"].as_object().unwrap().len(), 4);
    let profile = answer["profile"].as_str().unwrap();
    let text = sympozium(&["doctor"]);
    assert!(stdout(&text).contains(&format!("\nProfile: {profile}\n")));
    assert_eq!(text.status.code(), output.status.code());
}

#[test]
fn an_unknown_flag_is_a_usage_error() {
    let output = sympozium(&["doctor", "--colour"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).starts_with("error: unexpected argument '--colour'"));
    assert_eq!(stdout(&output), "");
}

#[test]
fn help_has_an_example_and_exit_codes() {
    let output = sympozium(&["doctor", "--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = stdout(&output);
    assert!(help.contains("sympozium doctor -o json | jq -r .profile"));
    assert!(help.contains("Every mechanism is tested"));
    assert!(help.contains("Exit codes:\n  0  "));
}
