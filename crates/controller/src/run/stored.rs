//! A run with its identity.

use std::ops::Deref;
use std::sync::Arc;

use kube::Resource as _;
use kube::runtime::reflector::ObjectRef;
use sympozium_api::AgentRun;
use sympozium_api::agent_run::GrantRecord;

/// A run as the API server stores it: with a namespace, a name and a UID.
///
/// Parsed once, when a watch delivers the run; a run without one of them gets no further.
#[derive(Debug, Clone)]
pub struct StoredRun {
    object: Arc<AgentRun>,
    namespace: String,
    name: String,
    uid: String,
}

impl StoredRun {
    pub fn new(object: Arc<AgentRun>) -> Option<Self> {
        let meta = object.meta();
        let (namespace, name, uid) = (meta.namespace.clone()?, meta.name.clone()?, meta.uid.clone()?);
        Some(Self { object, namespace, name, uid })
    }

    /// The same run, as the API server returned it to a request that names its UID.
    pub fn updated(&self, object: AgentRun) -> Self {
        Self { object: Arc::new(object), ..self.clone() }
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn uid(&self) -> &str {
        &self.uid
    }

    pub fn reference(&self) -> ObjectRef<AgentRun> {
        ObjectRef::new(&self.name).within(&self.namespace)
    }

    /// The objects that were created for the run.
    pub fn grants(&self) -> &[GrantRecord] {
        self.object.status.as_ref().map_or(&[], |status| &status.grants)
    }
}

impl Deref for StoredRun {
    type Target = AgentRun;

    fn deref(&self) -> &AgentRun {
        &self.object
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_without_namespace_name_or_uid_is_not_taken() {
        let complete = json!({ "name": "one", "namespace": "team", "uid": "u-1" });
        let parse = |metadata: &serde_json::Value| {
            let run = json!({ "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun", "metadata": metadata,
                "spec": { "agentRef": "a", "task": "t" } });
            StoredRun::new(Arc::new(serde_json::from_value(run).unwrap()))
        };
        let run = parse(&complete).unwrap();
        assert_eq!((run.namespace(), run.name(), run.uid()), ("team", "one", "u-1"));
        for field in ["name", "namespace", "uid"] {
            let mut metadata = complete.clone();
            metadata.as_object_mut().unwrap().remove(field);
            assert!(parse(&metadata).is_none(), "{field}");
        }
    }
}
