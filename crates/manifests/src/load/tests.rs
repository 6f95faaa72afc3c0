//! Ordinary and hostile manifests.

use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use super::*;
use crate::limits::{MAX_FINDINGS, MAX_SCALAR_BYTES};
use crate::problem::Severity;

fn documents(text: &str) -> Vec<Json> {
    let loaded = load(text, &mut Budget::default());
    assert_eq!(loaded.problems.items, [], "{text}");
    loaded.documents.iter().map(Node::to_json).collect()
}

fn document(text: &str) -> Json {
    let [document] = documents(text).try_into().unwrap();
    document
}

/// `line:column rule: message` of every problem.
fn problems(text: &str) -> Vec<String> {
    let loaded = load(text, &mut Budget::default());
    let shown = |problem: Problem| {
        let Mark { line, column } = problem.at;
        format!("{line}:{column} {}: {}", problem.rule, problem.message)
    };
    loaded.problems.items.into_iter().map(shown).collect()
}

fn problem(text: &str) -> String {
    let [problem] = problems(text).try_into().unwrap();
    problem
}

#[test]
fn documents_are_read_one_by_one_and_empty_ones_left_out() {
    let text = "---\na: 1\n---\n# nothing\n---\nb: [x, 'y', \"z\", 1.5, true, null]\n...\n---\n";
    assert_eq!(documents(text), [json!({"a": 1}), json!({"b": ["x", "y", "z", 1.5, true, null]})]);
    assert_eq!(documents(""), [] as [Json; 0]);
}

#[test]
fn json_is_read_too() {
    let text = "{\n\t\"a\\u0041\": [1, -2.5e3, \"\\ud834\\udd1e\\/\", false],\n\t\"b\": {}\n}\n";
    assert_eq!(document(text), json!({"aA": [1, -2500.0, "𝄞/", false], "b": {}}));
}

#[test]
fn block_texts_keep_their_lines() {
    let text = "run: |\n  one\n  two: 3\nfold: >-\n  a\n  b\n";
    assert_eq!(document(text), json!({"run": "one\ntwo: 3\n", "fold": "a b"}));
}

#[test]
fn every_value_has_a_position() {
    let text = "spec:\n  skills:\n    - name: x\n      \"two\": { in: line }\n";
    let root = load(text, &mut Budget::default()).documents.remove(0);
    for (path, line, column) in [
        ("spec", 1, 1),
        ("spec.skills", 2, 3),
        ("spec.skills[0]", 3, 7),
        ("spec.skills[0].name", 3, 7),
        ("spec.skills[0].two", 4, 7),
        ("spec.skills[0].two.in", 4, 16),
    ] {
        assert_eq!(root.locate(path), Mark { line, column }, "{path}");
    }
    let name = root.get("spec").and_then(|spec| spec.get("skills")).unwrap();
    let name = name.as_list().unwrap()[0].get("name").unwrap();
    assert_eq!(name.at, Mark { line: 3, column: 13 });
}

#[test]
fn columns_count_characters() {
    assert_eq!(
        problem("{ \"äöü\": 1, \"äöü\": 2 }"),
        "1:13 duplicate-key: duplicate key `äöü`; the first one is on line 1"
    );
}

#[test]
fn a_key_given_twice_is_an_error_each_time() {
    let text = "a: 1\nb:\n  c: 1\n  c: 2\na: 2\n'a': 3\n";
    assert_eq!(
        problems(text),
        [
            "4:3 duplicate-key: duplicate key `c`; the first one is on line 3",
            "5:1 duplicate-key: duplicate key `a`; the first one is on line 1",
            "6:1 duplicate-key: duplicate key `a`; the first one is on line 1",
        ]
    );
    let loaded = load(text, &mut Budget::default());
    assert_eq!(loaded.documents[0].to_json(), json!({"a": 1, "b": {"c": 1}}));
}

#[test]
fn aliases_and_merges_are_written_out() {
    let text = "base: &base {a: 1, b: 2}\ncopy: *base\nmerged:\n  <<: *base\n  b: 3\nseveral:\n  <<: [{a: 9, c: 9}, *base]\nword: &word text\nagain: *word\n";
    assert_eq!(
        document(text),
        json!({
            "base": {"a": 1, "b": 2},
            "copy": {"a": 1, "b": 2},
            "merged": {"b": 3, "a": 1},
            "several": {"a": 9, "c": 9, "b": 2},
            "word": "text",
            "again": "text",
        })
    );
    assert_eq!(
        document("&k key: 1\nlist: [*k]\n*k2 : 2\n".replace("*k2 ", "other").as_str()),
        json!({"key": 1, "list": ["key"], "other": 2})
    );
    assert_eq!(document("a: &k key\nb: {*k : 2}\n"), json!({"a": "key", "b": {"key": 2}}));
}

