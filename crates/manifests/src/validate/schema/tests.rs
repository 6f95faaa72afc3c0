//! Every keyword of a structural schema, with a value that is valid and one that is not.

use serde_json::{Value as Json, json};

use super::*;
use crate::load::{Budget, load};

/// `field: rule: message [hint]` of every problem.
fn problems(schema: Json, text: &str) -> Vec<String> {
    let schema: Schema = serde_json::from_value(schema).unwrap();
    let loaded = load(text, &mut Budget::default());
    assert_eq!(loaded.problems.items, [], "{text}");
    let mut found = Vec::new();
    check(&loaded.documents[0], &schema, Path::Root, &mut |path, problem| {
        let hint = problem.hint.map(|hint| format!(" [{hint}]"));
        let Problem { rule, message, .. } = problem;
        found.push(format!("{path}: {rule}: {message}{}", hint.unwrap_or_default()));
    });
    found
}

/// The problems of `x: <value>`, where `x` has this schema.
fn value_problems(schema: Json, value: &str) -> Vec<String> {
    let schema = json!({"type": "object", "properties": {"x": schema}});
    let found = problems(schema, &format!("x: {value}"));
    found.into_iter().map(|problem| problem.strip_prefix("x: ").unwrap_or(&problem).to_owned()).collect()
}

#[track_caller]
fn accepts(schema: &Json, values: &[&str]) {
    for value in values {
        assert_eq!(value_problems(schema.clone(), value), [] as [&str; 0], "{value}");
    }
}

#[track_caller]
fn rejects(schema: &Json, value: &str, expected: &str) {
    assert_eq!(value_problems(schema.clone(), value), [expected], "{value}");
}

#[test]
fn types() {
    for (name, good, bad, message) in [
        ("string", "a", "1", "type: must be a string, not an integer `1` [put it in quotes]"),
        ("string", "'1'", "true", "type: must be a string, not a boolean `true` [put it in quotes]"),
        ("string", "''", "[a]", "type: must be a string, not a list [write one string]"),
        ("boolean", "true", "'yes'", "type: must be true or false, not a string `yes` [write true without quotes]"),
        ("boolean", "false", "0", "type: must be true or false, not an integer `0` [write true or false]"),
        ("integer", "3", "3.5", "type: must be an integer, not a number `3.5` [write an integer without quotes]"),
        ("integer", "2.0", "'3'", "type: must be an integer, not a string `3` [write 3 without quotes]"),
        ("number", "3", "'x'", "type: must be a number, not a string `x` [write a number without quotes]"),
        ("number", "2.5", "{}", "type: must be a number, not an object [write a number without quotes]"),
        ("array", "[]", "a", "type: must be a list, not a string `a` [write a list, even for one element: [ … ]]"),
        ("array", "[1]", "{a: 1}", "type: must be a list, not an object [start each element with a dash]"),
        (
            "object",
            "{}",
            "[]",
            "type: must be an object, not a list [write its fields as `name: value`, without dashes]",
        ),
    ] {
        let mut schema = json!({"type": name});
        if name == "object" {
            schema["x-kubernetes-preserve-unknown-fields"] = true.into();
        }
        accepts(&schema, &[good]);
        rejects(&schema, bad, message);
    }
}

#[test]
fn a_null_is_dropped_where_the_field_is_known_and_refused_in_lists_and_maps() {
    accepts(&json!({"type": "string"}), &["", "null"]);
    rejects(
        &json!({"type": "array", "items": {"type": "string"}}),
        "[a, null]",
        "x[1]: type: must be a string, not null [check that the value is not missing, and indented far enough]",
    );
    rejects(
        &json!({"type": "object", "additionalProperties": {"type": "string"}}),
        "{a: null}",
        "x.a: type: must be a string, not null [check that the value is not missing, and indented far enough]",
    );
}

#[test]
fn integers_or_strings() {
    let schema = json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]});
    accepts(&schema, &["1", "'50%'", "500m"]);
    rejects(&schema, "1.5", "type: must be an integer or a string, not a number `1.5` [write an integer or a string]");
    rejects(&schema, "[]", "type: must be an integer or a string, not a list [write an integer or a string]");
}

#[test]
fn enums() {
    let schema = json!({"type": "string", "enum": ["delete", "keep"]});
    accepts(&schema, &["delete", "keep"]);
    rejects(&schema, "Delete", "enum: `Delete` is not one of `delete` and `keep` [did you mean `delete`?]");
    rejects(&schema, "later", "enum: `later` is not one of `delete` and `keep` [use one of these]");
}

