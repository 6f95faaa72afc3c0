//! Metadata of every object of a run: its owner, its purpose and the digest of its plan.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use sympozium_api::RunPlan;
use sympozium_api::labels::{self, annotation};
use sympozium_api::names::Digest;

use super::names::{ObjectNames, label_value};
use super::settings::RenderSettings;

/// The product that everything is part of.
const PRODUCT: &str = "sympozium";
/// The value of [`labels::ROLE`] on pods.
const AGENT_ROLE: &str = "agent";
/// Keeps the cluster autoscaler from evicting a run: commands are never executed twice.
const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

/// A run that is being rendered.
pub struct RenderContext<'a> {
    pub plan: &'a RunPlan,
    pub settings: &'a RenderSettings,
    pub names: &'a ObjectNames,
    pub digest: &'a Digest,
    uid: String,
    labels: BTreeMap<String, String>,
}

/// The purpose of an object.
#[derive(Clone, Copy)]
pub struct ObjectPurpose<'a> {
    /// The value of [`labels::COMPONENT`].
    pub component: &'static str,
    /// The pack, where the object is for one.
    pub pack: Option<&'a str>,
}

impl From<&'static str> for ObjectPurpose<'_> {
    fn from(component: &'static str) -> Self {
        Self { component, pack: None }
    }
}

impl<'a> RenderContext<'a> {
    pub fn new(plan: &'a RunPlan, settings: &'a RenderSettings, names: &'a ObjectNames, digest: &'a Digest) -> Self {
        let uid = label_value(plan.run.uid.as_str());
        let labels = [
            (labels::RUN, label_value(plan.run.name.as_str())),
            (labels::RUN_UID, uid.clone()),
            (labels::AGENT, label_value(plan.run.agent.as_str())),
            (labels::MANAGED_BY, labels::MANAGER.to_owned()),
            (labels::PART_OF, PRODUCT.to_owned()),
            (labels::APP_MANAGED_BY, labels::CONTROLLER.to_owned()),
        ];
        let labels = labels.map(|(name, value)| (name.to_owned(), value));
        Self { plan, settings, names, digest, uid, labels: labels.into() }
    }

    /// For an object in the run's namespace: the run owns it.
    pub fn namespaced_metadata<'b>(&self, word: &str, about: impl Into<ObjectPurpose<'b>>) -> ObjectMeta {
        self.owned_metadata(self.names.with_suffix(word), about.into())
    }

    /// For the workload of the run.
    pub fn workload_metadata(&self, name: String) -> ObjectMeta {
        self.owned_metadata(name, labels::component::AGENT_RUN.into())
    }

    /// For a cluster-scoped object: nothing in a namespace can own it, so it is found by labels.
    pub fn cluster_metadata<'b>(&self, word: &str, about: impl Into<ObjectPurpose<'b>>) -> ObjectMeta {
        ObjectMeta {
            name: Some(self.names.with_suffix(word)),
            labels: Some(self.labels(about.into())),
            annotations: Some(self.annotations()),
            ..ObjectMeta::default()
        }
    }

    /// For a pod, with annotations for its runtime.
    pub fn pod_metadata(&self, component: &'static str, annotations: BTreeMap<String, String>) -> ObjectMeta {
        let mut labels = self.labels(component.into());
        labels.insert(labels::ROLE.to_owned(), AGENT_ROLE.to_owned());
        let mut all = self.annotations();
        all.insert(SAFE_TO_EVICT.to_owned(), "false".to_owned());
        all.extend(annotations);
        ObjectMeta { labels: Some(labels), annotations: Some(all), ..ObjectMeta::default() }
    }

    /// Selects every pod of this run, and no other.
    pub fn selector(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(labels::RUN_UID.to_owned(), self.uid.clone())])
    }

    fn owned_metadata(&self, name: String, about: ObjectPurpose<'_>) -> ObjectMeta {
        let run = &self.plan.run;
        ObjectMeta {
            name: Some(name),
            namespace: Some(run.namespace.as_str().to_owned()),
            labels: Some(self.labels(about)),
            annotations: Some(self.annotations()),
            owner_references: Some(vec![OwnerReference {
                api_version: labels::API_VERSION.to_owned(),
                kind: "AgentRun".to_owned(),
                name: run.name.as_str().to_owned(),
                uid: run.uid.as_str().to_owned(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        }
    }

    fn labels(&self, about: ObjectPurpose<'_>) -> BTreeMap<String, String> {
        let mut labels = self.labels.clone();
        labels.insert(labels::COMPONENT.to_owned(), about.component.to_owned());
        if let Some(pack) = about.pack {
            labels.insert(labels::SKILL.to_owned(), label_value(pack));
        }
        labels
    }

    fn annotations(&self) -> BTreeMap<String, String> {
        let digest = self.digest.as_str().to_owned();
        BTreeMap::from([(annotation::PLAN_DIGEST.to_owned(), digest)])
    }
}
