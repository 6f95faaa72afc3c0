//! The fields that volumes of the allowed types may have: a table of keys and value types. Other fields are denied,
//! because the source of a volume is copied to the pod as it is.

use serde_json::Value;

use sympozium_api::text::{MAX_NAME, printable, truncate};

use super::Subject;
use super::env::POD_FIELDS_IN_FILES;
use super::violation::{Findings, violation};
use crate::quantity::ExactQuantity;

/// Maximum length of an object's name.
const MAX_NAME_BYTES: usize = 253;
/// All permission bits of a file's mode.
const MAX_MODE: u64 = 0o777;

/// The type of a value.
enum ValueType {
    /// Checked elsewhere.
    Any,
    /// `true` or `false`.
    Bool,
    /// A text that is not empty.
    Text,
    /// A key of a Secret or ConfigMap.
    Key,
    /// The name of an object.
    Name,
    /// A plain path relative to the volume.
    RelativePath,
    /// The permission bits of a file.
    Mode,
    /// A Kubernetes quantity.
    Quantity,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// An object whose values are texts.
    TextMap,
    /// A list of values of this type.
    List(&'static ValueType),
    /// An object with some of these keys.
    Object(&'static [(&'static str, ValueType)]),
}

/// Types of volumes and of projected sources.
const SOURCES: &[(&str, ValueType)] = &[
    (
        "configMap",
        ValueType::Object(&[
            ("defaultMode", ValueType::Mode),
            ("items", ValueType::List(&FILE_ITEM)),
            ("name", ValueType::Name),
            ("optional", ValueType::Bool),
        ]),
    ),
    ("downwardAPI", ValueType::Object(&[("defaultMode", ValueType::Mode), ("items", ValueType::List(&DOWNWARD_ITEM))])),
    (
        "emptyDir",
        ValueType::Object(&[("medium", ValueType::OneOf(&["", "Memory"])), ("sizeLimit", ValueType::Quantity)]),
    ),
    // Without `selector`, `volumeName` and `dataSource`, which choose data that others have stored.
    ("ephemeral", ValueType::Object(&[("volumeClaimTemplate", CLAIM)])),
    ("hostPath", ValueType::Object(&[("path", ValueType::Any), ("type", ValueType::OneOf(HOST_TYPES))])),
    ("persistentVolumeClaim", ValueType::Object(&[("claimName", ValueType::Name), ("readOnly", ValueType::Bool)])),
    ("projected", ValueType::Object(&[("defaultMode", ValueType::Mode), ("sources", ValueType::Any)])),
    (
        "secret",
        ValueType::Object(&[
            ("defaultMode", ValueType::Mode),
            ("items", ValueType::List(&FILE_ITEM)),
            ("name", ValueType::Name),
            ("optional", ValueType::Bool),
            ("secretName", ValueType::Name),
        ]),
    ),
];

const FILE_ITEM: ValueType =
    ValueType::Object(&[("key", ValueType::Key), ("mode", ValueType::Mode), ("path", ValueType::RelativePath)]);

const DOWNWARD_ITEM: ValueType = ValueType::Object(&[
    (
        "fieldRef",
        ValueType::Object(&[
            ("apiVersion", ValueType::OneOf(&["v1"])),
            ("fieldPath", ValueType::OneOf(POD_FIELDS_IN_FILES)),
        ]),
    ),
    ("mode", ValueType::Mode),
    ("path", ValueType::RelativePath),
    (
        "resourceFieldRef",
        ValueType::Object(&[
            ("containerName", ValueType::Name),
            ("divisor", ValueType::Quantity),
            ("resource", ValueType::Text),
        ]),
    ),
]);

const STORAGE: ValueType = ValueType::Object(&[("storage", ValueType::Quantity)]);

const CLAIM: ValueType = ValueType::Object(&[
    ("metadata", ValueType::Object(&[("annotations", ValueType::TextMap), ("labels", ValueType::TextMap)])),
    (
        "spec",
        ValueType::Object(&[
            (
                "accessModes",
                ValueType::List(&ValueType::OneOf(&[
                    "ReadOnlyMany",
                    "ReadWriteMany",
                    "ReadWriteOnce",
                    "ReadWriteOncePod",
                ])),
            ),
            ("resources", ValueType::Object(&[("limits", STORAGE), ("requests", STORAGE)])),
            ("storageClassName", ValueType::Name),
            ("volumeMode", ValueType::OneOf(&["Filesystem"])),
        ]),
    ),
]);

/// Types of paths of the node that exist already, and are files or directories.
const PLAIN_HOST_TYPES: &[&str] = &["", "Directory", "File"];
const HOST_TYPES: &[&str] =
    &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

