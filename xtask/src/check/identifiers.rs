//! Names of modules, types and functions that were retired, so that they do not come back.
//!
//! ARCHITECTURE.md has the words that took their place. Only declarations are checked: a local variable may still be
//! called `again`.

use std::collections::BTreeSet;

use super::Source;

/// Each with what to write instead.
const RETIRED: &[(&str, &str)] = &[
    ("Company", CASE),
    ("Deed", "Operation"),
    ("Desk", "ApprovalQueue"),
    ("Ground", "the inputs of what is built: SandboxInputs, VolumeInputs"),
    ("Hindrance", "StartFault"),
    ("Hindrances", "StartFaults"),
    ("Kept", STORE),
    ("Manner", CASE),
    ("Outdoors", "the network: NetworkAccess, LazyNetwork"),
    ("Place", "where it is, of what: RunSource, FieldLocation, TargetFlags"),
    ("Says", "ConditionValue, Vote"),
    ("Seat", "Slot, Permit"),
    ("Seen", "WatchEvent, or what was observed: Observed"),
    ("Site", "the state or service that it is"),
    ("Standing", "ReportState, or the state that it is"),
    ("Surroundings", "ClusterInfo, HostEnvironment"),
    ("Told", "the message, event or result that it is"),
    ("World", "Caches, Layout, SandboxSpec; Harness in tests"),
    ("again", "retry, requeue"),
    ("begun", "started, has_started"),
    ("due", "deadline, next_deadline, overdue"),
    ("kept", STORE),
    ("milder", "the comparison: is_weaker"),
    ("nobody", CASE),
    ("over", "finished, terminal, torn_down, expired"),
    ("rarer", "back_off"),
    ("said", "the message, or a verb: set_condition, describe"),
    ("say", "set_condition, log, print, emit, report"),
    ("settled", "is_torn_down, is_terminal"),
    ("shown", "printable, quote, or a verb: format, render"),
    ("somebody", CASE),
    ("tell", "emit, log, print, report, notify"),
    ("telling", "describe, describe_error"),
    ("told", "the message, or a verb: describe, notify"),
    ("untold", "what is missing, by its name"),
    ("whoever", CASE),
];
const CASE: &str = "what it is here, in the words of the glossary";
const STORE: &str = "what is stored: ReportCursor, RunRecord; or a verb: store, retain";

/// Declarations that are not yet renamed, one `PATH NAME` a line. Nothing may be added.
const EXCEPTIONS: &str = include_str!("retired-identifiers.txt");
const EXCEPTIONS_PATH: &str = "xtask/src/check/retired-identifiers.txt";

const DIRECTORIES: &[&str] = &["crates/", "xtask/", "test/", "fuzz/"];
const KEYWORDS: &[&str] = &["struct", "enum", "trait", "type", "mod", "fn", "union"];

pub fn check(sources: &[Source]) -> Vec<String> {
    check_with(sources, EXCEPTIONS)
}

fn check_with(sources: &[Source], exceptions: &str) -> Vec<String> {
    let exceptions = exceptions.lines().filter(|line| !line.starts_with('#'));
    let exceptions: BTreeSet<(&str, &str)> = exceptions.filter_map(|line| line.split_once(' ')).collect();
    let mut unused = exceptions.clone();
    let mut problems = Vec::new();
    for Source { path, text } in sources {
        if !path.ends_with(".rs") || !DIRECTORIES.iter().any(|directory| path.starts_with(directory)) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let Some((name, instead)) = retired_declaration(line) else { continue };
            if exceptions.contains(&(path, name)) {
                unused.remove(&(path, name));
            } else {
                problems.push(format!("{path}:{}: the name `{name}` is retired; use {instead}", number + 1));
            }
        }
    }
    for (path, name) in unused {
        problems.push(format!("{EXCEPTIONS_PATH}: `{path} {name}` is no longer needed; remove the line"));
    }
    problems
}

/// The retired name that a line declares, and what to use instead.
fn retired_declaration(line: &str) -> Option<(&'static str, &'static str)> {
    let mut words = line.split_whitespace().skip_while(|word| is_qualifier(word));
    let is_declaration = words.next().is_some_and(|word| KEYWORDS.contains(&word));
    let declared = words.next().filter(|_| is_declaration)?;
    let end = declared.find(|letter: char| letter != '_' && !letter.is_ascii_alphanumeric());
    let declared = &declared[..end.unwrap_or(declared.len())];
    RETIRED.iter().find(|(name, _)| *name == declared).copied()
}

fn is_qualifier(word: &str) -> bool {
    word.starts_with("pub") || ["const", "async", "unsafe", "extern", "\"C\""].contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    #[test]
    fn declarations_of_retired_names_are_found() {
        for line in [
            "struct World {",
            "    pub(crate) enum Told<'a> {",
            "pub trait Says: Send {",
            "type Place = u8;",
            "mod over;",
            "    pub const async unsafe fn kept<T>() {",
            "fn somebody() {}",
        ] {
            let found = check_with(&[source("crates/a/src/lib.rs", line)], "");
            assert_eq!(found.len(), 1, "{line}");
            assert!(found[0].starts_with("crates/a/src/lib.rs:1: the name `"), "{found:?}");
        }
    }

    #[test]
    fn other_lines_are_fine() {
        for (path, line) in [
            ("crates/a/src/lib.rs", "let told = over(kept);"),
            ("crates/a/src/lib.rs", "fn told_by_the_gateway() {"),
            ("crates/a/src/lib.rs", "struct Worlds;"),
            ("crates/a/src/lib.rs", "// fn kept is gone"),
            ("docs/a.md", "struct World {"),
        ] {
            assert_eq!(check_with(&[source(path, line)], ""), Vec::<String>::new(), "{line}");
        }
    }

    #[test]
    fn exceptions_only_shrink() {
        let sources = [source("test/a.rs", "fn kept() {}\nfn kept() {}")];
        let exceptions = "# comment\ntest/a.rs kept\n";
        assert_eq!(check_with(&sources, exceptions), Vec::<String>::new());
        let unneeded = format!("{EXCEPTIONS_PATH}: `test/b.rs kept` is no longer needed; remove the line");
        assert_eq!(check_with(&sources, &format!("{exceptions}test/b.rs kept\n")), [unneeded]);
    }

    #[test]
    fn each_name_is_there_once() {
        let names: BTreeSet<&str> = RETIRED.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), RETIRED.len());
    }
}
