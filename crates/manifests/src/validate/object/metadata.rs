//! Checks `metadata`, which the schema of a CRD leaves to the API server.

use sympozium_api::names::{NamespaceName, ObjectName};
use sympozium_api::text::quote;

use super::super::schema;
use super::Sink;
use crate::problem::Problem;
use crate::tree::{Node, Path, Value};

/// The fields that users write, then those that the API server adds and `kubectl get -o yaml` prints.
const FIELDS: &[&str] = &[
    "name",
    "generateName",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Checks what every object needs: a valid name, and maps of strings.
pub fn check(object: &Node, sink: &mut Sink<'_>) {
    let path = Path::Root.field("metadata");
    let Some(entry) = object.entry("metadata") else {
        let problem = Problem::error("required", object.at, "`metadata` is missing");
        return sink(path, problem.with_hint("an object needs at least `metadata.name`"));
    };
    let Value::Map(entries) = &entry.node.value else {
        let message = format!("must be an object, not {}", entry.node.value.type_name());
        let problem = Problem::error("type", entry.node.at, message);
        return sink(path, problem.with_hint("write its fields below it, such as `name: code-review`"));
    };
    for field in entries {
        let inner = path.field(&field.key);
        match field.key.as_str() {
            "name" => check_name(&field.node, inner, sink),
            "namespace" => check_namespace(&field.node, inner, sink),
            "generateName" => {
                expect_text(&field.node, inner, sink);
            }
            "labels" | "annotations" => check_texts(&field.node, inner, sink),
            known if FIELDS.contains(&known) => {}
            _ => sink(inner, schema::unknown_field(field, FIELDS.iter().copied())),
        }
    }
    let has = |field: &str| entry.node.get(field).is_some();
    if !has("name") && !has("generateName") {
        let problem = Problem::error("required", entry.node.at, "`name` is missing");
        sink(path.field("name"), problem.with_hint("add `name:` with a name of the object, such as \"code-review\""));
    }
}

fn check_name(node: &Node, path: Path<'_>, sink: &mut Sink<'_>) {
    if let Some(name) = expect_text(node, path, sink)
        && ObjectName::from(name).check().is_err()
    {
        let message = format!("{} is not a valid name of an object", quote(name));
        sink(
            path,
            Problem::error("name", node.at, message)
                .with_hint("use lower-case letters, digits, `-` and `.`, at most 253 characters"),
        );
    }
}

fn check_namespace(node: &Node, path: Path<'_>, sink: &mut Sink<'_>) {
    if let Some(name) = expect_text(node, path, sink)
        && NamespaceName::from(name).check().is_err()
    {
        let message = format!("{} is not a valid name of a namespace", quote(name));
        sink(
            path,
            Problem::error("name", node.at, message)
                .with_hint("use lower-case letters, digits and `-`, at most 63 characters"),
        );
    }
}

fn check_texts(node: &Node, path: Path<'_>, sink: &mut Sink<'_>) {
    match &node.value {
        Value::Null => {}
        Value::Map(entries) => {
            for entry in entries {
                expect_text(&entry.node, path.field(&entry.key), sink);
            }
        }
        other => {
            let message = format!("must be an object of strings, not {}", other.type_name());
            let problem = Problem::error("type", node.at, message);
            sink(path, problem.with_hint("write entries of the form `key: \"text\"`"));
        }
    }
}

/// The text; reports a finding if the node is not a text.
fn expect_text<'a>(node: &'a Node, path: Path<'_>, sink: &mut Sink<'_>) -> Option<&'a str> {
    if node.as_text().is_none() {
        sink(path, schema::wrong_type(node, schema::Type::String));
    }
    node.as_text()
}
