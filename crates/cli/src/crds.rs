//! `sympozium crds`: prints the CustomResourceDefinitions.

use std::process::ExitCode;

use anyhow::Context as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::json;

use crate::arguments::{CrdsArguments, ObjectFormat};
use crate::failure::Failure;
use crate::output::{print_stdout, to_json, to_yaml};

/// Prints the definitions of the named kinds, or all.
pub fn run(arguments: &CrdsArguments) -> Result<ExitCode, Failure> {
    let mut definitions = sympozium_api::crds::all();
    if !arguments.kinds.is_empty() {
        definitions.retain(|it| arguments.kinds.contains(&it.spec.names.kind));
    }
    print_stdout(&match arguments.output {
        ObjectFormat::Yaml => to_yaml_documents(&definitions)?,
        ObjectFormat::Json => match definitions.as_slice() {
            [one] => to_json(one)?,
            all => to_json(&json!({"apiVersion": "v1", "kind": "List", "items": all}))?,
        },
    })?;
    Ok(ExitCode::SUCCESS)
}

fn to_yaml_documents(definitions: &[CustomResourceDefinition]) -> Result<String, Failure> {
    let mut text = String::new();
    for definition in definitions {
        // Converted to a `Value` first, whose keys are sorted, as in `config/crds`.
        let value = serde_json::to_value(definition)
            .context("cannot serialize a CustomResourceDefinition as YAML")
            .map_err(|error| Failure::new(error, "report this as a bug"))?;
        text.push_str("---\n");
        text.push_str(&to_yaml(&value)?);
    }
    Ok(text)
}
