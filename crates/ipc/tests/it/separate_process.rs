//! Tests that need a process, or a mount namespace, of their own.

use sympozium_testkit::as_user::is_root;
use sympozium_testkit::{command, skips};

/// Set in a test that runs again.
const ENTERED_VARIABLE: &str = "SYMPOZIUM_TEST_ALONE";

/// Runs the body of a test in a process of its own.
#[track_caller]
pub fn in_a_process(body: impl FnOnce()) {
    reexec(&[], body);
}

/// Runs the body of a test in a mount namespace of its own, in which it may mount. Only root can.
#[track_caller]
pub fn with_mounts(body: impl FnOnce()) {
    if !is_root() {
        return skips::record("mounting needs root");
    }
    reexec(&["unshare", "--mount", "--propagation", "private"], body);
}

#[track_caller]
fn reexec(prefix: &[&str], body: impl FnOnce()) {
    if std::env::var_os(ENTERED_VARIABLE).is_some() {
        return body();
    }
    let program = std::env::current_exe().expect("a test has a program");
    let thread = std::thread::current();
    let test = thread.name().expect("the harness names the thread after the test");
    let mut words: Vec<_> = prefix.iter().map(Into::into).collect();
    words.push(program.into_os_string());
    let output = command(&words[0])
        .args(&words[1..])
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ENTERED_VARIABLE, "1")
        .output()
        .expect("the test can be started again");
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let text = text.concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
