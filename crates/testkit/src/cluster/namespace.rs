//! A namespace for one test.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::{Cluster, Kubectl, PublicName};

/// How long the controller manager may take for a namespace's service account.
const ACCOUNT_PATIENCE: Duration = Duration::from_secs(180);

/// The Pod Security level that a namespace enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// What our runs get.
    Restricted,
    /// Anything goes; for the parts of a test that are not under test.
    Privileged,
}

/// Removed, with all that is in it, when dropped; the removal is not awaited.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    kubectl: Kubectl,
    admin: Kubectl,
}

impl Namespace {
    pub(super) fn open(cluster: &Cluster, label: &str, security: Security) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Tests of one run share a cluster but not a process.
        let name = format!("t-{label}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let level = match security {
            Security::Restricted => "restricted",
            Security::Privileged => "privileged",
        };
        let admin = cluster.kubectl();
        admin.create(&json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": level}},
        }))?;
        let namespace = Self { kubectl: admin.clone().in_namespace(&name), name, admin };
        // Without it the first pod of a test would be refused.
        let account = namespace.kubectl.until("serviceaccount", "default", ACCOUNT_PATIENCE, |_| true);
        account.context("waiting for the namespace's service account")?;
        Ok(namespace)
    }

    /// Its name, different for every test of a run.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cluster's administrator, in this namespace.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Creates an object in this namespace.
    ///
    /// # Errors
    ///
    /// When the API server refuses it.
    pub fn create(&self, object: &Value) -> Result<Value> {
        self.kubectl.create(object)
    }

    /// Makes a Service that leads to a server of the test (or anything else that the cluster reaches) at `to`: in the cluster it
    /// is reached at `port` by its name, and by the address of `public` where that is given.
    ///
    /// # Errors
    ///
    /// When the API server refuses it.
    pub fn lead(&self, service: &str, port: u16, to: SocketAddr, public: Option<&PublicName>) -> Result<Value> {
        let public: Vec<_> = public.iter().map(|it| it.address()).collect();
        let made = self.create(&json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": service},
            "spec": {"ports": [{"name": "server", "port": port}], "externalIPs": public},
        }))?;
        self.create(&json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4", "ports": [{"name": "server", "port": to.port()}],
            "endpoints": [{"addresses": [to.ip()], "conditions": {"ready": true}}],
        }))?;
        Ok(made)
    }

    /// Waits until a pod is in `phase` (`Running`: with every container ready).
    ///
    /// # Errors
    ///
    /// When it is not in time; the message has the pod's events.
    pub fn wait_for_pod(&self, pod: &str, phase: &str, patience: Duration) -> Result<Value> {
        let outcome = self.kubectl.until("pod", pod, patience, |object| {
            let containers = object["status"]["containerStatuses"].as_array();
            let ready = containers.is_some_and(|all| all.iter().all(|one| one["ready"] == true));
            object["status"]["phase"] == phase && (phase != "Running" || ready)
        });
        let outcome = outcome.with_context(|| format!("waiting for pod {pod} to be {phase}"));
        outcome.or_else(|error| {
            let status = self.kubectl.attempt(&["describe", "pod", pod])?.stdout;
            let tail: Vec<_> = status.lines().rev().take(15).collect();
            bail!("{error:#}\n{}", tail.into_iter().rev().collect::<Vec<_>>().join("\n"))
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Best effort: a cluster of ours goes as a whole, and on another one the name says whose it is.
        let _ = self.admin.attempt(&["delete", "namespace", &self.name, "--wait=false", "--ignore-not-found"]);
    }
}
