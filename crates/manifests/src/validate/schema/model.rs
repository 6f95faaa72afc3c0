//! The part of a structural schema that constrains values.
//!
//! The schemas of our kinds are embedded in this form (`crates/manifests/schemas`, one file for each kind), because
//! generating one from the Rust types takes ten times as long as everything else that checking a file takes. `cargo
//! xtask crds` writes them, and `cargo xtask check` compares them with the types.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::kinds::Kind;

/// A schema. Unknown keywords fail to parse, so that none is ignored silently.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Schema {
    #[serde(rename = "type")]
    pub type_: Option<Type>,
    pub format: Option<String>,
    #[serde(rename = "enum")]
    pub enum_: Option<Vec<Value>>,
    pub default: Option<Value>,

    pub min_length: Option<usize>,
    pub max_length: Option<usize>,
    pub pattern: Option<String>,

    pub minimum: Option<f64>,
    pub maximum: Option<f64>,
    #[serde(default)]
    pub exclusive_minimum: bool,
    #[serde(default)]
    pub exclusive_maximum: bool,
    pub multiple_of: Option<f64>,

    pub items: Option<Box<Schema>>,
    pub min_items: Option<usize>,
    pub max_items: Option<usize>,
    #[serde(default)]
    pub unique_items: bool,
    #[serde(rename = "x-kubernetes-list-type")]
    pub list_type: Option<String>,
    #[serde(rename = "x-kubernetes-list-map-keys")]
    pub list_map_keys: Option<Vec<String>>,

    pub properties: Option<BTreeMap<String, Schema>>,
    pub additional_properties: Option<AdditionalProperties>,
    pub required: Option<Vec<String>>,
    pub min_properties: Option<usize>,
    pub max_properties: Option<usize>,
    #[serde(rename = "x-kubernetes-preserve-unknown-fields", default)]
    pub preserve_unknown_fields: bool,
    #[serde(rename = "x-kubernetes-int-or-string", default)]
    pub int_or_string: bool,

    pub all_of: Option<Vec<Schema>>,
    pub any_of: Option<Vec<Schema>>,
    pub one_of: Option<Vec<Schema>>,
    pub not: Option<Box<Schema>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

/// The schema of fields that are not listed.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum AdditionalProperties {
    Any(bool),
    Schema(Box<Schema>),
}

impl Schema {
    /// The schema of a kind; a test parses them all.
    pub fn for_kind(kind: Kind) -> Option<Self> {
        serde_json::from_str(kind.row().schema).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_every_schema_is_understood() {
        fn walk(schema: &Schema, path: &str) {
            if let Some(pattern) = &schema.pattern {
                assert!(regex_lite::Regex::new(pattern).is_ok(), "{path}: {pattern}");
            }
            let formats = ["int32", "int64", "double", "date-time", "uint32", "uint64"];
            let format = schema.format.as_deref();
            assert!(format.is_none_or(|format| formats.contains(&format)), "{path}: {format:?}");
            let list_type = schema.list_type.as_deref();
            let types = ["atomic", "set", "map"];
            assert!(list_type.is_none_or(|list_type| types.contains(&list_type)), "{path}: {list_type:?}");
            for (name, inner) in schema.properties.iter().flatten() {
                walk(inner, &format!("{path}.{name}"));
            }
            if let Some(inner) = &schema.items {
                walk(inner, path);
            }
        }
        for kind in Kind::ALL {
            let schema: Schema = serde_json::from_str(kind.row().schema).unwrap();
            walk(&schema, kind.name());
        }
    }
}
