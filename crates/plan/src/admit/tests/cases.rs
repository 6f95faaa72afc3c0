//! The cases of `tests/cases`: for every rule what passes, what fails, and the messages.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;

use serde::Deserialize;
use sympozium_testkit::runs::violations;

use super::harness::{Harness, yaml};
use crate::admit::Violation;

/// The case of one rule.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// The name of the rule.
    rule: String,
    /// Changes with which the run is admitted and the rule reports nothing.
    passes: String,
    /// Changes with which the rule reports something.
    fails: String,
    /// All violations then.
    #[serde(default)]
    denied: Vec<String>,
    /// All warnings of the rule then. Others are not listed.
    #[serde(default)]
    warned: Vec<String>,
    /// The first hint.
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

/// The changes of all cases; those that pass are included twice.
pub fn all_changes() -> &'static [serde_json::Value] {
    static ALL: LazyLock<Vec<serde_json::Value>> = LazyLock::new(|| {
        let cases = FILES.iter().flat_map(|(_, text)| yaml::<Vec<Case>>(text));
        cases.flat_map(|case| [yaml(&case.passes), yaml(&case.passes), yaml(&case.fails)]).collect()
    });
    &ALL
}

fn format_violation(reason: &Violation) -> String {
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
    let (reasons, warnings, _) = Harness::new(&case.passes).decide();
    let of_rule = |found: &[Violation]| -> Vec<String> {
        found.iter().filter(|violation| violation.rule == case.rule).map(format_violation).collect()
    };
    let reasons: Vec<_> = reasons.iter().map(format_violation).collect();
    if !reasons.is_empty() || !of_rule(&warnings).is_empty() {
        return Err(format!("should pass: {reasons:#?} {:#?}", of_rule(&warnings)));
    }
    let (reasons, warnings, _) = Harness::new(&case.fails).decide();
    let denied: Vec<_> = reasons.iter().map(format_violation).collect();
    if denied != case.denied || of_rule(&warnings) != case.warned {
        return Err(format!("should fail otherwise: {denied:#?} {:#?}", of_rule(&warnings)));
    }
    let first = reasons.iter().chain(&warnings).find(|reason| reason.rule == case.rule);
    match first {
        Some(first) if first.hint == case.remedy => Ok(()),
        Some(first) => Err(format!("another remedy: {}", first.hint)),
        None => Err(format!("other rules: {:?}", reasons.iter().map(|reason| reason.rule).collect::<Vec<_>>())),
    }
}

#[test]
fn there_is_a_case_for_every_rule() {
    let cases: BTreeSet<String> =
        FILES.iter().flat_map(|(_, text)| yaml::<Vec<Case>>(text)).map(|case| case.rule).collect();
    let mut rules = all_rules();
    // Looked at with an object alone; see `objects.rs` of the tests.
    rules.remove("policy-entry");
    rules.remove("pack-too-large");
    rules.remove("dns-by-gateway");
    // No unused field restricts; a made-up row is tested in `fields`.
    rules.remove("field-unenforced");
    // Too long for a case.
    rules.remove("task-too-large");
    assert_eq!(rules, cases);
}

/// The rules of which no run in `testkit::runs::violations` is proven to be denied by them alone, and why.
const NOT_SUSPENDED: &[(&str, &[&str])] = &[
    (
        "it only warns",
        &[
            "agent-sandbox-off",
            "dns-by-gateway",
            "env-credential",
            "fetch-unrestricted",
            "field-unused",
            "host-access-off",
            "image-floating",
            "model-header-credential",
            "model-url-unused",
            "nobody-approves",
            "pack-needs-server",
            "pack-useless",
            "pack-without-container",
            "resource-unused",
            "runtime-class-none",
            "sandbox-off",
            "tool-rule-elsewhere",
            "tool-rule-unknown",
            "tool-unknown",
            "tool-unserved",
        ],
    ),
    (
        "without it there is no plan, or a plan that leaves out what is asked for",
        &[
            "agent-ambiguous",
            "agent-missing",
            "agent-refs-differ",
            "agent-unnamed",
            "amount-invalid",
            "egress-invalid",
            "executor-command",
            "model-missing",
            "mount-propagation",
            "mount-unknown",
            "pack-missing",
            "sandbox-exclusive",
            "secret-unnamed",
            "security-context-loosened",
            "skill-twice",
            "skill-unnamed",
            "task-invalid",
            "task-missing",
            "timeout-invalid",
            "tool-denied",
        ],
    ),
    (
        "it is about a name, a form or an order: no power follows from what it denies",
        &[
            "gate-too-early",
            "gate-twice",
            "mount-recursion",
            "node-selector",
            "skill-file",
            "skill-name",
            "tool-exec",
            "tool-name",
            "tool-parameter-lost",
            "tool-parameters",
            "tool-positional",
        ],
    ),
    (
        "the run would have less than it needs, and no more than it may",
        &[
            "agent-sandbox-server",
            "agent-sandbox-too-small",
            "pack-needs-image",
            "pack-needs-more",
            "pack-needs-sandbox",
        ],
    ),
    (
        "it is about other runs, time or length, which no field of a plan gives a run",
        &[
            "subagent-children",
            "subagent-concurrency",
            "subagent-depth-false",
            "task-too-large",
            "timeout-out-of-range",
        ],
    ),
    (
        "it is about an object alone, or no field is there for it; see `objects.rs` of the tests and `fields`",
        &["field-unenforced", "pack-too-large", "policy-entry"],
    ),
    ("generated runs have no policy of the system namespace; see `scenarios.rs`", &["policy-ambiguous"]),
];

/// A rule that is not tried there could fail without a test noticing that its power reaches a plan.
#[test]
fn every_rule_is_suspended_with_a_violation_or_has_a_reason_not_to_be() {
    let suspended: BTreeSet<&str> = violations().map(|violation| violation.rule).collect();
    let mut known: Vec<&str> = NOT_SUSPENDED.iter().flat_map(|(_, rules)| *rules).copied().chain(suspended).collect();
    known.sort_unstable();
    // Each once: a rule that has a violation needs no reason.
    assert_eq!(known, all_rules().iter().collect::<Vec<_>>());
}

/// Every rule that the source of admission names.
fn all_rules() -> BTreeSet<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admit");
    let entries = std::fs::read_dir(directory).expect("the source is there");
    let paths = entries.map(|entry| entry.expect("it is readable").path());
    let sources = paths.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let texts = sources.map(|source| std::fs::read_to_string(source).expect("it is readable"));
    texts.flat_map(|text| rules_in(&text).collect::<Vec<_>>()).collect()
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
        .filter(|text| text.contains('-') && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'))
        .filter(|text| !OTHERS.contains(text))
        .map(str::to_owned)
}
