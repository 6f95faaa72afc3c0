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
    let text = if path.exists() {
        fs::read_to_string(&path).with_context(|| format!("reading {name}"))?
    } else {
        String::new()
    };
    let expected = parse_list(&text);
    for entry in expected.iter().filter(|entry| !skipped.iter().any(|skip| is_listed(skip, entry))) {
        note(&format!("expected to be skipped, but ran: {entry}"));
    }
    let is_unexpected = |skip: &&String| !expected.iter().any(|entry| is_listed(skip, entry));
    let unexpected: Vec<&str> = skipped.iter().filter(is_unexpected).map(String::as_str).collect();
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
fn parse_list(text: &str) -> BTreeSet<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// Whether this line of the list is about that skip: `*: reason` is about every test that gives the reason.
fn is_listed(skip: &str, entry: &str) -> bool {
    match entry.strip_prefix("*: ") {
        Some(reason) => skip.split_once(": ").is_some_and(|(_, given)| given == reason),
        None => skip == entry,
    }
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
        assert!(recorded.iter().map(String::as_str).eq(list));
        assert_eq!(count_tests(&parse_recorded("one\tp/a::b\ntwo\tp/a::b\n")), 1);
    }

    #[test]
    fn a_reason_can_be_listed_for_all_tests() {
        let skip = "sympozium-exec/a::b: root privileges";
        assert!(is_listed(skip, "*: root privileges"));
        assert!(is_listed(skip, skip));
        for entry in ["*: root", "*: privileges", "sympozium-exec/a: root privileges", "*"] {
            assert!(!is_listed(skip, entry), "{entry}");
        }
    }
}
