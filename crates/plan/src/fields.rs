//! No field is accepted and ignored: each leaf of each schema is given two values, and the result of the run must
//! differ. A leaf without a difference is on one of the lists, with the reason, and every line of a list must be true.

mod elsewhere;
mod leaves;
mod scenes;
mod values;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::admit::{
    Effect, Subject, UNUSED_FIELDS, UnusedField, admit_agent, admit_model, admit_pack, admit_policy, admit_schedule,
};
use elsewhere::{DENIED, UNWRITTEN, USED_ELSEWHERE};
use leaves::{Leaf, leaves};
use scenes::{Scene, SceneResult, kind_of};
use values::{LeafPath, candidates};

/// Whether a line of a list is about a leaf: the field itself, or one that contains it.
fn covers_leaf(field: &str, leaf: &Leaf) -> bool {
    let rest = leaf.path.strip_prefix(field);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

fn unused_row(leaf: &Leaf) -> Option<&'static UnusedField> {
    let mut rows = UNUSED_FIELDS.iter();
    rows.find(|row| row.kinds().contains(&leaf.kind.as_str()) && covers_leaf(row.field, leaf))
}

fn is_listed(list: &[(&str, &str, &str)], leaf: &Leaf) -> bool {
    let mut rows = list.iter();
    rows.any(|(kind, field, _)| *kind == leaf.kind && covers_leaf(field, leaf))
}

fn denying_rule(leaf: &Leaf) -> Option<&'static str> {
    let mut rows = DENIED.iter();
    let found = rows.find(|(kind, field, _)| *kind == leaf.kind && *field == leaf.path);
    found.map(|(_, _, rule)| *rule)
}

/// The result of trying values of a leaf.
enum TryResult {
    /// No scene has the leaf.
    Nowhere,
    /// Scenes have the leaf, and nothing differs.
    NoDifference,
    Differs,
}

/// Changes the leaf wherever scenes have it, until something differs.
fn try_values(leaf: &Leaf, scenes: &[Scene]) -> TryResult {
    let mut found = TryResult::Nowhere;
    for scene in scenes {
        let objects = scene.objects.iter().enumerate();
        for (number, object) in objects.filter(|(_, object)| kind_of(object) == leaf.kind) {
            for place in LeafPath::all(object, leaf) {
                for value in candidates(leaf, place.current(object)) {
                    found = match found {
                        TryResult::Nowhere => TryResult::NoDifference,
                        other => other,
                    };
                    let changed = place.with_value(object, value);
                    let mut objects = scene.objects.clone();
                    objects[number] = changed;
                    let Some(outcome) = SceneResult::from_objects(objects) else {
                        continue;
                    };
                    if differs(leaf, &scene.result, &outcome) {
                        return TryResult::Differs;
                    }
                }
            }
        }
    }
    found
}

/// Whether another value made a difference that counts. A denial counts with the rule that the list has for the leaf;
/// another rule may only say that the value is malformed.
fn differs(leaf: &Leaf, before: &SceneResult, after: &SceneResult) -> bool {
    match after {
        SceneResult::Admitted(_) => before != after,
        SceneResult::Denied(rules) => denying_rule(leaf).is_some_and(|rule| rules.contains(rule)),
    }
}

