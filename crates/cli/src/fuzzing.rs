//! The bodies of the fuzz targets of this crate; `make fuzz` and the tests call them. See the same module of
//! `sympozium-exec` for how they are used.

#![expect(
    clippy::expect_used,
    reason = "a broken property is told by a panic, as in a test"
)]

use std::cell::RefCell;
use std::collections::HashSet;

use crate::manifests::limits::{MAX_DEPTH, MAX_FINDINGS, MAX_NODES};
use crate::manifests::load::{Budget, load};
use crate::manifests::sources::decode;
use crate::manifests::tree::{Node, Value};
use crate::validate::{Completeness, Schemas, Session};

/// A body: it returns when every property holds for `data`, and panics otherwise.
pub type Target = fn(data: &[u8]);

/// Every target by its name, which is also the name of its corpus and of its program in `fuzz/`.
pub const TARGETS: &[(&str, Target)] = &[("manifest", manifest)];

/// Keys longer than this may not come back, because escapes make them longer than a key may be.
const SHORT_KEY: usize = 150;

/// A file of manifests, from its bytes to the report.
///
/// Whatever is loaded is within the bounds, has each key once and knows places that exist. What loads without a
/// complaint means the same when it is written as JSON. The report is bounded, and its findings are where the file is.
pub fn manifest(data: &[u8]) {
    let Ok(text) = decode(data.to_vec()) else {
        return;
    };
    let lines = text.split(['\n', '\r']).count();
    let loaded = load(&text, &mut Budget::default());
    let mut nodes = 0;
    for document in &loaded.documents {
        look_at(document, 0, lines, &mut nodes);
    }
    assert!(nodes <= MAX_NODES);
    if loaded.problems.kept.is_empty() {
        loaded.documents.iter().for_each(means_the_same_as_json);
    }
    report(text, lines);
}

fn look_at(node: &Node, depth: usize, lines: usize, nodes: &mut usize) {
    *nodes += 1;
    assert!(depth <= MAX_DEPTH, "too deep");
    assert!(node.at.line as usize <= lines + 1, "no such line");
    match &node.value {
        Value::List(list) => list
            .iter()
            .for_each(|it| look_at(it, depth + 1, lines, nodes)),
        Value::Map(entries) => {
            let keys: HashSet<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
            assert_eq!(keys.len(), entries.len(), "a key comes twice");
            for entry in entries {
                look_at(&entry.node, depth + 1, lines, nodes);
            }
        }
        Value::Text(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn means_the_same_as_json(document: &Node) {
    if has_long_key(document) {
        return;
    }
    let value = document.to_json();
    let text = serde_json::to_string(&value).expect("a tree is JSON");
    let again = load(&text, &mut Budget::default());
    assert_eq!(again.problems.kept, [], "as JSON: {text}");
    let again: Vec<_> = again.documents.iter().map(Node::to_json).collect();
    assert_eq!(again, [value], "as JSON: {text}");
}

fn has_long_key(node: &Node) -> bool {
    match &node.value {
        Value::List(list) => list.iter().any(has_long_key),
        Value::Map(entries) => entries
            .iter()
            .any(|entry| entry.key.len() > SHORT_KEY || has_long_key(&entry.node)),
        _ => false,
    }
}

fn report(text: String, lines: usize) {
    // Made once for each thread: they are the dearest part, and do not change.
    thread_local! {
        static SCHEMAS: RefCell<Schemas> = RefCell::default();
    }
    let mut session = Session::new("default");
    session.add("file.yaml".to_owned(), Ok(text));
    let report = SCHEMAS.with_borrow_mut(|schemas| session.finish(schemas, Completeness::Partial));
    assert!(report.findings().len() <= MAX_FINDINGS);
    for finding in report.findings() {
        assert!(finding.line as usize <= lines + 1, "{finding:?}");
        assert!(!finding.message.is_empty(), "{finding:?}");
    }
    let is_safe = |character: char| character == '\n' || !character.is_control();
    assert!(report.text().chars().all(is_safe), "{:?}", report.text());
}
