//! The leaves of all schemas: fields that hold a value and no further fields.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::Value;
use sympozium_api::crds;

/// One leaf of a schema.
#[derive(Debug, Clone)]
pub struct Leaf {
    pub kind: String,
    /// Such as `spec.skills[].params.*`: `[]` is any member of a list, `*` any key of a map, `?` any further key of an
    /// object that accepts more than its schema lists.
    pub path: String,
    /// Whether it accepts any value.
    pub is_open: bool,
    pub type_: Option<String>,
    pub is_quantity: bool,
    pub values: Vec<Value>,
    pub minimum: Option<f64>,
    pub maximum: Option<f64>,
}

/// The leaves of all kinds.
pub fn leaves() -> Vec<Leaf> {
    let mut leaves = Vec::new();
    for definition in crds::all() {
        let kind = &definition.spec.names.kind;
        for version in &definition.spec.versions {
            let schema = version.schema.as_ref();
            let schema = schema.and_then(|schema| schema.open_api_v3_schema.as_ref());
            let properties = schema.and_then(|schema| schema.properties.as_ref());
            for (name, schema) in properties.expect("a schema") {
                if matches!(name.as_str(), "spec" | "status") {
                    walk(kind, name.clone(), schema, &mut leaves);
                }
            }
        }
    }
    leaves
}

fn walk(kind: &str, path: String, schema: &JSONSchemaProps, leaves: &mut Vec<Leaf>) {
    let is_open = schema.x_kubernetes_preserve_unknown_fields == Some(true);
    let mut leaf = |path: String, is_open| {
        let text = |value: &k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSON| value.0.clone();
        leaves.push(Leaf {
            kind: kind.to_owned(),
            path,
            is_open,
            type_: schema.type_.clone(),
            is_quantity: schema.x_kubernetes_int_or_string == Some(true),
            values: schema.enum_.iter().flatten().map(text).collect(),
            minimum: schema.minimum,
            maximum: schema.maximum,
        });
    };
    if let Some(properties) = schema.properties.as_ref().filter(|properties| !properties.is_empty()) {
        if is_open {
            leaf(format!("{path}.?"), true);
        }
        for (name, property) in properties {
            walk(kind, format!("{path}.{name}"), property, leaves);
        }
        return;
    }
    if let Some(JSONSchemaPropsOrArray::Schema(item)) = &schema.items {
        walk(kind, format!("{path}[]"), item, leaves);
        return;
    }
    if let Some(JSONSchemaPropsOrBool::Schema(value)) = &schema.additional_properties {
        walk(kind, format!("{path}.*"), value, leaves);
        return;
    }
    leaf(path, is_open);
}
