//! Skipped tests: those that this class of machine is known to skip are in a checked-in list, any other fails the run.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Context as _;

use crate::output::{hinted, note};
use crate::process::workspace_root;

/// One skipped test, as it stands in the list: `package/test: reason`.
pub type Skip = String;

/// What the tests recorded: one line each, the reason, a tab, the test.
pub fn parse_recorded(text: &str) -> BTreeSet<Skip> {
    text.lines().filter_map(|line| line.split_once('\t')).map(|(reason, test)| format!("{test}: {reason}")).collect()
}

/// How many tests that is: one may have skipped several cases, for different reasons.
pub fn count_tests(skipped: &BTreeSet<Skip>) -> u64 {
    let tests: BTreeSet<&str> = skipped.iter().filter_map(|skip| skip.split(": ").next()).collect();
    tests.len() as u64
}

/// Compares with the list of this machine's class.
pub fn compare(skipped: &BTreeSet<Skip>) -> anyhow::Result<()> {
    let name = format!("test/skips/{}.txt", class());
    let path = workspace_root().join(&name);
    let expected = if path.exists() {
        parse_list(&fs::read_to_string(&path).with_context(|| format!("reading {name}"))?)
    } else {
        BTreeSet::new()
    };
    for skip in expected.difference(skipped) {
        note(&format!("expected to be skipped, but ran: {skip}"));
    }
    let unexpected: Vec<&str> = skipped.difference(&expected).map(String::as_str).collect();
    if unexpected.is_empty() {
        return Ok(());
    }
    for skip in &unexpected {
        note(&format!("unexpected skip: {skip}"));
    }
    let hint = format!("if this class of machine cannot run them, add these lines to {name}");
    note(&format!("hint: {hint}"));
    Err(hinted(format!("not expected to be skipped here: {}", unexpected.join("; ")), hint))
}

/// Lines of the list, without comments.
fn parse_list(text: &str) -> BTreeSet<Skip> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

/// What decides which layers can be tested: the right to use them, and which kind of cgroups there is.
fn class() -> String {
    let who = if rustix::process::geteuid().is_root() { "root" } else { "user" };
    let cgroups = Path::new("/sys/fs/cgroup");
    // Only the unified hierarchy has this file at its top; a hybrid one counts as version 1.
    let groups = if cgroups.join("cgroup.controllers").exists() {
        "cgroup2"
    } else if cgroups.is_dir() {
        "cgroup1"
    } else {
        "no-cgroup"
    };
    format!("{who}-{groups}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_skips_and_the_list_agree_on_the_form() {
        let recorded = parse_recorded("no scopes\tsympozium-exec/a::b\nno scopes\tsympozium-exec/a::b\n");
        let list = parse_list("# why\n\nsympozium-exec/a::b: no scopes\n");
        assert_eq!(recorded, list);
        assert_eq!(count_tests(&parse_recorded("one\tp/a::b\ntwo\tp/a::b\n")), 1);
    }
}
