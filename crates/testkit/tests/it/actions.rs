//! Actions behave as badly as they say, and end by themselves.

use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use sympozium_testkit::{command, growing, probe, processes, wait_until};

use crate::run;

/// Longer than any action here takes.
const SOON: Duration = Duration::from_secs(300);

/// Runs an action with a marker and without output pipes to hold; gives the marker.
fn act(words: &[&str]) -> String {
    let marker = processes::new_marker();
    let status =
        command(probe::path()).args(["do", "--marker", &marker]).args(words).stdout(Stdio::null()).status().unwrap();
    assert!(status.success(), "{status}");
    marker
}

/// Runs an action that goes on for a while; gives the marker and how many processes of it there were then. It goes on for
/// longer where the machine was too slow to count them.
fn act_and_count(action: &str) -> (String, usize) {
    for time in growing(Duration::from_secs(2)) {
        let started = Instant::now();
        let marker = act(&[action, &time.as_secs().to_string()]);
        let count = processes::with_marker(&marker).len();
        if started.elapsed() < time {
            return (marker, count);
        }
    }
    panic!("{action}: this machine is too slow to look at it");
}

fn ends_by_itself(marker: &str) -> bool {
    wait_until(SOON, || processes::with_marker(marker).is_empty())
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn daemons_outlive_the_first_process_for_their_time() {
    for action in ["daemon", "hold-stdout", "pass-stdout"] {
        let (marker, count) = act_and_count(action);
        assert_eq!(count, 1, "{action}");
        assert!(ends_by_itself(&marker), "{action}");
    }
}

#[test]
fn a_subreaper_keeps_its_orphans() {
    let (marker, count) = act_and_count("subreaper");
    assert_eq!(count, 4);
    assert!(ends_by_itself(&marker));
}

#[test]
fn a_hopper_is_always_there_and_never_the_same() {
    let is_another = growing(Duration::from_secs(2)).any(|time| {
        let marker = act(&["pid-hopper", &time.as_secs().to_string()]);
        let seen = || processes::with_marker(&marker).first().copied();
        let first = seen();
        let is_another =
            first.is_none() || wait_until(time, || matches!((first, seen()), (Some(a), Some(b)) if a != b));
        assert!(ends_by_itself(&marker));
        is_another
    });
    assert!(is_another);
}

#[test]
fn a_fork_bomb_has_the_size_it_is_asked_for() {
    let has_its_size = growing(Duration::from_secs(4)).any(|time| {
        let marker = processes::new_marker();
        let mut bomb = command(probe::path())
            .args(["do", "--marker", &marker, "fork-bomb", "50"])
            .arg(time.as_secs().to_string())
            .spawn()
            .unwrap();
        let has_its_size = wait_until(time, || processes::with_marker(&marker).len() == 51);
        bomb.wait().unwrap();
        assert!(ends_by_itself(&marker));
        has_its_size
    });
    assert!(has_its_size);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn a_tree_is_up_when_it_says_so(seed: u64) {
        let marker = processes::new_marker();
        let output = command(probe::path())
            .args(["do", "--marker", &marker, "fork-tree", &seed.to_string(), "1"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        prop_assert!(output.status.success());
        prop_assert!(json(&output)["started"].as_u64().unwrap() >= 1);
        prop_assert!(ends_by_itself(&marker));
    }
}

#[test]
fn it_reports_what_it_was_started_with() {
    let output = command(probe::path())
        .args(["do", "print", "all"])
        .env_clear()
        .env("NAME", "value")
        .current_dir("/")
        .output()
        .unwrap();
    let report = json(&output);
    assert_eq!(report["env"], serde_json::json!({ "NAME": "value" }));
    assert_eq!(report["cwd"], "/");
    assert_eq!(report["signals"]["blocked"], serde_json::json!([]));
    assert_eq!(report["ids"]["parent"], std::process::id());
}

#[test]
fn output_has_the_size_and_shape_it_is_asked_for() {
    let output = run("do", &["flood", "both", "3M"]);
    assert_eq!((output.stdout.len(), output.stderr.len()), (3 << 20, 3 << 20));
    let output = run("do", &["invalid-utf8"]);
    assert!(std::str::from_utf8(&output.stdout).is_err());
}

#[test]
fn it_ends_as_it_is_asked_to() {
    use std::os::unix::process::ExitStatusExt as _;
    assert_eq!(run("do", &["exit", "7"]).status.code(), Some(7));
    assert_eq!(run("do", &["raise", "13"]).status.signal(), Some(13));
    assert_eq!(run("do", &["stop", "1"]).status.signal(), Some(9));
}
