//! Skips, waiting, users.

use std::time::Duration;

use sympozium_testkit::{as_user, command, processes, skips, wait_until};

/// Run by the next test in a process of its own, where the environment says so; passes otherwise.
#[test]
fn skips_when_told_to() {
    if std::env::var_os("TESTKIT_SKIP_NOW").is_some() {
        sympozium_testkit::skip!("no {} here", "feature");
    }
}

#[test]
fn a_skip_is_said_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("skips");
    let output = command(std::env::current_exe().unwrap())
        .args(["--exact", "harness::skips_when_told_to"])
        .env("TESTKIT_SKIP_NOW", "1")
        .env(skips::SKIPS_FILE, &file)
        .output()
        .unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("skipped: no feature here"));
    assert_eq!(
        std::fs::read_to_string(file).unwrap(),
        "no feature here\tsympozium-testkit/harness::skips_when_told_to\n"
    );
}

#[test]
fn as_user_is_an_ordinary_user() {
    as_user::run(|| {
        assert!(!as_user::is_root());
        assert!(std::fs::write("/etc/sympozium-testkit", "").is_err());
        tempfile::tempdir().unwrap();
    });
}

#[test]
fn a_zombie_is_seen_until_it_is_waited_for() {
    let mut child = command("/bin/true").spawn().unwrap();
    let pid = child.id() as i32;
    let own = std::process::id() as i32;
    assert!(wait_until(Duration::from_secs(20), || {
        processes::zombies_of(own).contains(&pid)
    }));
    assert!(!processes::is_alive(pid));
    child.wait().unwrap();
    assert!(!processes::zombies_of(own).contains(&pid));
}

#[test]
fn waiting_ends_at_the_deadline() {
    assert!(!wait_until(Duration::from_millis(10), || false));
    let mut asked = 0;
    assert!(wait_until(Duration::from_secs(60), || {
        asked += 1;
        asked == 3
    }));
}
