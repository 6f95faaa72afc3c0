//! The table of what is accepted and refused, through the rules and the types. The cluster's tests put the same table
//! through a real API server, which also refuses what only a schema can.

use kube::core::cel::Validator;
use serde_json::{Value, json};

use crate::support::{merge, object, read, root, schema, through_types};

#[test]
fn rules_and_types_say_what_the_table_says() {
    let table = read(&root().join("crates/api/tests/fixtures/cases.yaml"));
    let cases = table["cases"].as_array().expect("a list");
    let mut refused = 0;
    for case in cases {
        let name = case["name"].as_str().expect("a name");
        let kind = case["kind"].as_str().expect("a kind");
        let mut created = object(kind, &table["bases"][kind]);
        merge(&mut created, &or_empty(&case["merge"]));
        let mut updated = created.clone();
        merge(&mut updated, &or_empty(&case["update"]));
        let old = (updated != created).then_some(&created);

        let message = case["refused"].as_str();
        refused += usize::from(message.is_some());
        let by = case["by"].as_str();
        assert_eq!(message.is_some(), by.is_some(), "{name}");

        let readable = through_types(&updated);
        assert_eq!(
            readable.is_err(),
            by == Some("type"),
            "{name}: {readable:?}"
        );
        if by == Some("type") {
            continue;
        }
        let broken: Vec<String> =
            match Validator::new().validate_with_defaults(&schema(kind), &updated, old) {
                Ok(()) => Vec::new(),
                Err(errors) => errors
                    .into_vec()
                    .into_iter()
                    .map(|error| error.message)
                    .collect(),
            };
        match (by, message) {
            (Some("rule"), Some(message)) => assert!(
                broken.len() == 1 && broken[0].contains(message),
                "{name}: expected {message:?}, got {broken:?}"
            ),
            _ => assert_eq!(broken, Vec::<String>::new(), "{name}"),
        }
    }
    // Each side of the table is there.
    assert!(refused > 50 && cases.len() - refused > 15);
}

/// What is not written changes nothing.
fn or_empty(patch: &Value) -> Value {
    match patch {
        Value::Null => json!({}),
        patch => patch.clone(),
    }
}

#[test]
fn every_rule_has_a_case_that_breaks_it() {
    let table = read(&root().join("crates/api/tests/fixtures/cases.yaml"));
    let refusals: Vec<&str> = table["cases"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|case| case["refused"].as_str())
        .collect();
    for kind in crate::support::KINDS {
        let mut messages = Vec::new();
        messages_of(&schema(kind)["properties"]["spec"], &mut messages);
        assert!(messages.iter().all(|message| !message.is_empty()));
        for message in messages {
            assert!(
                refusals.iter().any(|refusal| message.contains(refusal)),
                "{kind}: no case for {message:?}"
            );
        }
    }
}

fn messages_of(schema: &Value, found: &mut Vec<String>) {
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        found.push(rule["message"].as_str().unwrap_or_default().to_owned());
    }
    for property in schema["properties"].as_object().into_iter().flatten() {
        messages_of(property.1, found);
    }
    for part in ["items", "additionalProperties"] {
        if schema[part].is_object() {
            messages_of(&schema[part], found);
        }
    }
}