/// Whether a path of the node is more than read even with a read-only mount: it is created, or it is a socket or a
/// device.
pub fn needs_write_access(host_path: &Value) -> bool {
    let kind = host_path.get("type").and_then(Value::as_str);
    kind.is_some_and(|kind| !PLAIN_HOST_TYPES.contains(&kind))
}

/// Checks that a volume, or a source of a projected one, has only the fields of the table.
pub fn check(subject: &Subject, field: &str, kind: &str, source: &Value, findings: &mut Findings) {
    let Some((_, form)) = SOURCES.iter().find(|(name, _)| *name == kind) else {
        return;
    };
    if kind == "persistentVolumeClaim" && source.is_object() && source.get("claimName").is_none() {
        deny(subject, field, "it needs `claimName`", findings);
    }
    check_value(subject, field, form, source, findings);
}

/// Checks that the Secret is named in the right field: Kubernetes has two words for it.
pub fn check_secret_name(
    subject: &Subject,
    field: &str,
    place: SecretLocation,
    source: &Value,
    findings: &mut Findings,
) {
    let (word, other) = match place {
        SecretLocation::Volume => ("secretName", "name"),
        SecretLocation::Projected => ("name", "secretName"),
    };
    if source.get(word).is_none() || source.get(other).is_some() {
        let message = format!("it names its Secret in `{word}`, and nowhere else");
        deny(subject, field, &message, findings);
    }
}

/// Where a Secret is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretLocation {
    /// In a `secret` volume.
    Volume,
    /// Among the sources of a projected volume.
    Projected,
}

fn check_value(subject: &Subject, field: &str, form: &ValueType, value: &Value, findings: &mut Findings) {
    let text = value.as_str();
    let (fits, expected) = match form {
        ValueType::Any => (true, ""),
        ValueType::Bool => (value.is_boolean(), "`true` or `false`"),
        ValueType::Text => (text.is_some_and(|text| !text.is_empty()), "a text"),
        ValueType::Key => (text.is_some_and(crate::text::is_data_key), "a key: letters, digits, `-`, `_` and `.`"),
        ValueType::Name => (text.is_some_and(is_name), "the name of an object"),
        ValueType::RelativePath => (text.is_some_and(crate::path::is_plain_relative), "a plain path below the volume"),
        ValueType::Mode => (value.as_u64().is_some_and(|mode| mode <= MAX_MODE), "a number from 0 to 511 (octal 0777)"),
        ValueType::Quantity => (is_quantity(value), "an amount such as `256Mi`"),
        ValueType::OneOf(words) => {
            if !text.is_some_and(|text| words.contains(&text)) {
                let words = words.iter().filter(|word| !word.is_empty());
                let message = format!("it must be one of {}", crate::text::quote_list(words));
                deny(subject, field, &message, findings);
            }
            return;
        }
        ValueType::TextMap => {
            let texts = value.as_object();
            let fits = texts.is_some_and(|texts| texts.values().all(Value::is_string));
            (fits, "an object of texts")
        }
        ValueType::List(of) => {
            for (index, value) in value.as_array().into_iter().flatten().enumerate() {
                check_value(subject, &format!("{field}[{index}]"), of, value, findings);
            }
            (value.is_array(), "a list")
        }
        ValueType::Object(keys) => {
            // The API server ignores a key whose value is null.
            let written = value.as_object().into_iter().flatten();
            for (name, value) in written.filter(|(_, value)| !value.is_null()) {
                let field = format!("{field}.{}", printable(truncate(name, MAX_NAME)));
                match keys.iter().find(|(key, _)| key == name) {
                    Some((_, form)) => check_value(subject, &field, form, value, findings),
                    None => deny(subject, &field, "it is not for volumes of runs", findings),
                }
            }
            (value.is_object(), "an object")
        }
    };
    if !fits {
        deny(subject, field, &format!("it must be {expected}"), findings);
    }
}

fn is_name(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_part = |part: &str| {
        let bytes = part.as_bytes();
        bytes.first().copied().is_some_and(is_word)
            && bytes.last().copied().is_some_and(is_word)
            && bytes.iter().all(|byte| is_word(*byte) || *byte == b'-')
    };
    text.len() <= MAX_NAME_BYTES && text.split('.').all(is_part)
}

fn is_quantity(value: &Value) -> bool {
    match value {
        Value::String(text) => ExactQuantity::parse(text).is_ok(),
        Value::Number(number) => ExactQuantity::parse(&number.to_string()).is_ok(),
        _ => false,
    }
}

fn deny(subject: &Subject, field: &str, message: &str, findings: &mut Findings) {
    let remedy = "correct it, or remove it";
    findings.deny(subject, violation(field, "volume-source", message, remedy));
}
