//! The namespace of a case, with a person in it who decides, and the node below.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use sympozium_api::labels::API_VERSION;
use sympozium_api::run_plan::RunIdentity;
use sympozium_conformance::case::OutcomeKind;
use sympozium_conformance::{Case, Observed};
use sympozium_plan::render::names::object_name;
use sympozium_testkit::cluster::Cluster;
use sympozium_testkit::cluster::api::Api;

use super::node::Node;
use super::objects::Objects;
use super::observer::{PERSON, RunObserver};
use super::records::{Listing, rights_left};
use super::turn::Turn;
use super::{Kernel, outcome, rules};

/// How long the controller manager may take for the service account of a namespace.
const ACCOUNT_PATIENCE: Duration = Duration::from_secs(180);

/// The namespace of a case. It goes with the cluster; in one that is not ours it is deleted when this is dropped.
pub struct CaseNamespace {
    pub api: Api,
    /// The person who decides.
    pub person: Api,
    pub node: Node,
    cluster: &'static Cluster,
    name: String,
}

impl CaseNamespace {
    /// Makes the namespace, as strict as namespaces get.
    pub fn new(cluster: &'static Cluster, name: String) -> anyhow::Result<Self> {
        let api = cluster.api()?;
        let level = json!({ "pod-security.kubernetes.io/enforce": "restricted" });
        api.create(&json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": name, "labels": level },
        }))?;
        api.create(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "approver", "namespace": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "sympozium-approver"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": PERSON}],
        }))?;
        // Without it the pod of the run would be refused.
        let accounts = format!("/api/v1/namespaces/{name}/serviceaccounts");
        let what = "the service account of the namespace";
        api.wait_for(what, (&accounts, "default"), ACCOUNT_PATIENCE, |_| Some(()))?;
        Ok(Self { person: cluster.api_impersonating(PERSON)?, node: Node::new(cluster)?, api, cluster, name })
    }

    /// The path of its runs.
    pub fn runs(&self) -> String {
        self.kind("agentruns")
    }

    /// The path of its pods.
    pub fn pods(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.name)
    }

    /// The path of its questions to people.
    pub fn questions(&self) -> String {
        self.kind("toolapprovals")
    }

    /// The path of what is recorded of its runs.
    pub fn records(&self) -> String {
        self.kind("runrecords")
    }

    fn kind(&self, plural: &str) -> String {
        format!("/apis/{API_VERSION}/namespaces/{}/{plural}", self.name)
    }

    /// SIGKILL for the first process of a container.
    pub fn kill(&self, pod: &str, container: &str) -> anyhow::Result<()> {
        self.node.kill(&self.name, pod, container)
    }

    /// Realises a case, when it is its turn.
    pub fn realise(&self, case: &Case, objects: &Objects, kernel: Kernel) -> anyhow::Result<Observed> {
        let claims = objects.claims();
        for claim in &claims {
            self.claim(claim)?;
        }
        for object in &objects.others {
            self.api.create(object)?;
        }
        let turn = Turn::take(&self.api, objects.floor.as_ref())?;
        let run = self.api.create(&objects.run)?;
        let is_denied = case.spec.expect.outcome == OutcomeKind::Denied;
        let (turn, _undecided) = if is_denied { (None, Some(turn.pass_on())) } else { (Some(turn), None) };
        let workspace = objects.has_hooks_after().then(|| self.workspace(&run));
        let workspace = workspace.transpose()?;
        let mut observer = RunObserver::new(case, self, turn, run);
        observer.sees_files = kernel == Kernel::Node;
        observer.claim = workspace.as_ref().map(|(_, directory)| directory.clone());
        observer.follow()?;
        let observed = self.observed(observer, kernel);
        for claim in claims.iter().chain(workspace.iter().map(|(name, _)| name)) {
            self.node.withdraw(&self.name, claim);
        }
        observed
    }

    /// A claim that manifests name, and a volume for it.
    fn claim(&self, name: &str) -> anyhow::Result<()> {
        self.node.provide(&self.name, name)?;
        self.api.create(&json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": self.name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "",
                "resources": {"requests": {"storage": "1Mi"}},
            },
        }))?;
        Ok(())
    }

    /// A volume for the claim that will be made for the run's workspace: its name, and where its files are.
    fn workspace(&self, run: &Value) -> anyhow::Result<(String, PathBuf)> {
        let identity: RunIdentity = serde_json::from_value(json!({
            "namespace": self.name, "name": run["metadata"]["name"],
            "uid": run["metadata"]["uid"], "agent": "worker", "agentKind": "Agent",
            "agentId": "", "sessionKey": "",
        }))?;
        let claim = object_name(&identity, "workspace");
        let directory = self.node.provide(&self.name, &claim)?;
        Ok((claim, directory))
    }

    fn observed(&self, observer: RunObserver<'_>, kernel: Kernel) -> anyhow::Result<Observed> {
        let sandboxes = kernel == Kernel::Gvisor;
        let listing = Listing::of(&self.api, &observer.run, sandboxes)?;
        let (outcome, text) = outcome(&observer.run)?;
        let rules = match outcome {
            OutcomeKind::Denied => rules(&text)?,
            _ => Vec::new(),
        };
        let records = listing.records(&observer.run, observer.files())?;
        let mut leftovers = listing.leftovers();
        if let Some(records) = &records {
            leftovers.extend(rights_left(&self.api, &observer.run, &records.plan)?);
        }
        let remaining = observer.run["status"]["revocation"]["remaining"].as_array();
        let remaining = remaining.into_iter().flatten();
        leftovers.extend(remaining.map(|it| format!("{it}, by the run's own word")));
        Ok(Observed { outcome, text, rules, records, leftovers, surprises: observer.surprises })
    }
}

impl Drop for CaseNamespace {
    fn drop(&mut self) {
        // The API server lists every kind for each namespace that is deleted: for a hundred of them that is minutes of a core, for
        // nothing, since a case has already shown that its run left nothing.
        if !self.cluster.is_ours() {
            let _ = (self.api).delete(&format!("/api/v1/namespaces/{}", self.name));
        }
    }
}
