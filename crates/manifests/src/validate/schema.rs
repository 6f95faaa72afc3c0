//! Validates a tree with positions against the structural schema of a CRD, as the API server would.
//!
//! Every violation is reported, not only the first. `x-kubernetes-validations` are left to admission, which repeats
//! those rules.

mod combinators;
mod messages;
mod model;
mod patterns;

#[cfg(test)]
mod tests;

use std::collections::HashSet;

use regex_lite::Regex;
use serde_json::Number;
use sympozium_api::text::quote;

pub use model::{Schema, Type};

use super::suggest;
use crate::problem::Problem;
use crate::tree::{Entry, Mark, Node, Path, Value};
use model::AdditionalProperties;

/// Receives each problem with the field that it is about.
pub type Sink<'a> = dyn FnMut(Path<'_>, Problem) + 'a;

/// Validates `node`, which is at `path`, against `schema`.
pub fn check(node: &Node, schema: &Schema, path: Path<'_>, sink: &mut Sink<'_>) {
    if schema.int_or_string {
        return check_int_or_string(node, schema, path, sink);
    }
    if let Some(wanted) = schema.type_.filter(|wanted| !has_type(&node.value, *wanted)) {
        return sink(path, wrong_type_for(node, wanted, schema));
    }
    check_enum(node, schema, path, sink);
    match &node.value {
        Value::Text(text) => check_text(node.at, text, schema, path, sink),
        Value::Number(number) => check_number(node.at, number, schema, path, sink),
        Value::List(nodes) => check_list(node.at, nodes, schema, path, sink),
        Value::Map(entries) => check_object(node, entries, schema, path, sink),
        Value::Null | Value::Bool(_) => {}
    }
    combinators::check(node, schema, path, sink);
}

fn has_type(value: &Value, wanted: Type) -> bool {
    match (wanted, value) {
        (Type::Object, Value::Map(_))
        | (Type::Array, Value::List(_))
        | (Type::String, Value::Text(_))
        | (Type::Boolean, Value::Bool(_))
        | (Type::Number, Value::Number(_)) => true,
        (Type::Integer, Value::Number(number)) => is_integer(number),
        _ => false,
    }
}

/// The API server accepts `2.0` as an integer too.
fn is_integer(number: &Number) -> bool {
    !number.is_f64() || number.as_f64().is_some_and(|value| value.fract() == 0.0)
}

/// The problem that a value has another type than `wanted`.
pub fn wrong_type(node: &Node, wanted: Type) -> Problem {
    let message = format!("must be {}, not {}", messages::describe_type(wanted), messages::describe_value(&node.value));
    Problem::error("type", node.at, message).with_hint(messages::type_hint(&node.value, wanted))
}

/// The same where the schema has a pattern for the text: adding quotes alone may not be enough.
fn wrong_type_for(node: &Node, wanted: Type, schema: &Schema) -> Problem {
    let problem = wrong_type(node, wanted);
    let form = schema.pattern.as_deref().and_then(patterns::find);
    match (form, &node.value) {
        (Some(form), Value::Number(number)) => problem.with_hint(form.hint(&number.to_string())),
        _ => problem,
    }
}

fn check_int_or_string(node: &Node, schema: &Schema, path: Path<'_>, sink: &mut Sink<'_>) {
    match &node.value {
        Value::Number(number) if is_integer(number) => {
            check_number(node.at, number, schema, path, sink);
        }
        Value::Text(text) => check_text(node.at, text, schema, path, sink),
        other => {
            let found = messages::describe_value(other);
            let message = format!("must be an integer or a string, not {found}");
            let problem = Problem::error("type", node.at, message);
            let form = schema.pattern.as_deref().and_then(patterns::find);
            let hint = match (form, other) {
                (Some(form), Value::Number(number)) => form.hint(&number.to_string()),
                (Some(form), _) => form.hint(""),
                (None, _) => "write an integer or a string".to_owned(),
            };
            sink(path, problem.with_hint(hint));
        }
    }
}

fn check_enum(node: &Node, schema: &Schema, path: Path<'_>, sink: &mut Sink<'_>) {
    let Some(allowed) = &schema.enum_ else {
        return;
    };
    let value = node.to_json();
    if allowed.contains(&value) {
        return;
    }
    let texts: Vec<&str> = allowed.iter().filter_map(|one| one.as_str()).collect();
    let message =
        format!("{} is not one of {}", messages::quote_value(&node.value), messages::join_names(&texts, "and"));
    let problem = Problem::error("enum", node.at, message);
    let meant = node.as_text().and_then(|typed| suggest::closest(typed, texts.iter().copied()));
    sink(
        path,
        match meant {
            Some(meant) => problem.with_hint(format!("did you mean `{meant}`?")),
            None => problem.with_hint("use one of these"),
        },
    );
}

