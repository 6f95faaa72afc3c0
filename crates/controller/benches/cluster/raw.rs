//! What we compare with: a loop that makes and deletes the objects of a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use sympozium_api::labels;
use sympozium_testkit::cluster::played::Play;
use sympozium_testkit::cluster::samples::plain;

use crate::harness::Harness;
use crate::run_observer::Milestone;

/// The run whose objects are copied.
const NAME: &str = "template";

/// The objects of a run, as they were made: copies of them are made and deleted.
#[derive(Clone)]
pub struct Template {
    client: Client,
    namespace: String,
    uid: String,
    objects: Arc<Vec<(ApiResource, String)>>,
    count: Arc<AtomicU64>,
}

/// One copy.
pub struct Copy {
    /// What its pod says whose it is.
    pub uid: String,
    objects: Vec<(Api<DynamicObject>, DynamicObject)>,
}

impl Template {
    /// Looks at a real run, in the middle of it.
    pub async fn learn(harness: &Harness) -> Self {
        harness.played.play(NAME, Play::Works);
        let uid = harness.create(plain(NAME)).await;
        harness.sight.wait_all(Milestone::Job, std::slice::from_ref(&uid)).await;
        // In the order in which a controller may make them: the Job last.
        let kinds = [
            ApiResource::erase::<NetworkPolicy>(&()),
            ApiResource::erase::<ConfigMap>(&()),
            ApiResource::erase::<PersistentVolumeClaim>(&()),
            ApiResource::erase::<Secret>(&()),
            ApiResource::erase::<ServiceAccount>(&()),
            ApiResource::erase::<Role>(&()),
            ApiResource::erase::<ClusterRole>(&()),
            ApiResource::erase::<RoleBinding>(&()),
            ApiResource::erase::<ClusterRoleBinding>(&()),
            ApiResource::erase::<Job>(&()),
        ];
        let selector = ListParams::default().labels(&format!("{}={uid}", labels::RUN_UID));
        let mut objects = Vec::new();
        for kind in kinds {
            let api: Api<DynamicObject> = Api::all_with(harness.client.clone(), &kind);
            for object in api.list(&selector).await.expect("listed") {
                let text = serde_json::to_string(&cleaned(&object)).expect("JSON");
                objects.push((kind.clone(), text));
            }
        }
        let names: Vec<&str> = objects.iter().map(|(kind, _)| kind.kind.as_str()).collect();
        println!("a run has {} objects: {}", names.len(), names.join(", "));
        assert_eq!(names.last(), Some(&"Job"));
        let cancel = Patch::Merge(json!({ "spec": { "cancel": true } }));
        let cancelled = harness.runs().patch(NAME, &PatchParams::default(), &cancel).await;
        cancelled.expect("the run is cancelled");
        harness.sight.wait_all(Milestone::TornDown, std::slice::from_ref(&uid)).await;
        harness.played.play(NAME, Play::Ends);
        Self {
            client: harness.client.clone(),
            namespace: harness.namespace.name().to_owned(),
            uid,
            objects: Arc::new(objects),
            count: Arc::default(),
        }
    }

    /// The next copy, with names of its own; nothing of it exists yet.
    pub fn copy(&self) -> Copy {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let uid = format!("00000000-0000-4000-8000-{count:012x}");
        let (old, new) = (self.uid.replace('-', ""), uid.replace('-', ""));
        let objects = self.objects.iter().map(|(kind, text)| {
            let text = text.replace(&self.uid, &uid).replace(&old, &new);
            // Neither the controller nor its sweeper may take it for a run's.
            let text = text.replace(labels::MANAGED_BY, "example.com/managed-by");
            let object: DynamicObject = serde_json::from_str(&text).expect("an object");
            let api = if object.namespace().is_some() {
                Api::namespaced_with(self.client.clone(), &self.namespace, kind)
            } else {
                Api::all_with(self.client.clone(), kind)
            };
            (api, object)
        });
        Copy { objects: objects.collect(), uid }
    }
}

impl Copy {
    /// Makes all of it, one after the other.
    pub async fn make(&self) {
        for (api, object) in &self.objects {
            let made = api.create(&PostParams::default(), object).await;
            made.expect("it is made");
        }
    }

    /// Deletes all of it, one after the other, from the end.
    pub async fn delete(&self) {
        for (api, object) in self.objects.iter().rev() {
            let name = object.name_any();
            let deleted = api.delete(&name, &DeleteParams::background()).await;
            deleted.expect("it is deleted");
        }
    }
}

/// An object as somebody would write it: without what the server adds.
fn cleaned(object: &DynamicObject) -> Value {
    let mut value = serde_json::to_value(object).expect("JSON");
    if let Some(metadata) = value["metadata"].as_object_mut() {
        for field in [
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "managedFields",
            "generation",
            // Its owner is not there, and whatever has such a one is collected.
            "ownerReferences",
            "finalizers",
        ] {
            metadata.remove(field);
        }
    }
    if let Some(map) = value.as_object_mut() {
        map.remove("status");
    }
    if let Some(spec) = value["spec"].as_object_mut().filter(|it| it.contains_key("template")) {
        spec.remove("selector");
        let labels = spec["template"]["metadata"]["labels"].as_object_mut();
        if let Some(labels) = labels {
            labels.retain(|key, _| {
                !key.starts_with("batch.kubernetes.io/") && key != "controller-uid" && key != "job-name"
            });
        }
    }
    value
}
