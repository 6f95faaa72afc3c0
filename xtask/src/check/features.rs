//! Programs and tests are compiled from the same libraries with the same features.
//!
//! Cargo unites the features that the packages which it builds together ask for, those of dev-dependencies only where tests are
//! built. A library with one feature more for tests, and everything above it, would be compiled twice.

use std::collections::BTreeSet;

use crate::process::{cargo, output};

/// A library and its features, one line each.
fn features(edges: &str) -> anyhow::Result<BTreeSet<String>> {
    let words = ["tree", "--workspace", "--locked", "--prefix=none", "--no-dedupe", "--format={p} [{f}]"];
    let printed = output(cargo(&words).args(["--edges", edges]))?;
    Ok(printed.lines().map(str::to_owned).collect())
}

pub fn check() -> anyhow::Result<Vec<String>> {
    Ok(compare(&features("normal,build")?, &features("normal,build,dev")?))
}

/// What programs are built from must be among what tests are built from.
fn compare(programs: &BTreeSet<String>, tests: &BTreeSet<String>) -> Vec<String> {
    programs
        .difference(tests)
        // Not a part of programs, and with a feature that needs the libraries of the controller.
        .filter(|library| !library.starts_with("sympozium-testkit "))
        .map(|library| {
            format!(
                "{library} has more features in tests than in programs, so that both compile it; \
                 ask for them in crates/testkit/Cargo.toml"
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_with_more_features_in_tests_is_named() {
        let set = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect();
        let programs = set(&["a v1.0.0 [std]", "b v1.0.0 []", "sympozium-testkit v0.1.0 []"]);
        let tests = set(&["a v1.0.0 [std,time]", "b v1.0.0 []", "c v1.0.0 []"]);
        let problems = compare(&programs, &tests);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].starts_with("a v1.0.0 [std] has more features"));
    }
}
