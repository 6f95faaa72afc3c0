//! The bodies of the fuzz targets of this crate; `make fuzz` and the tests call them. The same module of
//! `sympozium-exec` documents their use.

#![expect(clippy::expect_used, reason = "a broken property panics, as in a test")]

use std::cell::RefCell;
use std::collections::HashSet;

use sympozium_api::SkillPack;
use sympozium_api::skill_pack::Sidecar;
use sympozium_api::text::is_visible;

use crate::agent_skill::directory::{RawFile, RawSkill};
use crate::agent_skill::load_raw;
use crate::limits::{MAX_DEPTH, MAX_FINDINGS};
use crate::load::{Budget, load};
use crate::problem::{Problem, Severity};
use crate::sources::decode;
use crate::tree::{Node, Value};
use crate::validate::{Completeness, Report, Schemas, Session};

/// A target: returns if every property holds for `data`, and panics otherwise.
pub type Target = fn(data: &[u8]);

/// Every target by its name, which is also the name of its corpus and of its program in `fuzz/`.
pub const TARGETS: &[(&str, Target)] = &[("agent_skill", agent_skill), ("manifest", manifest)];

/// Longer keys may not survive the round trip, because escapes make them longer than a key may be.
const MAX_SHORT_KEY: usize = 150;

/// Nodes that a file may have. With the product's limit, a million, a file of aliases takes a second, and fuzzing makes
/// no progress.
const MAX_NODES: usize = 10_000;

// Built once per thread: building them is the most expensive part, and they do not change.
thread_local! {
    static SCHEMAS: RefCell<Schemas> = RefCell::default();
}

/// A file of manifests, from its bytes to the report.
///
/// Whatever is loaded is within the limits, has each key once, and has positions that exist. What loads without a
/// finding means the same when it is written as JSON. The report is bounded, and its findings are within the file.
pub fn manifest(data: &[u8]) {
    let Ok(text) = decode(data.to_vec()) else {
        return;
    };
    let lines = text.split(['\n', '\r']).count();
    let loaded = load(&text, &mut Budget::with_nodes(MAX_NODES));
    let mut nodes = 0;
    for document in &loaded.documents {
        check_node(document, 0, lines, &mut nodes);
    }
    assert!(nodes <= MAX_NODES);
    if loaded.problems.items.is_empty() {
        loaded.documents.iter().for_each(check_json_round_trip);
    }
    check_report(text, lines);
}

/// Separates the files of a skill in the input of [`agent_skill`].
const FILE_SEPARATOR: &[u8] = b"\0FILE\0";

/// The bytes of a skill's directory: `SKILL.md`, and other files.
///
/// Whatever they are, the resulting pack is accepted by schema and admission, grants nothing but texts, an image and
/// the workspace, and survives being written as YAML and read again.
pub fn agent_skill(data: &[u8]) {
    let mut parts = data.windows(FILE_SEPARATOR.len()).enumerate();
    let end = parts.find(|(_, window)| *window == FILE_SEPARATOR);
    let (text, file) = match end {
        Some((end, _)) => (&data[..end], Some(&data[end + FILE_SEPARATOR.len()..])),
        None => (data, None),
    };
    let file = file.map(|bytes| RawFile {
        path: "scripts/run".to_owned(),
        bytes: bytes.to_vec(),
        has_execute_bit: bytes.len() % 2 == 0,
    });
    let lines = text.split(|byte| matches!(byte, b'\n' | b'\r')).count();
    let loaded = load_raw(
        RawSkill {
            directory_name: Some("skill".to_owned()),
            text: text.to_vec(),
            files: file.clone().into_iter().collect(),
            ..RawSkill::default()
        },
        &mut Budget::with_nodes(MAX_NODES),
    );
    for problem in &loaded.problems.items {
        assert!(problem.at.line as usize <= lines + 1, "{problem:?}");
        let is_safe = |text: &str| !text.chars().any(char::is_control);
        assert!(is_safe(&problem.message), "{problem:?}");
        assert!(problem.hint.as_deref().is_none_or(is_safe), "{problem:?}");
    }
    let is_error = |problem: &Problem| problem.severity == Severity::Error;
    let is_broken = loaded.problems.errors_omitted > 0 || loaded.problems.items.iter().any(is_error);
    let [document] = loaded.documents.as_slice() else {
        assert!(is_broken && loaded.documents.is_empty());
        return;
    };
    assert!(!is_broken);
    check_pack(document, file.as_ref());
}

