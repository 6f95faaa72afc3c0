//! The admission policies of an installation, on a real API server: each is tried by a user whom it admits and by
//! one whom it rejects, both with every right that RBAC can give.

mod approvals;
mod objects;
mod runs;

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use sympozium_testkit::cluster::{Cluster, Kubectl, Namespace, Printed, Security, eventually};
use sympozium_testkit::static_build::workspace_root;

use crate::kinds::with_kinds;

/// How long the API server may take to know a policy, and the controller manager to look at it.
const PATIENCE: Duration = Duration::from_secs(180);

/// As `installation.rs` of the API has them.
const CONTROLLER: &str = "system:serviceaccount:sympozium-system:sympozium-controller";
const GATEWAY: &str = "system:serviceaccount:sympozium-system:sympozium-gateway";
/// Two people, who may do everything in the namespace as far as RBAC is concerned.
const ALICE: &str = "alice@example.test";
const BOB: &str = "bob@example.test";
/// A UID, as it is at the end of names.
const UID: &str = "0c8d5f0e7a3b4c1d9e2f60718293a4b5";

/// The policies under names of their own, for one namespace: tests on one cluster must not meet.
struct Guarded {
    cluster: &'static Cluster,
    namespace: Namespace,
    /// What our policies are called here.
    policies: Vec<String>,
}

impl Guarded {
    /// `None` and a recorded skip where there can be no cluster.
    fn open(label: &str) -> Result<Option<Self>> {
        let Some(cluster) = with_kinds()? else {
            return Ok(None);
        };
        let namespace = cluster.namespace(label, Security::Restricted)?;
        let mut guarded = Self { cluster, namespace, policies: Vec::new() };
        guarded.give_rights()?;
        guarded.apply()?;
        Ok(Some(guarded))
    }

    fn name(&self) -> &str {
        self.namespace.name()
    }

    fn admin(&self) -> &Kubectl {
        self.namespace.kubectl()
    }

    /// A user of the namespace.
    fn user(&self, name: &str) -> Kubectl {
        self.admin().clone().impersonating(name)
    }

    /// Whatever is refused is then refused by a policy.
    fn give_rights(&self) -> Result<()> {
        let runs = format!("system:serviceaccount:{}:{}", self.name(), skill());
        for (number, user) in [ALICE, BOB, CONTROLLER, GATEWAY, &runs].iter().enumerate() {
            self.namespace.create(&json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
                "metadata": { "name": format!("everything-{number}") },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
                "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
            }))?;
        }
        // The API server learns of bindings a moment after they are made, one after the other.
        eventually("the rights to be known", PATIENCE, || {
            Ok(self.user(&runs).attempt(&["auth", "can-i", "create", "configmaps"])?.success.then_some(()))
        })
    }

    fn apply(&mut self) -> Result<()> {
        let text = fs::read_to_string(workspace_root().join("config/install/30-admission.yaml"))?;
        let mut objects: Vec<Value> = serde_saphyr::from_multiple(&text)?;
        for object in &mut objects {
            let name = object["metadata"]["name"].as_str().context("no name")?;
            let name = format!("{name}-{}", self.name());
            object["metadata"]["name"] = json!(name);
            if object["kind"] == "ValidatingAdmissionPolicyBinding" {
                object["spec"]["policyName"] = json!(name);
                object["spec"]["matchResources"] = json!({ "namespaceSelector": {
                    "matchLabels": { "kubernetes.io/metadata.name": self.name() },
                } });
            } else {
                self.policies.push(name);
            }
        }
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        let created = (self.cluster.kubectl()).feed(&["create", "-f", "-"], &list)?;
        ensure!(created.success, "creating the policies: {}", created.stderr);
        // Each is in force once something is refused because of it.
        let configmap = configmap("probe", &[]);
        let run = run("probe");
        self.refused_soon("sympozium-run-objects", &configmap)?;
        self.refused_soon("sympozium-records", &record("probe"))?;
        self.refused_soon("sympozium-runs", &claimed(run))
    }

    fn refused_soon(&self, policy: &str, object: &Value) -> Result<()> {
        eventually(&format!("{policy} to be in force"), PATIENCE, || {
            let arguments = ["create", "--dry-run=server", "-f", "-"];
            let printed = self.user(ALICE).feed(&arguments, object)?;
            Ok(printed.stderr.contains(policy).then_some(()))
        })
    }

    /// Tries to create an object, and leaves nothing where it may.
    fn creates(&self, user: &str, object: &Value) -> Result<Tried> {
        let arguments = ["create", "--dry-run=server", "-f", "-"];
        Tried::of(self.user(user).feed(&arguments, object)?)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
            let mut arguments = vec!["delete", kind, "--wait=false", "--ignore-not-found"];
            arguments.extend(self.policies.iter().map(String::as_str));
            // Best effort, as with the namespace: they hold for it alone.
            let _ = self.cluster.kubectl().attempt(&arguments);
        }
    }
}

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
enum Tried {
    Done,
    /// By one of our policies, with this message.
    Refused(String),
}

