//! Objects generated at random from the schemas: the type reads everything that a schema accepts, without loss.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::string::string_regex;
use serde_json::{Map, Value, json};
use sympozium_testkit::objects::lost;

use crate::support::{KINDS, object, schema, through_types};

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn types_read_and_keep_what_schemas_accept(
        (kind, parts) in prop::sample::select(KINDS.to_vec())
            .prop_flat_map(|kind| (Just(kind), of_schema(&without_metadata(schema(kind))))),
    ) {
        let whole = object(kind, &parts);
        match through_types(&whole) {
            Ok(written) => prop_assert_eq!(lost(&whole, &written), Vec::<String>::new()),
            Err(error) => prop_assert!(false, "{}: {}\n{:#}", kind, error, whole),
        }
    }
}

/// The parts of an object that are ours: its spec and its status.
fn without_metadata(mut schema: Value) -> Value {
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.retain(|name, _| name == "spec" || name == "status");
    }
    schema
}

fn of_schema(schema: &Value) -> BoxedStrategy<Value> {
    if let Some(values) = schema["enum"].as_array() {
        return prop::sample::select(values.clone()).boxed();
    }
    match schema["type"].as_str() {
        Some("object") => of_object(schema),
        Some("array") => {
            let least = schema["minItems"].as_u64().map_or(0, |least| least as usize);
            vec(of_schema(&schema["items"]), least..=least + 2).prop_map(Value::Array).boxed()
        }
        Some("string") => of_string(schema),
        Some("integer") => {
            let (least, most) =
                if schema["format"] == "int64" { (i64::MIN, i64::MAX) } else { (i32::MIN.into(), i32::MAX.into()) };
            // Bounds are floating point numbers in the schema, all of them whole.
            let bound = |key: &str| schema[key].as_f64().map(|bound| bound as i64);
            let least = bound("minimum").unwrap_or(least);
            let most = bound("maximum").unwrap_or(most);
            (least..=most).prop_map(Value::from).boxed()
        }
        Some("boolean") => any::<bool>().prop_map(Value::from).boxed(),
        _ if schema["x-kubernetes-int-or-string"] == json!(true) => {
            prop_oneof![(0..i64::MAX).prop_map(Value::from), of_string(schema)].boxed()
        }
        _ => anything(),
    }
}

fn of_object(schema: &Value) -> BoxedStrategy<Value> {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut fields: BoxedStrategy<Map<String, Value>> = if schema["additionalProperties"].is_object() {
        let entry = ("[A-Za-z0-9_./-]{1,8}", of_schema(&schema["additionalProperties"]));
        vec(entry, 0..3).prop_map(|entries| entries.into_iter().collect()).boxed()
    } else if schema["x-kubernetes-preserve-unknown-fields"] == json!(true) {
        vec(("[x-z][a-z]{1,6}", anything()), 0..2).prop_map(|entries| entries.into_iter().collect()).boxed()
    } else {
        Just(Map::new()).boxed()
    };
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        let key = key.clone();
        let value = if required.contains(&key.as_str()) {
            of_schema(property).prop_map(Some).boxed()
        } else {
            prop::option::weighted(0.4, of_schema(property)).boxed()
        };
        fields = (fields, value)
            .prop_map(move |(mut fields, value)| {
                if let Some(value) = value {
                    fields.insert(key.clone(), value);
                }
                fields
            })
            .boxed();
    }
    fields.prop_map(Value::Object).boxed()
}

fn of_string(schema: &Value) -> BoxedStrategy<Value> {
    if schema["format"] == "date-time" {
        let times = ["2026-11-16T00:00:00Z", "1970-01-01T00:00:00Z", "2030-02-28T23:59:59Z"];
        return prop::sample::select(times.map(Value::from).to_vec()).boxed();
    }
    let most = schema["maxLength"].as_u64().unwrap_or(u64::MAX);
    let text = match schema["pattern"].as_str() {
        Some(pattern) => {
            // The whole text is matched anyway.
            let pattern = pattern.trim_start_matches('^').trim_end_matches('$');
            string_regex(pattern).expect("a pattern that can be made").boxed()
        }
        None => "\\PC{1,12}".boxed(),
    };
    text.prop_filter("too long", move |text| text.chars().count() as u64 <= most).prop_map(Value::from).boxed()
}

/// A value that no schema has checked.
fn anything() -> BoxedStrategy<Value> {
    prop_oneof![
        "[ -~]{0,12}".prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(json!([1, "a", { "b": null }])),
        Just(json!({ "mode": "sidecar-driven", "tool": "t", "parameters": { "a": "b" } })),
        Just(json!({ "mode": "sidecar-driven", "parameters": { "a": 1 } })),
    ]
    .boxed()
}
