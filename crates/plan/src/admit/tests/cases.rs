//! The cases of `tests/cases`: for every rule what passes, what fails, and in which words.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;

use serde::Deserialize;

use super::world::{World, yaml};
use crate::admit::Reason;

/// One rule.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// Its name.
    rule: String,
    /// Changes with which the run is admitted and the rule has nothing to say.
    passes: String,
    /// Changes with which the rule speaks up.
    fails: String,
    /// All reasons then.
    #[serde(default)]
    denied: Vec<String>,
    /// All warnings of the rule then. Others are not listed.
    #[serde(default)]
    warned: Vec<String>,
    /// What to do, as it is said first.
    remedy: String,
}

const FILES: &[(&str, &str)] = &[
    ("agents", include_str!("../../../tests/cases/agents.yaml")),
    ("containers", include_str!("../../../tests/cases/containers.yaml")),
    ("grants", include_str!("../../../tests/cases/grants.yaml")),
    ("models", include_str!("../../../tests/cases/models.yaml")),
    ("sandboxes", include_str!("../../../tests/cases/sandboxes.yaml")),
    ("skills", include_str!("../../../tests/cases/skills.yaml")),
    ("tools", include_str!("../../../tests/cases/tools.yaml")),
    ("volumes", include_str!("../../../tests/cases/volumes.yaml")),
];

/// The changes of all cases, of those that pass twice.
pub fn all_changes() -> &'static [serde_json::Value] {
    static ALL: LazyLock<Vec<serde_json::Value>> = LazyLock::new(|| {
        let cases = FILES.iter().flat_map(|(_, text)| yaml::<Vec<Case>>(text));
        cases.flat_map(|case| [yaml(&case.passes), yaml(&case.passes), yaml(&case.fails)]).collect()
    });
    &ALL
}

fn said(reason: &Reason) -> String {
    format!("{} {}: {}", reason.subject, reason.field, reason.message)
}

#[test]
fn every_rule_passes_and_fails_in_these_words() {
    let mut wrong = String::new();
    for (file, text) in FILES {
        for case in yaml::<Vec<Case>>(text) {
            if let Err(why) = check(&case) {
                wrong += &format!("{file}, {}: {why}\n", case.rule);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

fn check(case: &Case) -> Result<(), String> {
    let (reasons, warnings, _) = World::new(&case.passes).decide();
    let of_rule =
        |found: &[Reason]| -> Vec<String> { found.iter().filter(|it| it.rule == case.rule).map(said).collect() };
    let reasons: Vec<_> = reasons.iter().map(said).collect();
    if !reasons.is_empty() || !of_rule(&warnings).is_empty() {
        return Err(format!("should pass: {reasons:#?} {:#?}", of_rule(&warnings)));
    }
    let (reasons, warnings, _) = World::new(&case.fails).decide();
    let denied: Vec<_> = reasons.iter().map(said).collect();
    if denied != case.denied || of_rule(&warnings) != case.warned {
        return Err(format!("should fail otherwise: {denied:#?} {:#?}", of_rule(&warnings)));
    }
    let first = reasons.iter().chain(&warnings).find(|it| it.rule == case.rule);
    match first {
        Some(first) if first.remedy == case.remedy => Ok(()),
        Some(first) => Err(format!("another remedy: {}", first.remedy)),
        None => Err(format!("other rules: {:?}", reasons.iter().map(|it| it.rule).collect::<Vec<_>>())),
    }
}

#[test]
fn there_is_a_case_for_every_rule() {
    let cases: BTreeSet<String> =
        FILES.iter().flat_map(|(_, text)| yaml::<Vec<Case>>(text)).map(|case| case.rule).collect();
    let mut rules = BTreeSet::new();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admit");
    for entry in std::fs::read_dir(directory).expect("the source is there") {
        let path = entry.expect("it is readable").path();
        if path.extension().is_some_and(|it| it == "rs") {
            let text = std::fs::read_to_string(path).expect("it is readable");
            rules.extend(rules_in(&text));
        }
    }
    // Looked at with an object alone; see `objects.rs` of the tests.
    rules.remove("policy-entry");
    rules.remove("pack-too-large");
    rules.remove("dns-by-gateway");
    // No field restricts and is unused; a row that does is looked at in `fields`.
    rules.remove("field-unenforced");
    // Too long to be written down.
    rules.remove("task-too-large");
    assert_eq!(rules, cases);
}

/// Rules are the only texts of words in lower case with `-` between them, but for names of providers, headers, modes and handlers.
fn rules_in(source: &str) -> impl Iterator<Item = String> + '_ {
    const OTHERS: &[&str] = &[
        "api-key",
        "azure-openai",
        "content-length",
        "kata-clh",
        "kata-fc",
        "kata-qemu",
        "llama-server",
        "lm-studio",
        "proxy-authorization",
        "sidecar-driven",
        "transfer-encoding",
        "x-api-key",
    ];
    source
        .split('"')
        .skip(1)
        .step_by(2)
        .filter(|text| text.contains('-') && text.bytes().all(|it| it.is_ascii_lowercase() || it == b'-'))
        .filter(|text| !OTHERS.contains(text))
        .map(str::to_owned)
}
