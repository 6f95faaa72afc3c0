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
fn a_skip_is_printed_and_counted() {
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
    assert!(wait_until(Duration::from_secs(60), || { processes::zombies_of(own).contains(&pid) }));
    assert!(!processes::is_alive(pid));
    child.wait().unwrap();
    assert!(!processes::zombies_of(own).contains(&pid));
}

/// Run by the next test in a process that ignores signals, too.
#[test]
fn a_program_inherits_neither_ignored_signals_nor_a_terminal() {
    let printed = |program: &str, words: [&str; 2]| {
        let output = command(program).args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let ignored = printed("grep", ["^SigIgn:", "/proc/self/status"]);
    let ignored = ignored.trim_start_matches("SigIgn:").trim();
    // Those above belong to the C library, or cannot be set.
    let standard = u64::from_str_radix(ignored, 16).unwrap() & 0x7fff_ffff;
    assert_eq!(standard, 0, "{ignored}");
    let variables = printed("sh", ["-c", "echo \"$COLUMNS$NO_COLOR$LC_ALL\""]);
    assert_eq!(variables, "\n");
}

/// As in the background of a script, or under `nohup`.
#[test]
fn programs_of_tests_do_not_depend_on_how_the_tests_were_started() {
    let again = "trap '' HUP INT QUIT TERM USR1 TSTP; exec \"$0\" --exact --test-threads=1 \
                 harness::a_program_inherits_neither_ignored_signals_nor_a_terminal";
    let output = command("sh")
        .args(["-c", again])
        .arg(std::env::current_exe().unwrap())
        .env("COLUMNS", "10")
        .env("NO_COLOR", "1")
        .env("LC_ALL", "de_DE.UTF-8")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
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
