//! Manifests that must be readable without loss: the seeds', and one per kind with every field.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sympozium_testkit::objects::{lost, merge};

use crate::support::{documents, object, schema, through_types};

const SEEDS: &str = "config/samples/seeds";
const FULL: &str = "crates/api/tests/fixtures/full";

#[test]
fn the_seeds_lose_nothing() {
    let manifests = documents(SEEDS, ".yaml");
    assert_eq!(manifests.len(), 9);
    for (name, mut manifest) in manifests {
        if name.contains("fragment") {
            let mut whole =
                object("SkillPack", &json!({ "spec": { "skills": [], "sidecar": { "image": "example.test/i:1" } } }));
            merge(&mut whole["spec"], &manifest);
            manifest = whole;
        }
        let written = through_types(&manifest).expect("a seed can be read");
        assert_eq!(lost(&manifest, &written), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn the_seeds_patches_apply_to_both_names_of_an_agent() {
    let patches = documents(SEEDS, ".json");
    assert_eq!(patches.len(), 2);
    for (name, patch) in patches {
        for kind in ["Agent", "SympoziumInstance"] {
            let mut agent = object(kind, &json!({ "spec": { "agents": { "default": { "model": "m" } } } }));
            merge(&mut agent, &patch);
            let written = through_types(&agent).expect("a patched agent can be read");
            assert_eq!(lost(&agent, &written), Vec::<String>::new(), "{name}");
        }
    }
}

/// They have every field, so a default has nothing to fill in.
#[test]
fn whole_manifests_come_back_as_they_are() {
    for (name, manifest) in documents(FULL, ".yaml") {
        let written = through_types(&manifest).expect("it can be read");
        assert_eq!(written, manifest, "{name}");
    }
}

/// Types that are used in several places must be complete in one of them.
#[test]
fn whole_manifests_have_every_field_of_every_type() {
    let manifests = documents(FULL, ".yaml");
    assert_eq!(manifests.len(), 8);
    let mut declared = BTreeSet::new();
    let mut written = BTreeSet::new();
    for (_, manifest) in manifests {
        let kind = manifest["kind"].as_str().expect("a kind");
        let schema = schema(kind)["properties"]["spec"].clone();
        declared_fields(&schema, &mut declared);
        written_fields(&schema, &manifest["spec"], &mut written);
    }
    let missing: Vec<_> = declared.difference(&written).collect();
    assert_eq!(missing, Vec::<&Field>::new());
}

/// A type, as the names of all its fields, and one of them.
type Field = (Vec<String>, String);

fn fields_of(schema: &Value) -> Vec<String> {
    let properties = schema["properties"].as_object();
    properties.into_iter().flat_map(|all| all.keys().cloned()).collect()
}

fn declared_fields(schema: &Value, found: &mut BTreeSet<Field>) {
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        found.insert((fields_of(schema), key.clone()));
        declared_fields(property, found);
        declared_fields(&property["items"], found);
    }
}

fn written_fields(schema: &Value, value: &Value, found: &mut BTreeSet<Field>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let property = &schema["properties"][key];
        found.insert((fields_of(schema), key.clone()));
        written_fields(property, value, found);
        for item in value.as_array().into_iter().flatten() {
            written_fields(&property["items"], item, found);
        }
    }
}
