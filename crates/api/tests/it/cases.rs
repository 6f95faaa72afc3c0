//! The table of accepted and rejected objects, checked with the rules and the types. The cluster's tests send the same
//! table to a real API server, which also rejects what only a schema can.

use kube_cel::Validator;
use serde_json::{Value, json};
use sympozium_testkit::objects::merge;

use crate::support::{object, read, root, schema, through_types};

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
        assert_eq!(readable.is_err(), by == Some("type"), "{name}: {readable:?}");
        if by == Some("type") {
            continue;
        }
        let broken = broken_rules(kind, &updated, old);
        match (by, message) {
            (Some("rule"), Some(message)) => assert!(
                broken.len() == 1 && broken[0].contains(message),
                "{name}: expected {message:?}, got {broken:?}"
            ),
            _ => assert_eq!(broken, Vec::<String>::new(), "{name}"),
        }
    }
    // Both sides of the table are there.
    assert!(refused > 50 && cases.len() - refused > 15);
}

/// An absent patch changes nothing.
fn or_empty(patch: &Value) -> Value {
    match patch {
        Value::Null => json!({}),
        patch => patch.clone(),
    }
}

/// From one status to the next: what is set once does not change.
#[test]
fn statuses_do_not_take_back_what_they_said() {
    let digest = |digit: &str| format!("sha256:{}", digit.repeat(64));
    let decided = |decision: &str, by: &str, scope: &str| json!({ "decision": decision, "decidedBy": by, "decidedAt": "2026-11-16T00:01:00Z", "scope": scope });
    let final_decision = Some("this request is decided already, and a decision is final");
    let one_plan = Some("a run is planned once: `status.planDigest` stays");
    let one_pod = Some("a run has one pod: `status.podUID` stays");
    let over = Some("a run that is over stays over");
    let none = Value::Null;
    let yes = decided("approved", "alice", "once");
    let table = [
        ("ToolApproval", none.clone(), yes.clone(), None),
        ("ToolApproval", yes.clone(), yes.clone(), None),
        ("ToolApproval", yes.clone(), none.clone(), final_decision),
        ("ToolApproval", yes.clone(), json!({}), final_decision),
        ("ToolApproval", yes.clone(), decided("denied", "alice", "once"), final_decision),
        ("ToolApproval", yes.clone(), decided("approved", "bob", "once"), final_decision),
        ("ToolApproval", yes, decided("approved", "alice", "run"), final_decision),
        (
            "ToolApproval",
            none.clone(),
            json!({ "decision": "approved" }),
            Some("`decision`, `decidedBy` and `decidedAt` go together"),
        ),
        ("AgentRun", none, json!({ "planDigest": digest("0"), "podUID": "p" }), None),
        ("AgentRun", json!({ "planDigest": digest("0") }), json!({ "planDigest": digest("1") }), one_plan),
        ("AgentRun", json!({ "planDigest": digest("0") }), json!({}), one_plan),
        ("AgentRun", json!({ "podUID": "p" }), json!({ "podUID": "q" }), one_pod),
        ("AgentRun", json!({ "podUID": "p" }), Value::Null, one_pod),
        ("AgentRun", json!({ "phase": "Running" }), json!({ "phase": "Failed" }), None),
        ("AgentRun", json!({ "phase": "Failed" }), json!({ "phase": "Failed", "error": "e" }), None),
        ("AgentRun", json!({ "phase": "Failed" }), json!({ "phase": "Running" }), over),
        ("AgentRun", json!({ "phase": "Cancelled" }), json!({}), over),
    ];
    let bases = read(&root().join("crates/api/tests/fixtures/cases.yaml"))["bases"].clone();
    for (kind, before, after, refused) in table {
        let with = |status: &Value| {
            let mut whole = object(kind, &bases[kind]);
            merge(&mut whole, &json!({ "status": status }));
            whole
        };
        assert_eq!(
            broken_rules(kind, &with(&after), Some(&with(&before))),
            Vec::from_iter(refused),
            "{kind}: {before} to {after}"
        );
    }
}

/// The messages of the rules that an object breaks.
fn broken_rules(kind: &str, object: &Value, old: Option<&Value>) -> Vec<String> {
    match Validator::new().validate_with_defaults(&schema(kind), object, old) {
        Ok(()) => Vec::new(),
        Err(errors) => {
            let errors = errors.into_vec().into_iter();
            errors.map(|error| error.message).collect()
        }
    }
}

#[test]
fn every_rule_has_a_case_that_breaks_it() {
    let table = read(&root().join("crates/api/tests/fixtures/cases.yaml"));
    let refusals: Vec<&str> =
        table["cases"].as_array().expect("a list").iter().filter_map(|case| case["refused"].as_str()).collect();
    for kind in crate::support::KINDS {
        let mut messages = Vec::new();
        messages_of(&schema(kind)["properties"]["spec"], &mut messages);
        assert!(messages.iter().all(|message| !message.is_empty()));
        for message in messages {
            assert!(refusals.iter().any(|refusal| message.contains(refusal)), "{kind}: no case for {message:?}");
        }
    }
}

fn messages_of(schema: &Value, found: &mut Vec<String>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
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