#[test]
fn a_quoted_merge_key_is_a_key() {
    assert_eq!(document("'<<': 1"), json!({"<<": 1}));
}

#[test]
fn invalid_merges_and_aliases_are_refused() {
    assert_eq!(problem("<<: word"), "1:1 key: `<<` takes an object or a list of objects");
    assert_eq!(
        problem("a: &a {b: 1}\nc:\n  <<: *a\n  <<: *a\n"),
        "4:3 duplicate-key: duplicate key `<<`; the first one is on line 3"
    );
    assert_eq!(problem("a: *missing"), "1:4 alias: the alias names no anchor before it");
    assert_eq!(problem("a: &a 1\n---\nb: *a"), "3:4 alias: the alias names no anchor before it");
    assert_eq!(problem("a: &a [1, *a]"), "1:11 alias: the alias is inside the value of its own anchor");
    assert_eq!(problem("a: &a {b: {<<: *a}}"), "1:16 alias: the alias is inside the value of its own anchor");
}

#[test]
fn keys_are_texts() {
    assert_eq!(document("8080: a\ntrue: b\n-1: c\n1.5: d"), json!({"8080": "a", "true": "b", "-1": "c", "1.5": "d"}));
    assert_eq!(problem("[a, b]: 1"), "1:1 key: a list or an object cannot be a key");
    assert_eq!(problem("a: {{ name }}"), "1:5 key: a list or an object cannot be a key");
    assert_eq!(problem(": 1"), "1:1 key: a key is missing before the colon");
    assert_eq!(problem("~: 1"), "1:1 key: a key is missing before the colon");
    assert_eq!(problem("on: 1"), "1:1 ambiguous: kubectl reads the key `on` as `true`");
    assert_eq!(problem("010: 1"), "1:1 ambiguous: kubectl reads the key `010` as `8`");
}

#[test]
fn scalars_that_kubectl_reads_differently_are_warnings() {
    assert_eq!(
        problems("a: no\nb: 'no'\nc: 0755\nd: [y]\ne: !!str on\nf: 1_000"),
        [
            "1:4 ambiguous: kubectl reads `no` as false, YAML 1.2 as a string",
            "3:4 ambiguous: kubectl reads `0755` as 493, YAML 1.2 as 755",
            "4:5 ambiguous: kubectl reads `y` as true, YAML 1.2 as a string",
            "6:4 ambiguous: kubectl reads `1_000` as 1000, YAML 1.2 as a string",
        ]
    );
    let loaded = load("a: no", &mut Budget::default());
    assert_eq!(loaded.problems.items[0].severity, Severity::Warning);
    assert_eq!(loaded.problems.items[0].hint.as_deref(), Some("write false, or \"no\" for the string"));
}

#[test]
fn tags_of_the_core_schema_are_taken_and_others_refused() {
    assert_eq!(
        document("a: !!str 1\nb: !!int '2'\nc: !!map {}\nd: !!seq []\ne: !!float 3"),
        json!({"a": "1", "b": 2, "c": {}, "d": [], "e": 3})
    );
    assert_eq!(problem("a: !!int x"), "1:10 tag: `x` does not match its tag `!!int`");
    for text in ["a: !custom 1", "a: !!binary aGk=", "a: !!map []", "a: !!set {}", "!x a: 1"] {
        assert!(problem(text).contains(" tag: a tag that manifests do not use"), "{text}");
    }
}

#[test]
fn numbers_that_json_lacks_are_refused() {
    assert_eq!(problem("a: .inf"), "1:4 syntax: `.inf` is a number that JSON cannot represent");
    assert_eq!(problem("a: 1e999"), "1:4 syntax: `1e999` is a number that JSON cannot represent");
}

