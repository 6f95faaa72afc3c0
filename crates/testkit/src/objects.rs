//! Objects of Kubernetes as JSON: changing them as a merge patch does, and seeing what was lost on the way.

use serde_json::{Map, Value};

/// Applies a merge patch (RFC 7386): null removes, objects merge, everything else replaces.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().map(|map| map.remove(key));
        } else {
            merge(&mut target[key], value);
        }
    }
}

/// What of `before` is missing or different in `after`, by path. What `after` has besides is no loss, and neither is an
/// empty list or map that it leaves out.
pub fn lost(before: &Value, after: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk("", before, Some(after), &mut found);
    found
}

fn walk(path: &str, before: &Value, after: Option<&Value>, found: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Some(Value::Object(after))) => {
            for (key, value) in before {
                walk(&format!("{path}.{key}"), value, after.get(key), found);
            }
        }
        (Value::Array(before), Some(Value::Array(after))) if before.len() == after.len() => {
            for (index, (before, after)) in before.iter().zip(after).enumerate() {
                walk(&format!("{path}[{index}]"), before, Some(after), found);
            }
        }
        (before, None) if is_empty(before) => {}
        (before, after) if Some(before) == after => {}
        (before, after) => found.push(format!("{path}: {before} became {after:?}")),
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_merge_patch_removes_merges_and_replaces() {
        let mut object = json!({ "a": { "b": 1, "c": 2 }, "d": [1, 2] });
        merge(&mut object, &json!({ "a": { "b": null, "e": { "f": 3 } }, "d": [4] }));
        assert_eq!(object, json!({ "a": { "c": 2, "e": { "f": 3 } }, "d": [4] }));
    }

    #[test]
    fn losses_are_named_and_additions_are_none() {
        let before = json!({ "a": 1, "b": [{ "c": 2 }], "d": [], "e": { "f": 3 } });
        assert_eq!(lost(&before, &before), Vec::<String>::new());
        let after = json!({ "a": 1, "b": [{ "c": 2, "new": 0 }], "e": { "f": 3 }, "g": 4 });
        assert_eq!(lost(&before, &after), Vec::<String>::new());
        assert_eq!(
            lost(&before, &json!({ "a": 2, "b": [{}], "e": {} })),
            [".a: 1 became Some(Number(2))", ".b[0].c: 2 became None", ".e.f: 3 became None",]
        );
    }
}