#[test]
fn texts() {
    let schema = json!({"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^[a-zä]+$"});
    accepts(&schema, &["ab", "abc", "äää"]);
    rejects(
        &schema,
        "a",
        "length: must have 2 characters or more, not 1 [write a longer string, or omit the field if it is optional]",
    );
    rejects(&schema, "''", "length: must not be empty [write a longer string, or omit the field if it is optional]");
    rejects(&schema, "abcd", "length: must have 3 characters or fewer, not 4 [shorten it by 1 character]");
    rejects(&schema, "AB", "pattern: `AB` does not match the pattern [the pattern is ^[a-zä]+$]");
}

#[test]
fn numbers() {
    let schema = json!({"type": "integer", "minimum": 1, "maximum": 10, "multipleOf": 2});
    accepts(&schema, &["2", "10"]);
    rejects(&schema, "0", "range: must be 1 or more, not 0 [choose a number from 1 to 10]");
    rejects(&schema, "12", "range: must be 10 or less, not 12 [choose a number from 1 to 10]");
    rejects(&schema, "3", "range: must be a multiple of 2, not 3 [the nearest is 4]");
    let schema =
        json!({"type": "number", "minimum": 0, "exclusiveMinimum": true, "maximum": 1, "exclusiveMaximum": true});
    accepts(&schema, &["0.5"]);
    rejects(&schema, "0", "range: must be more than 0, not 0 [choose a number between 0 and 1]");
    rejects(&schema, "1", "range: must be less than 1, not 1 [choose a number between 0 and 1]");
    let schema = json!({"type": "integer", "format": "int32"});
    accepts(&schema, &["2147483647", "-2147483648"]);
    rejects(&schema, "2147483648", "range: 2147483648 is too large for the field [choose a smaller number]");
    let schema = json!({"type": "integer", "format": "int64"});
    accepts(&schema, &["9223372036854775807"]);
    rejects(
        &schema,
        "9223372036854775808",
        "range: 9223372036854775808 is too large for the field [choose a smaller number]",
    );
}

#[test]
fn lists() {
    let schema = json!({"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string"}});
    accepts(&schema, &["[a]", "[a, b]"]);
    rejects(&schema, "[]", "count: must have 1 element or more, not 0 [add 1 element]");
    rejects(&schema, "[a, b, c]", "count: must have 2 elements or fewer, not 3 [remove 1 element]");
    assert_eq!(
        value_problems(schema, "[1, a, 2]"),
        [
            "count: must have 2 elements or fewer, not 3 [remove 1 element]",
            "x[0]: type: must be a string, not an integer `1` [put it in quotes]",
            "x[2]: type: must be a string, not an integer `2` [put it in quotes]",
        ]
    );
}

#[test]
fn sets_and_lists_with_keys() {
    let set = json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"});
    accepts(&set, &["[a, b]"]);
    rejects(&set, "[a, b, a]", "x[2]: duplicate: `a` is already in the list [keep one of the two]");
    let by_name = json!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name", "port"],
        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    });
    accepts(&by_name, &["[{name: a, port: 1}, {name: a, port: 2}]", "[{}, {}]"]);
    rejects(
        &by_name,
        "[{name: a, port: 1}, {port: 1, name: a, z: 1}]",
        "x[1]: duplicate: `a` is already in the list [keep one of the two]",
    );
}

#[test]
fn objects() {
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "integer", "default": 1}},
        "required": ["name", "size"],
    });
    accepts(&schema, &["{name: a}", "{name: a, size: 2}", "{name: a, size: null}"]);
    rejects(&schema, "{}", "x.name: required: `name` is missing [add `name:` with a string]");
    rejects(&schema, "{name: null}", "x.name: required: `name` is missing [add `name:` with a string]");
    rejects(&schema, "{name: a, nmae: b}", "x.nmae: unknown-field: unknown field `nmae` [did you mean `name`?]");
    rejects(
        &schema,
        "{name: a, other: b}",
        "x.other: unknown-field: unknown field `other` [the fields are `name` and `size`]",
    );
    rejects(&json!({"type": "object"}), "{a: 1}", "x.a: unknown-field: unknown field `a` [the object has no fields]");
}

#[test]
fn maps() {
    let schema =
        json!({"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "string"}});
    accepts(&schema, &["{a: b}", "{a: b, c: d}"]);
    rejects(&schema, "{}", "count: must have 1 entry or more, not 0 [add 1 entry]");
    rejects(&schema, "{a: b, c: d, e: f}", "count: must have 2 entries or fewer, not 3 [remove 1 entry]");
    rejects(&schema, "{a.b/c: 1}", "x[a.b/c]: type: must be a string, not an integer `1` [put it in quotes]");
    accepts(&json!({"type": "object", "additionalProperties": true}), &["{a: [1]}"]);
}

#[test]
fn open_objects_keep_unknown_fields_and_check_known_ones() {
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "x-kubernetes-preserve-unknown-fields": true,
    });
    accepts(&schema, &["{name: a, emptyDir: {}}"]);
    rejects(
        &schema,
        "{name: 1, emptyDir: {}}",
        "x.name: type: must be a string, not an integer `1` [put it in quotes]",
    );
}

