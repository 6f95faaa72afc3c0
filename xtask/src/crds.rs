//! `crds`: the definitions of our kinds, written from their Rust types.
//!
//! Twice: whole, for clusters, and in `crates/manifests/schemas` what they say about values, because making a schema from
//! the types takes `sympozium validate` longer than everything else it does.

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

use crate::generated::Generated;

/// Where the definitions are, one file for each kind.
const DEFINITIONS: &str = "config/crds";
/// Where the embedded schemas are, one file for each kind of its own.
const SCHEMAS: &str = "crates/manifests/schemas";
/// The first line of each definition.
const HEAD: &str =
    "# Generated from crates/api by `cargo xtask crds`; `cargo xtask check` fails when it is out of date.\n";
/// Words of a schema that say nothing about values, or (the rules) are admission's. Null is dropped wherever it is not
/// asked for.
const NOT_ABOUT_VALUES: &[&str] =
    &["description", "example", "nullable", "title", "x-kubernetes-map-type", "x-kubernetes-validations"];

/// Writes them, and removes files of kinds that are gone.
pub fn run() -> Result<()> {
    generated()?.iter().try_for_each(Generated::write)
}

/// What is not as it would be written.
pub fn check() -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for generated in generated()? {
        problems.extend(generated.problems()?);
    }
    Ok(problems)
}

fn generated() -> Result<[Generated; 2]> {
    let all = sympozium_api::crds::all();
    Ok([
        Generated {
            directory: DEFINITIONS,
            command: "crds",
            files: all.iter().map(definition).collect::<Result<_>>()?,
        },
        Generated { directory: SCHEMAS, command: "crds", files: schemas(&all)? },
    ])
}

fn definition(definition: &CustomResourceDefinition) -> Result<(String, String)> {
    let name = format!("{}_{}.yaml", definition.spec.group, definition.spec.names.plural);
    // By way of a value: its keys are sorted, so the text does not depend on the order of fields anywhere.
    let value = serde_json::to_value(definition)?;
    let yaml = serde_saphyr::to_string(&value).with_context(|| format!("writing {name}"))?;
    let read: Value = serde_saphyr::from_str(&yaml).with_context(|| format!("reading {name}"))?;
    if read != value {
        bail!("{name} does not say in YAML what it says in JSON");
    }
    Ok((name, format!("{HEAD}{yaml}")))
}

/// What each kind says about values. `SympoziumInstance` is another name for `Agent` and has no file.
fn schemas(all: &[CustomResourceDefinition]) -> Result<Vec<(String, String)>> {
    let mut files: Vec<(String, String)> = Vec::new();
    let mut instance = None;
    for definition in all {
        let version = definition.spec.versions.first().context("a kind has a version")?;
        let schema =
            serde_json::to_value(version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref()))?;
        let text = format!("{}\n", about_values(&schema));
        match definition.spec.names.kind.as_str() {
            "SympoziumInstance" => instance = Some(text),
            kind => files.push((format!("{kind}.json"), text)),
        }
    }
    let agent = files.iter().find(|(name, _)| name == "Agent.json");
    ensure!(
        agent.map(|(_, text)| text) == instance.as_ref(),
        "an Agent and a SympoziumInstance are no longer the same"
    );
    Ok(files)
}

fn about_values(schema: &Value) -> Value {
    let Value::Object(words) = schema else {
        return schema.clone();
    };
    let kept = (words.iter()).filter(|(word, _)| !NOT_ABOUT_VALUES.contains(&word.as_str()));
    kept.map(|(word, value)| {
        let value = match (word.as_str(), value) {
            // The keys of these are names, not words.
            ("properties", Value::Object(all)) => {
                all.iter().map(|(name, inner)| (name.clone(), about_values(inner))).collect()
            }
            ("items" | "not" | "additionalProperties", inner) => about_values(inner),
            ("allOf" | "anyOf" | "oneOf", Value::Array(all)) => all.iter().map(about_values).collect(),
            (_, value) => value.clone(),
        };
        (word.clone(), value)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_file_of_its_own() -> anyhow::Result<()> {
        let [definitions, _] = generated()?;
        let names: Vec<_> = definitions.files.into_iter().map(|(name, _)| name).collect();
        let kinds = [
            "agents",
            "sympoziuminstances",
            "agentruns",
            "skillpacks",
            "sympoziumpolicies",
            "sympoziumschedules",
            "models",
            "toolapprovals",
            "runrecords",
        ];
        assert_eq!(names, kinds.map(|plural| format!("sympozium.ai_{plural}.yaml")));
        Ok(())
    }
}
