//! Writes the status of objects: what differs from the status that was read, and nothing else.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sympozium_api::labels::field_manager;

use crate::context::Context;
use crate::object_key::ObjectKey;

#[derive(Debug, thiserror::Error)]
#[error("the status could not be written")]
pub struct Error(#[source] kube::Error);

/// What became of a status that was to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    Unchanged,
    Written,
    /// The object is gone or was changed since it was read: the watch delivers its new state.
    Outdated,
}

/// Writes what differs between two statuses of an object.
///
/// # Errors
///
/// When the API server does not answer or rejects the request unexpectedly.
pub async fn write<K, S>(object: &K, key: &ObjectKey, before: &S, after: &S, context: &Context) -> Result<Write, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    S: Serialize,
{
    let Some(changes) = diff(&json!(before), &json!(after)) else {
        return Ok(Write::Unchanged);
    };
    let meta = object.meta();
    // A merge patch replaces the whole list of conditions: with the resource version, a condition that another client
    // has added meanwhile is kept.
    let patch = json!({
        "metadata": { "uid": meta.uid, "resourceVersion": meta.resource_version },
        "status": changes,
    });
    let api: Api<K> = Api::namespaced(context.client.clone(), &key.namespace);
    let written = api.patch_status(&key.name, &patch_params(), &Patch::Merge(patch)).await;
    context.metrics.count_write(&K::kind(&()), "patch");
    match written {
        Ok(_) => Ok(Write::Written),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Write::Outdated),
        Err(error) => Err(Error(error)),
    }
}

/// The parameters of our patches.
pub fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(field_manager::CONTROLLER.to_owned()), ..PatchParams::default() }
}

/// The merge patch that makes `new` of `old` (RFC 7396); `None` if they are equal. A merge patch merges objects, so a
/// key that is missing in `new` is null in it: a list that becomes empty, and is omitted for that, would otherwise stay
/// for ever.
pub fn diff(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return Some(new.clone());
    };
    let removed = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let changed = new.iter().filter_map(|(key, value)| {
        let before = old.get(key).unwrap_or(&Value::Null);
        Some((key.clone(), diff(before, value)?))
    });
    Some(Value::Object(removed.chain(changed).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_has_what_differs_and_null_for_what_is_gone() {
        let remaining = json!({"checkedAt": "1", "remaining": [{"kind": "PersistentVolumeClaim"}]});
        assert_eq!(diff(&remaining, &json!({"checkedAt": "2"})), Some(json!({"checkedAt": "2", "remaining": null})));
        assert_eq!(
            diff(&json!({"a": {"b": 1, "c": 2, "e": 4}}), &json!({"a": {"c": 3, "e": 4}, "d": []})),
            Some(json!({"a": {"b": null, "c": 3}, "d": []}))
        );
        // Lists and values are replaced as a whole.
        assert_eq!(diff(&json!([{"a": 1}]), &json!([])), Some(json!([])));
        assert_eq!(diff(&Value::Null, &json!({"a": 1})), Some(json!({"a": 1})));
        assert_eq!(diff(&json!({"a": [1]}), &json!({"a": [1]})), None);
    }
}
