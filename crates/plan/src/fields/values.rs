//! Other values for a leaf, and the paths in an object where they are set.

use serde_json::{Value, json};

use super::leaves::Leaf;

/// The path of a leaf in one object.
#[derive(Debug, Clone)]
pub struct LeafPath {
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
enum Step {
    Key(String),
    Index(usize),
}

impl LeafPath {
    /// All paths where an object has the leaf, or a parent that it can be added to.
    pub fn all(object: &Value, leaf: &Leaf) -> Vec<Self> {
        let words = leaf.path.replace("[]", ".[]");
        let words: Vec<&str> = words.split('.').collect();
        let mut places = Vec::new();
        find_paths(object, &words, Vec::new(), &mut places);
        places
    }

    pub fn current<'o>(&self, object: &'o Value) -> Option<&'o Value> {
        self.steps.iter().try_fold(object, |value, step| match step {
            Step::Key(key) => value.get(key),
            Step::Index(index) => value.get(index),
        })
    }

    /// The object with another value at this path.
    pub fn with_value(&self, object: &Value, value: Value) -> Value {
        let mut changed = object.clone();
        let mut at = &mut changed;
        for step in &self.steps {
            at = match step {
                Step::Key(key) => {
                    if !at.is_object() {
                        *at = json!({});
                    }
                    &mut at[key]
                }
                Step::Index(index) => {
                    if !at.is_array() {
                        *at = json!([null]);
                    }
                    &mut at[*index]
                }
            };
        }
        *at = value;
        changed
    }
}

fn find_paths(value: &Value, words: &[&str], steps: Vec<Step>, places: &mut Vec<LeafPath>) {
    let Some((word, rest)) = words.split_first() else {
        places.push(LeafPath { steps });
        return;
    };
    let and = |step: Step| -> Vec<Step> { steps.iter().cloned().chain([step]).collect() };
    match *word {
        // The object itself accepts further keys.
        "?" => places.push(LeafPath { steps }),
        "[]" => {
            for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                find_paths(item, rest, and(Step::Index(index)), places);
            }
            if value.is_null() && rest.is_empty() {
                places.push(LeafPath { steps: and(Step::Index(0)) });
            }
        }
        "*" => {
            for (key, item) in value.as_object().into_iter().flatten() {
                find_paths(item, rest, and(Step::Key(key.clone())), places);
            }
        }
        key => match value.get(key) {
            Some(item) => find_paths(item, rest, and(Step::Key(key.to_owned())), places),
            // A scalar, or a list of scalars, can be added.
            None if value.is_object() && (rest.is_empty() || rest == ["[]"]) => {
                find_paths(&Value::Null, rest, and(Step::Key(key.to_owned())), places);
            }
            None => {}
        },
    }
}

/// Values of a leaf that differ from the current one, most of them well-formed.
pub fn candidates(leaf: &Leaf, current: Option<&Value>) -> Vec<Value> {
    let mut values = special_values(leaf, current);
    values.extend(leaf.values.iter().cloned());
    match leaf.type_.as_deref() {
        _ if !leaf.values.is_empty() => {}
        _ if leaf.is_quantity => values.extend([json!("2"), json!("3Gi"), json!(1)]),
        Some("boolean") => values.extend([json!(true), json!(false)]),
        Some("integer") => {
            let number = current.and_then(Value::as_i64).unwrap_or(1);
            let fits = |number: &i64| {
                let number = *number as f64;
                leaf.minimum.is_none_or(|least| number >= least) && leaf.maximum.is_none_or(|most| number <= most)
            };
            let numbers = [number + 1, number - 1, 3, 60].into_iter().filter(fits);
            values.extend(numbers.map(|number| json!(number)));
        }
        Some("string") => {
            let text = current.and_then(Value::as_str).unwrap_or_default();
            values.extend([json!("other"), json!(format!("{text}x")), json!("MODE")]);
        }
        _ => {}
    }
    values.retain(|value| Some(value) != current);
    values
}

/// Values of fields whose syntax is not in the schema, by the name of the field.
fn special_values(leaf: &Leaf, current: Option<&Value>) -> Vec<Value> {
    let path = leaf.path.as_str();
    let ends = |end: &str| path.ends_with(end);
    if ends(".volumes[].?") {
        let name = current.and_then(|current| current.get("name")).cloned();
        return vec![
            json!({ "name": name, "emptyDir": { "medium": "Memory" } }),
            json!({ "name": name, "configMap": { "name": "other" } }),
        ];
    }
    match path {
        "spec.task" => vec![json!("Look elsewhere."), json!({ "mode": "sidecar-driven" })],
        _ if ends("tools[].parameters") => vec![json!({
            "type": "object", "required": ["what"],
            "properties": { "what": { "type": "string", "maxLength": 7 }, "more": { "type": "string" } },
        })],
        _ if ends("imeout") => vec![json!("7m")],
        _ if ends("mage") || ends("sidecar.image") => vec![json!("ghcr.io/example/other:2")],
        _ if ends("baseURL") => vec![json!("https://models.example.org/v2")],
        _ if ends("fieldPath") => vec![json!("metadata.name"), json!("metadata.uid")],
        _ if ends(".resource") => vec![json!("limits.cpu")],
        _ if ends("Path") || ends("pathPrefix") => {
            vec![json!("/elsewhere"), json!("/srv/elsewhere")]
        }
        _ if ends(".mountPropagation") => vec![json!("Bidirectional")],
        _ if ends(".recursiveReadOnly") => vec![json!("Enabled"), json!("IfPossible")],
        _ if ends(".localhostProfile") => vec![json!("profiles/other.json")],
        _ if ends("contentBase64") => vec![json!("AAED")],
        _ if ends("verbs[]") => vec![json!("watch")],
        _ if ends("resources[]") || ends("deniedResources[]") => {
            vec![json!("services"), json!("configmaps"), json!("pods")]
        }
        _ if ends("apiGroups[]") => vec![json!("metrics.k8s.io"), json!("apps")],
        _ if ends(".host") => vec![json!("elsewhere.example.org")],
        _ if ends("drop[]") => vec![json!("NET_RAW")],
        _ if ends("allowedRegistries[]") => vec![json!("registry.example.net/")],
        _ if ends("positionalArgs[]") => vec![json!("more")],
        _ if ends("files[].path") => vec![json!("scripts/other.sh")],
        _ if ends("capabilities.drop[]") => vec![json!("CHOWN")],
        _ => Vec::new(),
    }
}