#[test]
fn a_nul_character_is_refused_in_every_notation() {
    assert_eq!(problem(r#"a: "x\0y""#), "1:4 syntax: the string contains a NUL character");
}

#[test]
fn directives_are_refused() {
    assert!(problem("%YAML 1.1\n---\na: 1").starts_with("1:1 syntax: "));
    assert!(problem("%TAG ! tag:example.com,2000:\n---\na: 1").starts_with("1:1 syntax: "));
}

#[test]
fn a_broken_document_does_not_hide_the_next() {
    let text = "a: [1, 2\n---\nb: 1\n---\nc:\n\td: 1\n---\nd: *x\n---\ne: 1\n";
    let loaded = load(text, &mut Budget::default());
    let values: Vec<_> = loaded.documents.iter().map(Node::to_json).collect();
    assert_eq!(values, [json!({"b": 1}), json!({"e": 1})]);
    let places: Vec<_> = loaded.problems.items.iter().map(|problem| (problem.at.line, problem.rule)).collect();
    assert_eq!(places.len(), 3, "{:?}", loaded.problems);
    assert_eq!(places[2], (8, "alias"));
    assert!(loaded.problems.items[1].hint.as_deref().unwrap().contains("tabs"));
}

#[test]
fn a_billion_laughs_are_not_written_out() {
    let mut text = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    for level in 1..10 {
        let refs = vec![format!("*a{}", level - 1); 9].join(", ");
        writeln!(text, "a{level}: &a{level} [{refs}]").unwrap();
    }
    let problem = problem(&text);
    assert!(
        problem.ends_with("too-large: more than 1000000 values in total, including copies by aliases"),
        "{problem}"
    );
}

#[test]
fn laughs_by_merging_are_not_written_out_either() {
    let mut text = "a0: &a0 {k: {m: z}}\n".to_owned();
    for level in 1..30 {
        let below = level - 1;
        writeln!(text, "a{level}: &a{level} {{<<: *a{below}, l{level}: *a{below}}}").unwrap();
    }
    let problem = problem(&text);
    assert!(problem.contains(" too-large: ") || problem.contains(" too-deep: "), "{problem}");
}

#[test]
fn a_large_text_is_not_copied_without_end() {
    let text = format!("a: &a {}\nb: [{}]", "x".repeat(1_000_000), "*a, ".repeat(100));
    assert!(problem(&text).ends_with("too-large: aliases copy more than 8 MiB of text"));
}

#[test]
fn anchors_within_anchors_are_counted() {
    let mut text = String::new();
    for level in 0..60 {
        write!(text, "&a{level} [").unwrap();
    }
    text.push_str(&"x, ".repeat(20_000));
    text.push_str(&"]".repeat(60));
    assert!(problem(&text).contains(" too-large: more than 1000000 values"));
}

#[test]
fn the_bound_on_depth_holds_on_both_sides() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(problems(&nested(MAX_DEPTH)), [] as [String; 0]);
    assert!(problem(&nested(MAX_DEPTH + 1)).contains("too-deep: nested deeper than 64 levels"));
    assert!(problem(&nested(1_000_000)).contains("too-deep: nested deeper than 64 levels"));
    let block = |depth: usize| (0..depth).fold(String::new(), |text, level| text + &" ".repeat(level) + "a:\n");
    assert_eq!(problems(&block(MAX_DEPTH)), [] as [String; 0]);
    assert!(problem(&block(MAX_DEPTH + 1)).contains("too-deep"));
    assert!(problem(&"- ".repeat(10_000)).contains("too-deep"));
    let by_alias = format!("a: &a {}\nb: [[*a]]", nested(MAX_DEPTH - 2));
    assert!(problem(&by_alias).contains("too-deep"), "the copy would be too deep");
}

#[test]
fn the_bound_on_a_text_holds_on_both_sides() {
    assert_eq!(problems(&format!("a: {}", "x".repeat(MAX_SCALAR_BYTES))), [] as [String; 0]);
    let message = problem(&format!("a: {}", "x".repeat(MAX_SCALAR_BYTES + 1)));
    assert_eq!(message, "1:4 too-large: a string of more than 1 MiB");
}

#[test]
fn bounds_on_documents_and_values_apply_to_all_files() {
    let mut budget = Budget { documents: 3, ..Budget::default() };
    assert_eq!(load("--- x\n--- y\n", &mut budget).documents.len(), 2);
    let rest = load("--- x\n--- y\n--- z\n", &mut budget);
    assert_eq!(rest.documents.len(), 1);
    assert_eq!(rest.problems.items[0].message, "more than 10000 documents in total");

    let mut budget = Budget { nodes: 5, ..Budget::default() };
    assert_eq!(load("[1, {a: 2}]", &mut budget).problems.items, []);
    let rest = load("1", &mut budget);
    assert_eq!(rest.problems.items[0].rule, "too-large");
}

#[test]
fn a_key_without_end_is_an_error_and_not_a_wait() {
    let text = format!("{}: 1", "k".repeat(MAX_KEY_LENGTH + 1));
    assert_eq!(problems(&text).len(), 1);
    assert_eq!(problems(&format!("{}: 1", "k".repeat(MAX_KEY_LENGTH))), [] as [String; 0]);
}

#[test]
fn problems_beyond_the_bound_are_counted() {
    let loaded = load(&"a: 1\n".repeat(5_001), &mut Budget::default());
    assert_eq!(loaded.problems.items.len(), MAX_FINDINGS);
    assert_eq!(loaded.problems.errors_omitted, 5_000 - MAX_FINDINGS);
}
