//! The fields that volumes of the allowed types may have: a table of keys and value types. Other fields are denied,
//! because the source of a volume is copied to the pod as it is.

use serde_json::Value;

use super::Subject;
use super::env::POD_FIELDS_IN_FILES;
use super::finding::{Findings, told};
use crate::quantity::Amount;

/// Maximum length of an object's name.
const MAX_NAME_BYTES: usize = 253;
/// All permission bits of a file's mode.
const MAX_MODE: u64 = 0o777;

/// The type of a value.
enum Form {
    /// Checked elsewhere.
    Any,
    /// `true` or `false`.
    Flag,
    /// A text that is not empty.
    Text,
    /// A key of a Secret or ConfigMap.
    Key,
    /// The name of an object.
    Name,
    /// A plain path relative to the volume.
    Below,
    /// The permission bits of a file.
    Mode,
    /// A Kubernetes quantity.
    Amount,
    /// One of these texts.
    One(&'static [&'static str]),
    /// An object whose values are texts.
    Texts,
    /// A list of values of this type.
    List(&'static Form),
    /// An object with some of these keys.
    Keys(&'static [(&'static str, Form)]),
}

/// Types of volumes and of projected sources.
const SOURCES: &[(&str, Form)] = &[
    (
        "configMap",
        Form::Keys(&[
            ("defaultMode", Form::Mode),
            ("items", Form::List(&FILE)),
            ("name", Form::Name),
            ("optional", Form::Flag),
        ]),
    ),
    ("downwardAPI", Form::Keys(&[("defaultMode", Form::Mode), ("items", Form::List(&SHOWN))])),
    ("emptyDir", Form::Keys(&[("medium", Form::One(&["", "Memory"])), ("sizeLimit", Form::Amount)])),
    // Without `selector`, `volumeName` and `dataSource`, which choose data that others have stored.
    ("ephemeral", Form::Keys(&[("volumeClaimTemplate", CLAIM)])),
    ("hostPath", Form::Keys(&[("path", Form::Any), ("type", Form::One(HOST_TYPES))])),
    ("persistentVolumeClaim", Form::Keys(&[("claimName", Form::Name), ("readOnly", Form::Flag)])),
    ("projected", Form::Keys(&[("defaultMode", Form::Mode), ("sources", Form::Any)])),
    (
        "secret",
        Form::Keys(&[
            ("defaultMode", Form::Mode),
            ("items", Form::List(&FILE)),
            ("name", Form::Name),
            ("optional", Form::Flag),
            ("secretName", Form::Name),
        ]),
    ),
];

const FILE: Form = Form::Keys(&[("key", Form::Key), ("mode", Form::Mode), ("path", Form::Below)]);

const SHOWN: Form = Form::Keys(&[
    ("fieldRef", Form::Keys(&[("apiVersion", Form::One(&["v1"])), ("fieldPath", Form::One(POD_FIELDS_IN_FILES))])),
    ("mode", Form::Mode),
    ("path", Form::Below),
    (
        "resourceFieldRef",
        Form::Keys(&[("containerName", Form::Name), ("divisor", Form::Amount), ("resource", Form::Text)]),
    ),
]);

const STORAGE: Form = Form::Keys(&[("storage", Form::Amount)]);

const CLAIM: Form = Form::Keys(&[
    ("metadata", Form::Keys(&[("annotations", Form::Texts), ("labels", Form::Texts)])),
    (
        "spec",
        Form::Keys(&[
            (
                "accessModes",
                Form::List(&Form::One(&["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"])),
            ),
            ("resources", Form::Keys(&[("limits", STORAGE), ("requests", STORAGE)])),
            ("storageClassName", Form::Name),
            ("volumeMode", Form::One(&["Filesystem"])),
        ]),
    ),
]);

/// Types of paths of the node that exist already, and are files or directories.
const PLAIN_HOST_TYPES: &[&str] = &["", "Directory", "File"];
const HOST_TYPES: &[&str] =
    &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

