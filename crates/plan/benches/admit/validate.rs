//! What checking a file on the command line costs, against starting a program at all.

use std::ffi::CString;
use std::path::Path;

use sympozium_testkit::bench::raw::spawn;
use sympozium_testkit::bench::{Suite, Target, in_threads, median};
use sympozium_testkit::static_build;

/// Processes in one round of one side.
const ROUND: u32 = 100;
const ROUNDS: usize = 21;

/// `sympozium validate` as a whole process, against starting `/bin/true`.
pub fn validation(suite: &mut Suite) {
    // As it ships: a static binary.
    let program = static_build::binary("sympozium", "sympozium").expect("it can be built static");
    let program = c_string(&program);
    let fixtures = static_build::workspace_root().join("crates/cli/tests/fixtures");
    for (name, file) in [
        ("one file", "complete.yaml"),
        ("one file with one object", "agent.yaml"),
    ] {
        let file = c_string(&fixtures.join(file));
        let ours = || spawn(&program, &[c"validate", c"-o", c"json", &file]);
        suite.row(
            &format!("sympozium validate of {name}, whole process"),
            against_true(ours),
            "x /bin/true",
            Target::AtMost(5.0),
        );
    }
}

/// How many times as long `ours` takes as starting `/bin/true`.
fn against_true(ours: impl Fn() + Sync) -> f64 {
    let reference = || spawn(c"/bin/true", &[]);
    in_threads(1, ROUND, &ours);
    let round = |_| {
        let raw = in_threads(1, ROUND, reference);
        in_threads(1, ROUND, &ours).as_secs_f64() / raw.as_secs_f64()
    };
    median((0..ROUNDS).map(round).collect())
}

fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).expect("a path has no NUL in it")
}