fn check_text(at: Mark, text: &str, schema: &Schema, path: Path<'_>, sink: &mut Sink<'_>) {
    let least = schema.min_length;
    let most = schema.max_length;
    if least.is_some() || most.is_some() {
        let length = text.chars().count();
        if least.is_some_and(|least| length < least) {
            let message = match text {
                "" => "must not be empty".to_owned(),
                _ => format!("must have {} characters or more, not {length}", least.unwrap_or(0)),
            };
            let problem = Problem::error("length", at, message);
            sink(path, problem.with_hint("write a longer string, or omit the field if it is optional"));
        }
        if let Some(most) = most.filter(|most| length > *most) {
            let message = format!("must have {most} characters or fewer, not {length}");
            let hint = format!("shorten it by {}", messages::pluralize(length - most, "character"));
            sink(path, Problem::error("length", at, message).with_hint(hint));
        }
    }
    // An empty text that must not be empty needs no second finding.
    let is_missing = text.is_empty() && least.is_some_and(|least| least > 0);
    if let Some(pattern) = schema.pattern.as_deref().filter(|_| !is_missing) {
        // The patterns are ours, and a test compiles them all; one that does not compile here is left to the API
        // server.
        if Regex::new(pattern).is_ok_and(|pattern| !pattern.is_match(text)) {
            let (message, hint) = match patterns::find(pattern) {
                Some(form) => (format!("{} is not {}", quote(text), form.what), form.hint(text)),
                None => (format!("{} does not match the pattern", quote(text)), format!("the pattern is {pattern}")),
            };
            sink(path, Problem::error("pattern", at, message).with_hint(hint));
        }
    }
}

fn check_number(at: Mark, number: &Number, schema: &Schema, path: Path<'_>, sink: &mut Sink<'_>) {
    let value = number.as_f64().unwrap_or(f64::NAN);
    let mut refuse = |message: String, hint: String| {
        sink(path, Problem::error("range", at, message).with_hint(hint));
    };
    let range = match (schema.minimum, schema.maximum) {
        (Some(least), Some(most)) if schema.exclusive_minimum || schema.exclusive_maximum => {
            Some(format!("choose a number between {least} and {most}"))
        }
        (Some(least), Some(most)) => Some(format!("choose a number from {least} to {most}")),
        _ => None,
    };
    let larger = || range.clone().unwrap_or("choose a larger number".to_owned());
    let smaller = || range.clone().unwrap_or("choose a smaller number".to_owned());
    if let Some(least) = schema.minimum {
        if schema.exclusive_minimum && value <= least {
            refuse(format!("must be more than {least}, not {number}"), larger());
        } else if value < least {
            refuse(format!("must be {least} or more, not {number}"), larger());
        }
    }
    if let Some(most) = schema.maximum {
        if schema.exclusive_maximum && value >= most {
            refuse(format!("must be less than {most}, not {number}"), smaller());
        } else if value > most {
            refuse(format!("must be {most} or less, not {number}"), smaller());
        }
    }
    if let Some(step) = schema.multiple_of.filter(|step| value % step != 0.0) {
        let nearest = (value / step).round() * step;
        refuse(format!("must be a multiple of {step}, not {number}"), format!("the nearest is {nearest}"));
    }
    let fits = match schema.format.as_deref() {
        Some("int32") => (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&value),
        Some("int64") => number.is_i64() || number.is_f64(),
        _ => true,
    };
    if !fits {
        refuse(format!("{number} is too large for the field"), smaller());
    }
}

fn check_list(at: Mark, nodes: &[Node], schema: &Schema, path: Path<'_>, sink: &mut Sink<'_>) {
    let count = nodes.len();
    if let Some(least) = schema.min_items.filter(|least| count < *least) {
        let message = format!("must have {}, not {count}", messages::at_least(least, "element"));
        let hint = format!("add {}", messages::pluralize(least - count, "element"));
        sink(path, Problem::error("count", at, message).with_hint(hint));
    }
    if let Some(most) = schema.max_items.filter(|most| count > *most) {
        let message = format!("must have {}, not {count}", messages::at_most(most, "element"));
        let hint = format!("remove {}", messages::pluralize(count - most, "element"));
        sink(path, Problem::error("count", at, message).with_hint(hint));
    }
    if let Some(element) = &schema.items {
        for (index, node) in nodes.iter().enumerate() {
            check(node, element, path.index(index), sink);
        }
    }
    check_unique(nodes, schema, path, sink);
}

/// Sets have each element once, and lists with keys each key.
fn check_unique(nodes: &[Node], schema: &Schema, path: Path<'_>, sink: &mut Sink<'_>) {
    let keys = match schema.list_type.as_deref() {
        Some("set") => None,
        Some("map") => Some(schema.list_map_keys.as_deref().unwrap_or(&[])),
        _ if schema.unique_items => None,
        _ => return,
    };
    let mut seen = HashSet::new();
    for (index, node) in nodes.iter().enumerate() {
        let (identity, named) = match keys {
            None => (node.to_json().to_string(), messages::quote_value(&node.value)),
            Some(keys) => {
                let parts: Vec<&Node> = keys.iter().filter_map(|key| node.get(key)).collect();
                // An element without its keys is reported already.
                let Some(first) = parts.first() else { continue };
                let identity = parts.iter().map(|part| format!("{}\n", part.to_json()));
                (identity.collect(), messages::quote_value(&first.value))
            }
        };
        if !seen.insert(identity) {
            let message = format!("{named} is already in the list");
            sink(path.index(index), Problem::error("duplicate", node.at, message).with_hint("keep one of the two"));
        }
    }
}