fn check_pack(document: &Node, file: Option<&RawFile>) {
    let pack: SkillPack = serde_json::from_value(document.to_json()).expect("it is a pack");
    if let Some(sidecar) = &pack.spec.sidecar {
        let least = Sidecar { image: sidecar.image.clone(), mount_workspace: true, ..Sidecar::default() };
        assert_eq!(*sidecar, least, "it has more than an image");
    }
    let yaml = serde_saphyr::to_string(&pack).expect("a pack is YAML");
    let again = load(&yaml, &mut Budget::default());
    let errors: Vec<_> = again.problems.items.iter().filter(|problem| problem.severity == Severity::Error).collect();
    assert!(errors.is_empty(), "{errors:?} in:\n{yaml}");
    let read: Vec<SkillPack> = again
        .documents
        .iter()
        .map(|document| serde_json::from_value(document.to_json()).expect("it is a pack"))
        .collect();
    assert_eq!(read, std::slice::from_ref(&pack), "in:\n{yaml}");
    let kept = pack.spec.skills[0].files.first().map(sympozium_plan::admit::decode_contents);
    assert_eq!(kept, file.map(|file| Some(file.bytes.clone())), "a file is kept exactly");
    let found = find_rules("skill.yaml", yaml);
    // A skill may be called like the sandbox; a pack may not. That is the one finding to expect.
    let is_reserved = |finding: &&str| *finding != "pack-name-reserved";
    let found: Vec<&str> = found.iter().map(String::as_str).filter(is_reserved).collect();
    assert_eq!(found, [""; 0]);
}

/// The rules that validation reports for a text.
fn find_rules(name: &str, text: String) -> Vec<String> {
    let report = validate_text(name, text);
    report.findings().iter().map(|finding| finding.rule.clone()).collect()
}

fn check_node(node: &Node, depth: usize, lines: usize, nodes: &mut usize) {
    *nodes += 1;
    assert!(depth <= MAX_DEPTH, "too deep");
    assert!(node.at.line as usize <= lines + 1, "no such line");
    match &node.value {
        Value::List(list) => list.iter().for_each(|item| check_node(item, depth + 1, lines, nodes)),
        Value::Map(entries) => {
            let keys: HashSet<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
            assert_eq!(keys.len(), entries.len(), "a key comes twice");
            for entry in entries {
                check_node(&entry.node, depth + 1, lines, nodes);
            }
        }
        Value::Text(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn check_json_round_trip(document: &Node) {
    if has_long_key(document) {
        return;
    }
    let value = document.to_json();
    // JSON permits raw characters that YAML wants escaped.
    let text = escape(&serde_json::to_string(&value).expect("a tree is JSON"));
    let again = load(&text, &mut Budget::default());
    assert_eq!(again.problems.items, [], "as JSON: {text}");
    let again: Vec<_> = again.documents.iter().map(Node::to_json).collect();
    assert_eq!(again, [value], "as JSON: {text}");
}

fn escape(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        if is_visible(character) {
            escaped.push(character);
        } else {
            character.encode_utf16(&mut [0; 2]).iter().for_each(|unit| escaped.push_str(&format!("\\u{unit:04x}")));
        }
    }
    escaped
}

fn has_long_key(node: &Node) -> bool {
    match &node.value {
        Value::List(list) => list.iter().any(has_long_key),
        Value::Map(entries) => entries.iter().any(|entry| entry.key.len() > MAX_SHORT_KEY || has_long_key(&entry.node)),
        _ => false,
    }
}

fn validate_text(name: &str, text: String) -> Report {
    let mut session = Session::with_budget("default", Budget::with_nodes(MAX_NODES));
    session.add_text(name.to_owned(), Ok(text));
    SCHEMAS.with_borrow_mut(|schemas| session.finish(schemas, Completeness::Partial))
}

fn check_report(text: String, lines: usize) {
    let report = validate_text("file.yaml", text);
    assert!(report.findings().len() <= MAX_FINDINGS);
    for finding in report.findings() {
        assert!(finding.line as usize <= lines + 1, "{finding:?}");
        assert!(!finding.message.is_empty(), "{finding:?}");
    }
    let is_safe = |character: char| character == '\n' || is_visible(character);
    assert!(report.text().chars().all(is_safe), "{:?}", report.text());
}

#[cfg(test)]
mod tests;