#[test]
fn conditions_on_fields() {
    let object = |key: &str| {
        json!({
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            key: [{"required": ["a"]}, {"required": ["b"]}],
        })
    };
    accepts(&object("oneOf"), &["{a: x}", "{b: x}"]);
    rejects(&object("oneOf"), "{}", "form: needs exactly one of `a` and `b`, and has none [set one of these]");
    rejects(
        &object("oneOf"),
        "{a: x, b: z}",
        "form: needs exactly one of `a` and `b`, and has several [keep one of these, and remove the others]",
    );
    accepts(&object("anyOf"), &["{a: x}", "{a: x, b: z}"]);
    rejects(&object("anyOf"), "{}", "form: needs at least one of `a` and `b` [set one of these]");
    accepts(&object("allOf"), &["{a: x, b: z}"]);
    rejects(&object("allOf"), "{a: x}", "x.b: required: `b` is missing [add `b:`]");
}

#[test]
fn conditions_on_values() {
    let schema =
        json!({"anyOf": [{"type": "string"}, {"type": "object"}], "x-kubernetes-preserve-unknown-fields": true});
    accepts(&schema, &["a", "{}"]);
    rejects(&schema, "1", "form: matches none of the allowed forms [write a string or an object]");
    let schema = json!({"type": "integer", "oneOf": [{"minimum": 1}, {"minimum": 5}]});
    accepts(&schema, &["2"]);
    rejects(
        &schema,
        "6",
        "form: matches several forms, but must match exactly one [`sympozium crds` prints what each field takes]",
    );
    rejects(&schema, "0", "form: matches none of the allowed forms [`sympozium crds` prints what each field takes]");
    let schema = json!({"type": "string", "not": {"enum": ["root"]}});
    accepts(&schema, &["user"]);
    rejects(&schema, "root", "form: has a form that is not allowed [remove it, or choose another value]");
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}, "not": {"required": ["a"]}});
    rejects(&schema, "{a: x}", "form: must not have `a` [remove it, or choose another value]");
}

/// Every pattern of every schema has a description, and its example matches.
#[test]
fn every_pattern_has_words() {
    fn patterns(schema: &Json, found: &mut std::collections::BTreeSet<String>) {
        match schema {
            Json::Object(fields) => {
                found.extend(fields.get("pattern").and_then(Json::as_str).map(str::to_owned));
                fields.values().for_each(|field| patterns(field, found));
            }
            Json::Array(all) => all.iter().for_each(|item| patterns(item, found)),
            _ => {}
        }
    }
    let mut found = std::collections::BTreeSet::new();
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/schemas")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        patterns(&serde_json::from_str(&text).unwrap(), &mut found);
    }
    let known: std::collections::BTreeSet<String> =
        patterns::PATTERNS.iter().map(|form| form.pattern.to_owned()).collect();
    assert_eq!(found, known);
    for form in patterns::PATTERNS {
        let pattern = Regex::new(form.pattern).unwrap();
        assert!(pattern.is_match(form.example), "{form:?}");
    }
}

/// What a hint suggests in quotes is accepted when it is written.
#[test]
fn suggested_texts_match_their_pattern() {
    use sympozium_api::duration::DurationText;
    use sympozium_api::names::{ImageRef, ObjectName};
    for (pattern, typed, message) in [
        (DurationText::PATTERN, "300", "type: must be a string, not an integer `300` [did you mean \"300s\"?]"),
        (DurationText::PATTERN, "'300'", "pattern: `300` is not a duration [did you mean \"300s\"?]"),
        (
            DurationText::PATTERN,
            "soon",
            "pattern: `soon` is not a duration [write numbers with units (ms, s, m, h), such as \"1h30m\"]",
        ),
        (
            ObjectName::PATTERN,
            "Echo_Demo",
            "pattern: `Echo_Demo` is not a name of an object [did you mean \"echo-demo\"?]",
        ),
        (ObjectName::PATTERN, "42", "type: must be a string, not an integer `42` [did you mean \"42\"?]"),
        (
            ImageRef::PATTERN,
            "'a b'",
            "pattern: `a b` is not an image reference [write registry, name and tag or digest, without spaces, such as \"ghcr.io/example/tool:v1\"]",
        ),
    ] {
        let schema = json!({"type": "string", "pattern": pattern});
        rejects(&schema, typed, message);
        let offered = message.split('"').nth(1).unwrap();
        accepts(&schema, &[&format!("\"{offered}\"")]);
    }
}
