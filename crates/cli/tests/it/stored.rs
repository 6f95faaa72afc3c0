//! State directories of an earlier release: five runs, of which one succeeded, one had a command that timed out, one
//! failed, one was cancelled and one was killed. They never change: later releases must read them.
//!
//! `show.json` of each is the output of `sympozium show -o json` of that release.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::Value;

use crate::records::State;
use crate::{fixtures, stdout};

/// The placeholder for the path of the state directory.
const PLACEHOLDER: &str = "STATE";

fn stored() -> State {
    let state = State::new();
    copy(&fixtures().join("../stored-runs"), &state.root(), &state.root());
    state
}

fn copy(from: &Path, to: &Path, root: &Path) {
    fs::create_dir_all(to).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target, root);
        } else {
            let text = fs::read_to_string(entry.path()).unwrap();
            fs::write(target, text.replace(PLACEHOLDER, root.to_str().unwrap())).unwrap();
        }
    }
}

fn uids(state: &State) -> Vec<String> {
    let entries = fs::read_dir(state.runs()).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn runs_of_an_earlier_release_are_listed() {
    let state = stored();
    let listed: Vec<Value> = serde_json::from_str(stdout(&state.sympozium(&["runs", "-o", "json"]))).unwrap();
    let states: Vec<(&str, &str)> =
        listed.iter().map(|run| (run["name"].as_str().unwrap(), run["state"].as_str().unwrap())).collect();
    let expected = [
        ("cancelled", "cancelled"),
        ("killed", "interrupted"),
        ("case", "failed"),
        ("case", "succeeded"),
        ("demo", "succeeded"),
    ];
    assert_eq!(states, expected);
}

/// Fields may be added, and none may be lost or changed.
#[test]
fn runs_of_an_earlier_release_are_shown_unchanged() {
    let state = stored();
    for uid in uids(&state) {
        let shown: Value = serde_json::from_str(stdout(&state.sympozium(&["show", &uid, "-o", "json"]))).unwrap();
        let before = fs::read(state.runs().join(&uid).join("show.json")).unwrap();
        let before: Value = serde_json::from_slice(&before).unwrap();
        for (field, value) in before.as_object().unwrap() {
            assert_eq!(&shown[field], value, "`{field}` of {uid}");
        }
    }
}

#[test]
fn receipts_and_transcripts_of_an_earlier_release_are_read() {
    let state = stored();
    let verified = state.sympozium(&["audit", "verify", "--all"]);
    assert_eq!(verified.status.code(), Some(0), "{}", state.snapshot(&["audit", "verify", "--all"]));
    for uid in uids(&state) {
        for (command, file) in [("audit", "receipts.jsonl"), ("logs", "transcript.jsonl")] {
            let printed = state.sympozium(&[command, &uid, "-o", "jsonl"]);
            let lines = fs::read_to_string(state.runs().join(&uid).join(file)).unwrap();
            assert_eq!(stdout(&printed), lines, "{command} of {uid}");
            let text = state.sympozium(&[command, &uid]);
            assert_eq!(text.status.code(), Some(0), "{command} of {uid}");
            assert!(!text.stdout.is_empty(), "{command} of {uid}");
        }
    }
}
