//! Skills from bytes and from directories: correct, careless and hostile ones.

mod directories;
mod frontmatters;
mod packs;

use proptest::prelude::*;

use super::directory::RawSkill;
use super::skill::{Skill, parse};
use crate::load::Budget;
use crate::problem::{Problem, Severity};

/// A skill in a directory called `skill`, without other files.
fn raw(text: impl Into<Vec<u8>>) -> RawSkill {
    RawSkill { directory_name: Some("skill".to_owned()), text: text.into(), ..RawSkill::default() }
}

/// The skill, and each problem on a line: `line:column severity rule`.
fn read(raw: RawSkill) -> (Option<Skill>, Vec<String>) {
    let (skill, problems) = parse(raw, &mut Budget::default());
    (skill, problems.items.iter().map(short).collect())
}

fn short(problem: &Problem) -> String {
    let severity = match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let Problem { at, rule, .. } = problem;
    format!("{}:{} {severity} {rule}", at.line, at.column)
}

/// A line of frontmatter, plausible or not.
fn any_line() -> impl Strategy<Value = String> {
    let key = prop_oneof![
        Just("name"),
        Just("description"),
        Just("license"),
        Just("metadata"),
        Just("allowed-tools"),
        Just("allowedTools"),
        Just("  version"),
        Just("- x"),
    ];
    let value = prop_oneof![
        "[ -~]{0,30}",
        "\\PC{0,20}",
        Just("Bash(git:*) Read".to_owned()),
        Just("&a [*a]".to_owned()),
        Just("|".to_owned()),
        Just("\"\\u001b[2J\\u2028\"".to_owned()),
    ];
    (key, value).prop_map(|(key, value)| format!("{key}: {value}"))
}

proptest! {
    /// The body of the fuzz target checks the properties: no panic, only texts, an image and the workspace, and the
    /// same after a round trip.
    #[test]
    fn whatever_the_bytes_are_a_pack_gives_nothing_away(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        crate::fuzzing::agent_skill(&bytes);
    }

    #[test]
    fn whatever_the_frontmatter_says_a_pack_gives_nothing_away(
        lines in prop::collection::vec(any_line(), 0..8),
        body in "(\\PC|[ \t\r\n]){0,200}",
        file in prop::option::of(prop::collection::vec(any::<u8>(), 0..100)),
    ) {
        let head = lines.join("\n");
        let mut bytes = format!("---\ndescription: d\n{head}\n---\n{body}").into_bytes();
        if let Some(file) = file {
            bytes.extend(b"\0FILE\0");
            bytes.extend(file);
        }
        crate::fuzzing::agent_skill(&bytes);
    }
}