#[test]
fn every_leaf_makes_a_difference_or_is_listed() {
    let scenes = scenes::all();
    let mut wrong = Vec::new();
    for leaf in leaves().iter().filter(|leaf| leaf.path.starts_with("spec")) {
        // It has the same spec as `Agent`; the test below compares the two.
        if leaf.kind == "SympoziumInstance" {
            continue;
        }
        let name = format!("{} {}", leaf.kind, leaf.path);
        let listed = unused_row(leaf).is_some() || is_listed(USED_ELSEWHERE, leaf);
        match (try_values(leaf, &scenes), listed) {
            (TryResult::Differs, false) | (TryResult::NoDifference | TryResult::Nowhere, true) => {}
            (TryResult::Differs, true) => wrong.push(format!("{name}: is listed, and works")),
            (TryResult::NoDifference, false) => wrong.push(format!("{name}: makes no difference")),
            (TryResult::Nowhere, false) => wrong.push(format!("{name}: is in no scene")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn both_kinds_of_agents_have_the_same_fields() {
    let of = |kind: &str| -> BTreeSet<String> {
        let all = leaves().into_iter().filter(|leaf| leaf.kind == kind);
        all.map(|leaf| leaf.path).collect()
    };
    assert_eq!(of("Agent"), of("SympoziumInstance"));
}

/// Our programs read only the status fields that are listed; each is written by the program that is named.
#[test]
fn every_leaf_of_a_status_is_written_or_listed() {
    let mut wrong = Vec::new();
    for leaf in leaves().iter().filter(|leaf| leaf.path.starts_with("status")) {
        let written = is_listed(USED_ELSEWHERE, leaf);
        let unwritten = is_listed(UNWRITTEN, leaf);
        if written == unwritten {
            wrong.push(format!("{} {}: on one list, please", leaf.kind, leaf.path));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_line_of_a_list_is_about_a_field_that_exists() {
    let leaves = leaves();
    let exists = |kind: &str, field: &str| {
        leaves.iter().any(|leaf| {
            // A field that accepts anything has no schema below it.
            let is_below = leaf.is_open && field.starts_with(leaf.path.as_str());
            leaf.kind == kind && (covers_leaf(field, leaf) || is_below)
        })
    };
    let rows = UNUSED_FIELDS.iter();
    let unused = rows.flat_map(|row| row.kinds().iter().map(|kind| (*kind, row.field)));
    let others = [USED_ELSEWHERE, UNWRITTEN, DENIED].concat();
    let others = others.iter().map(|(kind, field, _)| (*kind, *field));
    let missing: Vec<_> = unused.chain(others).filter(|(kind, field)| !exists(kind, field)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// A line that names where a field is used must not outlive that use.
#[test]
fn what_is_used_elsewhere_is_mentioned_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut wrong = Vec::new();
    for (kind, field, file) in USED_ELSEWHERE {
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        let name = field.rsplit('.').next().unwrap_or(field);
        let name = name.trim_end_matches("[]");
        // A whole spec or status is found by the name of its kind.
        let is_there = match *field {
            "spec" | "status" => code_lines(&text).any(|code_line| code_line.contains(kind)),
            _ => code_lines(&text).any(|code_line| uses_field(code_line, name)),
        };
        if !is_there {
            wrong.push(format!("{kind} {field}: nothing about it in {file}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_word_is_no_use_of_a_field() {
    let is_used = |line: &str| code_lines(line).any(|code_line| uses_field(code_line, "podName"));
    for line in ["run.status.pod_name", "\"podName\": name,", "    pod_name: Some(name),", "a.pod_name)?"] {
        assert!(is_used(line), "{line}");
    }
    for line in [
        "// run.status.pod_name",
        "    /// The `podName`.",
        "let pod_name = name();",
        "run.pod_names",
        "run.pod_name()",
        "    pub pod_name: Option<String>,",
        "podName",
    ] {
        assert!(!is_used(line), "{line}");
    }
}

/// The lines of a program that are not comments.
fn code_lines(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(str::trim_start);
    lines.filter(|line| !line.starts_with("//"))
}

/// Whether a line reads or writes a field: `.snake_case`, `"camelCase"`, or `snake_case: value` as a line of its own.
fn uses_field(line: &str, name: &str) -> bool {
    let snake = to_snake_case(name);
    let is_field = |rest: &str| {
        !rest.starts_with(|character: char| character.is_alphanumeric() || character == '_' || character == '(')
    };
    let access = format!(".{snake}");
    line.split(&access).skip(1).any(is_field)
        || line.contains(&format!("\"{name}\""))
        || line.starts_with(&format!("{snake}: "))
}

fn to_snake_case(name: &str) -> String {
    let mut text = String::new();
    let mut before = 'A';
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !before.is_ascii_uppercase() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
        before = letter;
    }
    text
}

/// The findings for an object that is checked alone: rule and field.
fn object_findings(object: &Value) -> BTreeSet<(&'static str, String)> {
    let kind = kind_of(object);
    let subject = Subject::new("Object", None, "o");
    let spec = object["spec"].clone();
    let found = match kind {
        "Agent" => admit_agent(&subject, &scenes::read(spec), false),
        "SkillPack" => admit_pack(&scenes::read(object.clone()), None, None),
        "SympoziumPolicy" => admit_policy(&subject, &scenes::read(spec)),
        "SympoziumSchedule" => admit_schedule(&subject, &scenes::read(spec)),
        "Model" => admit_model(&subject, &scenes::read(spec)),
        other => panic!("{other} is not looked at alone"),
    };
    let all = found.violations.into_iter().chain(found.warnings);
    all.map(|violation| (violation.rule, violation.field)).collect()
}

/// The use of a field without an effect is reported, where the object is written and where a run of it is admitted.
#[test]
fn the_use_of_every_unused_field_is_reported() {
    let used = scenes::unused();
    for row in UNUSED_FIELDS {
        let is_told = match row.effect {
            Effect::Missing => "field-unused",
            Effect::Restricting => "field-unenforced",
            Effect::Satisfied | Effect::Information => continue,
        };
        for kind in row.kinds().iter().filter(|kind| **kind != "SympoziumInstance") {
            let object = used.iter().find(|object| kind_of(object) == *kind);
            let object = object.unwrap_or_else(|| panic!("an example of {kind}"));
            let findings = match *kind {
                "AgentRun" => scenes::run_warnings(object),
                _ => object_findings(object),
            };
            let expected = (is_told, row.field.to_owned());
            assert!(findings.contains(&expected), "{kind} {}: {findings:?}", row.field);
            // Without the field there is nothing to report. A kind without any effect has no other form.
            if !matches!(row.field, "spec" | "spec.source" if *kind != "SkillPack") {
                let plain = json!({ "kind": kind, "metadata": { "name": "o" }, "spec": scenes::minimal_spec(kind) });
                let findings = match *kind {
                    "AgentRun" => scenes::run_warnings(&plain),
                    _ => object_findings(&plain),
                };
                assert!(!findings.contains(&expected), "{kind} {}", row.field);
            }
        }
    }
}
