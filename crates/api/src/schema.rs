//! Parts of the schemas that are not generated from types: rules, open objects, conditions.

use schemars::transform::Transform;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::limits;

/// For types that are used in fields: keeps the field's description and removes the type's.
///
/// For an optional field, the Kubernetes form of the schema would keep the type's instead.
pub fn drop_description(schema: &mut Schema) {
    schema.remove("description");
}

/// Adds rules in CEL, each with its message for users. For types that are [`nested`].
pub struct Rules(pub &'static [(&'static str, &'static str)]);

impl Transform for Rules {
    fn transform(&mut self, schema: &mut Schema) {
        let rules: Vec<_> = self.0.iter().map(|(rule, message)| json!({ "rule": rule, "message": message })).collect();
        schema.insert("x-kubernetes-validations".to_owned(), Value::Array(rules));
    }
}

/// Bounds a map from names to texts.
pub struct TextMap {
    /// Maximum number of entries.
    pub entries: usize,
    /// Maximum number of characters of a value.
    pub value: usize,
}

impl Transform for TextMap {
    fn transform(&mut self, schema: &mut Schema) {
        schema.insert("maxProperties".to_owned(), json!(self.entries));
        let value = json!({ "type": "string", "maxLength": self.value });
        schema.insert("additionalProperties".to_owned(), value);
    }
}

/// Bounds the entries of any other map.
pub struct MaxEntries(pub usize);

impl Transform for MaxEntries {
    fn transform(&mut self, schema: &mut Schema) {
        schema.insert("maxProperties".to_owned(), json!(self.0));
    }
}

/// A list without order and duplicates; it is merged member by member.
pub fn list_set(schema: &mut Schema) {
    schema.insert("x-kubernetes-list-type".to_owned(), json!("set"));
}

/// A list of conditions, merged by `type`.
pub fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": limits::CONDITIONS,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {
                    "description": "What the condition is about.",
                    "type": "string",
                    "maxLength": 316,
                    "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$",
                },
                "status": {
                    "description": "Whether it holds.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                },
                "lastTransitionTime": {
                    "description": "When `status` last changed.",
                    "type": "string",
                    "format": "date-time",
                },
                "reason": {
                    "description": "Why, in one word for programs.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": {
                    "description": "Why, in a sentence for people.",
                    "type": "string",
                    "maxLength": 32768,
                },
                "observedGeneration": {
                    "description": "The generation of the object that the condition is about.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                },
            },
        },
    })
}

/// A list whose members are identified by `name`; it is merged member by member, and names are unique.
pub fn list_by_name(schema: &mut Schema) {
    schema.insert("x-kubernetes-list-type".to_owned(), json!("map"));
    schema.insert("x-kubernetes-list-map-keys".to_owned(), json!(["name"]));
}

/// A list whose members are identified by `path`.
pub fn list_by_path(schema: &mut Schema) {
    schema.insert("x-kubernetes-list-type".to_owned(), json!("map"));
    schema.insert("x-kubernetes-list-map-keys".to_owned(), json!(["path"]));
}