impl Tried {
    fn of(printed: Printed) -> Result<Self> {
        if printed.success {
            return Ok(Self::Done);
        }
        let Some((_, message)) = printed.stderr.split_once("denied request: ") else {
            bail!("neither done nor refused by a policy: {}", printed.stderr);
        };
        Ok(Self::Refused(message.trim().to_owned()))
    }

    fn refused(message: &str) -> Self {
        Self::Refused(message.to_owned())
    }
}

/// Changes a status, as this user.
fn patch_status(user: &Kubectl, object: &str, patch: &Value) -> Result<Tried> {
    let patch = patch.to_string();
    let arguments = ["patch", object, "--subresource=status", "--type=merge", "-p", &patch];
    Tried::of(user.attempt(&arguments)?)
}

fn run(name: &str) -> Value {
    json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun", "metadata": { "name": name },
        "spec": { "agentRef": "an-agent", "task": "look around" },
    })
}

/// With a claim about its creator.
fn claimed(mut object: Value) -> Value {
    object["metadata"]["annotations"] = json!({ "sympozium.ai/created-by": "somebody" });
    object
}

fn record(name: &str) -> Value {
    json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "RunRecord", "metadata": { "name": name },
        "spec": {
            "run": { "name": "a-run", "uid": "0c8d5f0e-7a3b-4c1d-9e2f-60718293a4b5" },
            "kind": "receipts", "segment": 0, "lines": ["{}"], "head": format!("sha256:{}", "0".repeat(64)),
        },
    })
}

/// Labels besides, a name of a run's form.
fn configmap(word: &str, labels: &[(&str, &str)]) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": format!("a-run-{UID}-{word}"), "labels": { "sympozium.ai/managed-by": "sympozium" } },
        "data": { "a": "b" },
    });
    for (key, value) in labels {
        object["metadata"]["labels"][key] = json!(value);
    }
    object
}

/// The ServiceAccount of a skill.
fn skill() -> String {
    format!("a-run-{UID}-k8sops")
}

/// The controller manager compares the expressions with the kinds' schemas and says what it does not understand.
#[test]
fn the_api_server_understands_every_expression() -> Result<()> {
    let Some(guarded) = Guarded::open("vap-types")? else {
        return Ok(());
    };
    for policy in &guarded.policies {
        let status = eventually("the policy to be looked at", PATIENCE, || {
            let kubectl = guarded.cluster.kubectl();
            let object = kubectl.json(&["get", "validatingadmissionpolicy", policy])?;
            Ok((object["status"]["observedGeneration"] == 1).then(|| object["status"].clone()))
        })?;
        ensure!(status["typeChecking"]["expressionWarnings"].is_null(), "{policy}: {status:#}");
    }
    Ok(())
}