/// Whether a path of the node is more than read even with a read-only mount: it is created, or it is a socket or a
/// device.
pub fn is_more_than_read(host_path: &Value) -> bool {
    let kind = host_path.get("type").and_then(Value::as_str);
    kind.is_some_and(|it| !PLAIN_HOST_TYPES.contains(&it))
}

/// Checks that a volume, or a source of a projected one, has only the fields of the table.
pub fn check(subject: &Subject, field: &str, kind: &str, source: &Value, findings: &mut Findings) {
    let Some((_, form)) = SOURCES.iter().find(|(name, _)| *name == kind) else {
        return;
    };
    if kind == "persistentVolumeClaim" && source.is_object() && source.get("claimName").is_none() {
        deny(subject, field, "it needs `claimName`", findings);
    }
    look(subject, field, form, source, findings);
}

/// Checks that the Secret is named in the right field: Kubernetes has two words for it.
pub fn check_secret_name(subject: &Subject, field: &str, place: SecretPlace, source: &Value, findings: &mut Findings) {
    let (word, other) = match place {
        SecretPlace::Volume => ("secretName", "name"),
        SecretPlace::Projected => ("name", "secretName"),
    };
    if source.get(word).is_none() || source.get(other).is_some() {
        let message = format!("it names its Secret in `{word}`, and nowhere else");
        deny(subject, field, &message, findings);
    }
}

/// Where a Secret is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretPlace {
    /// In a `secret` volume.
    Volume,
    /// Among the sources of a projected volume.
    Projected,
}

fn look(subject: &Subject, field: &str, form: &Form, value: &Value, findings: &mut Findings) {
    let text = value.as_str();
    let (fits, expected) = match form {
        Form::Any => (true, ""),
        Form::Flag => (value.is_boolean(), "`true` or `false`"),
        Form::Text => (text.is_some_and(|it| !it.is_empty()), "a text"),
        Form::Key => (text.is_some_and(crate::text::is_key), "a key: letters, digits, `-`, `_` and `.`"),
        Form::Name => (text.is_some_and(is_name), "the name of an object"),
        Form::Below => (text.is_some_and(crate::path::is_plain_below), "a plain path below the volume"),
        Form::Mode => (value.as_u64().is_some_and(|it| it <= MAX_MODE), "a number from 0 to 511 (octal 0777)"),
        Form::Amount => (is_amount(value), "an amount such as `256Mi`"),
        Form::One(words) => {
            if !text.is_some_and(|it| words.contains(&it)) {
                let words = words.iter().filter(|it| !it.is_empty());
                let message = format!("it must be one of {}", crate::text::listed(words));
                deny(subject, field, &message, findings);
            }
            return;
        }
        Form::Texts => {
            let texts = value.as_object();
            let fits = texts.is_some_and(|it| it.values().all(Value::is_string));
            (fits, "an object of texts")
        }
        Form::List(of) => {
            for (index, value) in value.as_array().into_iter().flatten().enumerate() {
                look(subject, &format!("{field}[{index}]"), of, value, findings);
            }
            (value.is_array(), "a list")
        }
        Form::Keys(keys) => {
            // The API server ignores a key whose value is null.
            let written = value.as_object().into_iter().flatten();
            for (name, value) in written.filter(|(_, value)| !value.is_null()) {
                let field = format!("{field}.{}", crate::text::shown(name));
                match keys.iter().find(|(key, _)| key == name) {
                    Some((_, form)) => look(subject, &field, form, value, findings),
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

fn is_amount(value: &Value) -> bool {
    match value {
        Value::String(text) => Amount::parse(text).is_ok(),
        Value::Number(number) => Amount::parse(&number.to_string()).is_ok(),
        _ => false,
    }
}

fn deny(subject: &Subject, field: &str, message: &str, findings: &mut Findings) {
    let remedy = "correct it, or remove it";
    findings.deny(subject, told(field, "volume-source", message, remedy));
}
