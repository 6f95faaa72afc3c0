//! Decides whether an existing object is the one that this controller would have created. Pure.
//!
//! An object of a run is identified by the UID that the API server returned on creation, which cannot be forged: it is
//! in the run's status once everything was created, and in memory before. Only after a crash in between there is none.
//! Then an existing object is adopted if it equals the one that we would create: another author has gained nothing by
//! that. Where that cannot be decided, it is not adopted.

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::{Map, Value, json};
use sympozium_api::labels::{self, PLATFORM_ANNOTATIONS, annotation};
use sympozium_plan::quantity::ExactQuantity;

use super::super::error::Error;
use super::belongs_to_run;

/// The fields that are compared exactly, by kind.
const COMPARED_FIELDS: &[(&str, &[&str])] = &[
    ("ConfigMap", &["data", "binaryData", "immutable"]),
    ("Role", &["rules"]),
    ("ClusterRole", &["rules"]),
    ("RoleBinding", &["roleRef", "subjects"]),
    ("ClusterRoleBinding", &["roleRef", "subjects"]),
    ("NetworkPolicy", &["spec"]),
    ("ServiceAccount", &["automountServiceAccountToken"]),
    // Its data is replaced.
    ("Secret", &["type", "immutable"]),
];
/// Kinds whose `spec` gets defaults from the API server.
const DEFAULTED_KINDS: &[&str] = &["Job", "PersistentVolumeClaim", "Sandbox"];
/// Kinds whose labels and annotations other controllers act on: cloud identities, and storage drivers.
const STRICT_METADATA_KINDS: &[&str] = &["PersistentVolumeClaim", "ServiceAccount"];

/// The identity that an object should have.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    pub run_uid: &'a str,
    /// The object's own UID, if it is known.
    pub uid: Option<&'a str>,
}

/// Returns an error unless the existing object is what we created, or would have created.
pub fn compare(
    kind: &str,
    name: &str,
    wanted: &Value,
    there: &DynamicObject,
    expected: Expected<'_>,
) -> Result<(), Error> {
    let foreign = |why| Error::Foreign { kind: kind.to_owned(), name: name.to_owned(), why };
    if !belongs_to_run(there, expected.run_uid) {
        return Err(foreign("the run does not own it"));
    }
    if expected.uid.is_some() && there.uid().as_deref() != expected.uid {
        return Err(foreign("it was deleted and created again by another client"));
    }
    // Only the controller may set our label on an object with a run's name: an admission policy enforces that.
    let ours = there.labels().get(labels::MANAGED_BY).map(String::as_str);
    if ours != Some(labels::MANAGER) {
        return Err(foreign("it was not created by this controller"));
    }
    let metadata = |field: &str| wanted.pointer(&format!("/metadata/{field}"));
    let digest = there.annotations().get(annotation::PLAN_DIGEST);
    let wanted_digest = metadata("annotations").and_then(|annotations| annotations.get(annotation::PLAN_DIGEST));
    if digest.map(String::as_str) != wanted_digest.and_then(Value::as_str) {
        return Err(foreign("it was created for another plan"));
    }
    if there.metadata.deletion_timestamp.is_some() {
        return Err(Error::Waiting("an object with the same name is deleted"));
    }
    if STRICT_METADATA_KINDS.contains(&kind) {
        let unsent = |sent: Option<&Value>, key: &str, value: &str| {
            sent.and_then(|sent| sent.get(key)).and_then(Value::as_str) != Some(value)
        };
        let is_platform = |key: &str| PLATFORM_ANNOTATIONS.iter().any(|prefix| key.starts_with(prefix));
        let mut annotations = there.annotations().iter();
        if annotations.any(|(key, value)| !is_platform(key) && unsent(metadata("annotations"), key, value)) {
            return Err(foreign("it has annotations that are not ours"));
        }
        let mut labels = there.labels().iter();
        if labels.any(|(key, value)| unsent(metadata("labels"), key, value)) {
            return Err(foreign("it has labels that are not ours"));
        }
    }
    let nothing = |value: &&Value| !value.is_null();
    let essence = COMPARED_FIELDS.iter().find(|(name, _)| *name == kind);
    if expected.uid.is_none() && essence.is_none() && !DEFAULTED_KINDS.contains(&kind) {
        return Err(foreign("nothing proves that it belongs to the run"));
    }
    for field in essence.into_iter().flat_map(|(_, fields)| *fields) {
        if there.data.get(*field).filter(nothing) != wanted.get(*field).filter(nothing) {
            return Err(foreign("its content differs"));
        }
    }
    if DEFAULTED_KINDS.contains(&kind) {
        let spec = |object: &Value| object.get("spec").cloned().unwrap_or_default();
        let (sent, mut there) = (spec(wanted), spec(&there.data));
        // The author of a claim may have chosen the volume, and its content.
        if expected.uid.is_some()
            && let Some(there) = there.as_object_mut()
        {
            there.remove("volumeName");
        }
        if !matches_defaulted(&sent, &there) {
            return Err(foreign("its content differs"));
        }
    }
    Ok(())
}