fn check_object(node: &Node, entries: &[Entry], schema: &Schema, path: Path<'_>, sink: &mut Sink<'_>) {
    let count = entries.len();
    if let Some(least) = schema.min_properties.filter(|least| count < *least) {
        let message = format!("must have {}, not {count}", messages::at_least(least, "entry"));
        let hint = format!("add {}", messages::pluralize(least - count, "entry"));
        sink(path, Problem::error("count", node.at, message).with_hint(hint));
    }
    if let Some(most) = schema.max_properties.filter(|most| count > *most) {
        let message = format!("must have {}, not {count}", messages::at_most(most, "entry"));
        let hint = format!("remove {}", messages::pluralize(count - most, "entry"));
        sink(path, Problem::error("count", node.at, message).with_hint(hint));
    }
    for entry in entries {
        check_entry(entry, schema, path, sink);
    }
    check_required(node, schema, path, sink);
}

fn check_required(node: &Node, schema: &Schema, path: Path<'_>, sink: &mut Sink<'_>) {
    for name in schema.required.iter().flatten() {
        // The API server drops nulls before it checks for required fields.
        let is_there = node.get(name).is_some_and(|child| child.value != Value::Null);
        let property = schema.properties.as_ref().and_then(|properties| properties.get(name));
        let has_default = property.is_some_and(|property| property.default.is_some());
        if !is_there && !has_default {
            let message = format!("{} is missing", quote(name));
            sink(path.field(name), Problem::error("required", node.at, message).with_hint(add_hint(name, property)));
        }
    }
}

/// How to add a missing field.
fn add_hint(name: &str, property: Option<&Schema>) -> String {
    let form = property.and_then(|property| property.pattern.as_deref()).and_then(patterns::find);
    let wanted = property.and_then(|property| property.type_);
    let texts = property.and_then(|property| property.enum_.as_ref());
    let texts: Vec<&str> = texts.into_iter().flatten().filter_map(|text| text.as_str()).collect();
    if !texts.is_empty() {
        return format!("add `{name}:` with one of {}", messages::join_names(&texts, "and"));
    }
    match (form, wanted) {
        (Some(form), _) => format!("add `{name}:` with {}, such as \"{}\"", form.what, form.example),
        (None, Some(wanted)) => format!("add `{name}:` with {}", messages::describe_type(wanted)),
        (None, None) => format!("add `{name}:`"),
    }
}

fn check_entry(entry: &Entry, schema: &Schema, path: Path<'_>, sink: &mut Sink<'_>) {
    let inner = path.field(&entry.key);
    let known = schema.properties.as_ref().and_then(|properties| properties.get(&entry.key));
    if let Some(property) = known {
        // The API server drops a null and applies the default.
        if entry.node.value != Value::Null {
            check(&entry.node, property, inner, sink);
        }
        return;
    }
    match &schema.additional_properties {
        Some(AdditionalProperties::Schema(value)) => check(&entry.node, value, inner, sink),
        Some(AdditionalProperties::Any(true)) => {}
        _ if schema.preserve_unknown_fields => {}
        // A subschema that lists no fields says nothing about them.
        _ if schema.properties.is_none() && schema.type_ != Some(Type::Object) => {}
        _ => {
            let names = schema.properties.iter().flat_map(|properties| properties.keys());
            sink(inner, unknown_field(entry, names.map(String::as_str)));
        }
    }
}

/// The problem of an unknown field, with the one that was probably meant.
pub fn unknown_field<'a>(entry: &Entry, names: impl Iterator<Item = &'a str> + Clone) -> Problem {
    let message = format!("unknown field {}", quote(&entry.key));
    let problem = Problem::error("unknown-field", entry.at, message);
    if let Some(meant) = suggest::closest(&entry.key, names.clone()) {
        return problem.with_hint(format!("did you mean `{meant}`?"));
    }
    let names: Vec<&str> = names.collect();
    match names.len() {
        0 => problem.with_hint("the object has no fields"),
        1..=messages::MAX_LISTED => {
            problem.with_hint(format!("the fields are {}", messages::join_names(&names, "and")))
        }
        _ => problem.with_hint("remove it, or correct its name or its indentation"),
    }
}

/// `a`, `b` and `c`.
pub fn join_names(names: &[&str]) -> String {
    messages::join_names(names, "and")
}

/// Validates a whole object against the schema of its kind. `metadata` is checked elsewhere.
pub fn check_root(node: &Node, schema: &Schema, sink: &mut Sink<'_>) {
    let Value::Map(entries) = &node.value else {
        return;
    };
    const COMMON_FIELDS: &[&str] = &["apiVersion", "kind", "metadata"];
    let ours = |entry: &&Entry| !COMMON_FIELDS.contains(&entry.key.as_str());
    for entry in entries.iter().filter(ours) {
        check_entry(entry, schema, Path::Root, sink);
    }
    check_required(node, schema, Path::Root, sink);
    combinators::check(node, schema, Path::Root, sink);
}
