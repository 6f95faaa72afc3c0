//! The cost of checking a file on the command line, compared with starting any program.

use sympozium_testkit::bench::raw::{against_true, c_string};
use sympozium_testkit::bench::{Suite, Target};
use sympozium_testkit::static_build;

/// `sympozium validate` as a whole process, compared with starting `/bin/true`.
pub fn validation(suite: &mut Suite) {
    // As it ships: a static binary.
    let program = static_build::shipped("sympozium").expect("it can be built static");
    let fixtures = static_build::workspace_root().join("crates/cli/tests/fixtures");
    for (name, file) in [("one file", "complete.yaml"), ("one file with one object", "agent.yaml")] {
        let file = c_string(&fixtures.join(file));
        suite.row(
            &format!("sympozium validate of {name}, whole process"),
            against_true(&program, &[c"validate", c"-o", c"json", &file]),
            "x /bin/true",
            Target::AtMost(5.0),
        );
    }
}