/// Whether `there` equals `sent` plus defaults of the API server. The defaults are listed: an unlisted field might be
/// the one that matters.
fn matches_defaulted(sent: &Value, there: &Value) -> bool {
    match (sent, there) {
        (Value::Object(sent), Value::Object(there)) => {
            let is_kept = |(key, value): (&String, &Value)| match there.get(key) {
                Some(there) => matches_defaulted(value, there),
                None => is_omitted(key, value),
            };
            let is_ours = |(key, value): (&String, &Value)| sent.contains_key(key) || is_defaulted(key, value, there);
            sent.iter().all(is_kept) && there.iter().all(is_ours)
        }
        (Value::Array(sent), Value::Array(there)) => {
            let mut pairs = sent.iter().zip(there);
            sent.len() == there.len() && pairs.all(|(sent, there)| matches_defaulted(sent, there))
        }
        (Value::String(sent), Value::String(there)) if sent != there => {
            // The API server normalises quantities.
            let amounts = (ExactQuantity::parse(sent), ExactQuantity::parse(there));
            matches!(amounts, (Ok(sent), Ok(there)) if sent == there)
        }
        _ => sent == there,
    }
}

/// Whether the API server omits such a value, because it means the same as no value. `false` counts only for the listed
/// fields.
fn is_omitted(key: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(false) => {
            matches!(key, "hostIPC" | "hostNetwork" | "hostPID" | "readOnly")
        }
        _ => false,
    }
}

/// Whether the API server sets this value by default.
fn is_defaulted(key: &str, value: &Value, beside: &Map<String, Value>) -> bool {
    let filled_in = match key {
        // From the Job controller: labels and the selector for them. A selector by another author needs
        // `manualSelector: true`.
        "selector"
        | "batch.kubernetes.io/controller-uid"
        | "batch.kubernetes.io/job-name"
        | "controller-uid"
        | "job-name"
        // The cluster's default class, where we name none.
        | "storageClassName" => return true,
        "serviceAccount" => return beside.get("serviceAccountName") == Some(value),
        "creationTimestamp" => Value::Null,
        "manualSelector" | "suspend" => json!(false),
        "enableServiceLinks" => json!(true),
        "parallelism" | "completions" | "successThreshold" | "timeoutSeconds" => json!(1),
        "failureThreshold" => json!(3),
        "backoffLimit" => json!(6),
        "periodSeconds" => json!(10),
        "terminationGracePeriodSeconds" => json!(30),
        "defaultMode" => json!(420),
        "expirationSeconds" => json!(3600),
        "completionMode" => json!("NonIndexed"),
        "podReplacementPolicy" => json!("TerminatingOrFailed"),
        "terminationMessagePath" => json!("/dev/termination-log"),
        "terminationMessagePolicy" => json!("File"),
        "imagePullPolicy" if value == "Always" => return true,
        "imagePullPolicy" => json!("IfNotPresent"),
        "dnsPolicy" => json!("ClusterFirst"),
        "schedulerName" => json!("default-scheduler"),
        "procMount" => json!("Default"),
        "protocol" => json!("TCP"),
        "scheme" => json!("HTTP"),
        "apiVersion" => json!("v1"),
        "divisor" => json!("0"),
        // A field of Sandboxes.
        "shutdownPolicy" => json!("Retain"),
        "volumeMode" => json!("Filesystem"),
        "resources" | "securityContext" => json!({}),
        _ => return false,
    };
    *value == filled_in
}

#[cfg(test)]
mod tests;
