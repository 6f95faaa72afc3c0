//! Properties of every schema.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sympozium_api::crds;

use crate::support::{KINDS, schema};

/// Well below the maximum of etcd and of the annotation of `kubectl apply`.
const MOST_BYTES: usize = 200 * 1024;

#[test]
fn every_kind_is_there_once_and_small() {
    let definitions = crds::all();
    let kinds: Vec<_> = definitions.iter().map(|definition| definition.spec.names.kind.as_str()).collect();
    assert_eq!(kinds, KINDS);
    for definition in &definitions {
        let size = serde_json::to_vec(definition).expect("it can be written").len();
        assert!(size < MOST_BYTES, "{} has {size} bytes", definition.spec.names.kind);
    }
}

#[test]
fn short_names_are_ours_alone() {
    let mut short = Vec::new();
    let mut long = BTreeSet::new();
    for definition in crds::all() {
        let names = definition.spec.names;
        short.extend(names.short_names.expect("each kind has one"));
        long.extend([Some(names.plural), names.singular].into_iter().flatten());
        assert_eq!(names.categories, Some(vec!["sympozium".to_owned()]));
        assert_eq!(definition.spec.scope, "Namespaced");
    }
    assert_eq!(short, ["sag", "sinst", "srun", "spack", "spol", "ssched", "smodel", "sta", "srec"]);
    // Names of Kubernetes' own kinds, and of kinds that are often installed beside ours.
    let taken = [
        "cm", "cs", "ep", "ev", "limits", "ns", "no", "pvc", "pv", "po", "rc", "quota", "sa", "svc", "crd", "crds",
        "ds", "deploy", "rs", "sts", "hpa", "cj", "csr", "ing", "netpol", "pdb", "pc", "sc", "psp", "swp", "sandbox",
        "gtw", "se", "si", "sj", "ss", "sm", "ir", "tr", "pr", "vs",
    ];
    let unique: BTreeSet<_> = short.iter().map(String::as_str).collect();
    assert_eq!(unique.len(), short.len());
    for name in unique {
        assert!(!taken.contains(&name) && !long.contains(name), "{name}");
    }
}

#[test]
fn statuses_are_written_apart_from_specs() {
    for definition in crds::all() {
        let version = &definition.spec.versions[0];
        let has_status = version.subresources.as_ref().is_some_and(|subresources| subresources.status.is_some());
        // A record has no status.
        assert_eq!(has_status, definition.spec.names.kind != "RunRecord");
        assert_eq!((version.name.as_str(), version.served, version.storage), ("v1alpha1", true, true));
    }
}

/// Everything that a user can make large has a limit, every field a description, and none is nullable.
#[test]
fn every_field_is_bounded_and_explained() {
    let mut problems = Vec::new();
    for kind in KINDS {
        let schema = schema(kind);
        for part in ["spec", "status"] {
            if schema["properties"][part].is_object() {
                field(&format!("{kind}.{part}"), &schema["properties"][part], &mut problems);
            }
        }
    }
    assert_eq!(problems, Vec::<String>::new());
}

fn field(path: &str, schema: &Value, problems: &mut Vec<String>) {
    let described = schema["description"].as_str().is_some_and(|text| {
        text.starts_with(|first: char| first.is_uppercase() || first == '`') && text.ends_with('.')
    });
    if !described {
        problems.push(format!("{path}: no description in whole sentences"));
    }
    value(path, schema, problems);
}

fn value(path: &str, schema: &Value, problems: &mut Vec<String>) {
    let open = schema["x-kubernetes-preserve-unknown-fields"] == json!(true);
    let has = |key: &str| schema.get(key).is_some();
    let bounded = match schema["type"].as_str() {
        Some("string") => has("maxLength") || has("enum") || has("format"),
        Some("array") => has("maxItems"),
        Some("object") => open || has("properties") || has("maxProperties"),
        Some("integer") => has("format"),
        Some("boolean") => true,
        None => open || (schema["x-kubernetes-int-or-string"] == json!(true) && has("maxLength")),
        Some(_) => false,
    };
    if !bounded {
        problems.push(format!("{path}: no bound"));
    }
    if has("nullable") {
        problems.push(format!("{path}: may be null"));
    }
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        // In an open object, the fields that we read have their well-known names.
        if open {
            value(&path, property, problems);
        } else {
            field(&path, property, problems);
        }
    }
    for part in ["items", "additionalProperties"] {
        if schema[part].is_object() {
            value(&format!("{path}[]"), &schema[part], problems);
        }
    }
}
